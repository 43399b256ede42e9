//! The response body: a single buffer or a stream of events.

#[cfg(feature = "http2")]
use super::http2::Stream;
use super::idle::ActiveRequest;
use crate::legacy::StreamReader;
use crate::limits::{InstanceLimits, LimitKey, LimitReached};
use crate::relay::RelayStream;
use crate::response::MessageResponse;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use refrain_core::limited_event;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Events are combined into chunks of about this many bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Only larger chunks count as unread.
const UNCOUNTED_BYTES: usize = 8 << 10;

/// The body of an HTTP response.
pub struct Body {
    kind: BodyKind,
    is_json: bool,
    /// Marks the connection as busy while a stream is open.
    active: Option<ActiveRequest>,
    /// Counts large chunks of a stream until the client has read them.
    unread: Option<UnreadCounter>,
    #[cfg(feature = "http2")]
    stream: Option<Arc<Stream>>,
}

/// Counts the bytes of responses that a caller has not read.
struct UnreadCounter {
    limits: Arc<InstanceLimits>,
    key: LimitKey,
}

impl UnreadCounter {
    /// Counts a large chunk until it is written to the client. A chunk over the limit counts as the limit, so that a caller
    /// without other unread chunks can receive it.
    fn count(&self, bytes: Bytes) -> Result<Bytes, LimitReached> {
        if bytes.len() <= UNCOUNTED_BYTES {
            return Ok(bytes);
        }
        let limits = &self.limits;
        let counted = bytes.len().min(limits.body_each).min(limits.body_all);
        let permit = limits.responses.acquire_bytes(self.key.clone(), counted)?;
        Ok(attach_guard(bytes, permit))
    }
}

/// Keeps the guard until hyper has written the bytes, even if the body is dropped before.
pub(super) fn attach_guard<G: Send + 'static>(bytes: Bytes, guard: G) -> Bytes {
    struct GuardedBytes<G>(Bytes, G);

    impl<G> AsRef<[u8]> for GuardedBytes<G> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    Bytes::from_owner(GuardedBytes(bytes, guard))
}

enum BodyKind {
    Full(Option<Bytes>),
    Events(Box<EventStream>),
    Relayed(Box<RelayStream>),
}

impl Body {
    fn new(kind: BodyKind) -> Self {
        Self {
            kind,
            is_json: false,
            active: None,
            unread: None,
            #[cfg(feature = "http2")]
            stream: None,
        }
    }

    /// Sends this body on an HTTP/2 stream, which records whether the client reads.
    #[cfg(feature = "http2")]
    pub(super) fn on_stream(mut self, stream: Arc<Stream>) -> Self {
        stream.record_waiting();
        self.stream = Some(stream);
        self
    }

    pub(super) fn empty() -> Self {
        Self::new(BodyKind::Full(None))
    }

    pub(crate) fn full(bytes: Bytes) -> Self {
        Self::new(BodyKind::Full(Some(bytes)))
    }

    pub(super) fn json(bytes: Bytes) -> Self {
        Self {
            is_json: true,
            ..Self::full(bytes)
        }
    }

    pub(super) fn is_json(&self) -> bool {
        self.is_json
    }

    pub(super) fn relayed(stream: RelayStream) -> Self {
        Self::new(BodyKind::Relayed(Box::new(stream)))
    }

    /// A stream of events, with a comment after each `keep_alive` interval without an event.
    pub(super) fn events(source: EventSource, keep_alive: Duration) -> Self {
        Self::new(BodyKind::Events(Box::new(EventStream {
            source,
            keep_alive,
            next_keep_alive: Box::pin(tokio::time::sleep(keep_alive)),
        })))
    }

