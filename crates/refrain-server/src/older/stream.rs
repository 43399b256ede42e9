//! A stream of events that can be taken up again.
//!
//! What always holds: what was handed to a reader is kept as long as there is room for it, so that a client that comes
//! back is told what it has missed; asks and replies that nobody has read yet are never thrown away.

use super::{Sent, Session};
use crate::server::Server;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
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
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    streams: HashMap<u64, Arc<Stream>>,
    /// The stream on which a session is told what belongs to no call.
    listening: HashMap<Arc<str>, u64>,
}

/// Names an event: the instance that has the stream, the stream, and the event's place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    instance: String,
    stream: u64,
    place: u64,
}

impl EventId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let id = Self {
            instance: parts.next()?.to_owned(),
            stream: parts.next()?.parse().ok()?,
            place: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(id)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.instance, self.stream, self.place)
    }
}

/// Why a stream cannot be taken up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Another instance has it.
    Elsewhere,
    /// It is over, or never was, or what came after this event is no longer there.
    Gone,
}

impl Streams {
    pub(super) fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            next: AtomicU64::new(1),
            open: Mutex::default(),
        }
    }

    /// Begins a stream of this session.
    pub(crate) fn begin(&self, session: &Session, room: usize) -> Arc<Stream> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Stream {
            instance: self.instance.clone(),
            number,
            session: session.key.clone(),
            room,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        self.lock().streams.insert(number, stream.clone());
        stream
    }

    /// Has this be the stream on which its session is told what belongs to no call. The one before it ends.
    pub(crate) fn listen_on(&self, stream: &Stream) {
        let mut open = self.lock();
        let before = open.listening.insert(stream.session.clone(), stream.number);
        let before = before.and_then(|number| open.streams.get(&number).cloned());
        drop(open);
        if let Some(before) = before {
            before.finish();
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

    /// Forgets a stream.
    fn forget(&self, stream: &Stream) {
        let mut open = self.lock();
        open.streams.remove(&stream.number);
        if open.listening.get(&stream.session) == Some(&stream.number) {
            open.listening.remove(&stream.session);
        }
    }

    fn len(&self) -> usize {
        self.lock().streams.len()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Ends a stream, and keeps it for a client that comes back for the rest.
    pub(crate) async fn end_stream(&self, stream: &Stream) {
        stream.finish();
        let streams = &self.0.older.streams;
        if streams.len() <= STREAMS {
            tokio::time::sleep(self.0.limits.resume_time).await;
        }
        streams.forget(stream);
    }

    /// Forgets a stream that nobody can come back to.
    pub(crate) fn forget_stream(&self, stream: &Stream) {
        self.0.older.streams.forget(stream);
    }
}

/// A stream of events.
pub(crate) struct Stream {
    instance: String,
    number: u64,
    session: Arc<str>,
    /// Bytes that are kept.
    room: usize,
    state: Mutex<State>,
    /// A reader came or went, or took something.
    changed: Notify,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    bytes: usize,
    /// The place of the last event, counted from 1.
    last: u64,
    /// The place of the last event that was thrown away.
    lost: u64,
    /// The place of the last event that a reader took.
    taken: u64,
    over: bool,
    /// Readers so far. Only the latest reads.
    readers: u64,
    attached: bool,
    waker: Option<Waker>,
}

struct Event {
    place: u64,
    sent: Sent,
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
                    .position(|event| event.sent == Sent::Note),
            };
            let Some(event) = at.and_then(|at| self.events.remove(at)) else {
                return;
            };
            self.bytes -= event.message.len();
            self.lost = self.lost.max(event.place);
        }
    }
}

impl Stream {
    /// Adds a message.
    pub(crate) fn push(&self, sent: Sent, message: Vec<u8>) {
        let mut state = self.lock();
        if state.over {
            return;
        }
        state.last += 1;
        state.bytes += message.len();
        let place = state.last;
        let message = message.into();
        state.events.push_back(Event {
            place,
            sent,
            message,
        });
        state.make_room(self.room);
        wake(state);
    }

    /// Nothing more comes.
    pub(crate) fn finish(&self) {
        let mut state = self.lock();
        state.over = true;
        wake(state);
    }

    /// Reads from the beginning.
    pub(crate) fn read(self: &Arc<Self>) -> Reader {
        self.attach(0)
    }

    fn read_after(self: &Arc<Self>, place: u64) -> Result<Reader, Lost> {
        let state = self.lock();
        let lost = state.lost > place || place > state.last;
        drop(state);
        match lost {
            true => Err(Lost::Gone),
            false => Ok(self.attach(place)),
        }
    }

    fn attach(self: &Arc<Self>, place: u64) -> Reader {
        let mut state = self.lock();
        state.readers += 1;
        state.attached = true;
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
            let back = self.until(|state| state.attached && !state.over);
            if tokio::time::timeout(after, back).await.is_err() {
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        EventId {
            instance: self.stream.instance.clone(),
            stream: self.stream.number,
            place: self.place,
        }
    }

    /// The next message, and what it is. `None`: there is no more, or another reads now.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Sent, Bytes)>> {
        let mut state = self.stream.lock();
        if state.readers != self.number {
            return Poll::Ready(None);
        }
        let next = state.events.iter().find(|event| event.place > self.place);
        let next = next.map(|event| (event.place, event.sent, event.message.clone()));
        if let Some((place, sent, message)) = next {
            self.place = place;
            state.taken = state.taken.max(place);
            drop(state);
            self.stream.changed.notify_waiters();
            return Poll::Ready(Some((sent, message)));
        }
        if state.over {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next message, and what it is.
    pub(crate) async fn next(&mut self) -> Option<(Sent, Bytes)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Begins again from the first message.
    pub(crate) fn rewind(&mut self) {
        self.place = 0;
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
