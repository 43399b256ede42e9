//! A stream of events that can be taken up again.
//!
//! What always holds: what was handed to a reader is kept as long as there is room for it, so that a client that comes
//! back is told what it has missed; asks and replies that nobody has read yet are never thrown away while their stream
//! goes on. Notes may be missing from what a client is told that comes back, asks and replies never are.

use super::{EventId, Purpose, Session};
use crate::response::MessageKind;
use crate::server::Server;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::sync::Notify;

/// Streams that are kept for clients that come back.
const STREAMS: usize = 4096;
/// Events of one stream that are kept.
const EVENTS: usize = 1024;

/// The streams of this instance.
pub(crate) struct Streams {
    instance: String,
    next: AtomicU64,
    /// Bytes that may be kept of all of them.
    room: usize,
    /// Bytes that are.
    kept: Arc<AtomicUsize>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    streams: HashMap<u64, Arc<Stream>>,
    /// Those to which nothing more comes, the oldest first.
    finished: BTreeSet<u64>,
    /// The stream on which a session is told what belongs to no call.
    listening: HashMap<Arc<str>, u64>,
}

/// Why a stream cannot be taken up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Another instance has it, or had it: an instance that is restarted is another.
    Elsewhere,
    /// It is over, or never was, or what came after this event is no longer there.
    Gone,
}

impl Streams {
    pub(super) fn new(instance: String, room: usize) -> Self {
        Self {
            instance,
            next: AtomicU64::new(1),
            room,
            kept: Arc::default(),
            open: Mutex::default(),
        }
    }

    /// Begins a stream of this session.
    pub(crate) fn begin(
        &self,
        session: &Session,
        room: usize,
        purpose: Option<&Purpose>,
    ) -> Arc<Stream> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Stream {
            instance: self.instance.clone(),
            number,
            session: session.key.clone(),
            purpose: purpose.and_then(Purpose::text).map(Arc::from),
            room,
            kept: self.kept.clone(),
            state: Mutex::default(),
            changed: Notify::new(),
        });
        self.lock().streams.insert(number, stream.clone());
        stream
    }

    /// Adds a message to a stream.
    pub(crate) fn push(&self, stream: &Stream, sent: MessageKind, message: Vec<u8>) {
        stream.push(sent, message);
        if self.forget_finished() {
            return;
        }
        let excess = self.kept.load(Ordering::Relaxed).saturating_sub(self.room);
        stream.shrink(excess);
    }

    /// Has this be the stream on which its session is told what belongs to no call. The one before it ends.
    pub(crate) fn listen_on(&self, stream: &Stream) {
        let mut open = self.lock();
        let before = open.listening.insert(stream.session.clone(), stream.number);
        let before = before.and_then(|number| open.streams.get(&number).cloned());
        drop(open);
        if let Some(before) = before {
            before.finish();
            self.forget(&before);
        }
    }

    /// Does somebody read the stream on which this session is told what belongs to no call?
    pub(crate) fn is_heard(&self, session: &Session) -> bool {
        let open = self.lock();
        let number = open.listening.get(&session.key);
        let stream = number.and_then(|number| open.streams.get(number).cloned());
        drop(open);
        stream.is_some_and(|stream| stream.lock().attached)
    }

    /// Nothing more comes to a stream.
    fn finish(&self, stream: &Stream) {
        stream.finish();
        let mut open = self.lock();
        if open.streams.contains_key(&stream.number) {
            open.finished.insert(stream.number);
        }
        drop(open);
        self.forget_finished();
    }

    /// Forgets the oldest of those to which nothing more comes, for as long as there are too many. `false`: that was not
    /// enough.
    fn forget_finished(&self) -> bool {
        loop {
            let open = self.lock();
            let many = open.streams.len() > STREAMS;
            if !many && self.kept.load(Ordering::Relaxed) <= self.room {
                return true;
            }
            let oldest = open.finished.first();
            let oldest = oldest.and_then(|oldest| open.streams.get(oldest).cloned());
            drop(open);
            match oldest {
                Some(oldest) => self.forget(&oldest),
                None => return false,
            }
        }
    }

    /// The rest of a stream of this session, after this event.
    pub(crate) fn resume(&self, session: &Session, after: &EventId) -> Result<Reader, Lost> {
        if after.instance != self.instance {
            return Err(Lost::Elsewhere);
        }
        let stream = self.lock().streams.get(&after.stream).cloned();
        let stream = stream.filter(|stream| stream.session == session.key);
        stream.ok_or(Lost::Gone)?.read_after(after.place)
    }

    /// Forgets a stream: nobody can come back to it.
    pub(crate) fn forget(&self, stream: &Stream) {
        let mut open = self.lock();
        open.streams.remove(&stream.number);
        open.finished.remove(&stream.number);
        if open.listening.get(&stream.session) == Some(&stream.number) {
            open.listening.remove(&stream.session);
        }
        drop(open);
        stream.forgotten();
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }
}

