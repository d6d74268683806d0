//! The body of a request that expects `100 Continue`: it is read once its server continues.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::BoxError;

/// The time for a server to continue. Some servers never say so, and wait for the body. It is
/// curl's.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// The body of any request.
pub(super) type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// The request, for its server to decide whether it takes the body: hyper would tell the client to
/// continue as soon as it reads the body.
pub(super) fn defer_body<B>(mut request: Request<B>) -> Request<RequestBody>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let expected = request.headers().get(EXPECT);
    let is_expected =
        expected.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if !is_expected {
        return request.map(|body| body.map_err(Into::into).boxed_unsync());
    }
    let told = Arc::new(Notify::new());
    let continued = told.clone();
    hyper::ext::on_informational(&mut request, move |answer| {
        if answer.status() == StatusCode::CONTINUE {
            told.notify_one();
        }
    });
    let wait = async move {
        timeout(CONTINUE_TIMEOUT, continued.notified()).await.ok();
    };
    request.map(|body| {
        let body = DeferredBody {
            wait: Some(Box::pin(wait)),
            body: body.map_err(Into::into).boxed_unsync(),
        };
        body.boxed_unsync()
    })
}

/// A body that is not read before a wait has ended.
struct DeferredBody {
    wait: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    body: RequestBody,
}

impl Body for DeferredBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(context));
            self.wait = None;
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
