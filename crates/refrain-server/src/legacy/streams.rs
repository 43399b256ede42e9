//! The resumable streams of this instance. A stream stores messages, whether or not a client reads them.
//!
//! A GET with `Last-Event-ID` resumes a stream. If this instance does not have it, the request is relayed to the holder of
//! the stream: the one in the event id if the session was taken over, otherwise the holder of the session. The table shows
//! the response if the request is not relayed.
//!
//! | the stream | of a call | of notifications |
//! | --- | --- | --- |
//! | is stored here | resumes after the event | resumes after the event |
//! | is no longer stored here | error | restarts; error if a client already reads another notification stream of the session |
//! | was stored by its holder, which is gone | error reply: the call is lost | restarts here |
//! | is stored by another instance | error: try again | restarts here |

use super::notifications::SessionNotifications;
use super::request::CALL_HELD_ELSEWHERE;
use super::stream::{Stream, StreamReader};
use super::{CallStream, EventId, LegacySessions, Purpose, RequestId, Session, lost_call};
use crate::auth::Caller;
use crate::limits::{LimitKey, ServerLimits};
use crate::metrics::LiveCallEvent;
use crate::relay::Holder;
use crate::response::{MessageKind, MessageResponse, Status};
use crate::subscriptions::SubscribeError;
use crate::timer::within;
use crate::wire_recorder;
use parking_lot::Mutex;
use refrain_wire::legacy;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::task::JoinSet;

/// The maximum number of stored streams.
pub(super) const MAX_STREAMS: usize = 4096;
/// The maximum number of stored streams per caller.
pub(super) const MAX_STREAMS_EACH: usize = 512;

pub(super) struct Streams {
    instance: String,
    next_number: AtomicU64,
    /// The maximum size of one stream, in bytes.
    stream_limit: usize,
    /// The maximum size of all streams, in bytes.
    total_limit: usize,
    /// The maximum size of the streams of one caller, in bytes.
    caller_limit: usize,
    /// The current size of all streams.
    pub(super) stored_bytes: Arc<AtomicUsize>,
    pub(super) open: Mutex<OpenStreams>,
}

#[derive(Default)]
pub(super) struct OpenStreams {
    pub(super) streams: HashMap<u64, Arc<Stream>>,
    /// Ended streams, oldest first.
    ended: BTreeSet<u64>,
    /// The stream of notifications of each session, by session key.
    notifications: HashMap<Arc<str>, u64>,
    by_caller: HashMap<LimitKey, CallerStreams>,
}

/// The streams of one caller.
#[derive(Default)]
struct CallerStreams {
    count: usize,
    /// The current size of these streams.
    stored_bytes: Arc<AtomicUsize>,
    /// Ended streams, oldest first.
    ended: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamResumeError {
    #[error("malformed Last-Event-ID header")]
    Malformed,
    #[error("another stream of this session has replaced this one")]
    Replaced,
    #[error("the events after Last-Event-ID are no longer available")]
    Gone,
    /// Stored by another instance, or lost in a restart.
    #[error("{CALL_HELD_ELSEWHERE}")]
    Elsewhere,
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
}

impl Streams {
    pub(super) fn new(instance: String, limits: &ServerLimits) -> Self {
        Self {
            instance,
            next_number: AtomicU64::new(1),
            stream_limit: limits.resume_bytes,
            total_limit: limits.resume_bytes_all,
            caller_limit: limits.resume_bytes_each,
            stored_bytes: Arc::default(),
            open: Mutex::default(),
        }
    }

    pub(super) fn open_stream(
        &self,
        session: &Session,
        caller: LimitKey,
        purpose: Option<&Purpose>,
    ) -> Arc<Stream> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.lock();
        let of_caller = open.by_caller.entry(caller.clone()).or_default();
        of_caller.count += 1;
        let stream = Arc::new(Stream {
            instance: self.instance.clone(),
            number,
            session: session.key.clone(),
            is_batch: purpose.is_none(),
            purpose: purpose.and_then(Purpose::encode).map(Arc::from),
            max_bytes: self.stream_limit,
            caller,
            stored_bytes: [self.stored_bytes.clone(), of_caller.stored_bytes.clone()],
            state: Mutex::default(),
        });
        open.streams.insert(number, stream.clone());
        stream
    }

