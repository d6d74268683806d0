//! The ways in which an operator's request can fail, and what the operator reads.

use culvert_proxy_core::directory::DirectoryError;
use culvert_proxy_trust::TrustError;
use culvert_proxy_trust::tokens::TokensError;
use tonic::Status;

/// The ways in which an operator's request can fail.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Tokens(#[from] TokensError),
}

/// The answer to an operator whose request failed.
pub(super) fn to_status(error: impl Into<ControlError>) -> Status {
    let error = error.into();
    let text = culvert_daemon::chain(&error);
    match error {
        ControlError::Directory(DirectoryError::UnknownNode { .. })
        | ControlError::Tokens(TokensError::Unknown { .. }) => Status::not_found(text),
        ControlError::Directory(DirectoryError::Vip(_) | DirectoryError::Full(_))
        | ControlError::Tokens(TokensError::Full(_)) => Status::resource_exhausted(text),
        ControlError::Directory(
            DirectoryError::Node(_) | DirectoryError::AddressInVipRange { .. },
        ) => Status::invalid_argument(text),
        ControlError::Directory(
            DirectoryError::DescribedInFile { .. }
            | DirectoryError::DescribedInCluster { .. }
            | DirectoryError::NotInCluster { .. },
        )
        | ControlError::Trust(TrustError::NoAuthority) => Status::failed_precondition(text),
        ControlError::Directory(_) | ControlError::Trust(_) | ControlError::Tokens(_) => {
            Status::internal(text)
        }
    }
}
