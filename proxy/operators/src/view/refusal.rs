//! Why a request to the view is refused, and what its client gets.

use std::path::PathBuf;

use bytes::Bytes;
use culvert_api::view::PROTOCOL;
use culvert_daemon::chain;
use culvert_proxy_clients::connect::NotConnected;
use culvert_proxy_cluster::ViewerError;
use http::header::{CONTENT_TYPE, UPGRADE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the request has no bearer token")]
    NoToken,
    #[error(transparent)]
    Viewer(#[from] ViewerError),
    #[error("this is for `culvert --view` only: GET, with `Upgrade: {PROTOCOL}`")]
    NoUpgrade,
    #[error("there is /view/control, /view/proxy, /view/redirector and /view/connect/NODE:PORT")]
    NoSuchPath,
    #[error("this user has as many connections as one may have, or all have: close some")]
    TooManySessions,
    #[error("nothing answers on {}", socket.display())]
    Unanswered {
        socket: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    NotConnected(#[from] NotConnected),
}

impl Refusal {
    pub(super) fn response(&self) -> Response<Full<Bytes>> {
        let text = format!("{}\n", chain(self));
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self, Self::NoUpgrade) {
            headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
        }
        response
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NoToken => StatusCode::UNAUTHORIZED,
            Self::Viewer(error) => match error {
                ViewerError::Malformed | ViewerError::NotAuthenticated(_) => {
                    StatusCode::UNAUTHORIZED
                }
                ViewerError::Forbidden { .. } => StatusCode::FORBIDDEN,
                ViewerError::TooManyRefusals => StatusCode::TOO_MANY_REQUESTS,
                ViewerError::Busy | ViewerError::Unanswered(_) => StatusCode::SERVICE_UNAVAILABLE,
            },
            Self::NoUpgrade => StatusCode::UPGRADE_REQUIRED,
            Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::TooManySessions => StatusCode::TOO_MANY_REQUESTS,
            Self::Unanswered { .. } | Self::NotConnected(_) => StatusCode::BAD_GATEWAY,
        }
    }
}
