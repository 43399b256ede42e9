//! The body of a response: one piece, or a stream of events.

use super::pulse::Busy;
use crate::legacy::Reader;
use crate::relay::RelayStream;
use crate::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Bytes of events that are gathered at most before they are sent, beside the last one.
const PIECE: usize = 64 << 10;

/// The body of a response.
#[derive(Debug)]
pub struct Body {
    inner: Inner,
    /// Keeps the connection of a stream busy.
    busy: Option<Busy>,
}

#[derive(Debug)]
enum Inner {
    Full(Option<Bytes>),
    Events(Box<EventStream>),
    Replayed(Box<ReplayedStream>),
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

    pub(super) fn events(stream: EventStream) -> Self {
        Self::new(Inner::Events(Box::new(stream)))
    }

    pub(super) fn replayed(stream: ReplayedStream) -> Self {
        Self::new(Inner::Replayed(Box::new(stream)))
    }

    /// Keeps the connection busy while this is a stream.
    pub(super) fn keep_busy(&mut self, busy: Busy) {
        if !matches!(self.inner, Inner::Full(_)) {
            self.busy = Some(busy);
        }
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
            Inner::Replayed(stream) => ready!(stream.poll_next(cx)),
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
            Inner::Events(_) | Inner::Replayed(_) | Inner::Relayed(_) => SizeHint::new(),
        }
    }
}

/// What goes out, as events. Dropping it, as hyper does when the client goes away, cancels the handler.
#[derive(Debug)]
pub(super) struct EventStream {
    /// A message that was taken out of the response.
    first: Option<Vec<u8>>,
    response: Response,
    keep_alive: KeepAlive,
}

impl EventStream {
    pub(super) fn new(first: Option<Vec<u8>>, response: Response, keep_alive: Duration) -> Self {
        Self {
            first,
            response,
            keep_alive: KeepAlive::new(keep_alive),
        }
    }

    /// The messages that are ready, or a sign of life when there was none for a while.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        if let Some(message) = self.first.take() {
            event(&mut out, &message);
        }
        let over = loop {
            if out.len() >= PIECE {
                break false;
            }
            match self.response.poll_next(cx) {
                Poll::Ready(Some((_, message))) => event(&mut out, &message),
                Poll::Ready(None) => break true,
                Poll::Pending => break false,
            }
        };
        self.keep_alive.poll_after(cx, out, over)
    }
}

/// A stream that its client may come back to. Dropping it ends nothing but the reading.
#[derive(Debug)]
pub(super) struct ReplayedStream {
    reader: Reader,
    /// Is the client to be told first where the stream begins, so that it can come back before there is a message?
    greets: bool,
    keep_alive: KeepAlive,
}

impl ReplayedStream {
    pub(super) fn new(reader: Reader, greets: bool, keep_alive: Duration) -> Self {
        Self {
            reader,
            greets,
            keep_alive: KeepAlive::new(keep_alive),
        }
    }

    /// The messages that are ready, or a sign of life when there was none for a while.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        if std::mem::take(&mut self.greets) {
            out.extend_from_slice(format!("id: {}\ndata:\n\n", self.reader.id()).as_bytes());
        }
        let over = loop {
            if out.len() >= PIECE {
                break false;
            }
            match self.reader.poll_next(cx) {
                Poll::Ready(Some((_, message))) => {
                    out.extend_from_slice(format!("id: {}\n", self.reader.id()).as_bytes());
                    event(&mut out, &message);
                }
                Poll::Ready(None) => break true,
                Poll::Pending => break false,
            }
        };
        self.keep_alive.poll_after(cx, out, over)
    }
}

/// Signs of life on a stream that is silent for a while.
#[derive(Debug)]
struct KeepAlive {
    next: Pin<Box<Sleep>>,
    every: Duration,
}

impl KeepAlive {
    fn new(every: Duration) -> Self {
        Self {
            next: Box::pin(tokio::time::sleep(every)),
            every,
        }
    }

    /// What is sent now: all that was ready, or else a sign of life once it is time for one. Nothing when it is `over`.
    fn poll_after(
        &mut self,
        cx: &mut Context<'_>,
        mut ready: Vec<u8>,
        over: bool,
    ) -> Poll<Option<Bytes>> {
        if ready.is_empty() {
            if over {
                return Poll::Ready(None);
            }
            ready!(self.next.as_mut().poll(cx));
            ready.extend_from_slice(b":\n\n");
        }
        self.next.as_mut().reset(Instant::now() + self.every);
        Poll::Ready(Some(ready.into()))
    }
}

fn event(out: &mut Vec<u8>, message: &[u8]) {
    out.extend_from_slice(b"event: message\ndata: ");
    out.extend_from_slice(message);
    out.extend_from_slice(b"\n\n");
}
