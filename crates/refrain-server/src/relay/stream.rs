//! The response of a holder, with its timeouts.

use super::RelayError;
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::Body as _;
use hyper::body::Incoming;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The largest answer that is passed on in one piece.
pub(super) const LARGEST: usize = 64 * 1024 * 1024;

/// The body of a response.
pub(crate) struct RelayBody {
    body: Incoming,
    /// How long the holder may be silent.
    longest: Duration,
    silence: Pin<Box<Sleep>>,
}

impl RelayBody {
    pub(super) fn new(body: Incoming, longest: Duration) -> Self {
        Self {
            body,
            longest,
            silence: Box::pin(tokio::time::sleep(longest)),
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RelayError>>> {
        if self.silence.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(RelayError::Timeout)));
        }
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            let until = Instant::now() + self.longest;
            self.silence.as_mut().reset(until);
            match frame.map(|frame| frame.into_data()) {
                Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Err(_trailers)) => {}
                Err(error) => return Poll::Ready(Some(Err(RelayError::Body(error)))),
            }
        }
    }

    /// The whole body.
    pub(crate) async fn whole(mut self) -> Result<Bytes, RelayError> {
        let mut whole = Vec::new();
        while let Some(piece) = std::future::poll_fn(|cx| self.poll_next(cx)).await {
            let piece = piece?;
            if whole.len() + piece.len() > LARGEST {
                return Err(RelayError::TooLarge);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }
}

/// Makes the last message of a stream that broke off, if there is one to send.
pub(crate) type LastEvent = Box<
    dyn FnOnce(RelayError) -> Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>> + Send + Sync,
>;

/// A stream of events that is passed on as it comes.
pub(crate) enum RelayStream {
    Open(RelayBody, Option<LastEvent>),
    /// The stream broke off.
    Broken(Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>>),
    Over,
}

impl RelayStream {
    pub(crate) fn new(body: RelayBody, last: LastEvent) -> Self {
        Self::Open(body, Some(last))
    }

    /// The next piece of the stream.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match self {
                Self::Open(body, last) => match (ready!(body.poll_next(cx)), last.take()) {
                    (Some(Ok(piece)), taken) => {
                        *last = taken;
                        return Poll::Ready(Some(piece));
                    }
                    (Some(Err(error)), Some(last)) => *self = Self::Broken(last(error)),
                    _ => *self = Self::Over,
                },
                Self::Broken(last) => {
                    let message = ready!(last.as_mut().poll(cx));
                    *self = Self::Over;
                    if let Some(message) = message {
                        let event = [b"\n\nevent: message\ndata: ", &*message, b"\n\n"].concat();
                        return Poll::Ready(Some(event.into()));
                    }
                }
                Self::Over => return Poll::Ready(None),
            }
        }
    }
}

/// Is this the head of a stream of events?
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}
