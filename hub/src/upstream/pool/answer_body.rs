//! The body of an answer of the API server, decompressed where the hub asked for gzip.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, header};
use hyper::body::{Frame, Incoming, SizeHint};

use super::connection::Stream;
use crate::upstream::gunzip::{Decompressed, Gunzip};

/// The body of an answer of the API server. It occupies its stream until its end.
pub(crate) struct AnswerBody {
    body: Incoming,
    stream: Option<Stream>,
    /// Set when the body comes compressed.
    gunzip: Option<Box<Gunzip>>,
}

/// Why a body is not whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("read an answer of the API server")]
    Http(#[from] hyper::Error),
    #[error("decompress an answer of the API server")]
    Gzip(#[from] io::Error),
}

/// The answer to a request that may have been compressed, plain.
pub(crate) fn gunzipped(mut answer: Response<AnswerBody>) -> Response<AnswerBody> {
    let encoding = answer.headers().get(header::CONTENT_ENCODING);
    match encoding {
        Some(encoding) if encoding == "gzip" => {}
        Some(_) | None => return answer,
    }
    answer.headers_mut().remove(header::CONTENT_ENCODING);
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    answer.extensions_mut().insert(Decompressed);
    answer.body_mut().gunzip = Some(Box::new(Gunzip::new()));
    answer
}

impl AnswerBody {
    pub(super) const fn new(body: Incoming, stream: Stream) -> Self {
        Self {
            body,
            stream: Some(stream),
            gunzip: None,
        }
    }

    /// The next frame as it came.
    fn poll_received(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        let body = Pin::new(&mut self.body);
        let frame = ready!(hyper::body::Body::poll_frame(body, context));
        if !matches!(frame, Some(Ok(_))) {
            self.stream = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(AnswerError::from)))
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        loop {
            let Some(gunzip) = &mut self.gunzip else {
                return self.poll_received(context);
            };
            if let Some(plain) = gunzip.next()? {
                return Poll::Ready(Some(Ok(Frame::data(plain))));
            }
            match ready!(self.poll_received(context)) {
                Some(Ok(frame)) => {
                    if let (Ok(bytes), Some(gunzip)) = (frame.into_data(), &mut self.gunzip) {
                        gunzip.push(bytes);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => match &mut self.gunzip {
                    Some(gunzip) if !gunzip.is_finished() => gunzip.finish(),
                    Some(_) | None => return Poll::Ready(None),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.gunzip.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.gunzip {
            Some(_) => SizeHint::default(),
            None => self.body.size_hint(),
        }
    }
}