impl Server {
    /// Ends a stream, and keeps it for a client that comes back for the rest, unless it is forgotten before.
    pub(crate) async fn end_stream(&self, stream: &Stream) {
        let streams = &self.0.legacy.streams;
        streams.finish(stream);
        let forgotten = stream.until(|state| state.forgotten);
        let _ = tokio::time::timeout(self.0.limits.resume_time, forgotten).await;
        streams.forget(stream);
    }
}

/// A stream of events.
pub(crate) struct Stream {
    pub(super) instance: String,
    pub(super) number: u64,
    pub(super) session: Arc<str>,
    /// What the ids of its events say it is for.
    purpose: Option<Arc<str>>,
    /// Bytes that are kept of it.
    room: usize,
    /// Bytes that are kept of all streams that are not forgotten.
    kept: Arc<AtomicUsize>,
    state: Mutex<State>,
    /// A reader came or went or took something, or it is over.
    changed: Notify,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    bytes: usize,
    /// The place of the last event, counted from 1.
    last: u64,
    /// The place of the last event that was thrown away, notes aside.
    lost: u64,
    /// The place of the reply, if there is one.
    replied: Option<u64>,
    /// The place of the last event that the present reader took, or had before it came back.
    taken: u64,
    over: bool,
    /// Can nobody come back to it?
    forgotten: bool,
    /// Readers so far. Only the latest reads.
    readers: u64,
    attached: bool,
    waker: Option<Waker>,
}

struct Event {
    place: u64,
    sent: MessageKind,
    message: Bytes,
}

impl State {
    /// Throws away what there is no room for: first what was read, then notes.
    fn make_room(&mut self, room: usize) {
        while self.bytes > room || self.events.len() > EVENTS {
            let taken = self.taken;
            let read = |event: &Event| event.place <= taken;
            let at = match self.events.front() {
                Some(first) if read(first) => Some(0),
                _ => self
                    .events
                    .iter()
                    .position(|event| event.sent == MessageKind::Notification),
            };
            let Some(event) = at.and_then(|at| self.events.remove(at)) else {
                return;
            };
            self.bytes -= event.message.len();
            if event.sent != MessageKind::Notification {
                self.lost = self.lost.max(event.place);
            }
        }
    }
}

impl Stream {
    /// Adds a message.
    fn push(&self, sent: MessageKind, message: Vec<u8>) {
        let mut state = self.lock();
        if state.over {
            return;
        }
        let before = state.bytes;
        state.last += 1;
        state.bytes += message.len();
        let place = state.last;
        if sent == MessageKind::Reply {
            state.replied = Some(place);
        }
        let message = message.into();
        state.events.push_back(Event {
            place,
            sent,
            message,
        });
        state.make_room(self.room);
        self.count(&state, before);
        wake(state);
    }

    /// Throws away so many bytes, if it may.
    fn shrink(&self, excess: usize) {
        let mut state = self.lock();
        let before = state.bytes;
        state.make_room(before.saturating_sub(excess));
        self.count(&state, before);
    }

