//! Pages of the proxy's and the redirector's admin sockets.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use culvert_daemon::{AdminSocket, Quota};
use culvert_proxy_cluster::Viewer;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::net::UnixStream;

use super::refusal::Refusal;

/// Tunnels of ten thousand nodes take some MiB.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// One destination of the redirector follows it.
const EXPLAIN: &str = "/debug/explain/";

/// Whose pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Proxy,
    Redirector,
}

impl Program {
    /// Whether `culvert` reads this page of it.
    fn has_page(self, path: &str) -> bool {
        match self {
            Self::Proxy => matches!(path, "/readyz" | "/metrics" | "/debug/tunnels"),
            Self::Redirector => {
                matches!(path, "/readyz" | "/metrics" | "/debug/installed")
                    || path.starts_with(EXPLAIN)
            }
        }
    }
}

/// Serves them for one user.
#[derive(Clone)]
pub(super) struct Pages {
    program: Program,
    socket: PathBuf,
    viewer: Viewer,
    calls: Quota<Viewer>,
}

impl Pages {
    /// # Errors
    /// No program answers on the socket.
    pub(super) async fn open(
        program: Program,
        socket: &Path,
        viewer: Viewer,
        calls: Quota<Viewer>,
    ) -> Result<Self, Refusal> {
        match UnixStream::connect(socket).await {
            Ok(_) => Ok(Self {
                program,
                socket: socket.to_owned(),
                viewer,
                calls,
            }),
            Err(source) => Err(Refusal::Unanswered {
                socket: socket.to_owned(),
                source,
            }),
        }
    }

    pub(super) async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, _) = request.into_parts();
        let path = head.uri.path();
        if head.method != Method::GET || !self.program.has_page(path) {
            return Ok(said(
                StatusCode::FORBIDDEN,
                "the view does not have this page\n",
            ));
        }
        let Some(_permit) = self.calls.acquire(self.viewer) else {
            let refused = "too many questions at once: try again\n";
            return Ok(said(StatusCode::TOO_MANY_REQUESTS, refused));
        };
        match AdminSocket(&self.socket).page(path, MAX_PAGE_BYTES).await {
            Ok(page) => Ok(relayed(page)),
            Err(error) => Ok(said(StatusCode::BAD_GATEWAY, &format!("{error:#}\n"))),
        }
    }
}

fn relayed(page: Response<Bytes>) -> Response<Full<Bytes>> {
    let (head, body) = page.into_parts();
    let mut relayed = Response::new(Full::new(body));
    *relayed.status_mut() = head.status;
    if let Some(kind) = head.headers.get(CONTENT_TYPE) {
        relayed.headers_mut().insert(CONTENT_TYPE, kind.clone());
    }
    relayed
}

fn said(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text.to_owned()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_shows_what_culvert_reads_and_nothing_else() {
        assert!(Program::Proxy.has_page("/debug/tunnels"));
        assert!(Program::Redirector.has_page("/debug/explain/edge-1:9100"));
        for path in ["/debug/log", "/", "/debug/explain/edge-1", "/debug/claims"] {
            assert!(!Program::Proxy.has_page(path), "{path}");
        }
        assert!(!Program::Redirector.has_page("/debug/log"));
    }
}
