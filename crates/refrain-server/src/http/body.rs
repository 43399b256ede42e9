//! The body of a response: one piece, or a stream of events.

use super::pulse::Busy;
use crate::legacy::Reader;
use crate::relay::RelayStream;
use crate::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Bytes of events that are collected before they are sent.
const PIECE: usize = 64 << 10;

/// The body of a response.
pub struct Body {
    inner: Inner,
    /// Keeps the connection of a stream busy.
    busy: Option<Busy>,
}

enum Inner {
    Full(Option<Bytes>),
    Events(Box<EventStream>),
    Relayed(Box<RelayStream>),
}

impl Body {
    fn new(inner: Inner) -> Self {
        Self { inner, busy: None }
    }

    pub(super) fn empty() -> Self {
        Self::new(Inner::Full(None))
    }

    pub(crate) fn full(bytes: Bytes) -> Self {
        Self::new(Inner::Full(Some(bytes)))
    }

    /// The stream of another instance, passed on.
    pub(super) fn relayed(stream: RelayStream) -> Self {
        Self::new(Inner::Relayed(Box::new(stream)))
    }

    /// The events of this source, and a comment whenever it is silent for this long.
    pub(super) fn events(source: Source, keep_alive: Duration) -> Self {
        Self::new(Inner::Events(Box::new(EventStream {
            source,
            keep_alive,
            next: Box::pin(tokio::time::sleep(keep_alive)),
        })))
    }

    /// Keeps the connection busy while this is a stream.
    pub(super) fn keep_busy(&mut self, busy: Busy) {
        if !matches!(self.inner, Inner::Full(_)) {
            self.busy = Some(busy);
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match &mut self.inner {
            Inner::Full(bytes) => bytes.take(),
            Inner::Events(stream) => ready!(stream.poll_next(cx)),
            Inner::Relayed(stream) => ready!(stream.poll_next(cx)),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.inner, Inner::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Inner::Events(_) | Inner::Relayed(_) => SizeHint::new(),
        }
    }
}

/// The source of events.
#[expect(
    clippy::large_enum_variant,
    reason = "it is boxed with the stream of events"
)]
pub(super) enum Source {
    /// A response, and a message that was taken out of it. Dropping it, as hyper does when the client goes away, cancels the
    /// handler.
    Response(Option<Vec<u8>>, Response),
    /// A stream that its client may resume. Dropping it only stops reading.
    Replayed {
        reader: Reader,
        /// Does the stream begin with an event id, so that the client can resume it before there is a message?
        greets: bool,
    },
}

struct EventStream {
    source: Source,
    /// A stream that is silent for this long gets a comment.
    keep_alive: Duration,
    next: Pin<Box<Sleep>>,
}

impl EventStream {
    /// The messages that are ready.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        match &mut self.source {
            Source::Response(first, _) => {
                if let Some(message) = first.take() {
                    event(&mut out, &message);
                }
            }
            Source::Replayed { reader, greets } => {
                if std::mem::take(greets) {
                    out.extend_from_slice(format!("id: {}\ndata:\n\n", reader.id()).as_bytes());
                }
            }
        }
        while out.len() < PIECE {
            let next = match &mut self.source {
                Source::Response(_, response) => response
                    .poll_next(cx)
                    .map(|next| next.map(|(_, message)| event(&mut out, &message))),
                Source::Replayed { reader, .. } => reader.poll_next(cx).map(|next| {
                    next.map(|(_, message)| {
                        out.extend_from_slice(format!("id: {}\n", reader.id()).as_bytes());
                        event(&mut out, &message);
                    })
                }),
            };
            match next {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) if out.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        if out.is_empty() {
            ready!(self.next.as_mut().poll(cx));
            out.extend_from_slice(b":\n\n");
        }
        self.next.as_mut().reset(Instant::now() + self.keep_alive);
        Poll::Ready(Some(out.into()))
    }
}

fn event(out: &mut Vec<u8>, message: &[u8]) {
    out.extend_from_slice(b"event: message\ndata: ");
    out.extend_from_slice(message);
    out.extend_from_slice(b"\n\n");
}