    pub(super) fn push(&self, stream: &Stream, kind: MessageKind, message: Vec<u8>) {
        stream.push(kind, message);
        if !self.evict_ended(&stream.caller) {
            let [of_all, of_caller] = self.excess(stream);
            stream.shrink(of_all.max(of_caller));
            if stream.is_batch {
                stream.drop_oldest(self.excess(stream)[1]);
            }
        }
    }

    /// The bytes above the limits of all streams and of those of the caller.
    fn excess(&self, stream: &Stream) -> [usize; 2] {
        let [all, of_caller] = stream.stored_bytes.each_ref();
        [(all, self.total_limit), (of_caller, self.caller_limit)]
            .map(|(stored, limit)| stored.load(Ordering::Relaxed).saturating_sub(limit))
    }

    /// Makes this stream the notification stream of its session, and removes the previous one.
    fn replace_notifications(&self, stream: &Stream) {
        let mut open = self.open.lock();
        let previous = open
            .notifications
            .insert(stream.session.clone(), stream.number);
        let previous = previous.and_then(|number| open.streams.get(&number).cloned());
        drop(open);
        if let Some(previous) = previous {
            self.forget(&previous);
        }
    }

    fn has_notification_reader(&self, session: &Session) -> bool {
        let open = self.open.lock();
        let number = open.notifications.get(&session.key);
        let stream = number.and_then(|number| open.streams.get(number).cloned());
        drop(open);
        stream.is_some_and(|stream| stream.has_reader())
    }

    /// Ends a stream. It can still be resumed.
    pub(super) fn end(&self, stream: &Stream) {
        stream.end();
        let mut open = self.open.lock();
        if open.streams.contains_key(&stream.number) {
            open.ended.insert(stream.number);
            if let Some(of_caller) = open.by_caller.get_mut(&stream.caller) {
                of_caller.ended.insert(stream.number);
            }
        }
        drop(open);
        self.evict_ended(&stream.caller);
    }

    /// Removes the oldest ended streams while a limit is exceeded: of the caller, then of all callers. Returns false if that
    /// was not enough.
    fn evict_ended(&self, caller: &LimitKey) -> bool {
        loop {
            let open = self.open.lock();
            let of_caller = open.by_caller.get(caller).filter(|streams| {
                streams.count > MAX_STREAMS_EACH
                    || streams.stored_bytes.load(Ordering::Relaxed) > self.caller_limit
            });
            let too_many = open.streams.len() > MAX_STREAMS;
            let oldest = match of_caller {
                Some(streams) => streams.ended.first(),
                None if too_many
                    || self.stored_bytes.load(Ordering::Relaxed) > self.total_limit =>
                {
                    open.ended.first()
                }
                None => return true,
            };
            let oldest = oldest.and_then(|oldest| open.streams.get(oldest).cloned());
            drop(open);
            match oldest {
                Some(oldest) => {
                    if oldest.is_batch {
                        // A client that does not read must not keep the replies in memory.
                        oldest.drop_oldest(usize::MAX);
                    }
                    self.forget(&oldest);
                }
                None => return false,
            }
        }
    }

    pub(super) fn resume(
        &self,
        session: &Session,
        after: &EventId,
    ) -> Result<StreamReader, StreamResumeError> {
        if after.instance != self.instance {
            return Err(StreamResumeError::Elsewhere);
        }
        let stream = self.open.lock().streams.get(&after.stream).cloned();
        let stream = stream.filter(|stream| stream.session == session.key);
        let reader = stream.and_then(|stream| stream.reader_after(after.sequence));
        reader.ok_or(StreamResumeError::Gone)
    }