    /// Counts what is kept, of which there were so many bytes before.
    fn count(&self, state: &State, before: usize) {
        if !state.forgotten {
            self.kept.fetch_add(state.bytes, Ordering::Relaxed);
            self.kept.fetch_sub(before, Ordering::Relaxed);
        }
    }

    /// Nothing more comes.
    fn finish(&self) {
        let mut state = self.lock();
        state.over = true;
        wake(state);
        self.changed.notify_waiters();
    }

    /// Nobody can come back to it.
    fn forgotten(&self) {
        let mut state = self.lock();
        if !state.forgotten {
            state.forgotten = true;
            self.kept.fetch_sub(state.bytes, Ordering::Relaxed);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Reads from the beginning.
    pub(crate) fn read(self: &Arc<Self>) -> Reader {
        self.attach(self.lock(), 0)
    }

    fn read_after(self: &Arc<Self>, place: u64) -> Result<Reader, Lost> {
        let state = self.lock();
        match state.lost > place || place > state.last {
            true => Err(Lost::Gone),
            false => Ok(self.attach(state, place)),
        }
    }

    fn attach(self: &Arc<Self>, mut state: MutexGuard<'_, State>, place: u64) -> Reader {
        state.readers += 1;
        state.attached = true;
        // Whatever another has read before, this one has not been given what comes after.
        state.taken = place;
        let number = state.readers;
        // The reader before this one finds that it is no longer the one.
        wake(state);
        self.changed.notify_waiters();
        Reader {
            stream: self.clone(),
            number,
            place,
        }
    }

    /// Waits until everything was taken.
    pub(crate) async fn drained(&self) {
        self.until(|state| state.taken >= state.last || state.over)
            .await;
    }

    /// Waits until nobody has read for so long, or it is over.
    pub(crate) async fn abandoned(&self, after: Duration) {
        loop {
            self.until(|state| !state.attached || state.over).await;
            let back = self.until(|state| state.attached || state.over);
            let back = tokio::time::timeout(after, back).await;
            if back.is_err() || self.lock().over {
                return;
            }
        }
    }

    async fn until(&self, is: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if is(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Wakes whoever reads, outside of the lock: a waker is somebody else's code.
fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    waker.into_iter().for_each(Waker::wake);
}

/// Reads a stream. Dropping it leaves the stream to another.
pub(crate) struct Reader {
    stream: Arc<Stream>,
    number: u64,
    place: u64,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("stream", &self.stream.number)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// The id of the event that was read last; before the first, one from which the whole stream follows.
    pub(crate) fn id(&self) -> EventId {
        let stream = &self.stream;
        let replied = stream.lock().replied;
        let purpose = stream.purpose.clone();
        EventId {
            instance: stream.instance.clone(),
            stream: stream.number,
            place: self.place,
            purpose: purpose.filter(|_| replied.is_none_or(|replied| self.place < replied)),
        }
    }

    /// The next message, and what it is. `None`: there is no more, or another reads now.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(MessageKind, Bytes)>> {
        let mut state = self.stream.lock();
        let next = ready!(self.poll_in(&mut state, cx));
        Poll::Ready(next.map(|(place, sent, message)| {
            self.place = place;
            state.taken = place;
            drop(state);
            self.stream.changed.notify_waiters();
            (sent, message)
        }))
    }

    fn poll_in(
        &self,
        state: &mut State,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(u64, MessageKind, Bytes)>> {
        // A stream with a hole in it ends, so that its client comes back and is told so.
        if state.readers != self.number || state.lost > self.place {
            return Poll::Ready(None);
        }
        let next = state.events.iter().find(|event| event.place > self.place);
        if let Some(event) = next {
            return Poll::Ready(Some((event.place, event.sent, event.message.clone())));
        }
        if state.over {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next message, and what it is. It stays the next one.
    pub(crate) async fn peek(&self) -> Option<(MessageKind, Bytes)> {
        let next = poll_fn(|cx| self.poll_in(&mut self.stream.lock(), cx)).await;
        next.map(|(_, sent, message)| (sent, message))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        if state.readers == self.number {
            state.attached = false;
            drop(state);
            self.stream.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
