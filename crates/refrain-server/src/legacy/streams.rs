//! The streams of this instance: responses and notifications are sent on them, whether a client reads or not.
//!
//! A GET with `Last-Event-ID` resumes a stream. It was relayed to the holder of the session before, unless this instance
//! has the stream.
//!
//! | the stream | of a call | of the session |
//! | --- | --- | --- |
//! | is kept here | goes on after that event | goes on after that event |
//! | is no longer kept here | an error | begins anew, unless another is read |
//! | was at the holder, which is gone | an error as the reply: the call is lost | begins anew here |
//! | is at another instance | an error: try again | begins anew here |

use super::listening::Listening;
use super::request::HELD_ELSEWHERE;
use super::stream::{Reader, Stream};
use super::{EventId, LegacySessions, Purpose, RequestId, Session, lost_call};
use crate::auth::Caller;
use crate::limits::ServerLimits;
use crate::record;
use crate::response::{MessageKind, Response};
use crate::subscriptions::SubscribeError;
use crate::timer::within;
use parking_lot::Mutex;
use refrain_wire::legacy;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::task::JoinSet;

/// Streams that are kept for clients that come back.
pub(super) const STREAMS: usize = 4096;

/// The streams of this instance.
pub(super) struct Streams {
    instance: String,
    next: AtomicU64,
    /// Bytes that may be kept of one stream, and of all.
    room: (usize, usize),
    /// Bytes that are kept of all.
    pub(super) kept: Arc<AtomicUsize>,
    pub(super) open: Mutex<Open>,
}

#[derive(Default)]
pub(super) struct Open {
    pub(super) streams: HashMap<u64, Arc<Stream>>,
    /// Streams that are over.
    over: BTreeSet<u64>,
    /// The stream of each session for notifications outside of calls.
    listening: HashMap<Arc<str>, u64>,
}

/// Why a stream cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error("the Last-Event-ID header is not one that this server gave out")]
    Malformed,
    #[error("another stream of this session has taken the place of this one")]
    Replaced,
    #[error("the stream of this event is no longer kept; what came after it is lost")]
    Gone,
    /// A restarted instance is another one.
    #[error("{HELD_ELSEWHERE}")]
    Elsewhere,
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
}

impl Streams {
    pub(super) fn new(instance: String, limits: &ServerLimits) -> Self {
        Self {
            instance,
            next: AtomicU64::new(1),
            room: (limits.resume_bytes, limits.resume_bytes_all),
            kept: Arc::default(),
            open: Mutex::default(),
        }
    }

    /// Begins a stream of this session.
    pub(super) fn begin(&self, session: &Session, purpose: Option<&Purpose>) -> Arc<Stream> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Stream {
            instance: self.instance.clone(),
            number,
            session: session.key.clone(),
            purpose: purpose.and_then(Purpose::text).map(Arc::from),
            room: self.room.0,
            kept: self.kept.clone(),
            state: Mutex::default(),
        });
        self.open.lock().streams.insert(number, stream.clone());
        stream
    }

    /// Adds a message to a stream.
    pub(super) fn push(&self, stream: &Stream, kind: MessageKind, message: Vec<u8>) {
        stream.push(kind, message);
        if !self.make_room() {
            let kept = self.kept.load(Ordering::Relaxed);
            stream.shrink(kept.saturating_sub(self.room.1));
        }
    }

    /// Makes this the stream of its session for notifications outside of calls. The one before it ends.
    fn listen_on(&self, stream: &Stream) {
        let mut open = self.open.lock();
        let before = open.listening.insert(stream.session.clone(), stream.number);
        let before = before.and_then(|number| open.streams.get(&number).cloned());
        drop(open);
        if let Some(before) = before {
            self.forget(&before);
        }
    }

    /// Does a client read the stream of this session for notifications outside of calls?
    fn is_listening(&self, session: &Session) -> bool {
        let open = self.open.lock();
        let number = open.listening.get(&session.key);
        let stream = number.and_then(|number| open.streams.get(number).cloned());
        drop(open);
        stream.is_some_and(|stream| stream.is_read())
    }

    /// Ends a stream. It can still be resumed.
    pub(super) fn finish(&self, stream: &Stream) {
        stream.finish();
        let mut open = self.open.lock();
        if open.streams.contains_key(&stream.number) {
            open.over.insert(stream.number);
        }
        drop(open);
        self.make_room();
    }

    /// Forgets the oldest streams that are over while there are too many. `false`: that was not enough.
    fn make_room(&self) -> bool {
        loop {
            let open = self.open.lock();
            let many = open.streams.len() > STREAMS;
            if !many && self.kept.load(Ordering::Relaxed) <= self.room.1 {
                return true;
            }
            let oldest = open.over.first();
            let oldest = oldest.and_then(|oldest| open.streams.get(oldest).cloned());
            drop(open);
            match oldest {
                Some(oldest) => self.forget(&oldest),
                None => return false,
            }
        }
    }

    /// The rest of a stream of this session, after this event.
    pub(super) fn resume(&self, session: &Session, after: &EventId) -> Result<Reader, ResumeError> {
        if after.instance != self.instance {
            return Err(ResumeError::Elsewhere);
        }
        let stream = self.open.lock().streams.get(&after.stream).cloned();
        let stream = stream.filter(|stream| stream.session == session.key);
        let reader = stream.and_then(|stream| stream.read_after(after.place));
        reader.ok_or(ResumeError::Gone)
    }

    /// Ends a stream that cannot be resumed any more.
    pub(super) fn forget(&self, stream: &Stream) {
        let mut open = self.open.lock();
        open.streams.remove(&stream.number);
        open.over.remove(&stream.number);
        if open.listening.get(&stream.session) == Some(&stream.number) {
            open.listening.remove(&stream.session);
        }
        drop(open);
        stream.forget();
    }
}