    /// Removes a stream, which then cannot be resumed.
    pub(super) fn forget(&self, stream: &Stream) {
        let mut open = self.open.lock();
        if open.streams.remove(&stream.number).is_some()
            && let Entry::Occupied(mut of_caller) = open.by_caller.entry(stream.caller.clone())
        {
            let streams = of_caller.get_mut();
            streams.count -= 1;
            streams.ended.remove(&stream.number);
            if streams.count == 0 {
                of_caller.remove();
            }
        }
        open.ended.remove(&stream.number);
        if open.notifications.get(&stream.session) == Some(&stream.number) {
            open.notifications.remove(&stream.session);
        }
        drop(open);
        stream.remove();
    }
}

impl LegacySessions {
    /// Sends responses on a new stream. If no client reads the stream of an anonymous caller for `resume_time`, its calls
    /// are cancelled.
    pub(crate) fn stream_responses(
        self: &Arc<Self>,
        session: &Session,
        caller: LimitKey,
        responses: Vec<MessageResponse>,
        purpose: Option<&Purpose>,
    ) -> StreamReader {
        let is_anonymous = caller.is_anonymous();
        let stream = self.streams.open_stream(session, caller, purpose);
        let reader = stream.reader();
        let (this, session) = (self.clone(), session.clone());
        tokio::spawn(async move {
            let send = |response| {
                let (this, session) = (this.clone(), session.clone());
                this.send_response(session, response, stream.clone())
            };
            let mut calls = JoinSet::new();
            let (ready, pending): (Vec<_>, Vec<_>) =
                responses.into_iter().partition(MessageResponse::is_ready);
            for response in pending {
                calls.spawn(send(response));
            }
            // Ready responses complete without waiting, so a long batch must yield to other Tokio
            // tasks.
            for response in ready {
                send(response).await;
                tokio::task::yield_now().await;
            }
            let resume_time = this.services.limits.resume_time;
            let is_abandoned = tokio::select! {
                biased;
                () = async { while calls.join_next().await.is_some() {} } => false,
                is_abandoned = stream.abandoned(resume_time), if is_anonymous => is_abandoned,
            };
            if is_abandoned {
                this.cancel_abandoned(&stream, calls).await;
                return;
            }
            while calls.join_next().await.is_some() {}
            this.end_stream(&stream).await;
        });
        reader
    }

    /// Cancels the calls of an abandoned stream.
    async fn cancel_abandoned(&self, stream: &Stream, mut calls: JoinSet<()>) {
        for _ in 0..calls.len() {
            self.services.metrics.live(LiveCallEvent::GivenUp);
        }
        tracing::debug!(calls = calls.len(), "abandoned calls cancelled");
        calls.shutdown().await;
        self.streams.forget(stream);
    }

