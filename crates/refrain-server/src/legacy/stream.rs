//! A stream of events that can be resumed.
//!
//! Invariants: events that were read are kept as long as there is room, so that a client that comes back gets those it
//! missed; asks and replies that were not read are kept while the stream goes on. A client that comes back may miss
//! notifications, but never asks or replies.

use super::EventId;
use crate::response::MessageKind;
use crate::timer::within;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

/// Events of one stream that are kept.
const EVENTS: usize = 1024;

/// A stream of events.
pub(super) struct Stream {
    pub(super) instance: String,
    pub(super) number: u64,
    pub(super) session: Arc<str>,
    /// The purpose in the ids of its events.
    pub(super) purpose: Option<Arc<str>>,
    /// Bytes that may be kept of it.
    pub(super) room: usize,
    /// Bytes that are kept of all streams that are not forgotten.
    pub(super) kept: Arc<AtomicUsize>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    phase: Phase,
    events: VecDeque<Event>,
    bytes: usize,
    /// The place of the last event, counted from 1.
    last: u64,
    /// The place of the last dropped event that is no notification.
    lost: u64,
    /// The place of the reply.
    replied: Option<u64>,
    /// The place of the last event that the present reader took, or had before it came back.
    taken: u64,
    /// Readers so far. Only the latest reads.
    readers: u64,
    attached: bool,
    /// Tasks that wait for a change.
    wakers: Vec<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Open,
    /// No event follows.
    Over,
    /// It cannot be resumed either.
    Forgotten,
}

struct Event {
    place: u64,
    kind: MessageKind,
    message: Bytes,
}

impl State {
    /// Drops events that there is no room for: first those that were read, then notifications.
    fn make_room(&mut self, room: usize) {
        while self.bytes > room || self.events.len() > EVENTS {
            let is_note = |event: &Event| event.kind == MessageKind::Notification;
            let at = match self.events.front() {
                Some(first) if first.place <= self.taken => Some(0),
                _ => self.events.iter().position(is_note),
            };
            let Some(event) = at.and_then(|at| self.events.remove(at)) else {
                return;
            };
            self.bytes -= event.message.len();
            if !is_note(&event) {
                self.lost = self.lost.max(event.place);
            }
        }
    }

    /// Wakes the task at the next change.
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }
}

impl Stream {
    /// Adds a message.
    pub(super) fn push(&self, kind: MessageKind, message: Vec<u8>) {
        let mut state = self.state.lock();
        if state.phase >= Phase::Over {
            return;
        }
        let before = state.bytes;
        state.last += 1;
        state.bytes += message.len();
        let place = state.last;
        if kind == MessageKind::Reply {
            state.replied = Some(place);
        }
        state.events.push_back(Event {
            place,
            kind,
            message: message.into(),
        });
        state.make_room(self.room);
        self.count(&state, before);
        wake(state);
    }

    /// Drops this many bytes, if possible.
    pub(super) fn shrink(&self, excess: usize) {
        let mut state = self.state.lock();
        let before = state.bytes;
        state.make_room(before.saturating_sub(excess));
        self.count(&state, before);
    }

    /// Counts the kept bytes, which were `before`.
    fn count(&self, state: &State, before: usize) {
        if state.phase < Phase::Forgotten {
            self.kept.fetch_add(state.bytes, Ordering::Relaxed);
            self.kept.fetch_sub(before, Ordering::Relaxed);
        }
    }

    pub(super) fn finish(&self) {
        let mut state = self.state.lock();
        state.phase = state.phase.max(Phase::Over);
        wake(state);
    }

    pub(super) fn forget(&self) {
        let mut state = self.state.lock();
        if state.phase < Phase::Forgotten {
            state.phase = Phase::Forgotten;
            self.kept.fetch_sub(state.bytes, Ordering::Relaxed);
        }
        wake(state);
    }

    /// Reads from the beginning.
    pub(super) fn read(self: &Arc<Self>) -> Reader {
        self.attach(self.state.lock(), 0)
    }

