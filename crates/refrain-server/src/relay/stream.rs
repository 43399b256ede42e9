//! The response of the receiver of a relayed request, with timeouts.

use super::RelayError;
use crate::limits::Permit;
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::Body as _;
use refrain_http::ResponseBody;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The maximum size of a response that is not a stream.
pub(super) const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The body of a response.
pub(crate) struct RelayBody {
    body: ResponseBody,
    permit: Option<Permit>,
    /// The maximum time without data.
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl RelayBody {
    pub(super) fn new(body: ResponseBody, timeout: Duration) -> Self {
        Self {
            body,
            permit: None,
            timeout,
            deadline: Box::pin(tokio::time::sleep(timeout)),
        }
    }

    /// Holds a permit as long as the body.
    pub(super) fn with_permit(mut self, permit: Permit) -> Self {
        self.permit = Some(permit);
        self
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RelayError>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(RelayError::Timeout)));
        }
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            let deadline = Instant::now() + self.timeout;
            self.deadline.as_mut().reset(deadline);
            match frame.map(|frame| frame.into_data()) {
                Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Err(_trailers)) => {}
                Err(error) => return Poll::Ready(Some(Err(RelayError::Body(error)))),
            }
        }
    }

    pub(crate) async fn collect(mut self) -> Result<Bytes, RelayError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = std::future::poll_fn(|cx| self.poll_next(cx)).await {
            let chunk = chunk?;
            if bytes.len() + chunk.len() > MAX_BYTES {
                return Err(RelayError::TooLarge);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.into())
    }
}

/// Creates the last message of an interrupted stream, if any.
pub(crate) type LastEvent = Box<
    dyn FnOnce(RelayError) -> Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>> + Send + Sync,
>;

/// A body that is a stream of events.
pub(crate) enum RelayStream {
    Open(RelayBody, Option<LastEvent>),
    /// The stream was interrupted; the last message is being created.
    Interrupted(Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>>),
    Ended,
}

impl RelayStream {
    pub(crate) fn new(body: RelayBody, last_event: LastEvent) -> Self {
        Self::Open(body, Some(last_event))
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match self {
                Self::Open(body, last_event) => match ready!(body.poll_next(cx)) {
                    Some(Ok(chunk)) => return Poll::Ready(Some(chunk)),
                    Some(Err(error)) => {
                        let message = last_event.take().map(|last_event| last_event(error));
                        *self = message.map_or(Self::Ended, Self::Interrupted);
                    }
                    None => *self = Self::Ended,
                },
                Self::Interrupted(message) => {
                    let message = ready!(message.as_mut().poll(cx));
                    *self = Self::Ended;
                    if let Some(message) = message {
                        let event = [b"\n\nevent: message\ndata: ", &*message, b"\n\n"].concat();
                        return Poll::Ready(Some(event.into()));
                    }
                }
                Self::Ended => return Poll::Ready(None),
            }
        }
    }
}

pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}
