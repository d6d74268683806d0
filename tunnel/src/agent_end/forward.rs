//! Forwards a stream of another proxy into the tunnel of its node's agent, frame by frame. Both
//! directions have the flow control of HTTP/2 end to end, and their data counts in the budget.

use std::pin::{Pin, pin};

use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;

use super::respond::{opened, refuse};
use super::{StreamError, ThroughTunnel};
use crate::budget::outbox::Payload;
use crate::dial_failure::DialFailure;
use crate::frame;
use crate::grpc;
use crate::proto::tunnel::DialCode;
use crate::proxy_end::{OpenError, RequestedStream, first_frame};
use crate::relay::{Incoming, RelayError, after_delivery, between_tunnels, reset};
use crate::transferred::Transferred;

/// Opens a stream in the agent's tunnel and forwards until both directions have ended or one has
/// failed. The response headers tell the other proxy that the tunnel works: only then it sends the
/// first bytes of a client that does not wait for its backend.
///
/// # Errors
/// The tunnel did not work, or a direction failed. The other proxy gets the reason.
pub(super) async fn forward(
    through: Box<ThroughTunnel>,
    incoming: &mut Incoming,
    respond: &mut SendResponse<Payload>,
    transferred: &Transferred,
) -> Result<(), StreamError> {
    let ThroughTunnel { tunnel, open } = *through;
    let requested = match tunnel.request_stream(first_frame(open)).await {
        Ok(requested) => requested,
        Err(error) => {
            let failure = failure(&error);
            // The stream has failed, whether or not the answer can be sent.
            refuse(respond, &failure).ok();
            return Err(StreamError::Dial(failure));
        }
    };
    let mut to_proxy = respond
        .send_response(grpc::response(), false)
        .map_err(|error| StreamError::Relay(error.into()))?;
    let RequestedStream {
        response,
        send: mut to_agent,
        budget,
        permit: _permit,
    } = requested;
    let peer_budget = incoming.budget();
    let result = {
        let up = pin!(async {
            let meter = &transferred.out_of_tunnel;
            between_tunnels(incoming, &mut to_agent, &budget, meter).await?;
            Ok(to_agent.send_data(Payload::end(), true)?)
        });
        let down = pin!(async {
            let response = tokio::select! {
                biased;
                response = response => response,
                failed = reset(&mut to_proxy) => return Err(failed),
            };
            let mut answer = match answered(response) {
                Ok(body) => Incoming::new(body, budget.share()),
                Err(error) => return Err(answer_failure(&mut to_proxy, &failure(&error))),
            };
            let meter = &transferred.into_tunnel;
            between_tunnels(&mut answer, &mut to_proxy, &peer_budget, meter).await?;
            let trailers = answer.trailers().await?;
            Ok(to_proxy.send_trailers(trailers)?)
        });
        both(up, down).await.map_err(StreamError::Relay)
    };
    if result.is_err() {
        to_agent.send_reset(Reason::CANCEL);
        // Trailers arrive after the data; a reset would overtake it. If the answer has ended
        // already, nothing is left to say.
        to_proxy.send_trailers(grpc::trailers(grpc::ABORTED)).ok();
    }
    result
}

/// Runs both directions to their ends. After a failure of one, the other may deliver its data.
async fn both(
    mut up: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    mut down: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
) -> Result<(), RelayError> {
    tokio::select! {
        ended = up.as_mut() => match ended {
            Ok(()) => down.await,
            Err(error) => Err(Box::pin(after_delivery(down, error)).await),
        },
        ended = down.as_mut() => match ended {
            Ok(()) => up.await,
            Err(error) => Err(error),
        },
    }
}

/// The body of the agent's answer.
fn answered(response: Result<Response<RecvStream>, h2::Error>) -> Result<RecvStream, OpenError> {
    let response = response.map_err(OpenError::Tunnel)?;
    match grpc::error_of(&response) {
        Some(error) => Err(OpenError::Answer(error)),
        None => Ok(response.into_body()),
    }
}

/// Tells the other proxy why the agent did not answer, in place of the agent.
fn answer_failure(to_proxy: &mut SendStream<Payload>, failure: &DialFailure) -> RelayError {
    let answer = opened(failure.code, failure.message.clone());
    if let Err(error) = to_proxy.send_data(frame::encode(&answer).into(), false) {
        return error.into();
    }
    match to_proxy.send_trailers(grpc::trailers(grpc::OK)) {
        Ok(()) => RelayError::Aborted,
        Err(error) => error.into(),
    }
}

/// The status for the other proxy. With `OFFLINE` it may try elsewhere.
fn failure(error: &OpenError) -> DialFailure {
    let code = match error {
        OpenError::TooManyStreams(_) => DialCode::TooManyStreams,
        OpenError::Tunnel(_) | OpenError::TimedOut => DialCode::Offline,
        OpenError::Answer(_) | OpenError::Refused(_) | OpenError::Client(_) => DialCode::Failed,
    };
    let cause = std::error::Error::source(error);
    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
    let message = format!("{error}{cause}");
    DialFailure { code, message }
}
