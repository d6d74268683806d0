//! The API server that is asked, with a time limit and errors that operators understand.

use std::fmt;
use std::time::Duration;

use http::request;
use kube::Client;
use serde_json::Value;

/// A healthy API server answers in milliseconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// An API server.
#[derive(Clone)]
pub struct ApiServer(Client);

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").finish_non_exhaustive()
    }
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The API server refuses.
    #[error("the API server answered {code}: {message}")]
    Answer {
        /// The status of HTTP.
        code: u16,
        /// What the API server says.
        message: String,
    },
    /// It does not answer.
    #[error("no answer of the API server within {} s", REQUEST_TIMEOUT.as_secs())]
    TimedOut,
    /// The request failed.
    #[error("the API server cannot be asked")]
    Failed(#[source] kube::Error),
}

impl RequestError {
    /// Whether there is no such object.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Answer { code: 404, .. })
    }
}

impl ApiServer {
    /// The one that this client asks.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Sends a request of the caller's, and returns the answer as JSON.
    pub(crate) async fn request(
        &self,
        request: request::Builder,
        body: Vec<u8>,
    ) -> Result<Value, RequestError> {
        let request = request
            .body(body)
            .map_err(|error| RequestError::Failed(kube::Error::HttpError(error)))?;
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, self.0.request(request));
        match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(RequestError::Answer {
                code: status.code,
                message: status.message.clone(),
            }),
            Ok(Err(error)) => Err(RequestError::Failed(error)),
            Err(_) => Err(RequestError::TimedOut),
        }
    }
}
