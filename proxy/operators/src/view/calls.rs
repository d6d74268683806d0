//! The calls of the control socket that only read.

use std::convert::Infallible;

use culvert_api::proto::control::control_server::ControlServer;
use culvert_daemon::Quota;
use culvert_proxy_cluster::Viewer;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;
use tower::ServiceExt;

use crate::control::Control;

/// What `status`, `nodes`, `node`, `streams`, `why` and `observe` of `culvert` ask. `Explain` may have
/// an agent dial a port that it would dial for any client; nothing is sent there.
const READ_ONLY: [&str; 6] = [
    "/culvert.control.v1.Control/ListNodes",
    "/culvert.control.v1.Control/ListProxies",
    "/culvert.control.v1.Control/ListStreams",
    "/culvert.control.v1.Control/ListCertificates",
    "/culvert.control.v1.Control/Explain",
    "/culvert.control.v1.Control/Observe",
];

/// Serves them for one user.
#[derive(Clone)]
pub(super) struct ReadCalls {
    control: ControlServer<Control>,
    viewer: Viewer,
    calls: Quota<Viewer>,
}

impl ReadCalls {
    pub(super) fn new(control: Control, viewer: Viewer, calls: Quota<Viewer>) -> Self {
        Self {
            control: ControlServer::new(control),
            viewer,
            calls,
        }
    }

    pub(super) async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        if !is_read_only(request.uri().path()) {
            let refused = "the view is read-only: this needs exec in the proxy's pod, or its host";
            return Ok(Status::permission_denied(refused).into_http());
        }
        let Some(_permit) = self.calls.acquire(self.viewer) else {
            let refused = "too many questions at once: try again";
            return Ok(Status::resource_exhausted(refused).into_http());
        };
        self.control.oneshot(request).await
    }
}

fn is_read_only(path: &str) -> bool {
    READ_ONLY.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_something_is_not_served() {
        assert!(is_read_only("/culvert.control.v1.Control/ListNodes"));
        for call in ["RemoveNode", "CreateToken", "ListTokens", "RevokeToken"] {
            let path = format!("/culvert.control.v1.Control/{call}");
            assert!(!is_read_only(&path), "{path}");
        }
    }
}