    /// Sends the messages of a response on a stream, until the client cancels the call.
    async fn send_response(
        self: Arc<Self>,
        session: Session,
        mut response: MessageResponse,
        stream: Arc<Stream>,
    ) {
        let id = response.id().map(|id| RequestId::read(id.as_json()));
        let call = id.map(|id| self.register_call(&session, id));
        let send_all = async {
            while let Some((kind, message)) = response.next_message().await {
                if let Status::Busy(retry_after) = response.status() {
                    stream.set_retry_after(*retry_after);
                }
                self.streams.push(&stream, kind, message);
                // A handler that reports progress constantly must not block other Tokio tasks.
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
            () = send_all => {}
            () = cancelled => {}
        }
    }

    /// Sends the notifications of a session on a new stream, until the session ends or the stream is abandoned.
    pub(crate) fn stream_notifications(
        self: &Arc<Self>,
        session: &Session,
        caller: Caller,
    ) -> Result<StreamReader, SubscribeError> {
        let key = caller.limit_key();
        let notifications = self.listen(session, caller)?;
        let purpose = Purpose::Notifications;
        let stream = self.streams.open_stream(session, key, Some(&purpose));
        self.streams.replace_notifications(&stream);
        let reader = stream.reader();
        tokio::spawn(self.clone().send_notifications(notifications, stream));
        Ok(reader)
    }

    async fn send_notifications(
        self: Arc<Self>,
        mut notifications: SessionNotifications,
        stream: Arc<Stream>,
    ) {
        let send_all = async {
            while let Some(message) = notifications.next().await {
                // Unlike a `Notification`, an unread `Ask` is never dropped.
                self.streams.push(&stream, MessageKind::Ask, message);
                // Repeated changes are merged in the subscription while a slow client reads.
                stream.drained().await;
            }
        };
        let has_ended = tokio::select! {
            () = send_all => true,
            _ = stream.abandoned(self.services.limits.resume_time) => false,
        };
        // Releases the permit of the subscription.
        drop(notifications);
        match has_ended {
            true => self.end_stream(&stream).await,
            false => self.streams.forget(&stream),
        }
    }

    /// Ends a stream, and removes it after `resume_time`.
    pub(super) async fn end_stream(&self, stream: &Stream) {
        self.streams.end(stream);
        within(self.services.limits.resume_time, stream.removed()).await;
        self.streams.forget(stream);
    }

    /// Removes the stream of a call whose reply was sent without it.
    pub(crate) fn forget_stream(&self, reader: &StreamReader) {
        self.streams.forget(&reader.stream);
    }

    /// Resumes a stream after an event. The table in the module documentation shows the cases.
    pub(crate) fn resume(
        self: &Arc<Self>,
        session: &Session,
        after: &EventId,
        caller: Caller,
    ) -> Result<StreamReader, StreamResumeError> {
        let error = match self.streams.resume(session, after) {
            Ok(reader) => return Ok(reader),
            Err(error) => error,
        };
        match (after.purpose(), error) {
            // Without this error, two clients would replace each other's stream endlessly.
            (Some(Purpose::Notifications), StreamResumeError::Gone)
                if self.streams.has_notification_reader(session) =>
            {
                Err(StreamResumeError::Replaced)
            }
            (Some(Purpose::Notifications), _) => Ok(self.stream_notifications(session, caller)?),
            (Some(Purpose::Call(call)), StreamResumeError::Elsewhere)
                if self.is_lost(&self.holder_of_stream(session, &call), after) =>
            {
                Ok(self.stream_lost_call(session, caller.limit_key(), &call.id))
            }
            (_, error) => Err(error),
        }
    }

    /// Whether the stream was lost with its holder. If the holder were reachable, the request would have been relayed.
    fn is_lost(&self, holder: &Holder, after: &EventId) -> bool {
        holder.url.is_some() && !self.relay.is_own(holder) && after.instance == holder.id()
    }

    /// The purpose of the stream of a call on this instance.
    pub(crate) fn purpose_of_call(&self, session: &Session, id: &str) -> Purpose {
        let own = &self.relay.own;
        let is_taken_over = !self.relay.is_own(&session.holder);
        let holder = (is_taken_over && own.url.is_some()).then(|| {
            let binding = stream_binding(session, id);
            self.seal_own_holder(&binding)
        });
        let id = id.to_owned();
        Purpose::Call(CallStream { id, holder })
    }

    /// The instance that stores, or stored, the stream of a call.
    pub(crate) fn holder_of_stream(&self, session: &Session, call: &CallStream) -> Holder {
        let holder = call.holder.as_ref().and_then(|sealed| {
            let binding = stream_binding(session, &call.id);
            self.open_holder(&binding, sealed)
        });
        holder.unwrap_or_else(|| session.holder.clone())
    }

    /// A stream with one message: the error that the call with this request id is lost.
    fn stream_lost_call(
        self: &Arc<Self>,
        session: &Session,
        caller: LimitKey,
        id: &str,
    ) -> StreamReader {
        let mut message = Vec::with_capacity(256);
        legacy::write_error(&mut message, Some(id), &lost_call());
        wire_recorder::record_legacy(session.revision, "", &message);
        let stream = self.streams.open_stream(session, caller, None);
        self.streams.push(&stream, MessageKind::Reply, message);
        let (this, reader) = (self.clone(), stream.reader());
        tokio::spawn(async move { this.end_stream(&stream).await });
        reader
    }
}

/// The binding of the holder in event ids of a call.
fn stream_binding(session: &Session, id: &str) -> String {
    format!("stream {} {id}", session.key)
}