    /// Reads what follows this place, if all of it is kept.
    pub(super) fn read_after(self: &Arc<Self>, place: u64) -> Option<Reader> {
        let state = self.state.lock();
        let is_kept = state.lost <= place && place <= state.last;
        is_kept.then(|| self.attach(state, place))
    }

    fn attach(self: &Arc<Self>, mut state: MutexGuard<'_, State>, place: u64) -> Reader {
        state.readers += 1;
        state.attached = true;
        // Another reader may have taken more.
        state.taken = place;
        let number = state.readers;
        // The reader before this one ends.
        wake(state);
        Reader {
            stream: self.clone(),
            number,
            place,
        }
    }

    pub(super) fn is_read(&self) -> bool {
        self.state.lock().attached
    }

    /// Waits until everything was read.
    pub(super) async fn drained(&self) {
        self.until(|state| state.taken >= state.last || state.phase >= Phase::Over)
            .await;
    }

    pub(super) async fn forgotten(&self) {
        self.until(|state| state.phase == Phase::Forgotten).await;
    }

    /// Waits until no client has read for this long, or the stream is over.
    pub(super) async fn abandoned(&self, after: Duration) {
        let is_over = |state: &State| state.phase >= Phase::Over;
        loop {
            self.until(|state| !state.attached || is_over(state)).await;
            let back = self.until(|state| state.attached || is_over(state));
            if within(after, back).await.is_none() || is_over(&self.state.lock()) {
                return;
            }
        }
    }

    async fn until(&self, is: impl Fn(&State) -> bool) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            match is(&state) {
                true => Poll::Ready(()),
                false => {
                    state.wait(cx);
                    Poll::Pending
                }
            }
        })
        .await;
    }
}

/// Wakes all tasks that wait for a change, outside of the lock: a waker is foreign code.
fn wake(mut state: MutexGuard<'_, State>) {
    let wakers = std::mem::take(&mut state.wakers);
    drop(state);
    wakers.into_iter().for_each(Waker::wake);
}

/// Reads a stream. Dropping it leaves the stream to another reader.
pub(crate) struct Reader {
    pub(super) stream: Arc<Stream>,
    number: u64,
    place: u64,
}

impl Reader {
    /// The id of the event that was read last; before the first, one from which the whole stream follows.
    pub(crate) fn id(&self) -> EventId {
        let stream = &self.stream;
        let replied = stream.state.lock().replied;
        let purpose = stream.purpose.clone();
        EventId {
            instance: stream.instance.clone(),
            stream: stream.number,
            place: self.place,
            purpose: purpose.filter(|_| replied.is_none_or(|replied| self.place < replied)),
        }
    }

    /// The next message. `None`: no message follows, or another client reads now.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(MessageKind, Bytes)>> {
        let mut state = self.stream.state.lock();
        let next = ready!(self.poll_in(&mut state, cx));
        Poll::Ready(next.map(|(place, kind, message)| {
            self.place = place;
            state.taken = place;
            wake(state);
            (kind, message)
        }))
    }

    fn poll_in(
        &self,
        state: &mut State,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(u64, MessageKind, Bytes)>> {
        // A stream with a gap ends: the client comes back and gets the error.
        if state.readers != self.number || state.lost > self.place {
            return Poll::Ready(None);
        }
        let next = state.events.iter().find(|event| event.place > self.place);
        if let Some(event) = next {
            return Poll::Ready(Some((event.place, event.kind, event.message.clone())));
        }
        if state.phase >= Phase::Over {
            return Poll::Ready(None);
        }
        state.wait(cx);
        Poll::Pending
    }

    /// The next message, without taking it.
    pub(crate) async fn peek(&self) -> Option<(MessageKind, Bytes)> {
        let next = poll_fn(|cx| self.poll_in(&mut self.stream.state.lock(), cx)).await;
        next.map(|(_, kind, message)| (kind, message))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.state.lock();
        if state.readers == self.number {
            state.attached = false;
            wake(state);
        }
    }
}

#[cfg(test)]
mod tests;
