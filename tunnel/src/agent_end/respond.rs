//! Answers to the calls of the proxy.

use h2::SendStream;
use h2::server::SendResponse;
use prost::Message;

use crate::budget::outbox::Payload;
use crate::dial_failure::DialFailure;
use crate::error::TunnelError;
use crate::frame;
use crate::grpc;
use crate::proto::tunnel::{DialCode, Frame, Opened, frame::Kind};

/// Answers an `Open` with the reason why its dial failed.
pub(super) fn refuse(
    respond: &mut SendResponse<Payload>,
    failure: &DialFailure,
) -> Result<(), TunnelError> {
    answer_whole(respond, &opened(failure.code, failure.message.clone()))
}

pub(super) fn opened(code: DialCode, message: String) -> Frame {
    let code = code.into();
    Frame {
        kind: Some(Kind::Opened(Opened { code, message })),
    }
}

/// Answers a call to its end.
pub(super) fn answer_whole(
    respond: &mut SendResponse<Payload>,
    message: &impl Message,
) -> Result<(), TunnelError> {
    let mut send = answer(respond, message)?;
    Ok(send.send_trailers(grpc::trailers(grpc::OK))?)
}

/// Answers a call with headers and one message.
pub(super) fn answer(
    respond: &mut SendResponse<Payload>,
    message: &impl Message,
) -> Result<SendStream<Payload>, h2::Error> {
    let mut send = respond.send_response(grpc::response(), false)?;
    send.send_data(frame::encode(message).into(), false)?;
    Ok(send)
}

/// Answers a call with a status of gRPC other than OK.
pub(super) fn reject(
    respond: &mut SendResponse<Payload>,
    status: u8,
    message: &'static str,
) -> Result<(), TunnelError> {
    respond
        .send_response(grpc::error_response(status, message), true)
        .map(|_| ())
        .map_err(TunnelError::from)
}
