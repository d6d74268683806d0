//! One request to the API server, with a time limit and an error that operators understand.

use std::time::Duration;

/// A healthy API server answers in milliseconds.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
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
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Answer { code: 404, .. })
    }

    /// Whether another writer has created or changed the object.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Answer { code: 409, .. })
    }
}

/// Waits for the answer to a request, up to the time limit.
pub(super) async fn ask<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(RequestError::Answer {
            code: status.code,
            message: status.message.clone(),
        }),
        Ok(Err(error)) => Err(RequestError::Failed(error)),
        Err(_) => Err(RequestError::TimedOut),
    }
}
