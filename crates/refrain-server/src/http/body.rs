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

/// Events are combined into chunks of up to about this many bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The body of an HTTP response.
pub struct Body {
    kind: BodyKind,
    is_json: bool,
    /// Marks the connection as busy while a stream is open.
    active: Option<ActiveRequest>,
    /// Counts large chunks of a stream until the client has read them.
    unread: Option<UnreadBytes>,
    #[cfg(feature = "http2")]
    stream: Option<Arc<Stream>>,
}

/// The bytes of responses that a caller has not read.
struct UnreadBytes {
    limits: Arc<InstanceLimits>,
    key: LimitKey,
}

impl UnreadBytes {
    /// Counts these bytes until they are written to the client. A single chunk of any size is allowed.
    fn count(&self, bytes: Bytes) -> Result<Bytes, LimitReached> {
        if bytes.len() <= CHUNK_BYTES {
            return Ok(bytes);
        }
        let limits = &self.limits;
        let counted = bytes.len().min(limits.body_each).min(limits.body_all);
        let permit = limits.responses.acquire_bytes(self.key.clone(), counted)?;
        Ok(guarded(bytes, permit))
    }
}

/// Keeps the guard until hyper has written the bytes, even if the body is dropped before.
pub(super) fn guarded<G: Send + 'static>(bytes: Bytes, guard: G) -> Bytes {
    struct Guarded<G>(Bytes, G);

    impl<G> AsRef<[u8]> for Guarded<G> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    Bytes::from_owner(Guarded(bytes, guard))
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

    /// Records on this stream whether the client reads.
    #[cfg(feature = "http2")]
    pub(super) fn on_stream(mut self, stream: Arc<Stream>) -> Self {
        stream.wait();
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

    /// The events of this source, with a comment after each `keep_alive` interval without one.
    pub(super) fn events(source: EventSource, keep_alive: Duration) -> Self {
        Self::new(BodyKind::Events(Box::new(EventStream {
            source,
            keep_alive,
            next: Box::pin(tokio::time::sleep(keep_alive)),
        })))
    }

    /// Counts the bytes of this response until the client has read them. Fails if a single buffer is over the limit.
    pub(super) fn count_unread(
        &mut self,
        limits: &Arc<InstanceLimits>,
        key: LimitKey,
    ) -> Result<(), LimitReached> {
        let unread = |key| UnreadBytes {
            limits: limits.clone(),
            key,
        };
        match &mut self.kind {
            BodyKind::Full(Some(bytes)) if bytes.len() > CHUNK_BYTES => {
                *bytes = unread(key).count(std::mem::take(bytes))?;
            }
            BodyKind::Full(_) => {}
            BodyKind::Events(_) | BodyKind::Relayed(_) => self.unread = Some(unread(key)),
        }
        Ok(())
    }

    /// If this is a stream, marks the connection as busy until it ends.
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
            stream.read();
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
            Some(stream) => data.map(|data| stream.write(data)),
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
    /// A response, after its first message. Dropping it cancels the handler: hyper does so when the client disconnects.
    Response(Option<Vec<u8>>, MessageResponse),
    /// A resumable stream. Dropping it only stops reading.
    Resumable {
        reader: StreamReader,
        /// Whether the stream starts with an empty event, whose id lets the client resume before the first message.
        starts_with_id: bool,
    },
}

struct EventStream {
    source: EventSource,
    keep_alive: Duration,
    next: Pin<Box<Sleep>>,
}

impl EventStream {
    /// The messages that are ready, or a comment when `keep_alive` has elapsed.
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
            ready!(self.next.as_mut().poll(cx));
            out.extend_from_slice(b":\n\n");
        }
        self.next.as_mut().reset(Instant::now() + self.keep_alive);
        Poll::Ready(Some(out.into()))
    }
}

fn write_event(out: &mut Vec<u8>, message: &[u8]) {
    out.extend_from_slice(b"event: message\ndata: ");
    out.extend_from_slice(message);
    out.extend_from_slice(b"\n\n");
}