    /// Counts the bytes of this response until the client has read them. Fails if a single buffer is over the limit.
    pub(super) fn count_unread(
        &mut self,
        limits: &Arc<InstanceLimits>,
        key: LimitKey,
    ) -> Result<(), LimitReached> {
        let counter = |key| UnreadCounter {
            limits: limits.clone(),
            key,
        };
        match &mut self.kind {
            BodyKind::Full(Some(bytes)) if bytes.len() > UNCOUNTED_BYTES => {
                *bytes = counter(key).count(std::mem::take(bytes))?;
            }
            BodyKind::Full(_) => {}
            BodyKind::Events(_) | BodyKind::Relayed(_) => self.unread = Some(counter(key)),
        }
        Ok(())
    }

    /// If this body is a stream, keeps its request in flight until the stream ends.
    pub(super) fn keep_active(&mut self, active: ActiveRequest) {
        if !matches!(self.kind, BodyKind::Full(_)) {
            self.active = Some(active);
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("active", &self.active)
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
        #[cfg(feature = "http2")]
        if let Some(stream) = &self.stream {
            stream.record_read();
        }
        let data = match &mut self.kind {
            BodyKind::Full(bytes) => bytes.take(),
            BodyKind::Events(stream) => ready!(stream.poll_next(cx)),
            BodyKind::Relayed(stream) => ready!(stream.poll_next(cx)),
        };
        let data = match (data, &self.unread) {
            (Some(data), Some(unread)) => match unread.count(data) {
                Ok(data) => Some(data),
                Err(reached) => {
                    limited_event!(WARN, reason = %reached, "stream ended: client does not read");
                    None
                }
            },
            (data, _) => data,
        };
        #[cfg(feature = "http2")]
        let data = match &self.stream {
            Some(stream) => data.map(|data| stream.guard(data)),
            None => data,
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.kind, BodyKind::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            BodyKind::Events(_) | BodyKind::Relayed(_) => SizeHint::new(),
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "the event stream boxes it")]
pub(super) enum EventSource {
    /// The first message of a response, and the response. Dropping it cancels the handler: hyper does so when the client
    /// disconnects.
    Response(Option<Vec<u8>>, MessageResponse),
    /// A resumable stream. The handler continues if it is dropped.
    Resumable {
        reader: StreamReader,
        /// Whether the stream starts with an empty event, whose id lets the client resume before the first message.
        starts_with_id: bool,
    },
}

struct EventStream {
    source: EventSource,
    keep_alive: Duration,
    next_keep_alive: Pin<Box<Sleep>>,
}

impl EventStream {
    /// The events that are ready, or a comment when `keep_alive` has elapsed.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        match &mut self.source {
            EventSource::Response(first, _) => {
                if let Some(message) = first.take() {
                    write_event(&mut out, &message);
                }
            }
            EventSource::Resumable {
                reader,
                starts_with_id,
            } => {
                if std::mem::take(starts_with_id) {
                    out.extend_from_slice(format!("id: {}\ndata:\n\n", reader.id()).as_bytes());
                }
            }
        }
        while out.len() < CHUNK_BYTES {
            let next = match &mut self.source {
                EventSource::Response(_, response) => response
                    .poll_next(cx)
                    .map(|next| next.map(|(_, message)| write_event(&mut out, &message))),
                EventSource::Resumable { reader, .. } => reader.poll_next(cx).map(|next| {
                    next.map(|(_, message)| {
                        out.extend_from_slice(format!("id: {}\n", reader.id()).as_bytes());
                        write_event(&mut out, &message);
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
            ready!(self.next_keep_alive.as_mut().poll(cx));
            out.extend_from_slice(b":\n\n");
        }
        let next_keep_alive = Instant::now() + self.keep_alive;
        self.next_keep_alive.as_mut().reset(next_keep_alive);
        Poll::Ready(Some(out.into()))
    }
}

fn write_event(out: &mut Vec<u8>, message: &[u8]) {
    out.extend_from_slice(b"event: message\ndata: ");
    out.extend_from_slice(message);
    out.extend_from_slice(b"\n\n");
}