impl LegacySessions {
    /// Sends responses on a stream that they share.
    pub(crate) fn stream(
        self: &Arc<Self>,
        session: &Session,
        responses: Vec<Response>,
        purpose: Option<&Purpose>,
    ) -> Reader {
        let stream = self.streams.begin(session, purpose);
        let reader = stream.read();
        let (this, session) = (self.clone(), session.clone());
        tokio::spawn(async move {
            let mut calls = JoinSet::new();
            for response in responses {
                calls.spawn(
                    this.clone()
                        .drive(session.clone(), response, stream.clone()),
                );
            }
            while calls.join_next().await.is_some() {}
            this.end_stream(&stream).await;
        });
        reader
    }

    async fn drive(self: Arc<Self>, session: Session, mut response: Response, stream: Arc<Stream>) {
        let id = response.id().map(|id| RequestId::read(id.as_json()));
        let call = id.map(|id| self.begin_call(&session, id));
        let sending = async {
            while let Some((kind, message)) = response.next_message().await {
                self.streams.push(&stream, kind, message);
                // A handler that reports progress all the time must not hold up others.
                if kind == MessageKind::Notification {
                    tokio::task::yield_now().await;
                }
            }
        };
        let cancelled = async {
            match &call {
                Some(call) => call.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sending => {}
            () = cancelled => {}
        }
    }

    /// Sends the notifications of a session outside of calls on a stream, for as long as a client may come back.
    pub(crate) fn stream_changes(
        self: &Arc<Self>,
        session: &Session,
        caller: Caller,
    ) -> Result<Reader, SubscribeError> {
        let listening = self.listen(session, caller)?;
        let stream = self.streams.begin(session, Some(&Purpose::Listening));
        self.streams.listen_on(&stream);
        let reader = stream.read();
        tokio::spawn(self.clone().notify(listening, stream));
        Ok(reader)
    }

    async fn notify(self: Arc<Self>, mut listening: Listening, stream: Arc<Stream>) {
        let notifying = async {
            while let Some(message) = listening.next().await {
                self.streams.push(&stream, MessageKind::Ask, message);
                // Changes that a slow client was not told yet are noted only once.
                stream.drained().await;
            }
        };
        let is_over = tokio::select! {
            () = notifying => true,
            () = stream.abandoned(self.services.limits.resume_time) => false,
        };
        // Releases its permit.
        drop(listening);
        match is_over {
            true => self.end_stream(&stream).await,
            false => self.streams.forget(&stream),
        }
    }

    /// Ends a stream, and keeps it for a client that comes back for the rest, unless it is forgotten before.
    pub(super) async fn end_stream(&self, stream: &Stream) {
        self.streams.finish(stream);
        within(self.services.limits.resume_time, stream.forgotten()).await;
        self.streams.forget(stream);
    }

    /// Forgets the stream of a call whose reply the client gets without it.
    pub(crate) fn forget_stream(&self, reader: &Reader) {
        self.streams.forget(&reader.stream);
    }

    /// The rest of a stream that broke, after this event.
    pub(crate) fn resume(
        self: &Arc<Self>,
        session: &Session,
        after: &EventId,
        caller: Caller,
    ) -> Result<Reader, ResumeError> {
        let error = match self.streams.resume(session, after) {
            Ok(reader) => return Ok(reader),
            Err(error) => error,
        };
        match (after.purpose(), error) {
            // Each would replace the other for ever.
            (Some(Purpose::Listening), ResumeError::Gone) if self.streams.is_listening(session) => {
                Err(ResumeError::Replaced)
            }
            (Some(Purpose::Listening), _) => Ok(self.stream_changes(session, caller)?),
            (Some(Purpose::Call(id)), ResumeError::Elsewhere) if self.is_lost(session, after) => {
                Ok(self.report_lost(session, &id))
            }
            (_, error) => Err(error),
        }
    }

    /// Was the stream of this event lost with the holder of the session? If the holder could be reached, the request was
    /// relayed to it.
    fn is_lost(&self, session: &Session, after: &EventId) -> bool {
        let holder = &session.holder;
        holder.url.is_some() && !self.relay.is_own(holder) && after.instance == holder.id()
    }

    /// A stream whose only message says that the call with this id is lost.
    fn report_lost(self: &Arc<Self>, session: &Session, id: &str) -> Reader {
        let mut message = Vec::with_capacity(256);
        legacy::write_error(&mut message, Some(id), &lost_call());
        record::sent_older(session.revision, "", &message);
        let stream = self.streams.begin(session, None);
        self.streams.push(&stream, MessageKind::Reply, message);
        let (this, reader) = (self.clone(), stream.read());
        tokio::spawn(async move { this.end_stream(&stream).await });
        reader
    }
}
