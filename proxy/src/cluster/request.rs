//! One request to the API server: bounded in time, with an error that an operator understands.

use std::time::Duration;

/// An API server that is well answers in milliseconds.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the API server answered {code}: {message}")]
    Answer { code: u16, message: String },
    #[error("no answer of the API server within {} s", REQUEST_TIMEOUT.as_secs())]
    TimedOut,
    #[error("the API server cannot be asked")]
    Failed(#[source] kube::Error),
}

impl RequestError {
    /// Whether somebody else has made or changed the object meanwhile.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Answer { code: 409, .. })
    }
}

/// Waits for the answer to a request, not for ever.
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
