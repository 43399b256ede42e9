//! The body of a response: one piece, or a stream of events.

use super::pulse::Busy;
use crate::round::{Round, RoundEvent};
use crate::server::Server;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use refrain_core::Note;
use refrain_wire::{Id, Reply, RpcError, write_log, write_progress, write_reply};
use serde_json::value::RawValue;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a response.
#[derive(Debug)]
pub struct Body(Inner);

#[derive(Debug)]
enum Inner {
    Full(Option<Bytes>),
    Events(Box<EventStream>),
}

impl Body {
    pub(super) fn empty() -> Self {
        Self(Inner::Full(None))
    }

    pub(super) fn full(bytes: Bytes) -> Self {
        Self(Inner::Full(Some(bytes)))
    }

    pub(super) fn events(stream: EventStream) -> Self {
        Self(Inner::Events(Box::new(stream)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match &mut self.0 {
            Inner::Full(bytes) => bytes.take(),
            Inner::Events(stream) => ready!(stream.poll_next(cx)),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Inner::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Inner::Events(_) => SizeHint::new(),
        }
    }
}

/// A round at work, whose notes and reply are events. Dropping it, as hyper does when the client goes away, cancels
/// the handler.
#[derive(Debug)]
pub(super) struct EventStream {
    server: Server,
    id: Box<RawValue>,
    round: Option<Box<Round>>,
    first: Vec<Note>,
    _busy: Busy,
}

impl EventStream {
    pub(super) fn new(
        server: Server,
        id: Id<'_>,
        round: Box<Round>,
        first: Vec<Note>,
        busy: Busy,
    ) -> Self {
        let id = RawValue::from_string(id.as_json().to_owned())
            .expect("an id that was parsed from JSON is JSON");
        Self {
            server,
            id,
            round: Some(round),
            first,
            _busy: busy,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(round) = &mut self.round else {
            return Poll::Ready(None);
        };
        let mut out = Vec::with_capacity(256);
        let mut notes = std::mem::take(&mut self.first);
        if notes.is_empty() {
            let reply = match ready!(round.poll(cx)) {
                RoundEvent::Notes(more) => {
                    notes = more;
                    None
                }
                RoundEvent::Reply(reply) => Some(reply),
                RoundEvent::Crashed => Some(Reply::Error(RpcError::internal(
                    "the round was made to crash",
                ))),
            };
            if let Some(reply) = reply {
                self.round = None;
                event(&mut out, |out| {
                    let id = Id::from_raw(&self.id);
                    write_reply(out, id, &reply, &self.server.0.info);
                });
                return Poll::Ready(Some(out.into()));
            }
        }
        let token = round.progress_token();
        for note in &notes {
            event(&mut out, |out| write_note(out, token, note));
        }
        Poll::Ready(Some(out.into()))
    }
}

/// Writes one note as a notification.
pub(crate) fn write_note(out: &mut Vec<u8>, token: Option<&RawValue>, note: &Note) {
    match note {
        Note::Progress {
            done,
            total,
            message,
        } => {
            if let Some(token) = token {
                write_progress(out, token, *done, *total, message.as_deref());
            }
        }
        Note::Log { level, data } => write_log(out, *level, None, data),
    }
}

fn event(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(b"event: message\ndata: ");
    write(out);
    out.extend_from_slice(b"\n\n");
}
