//! A resumable stream of events.
//!
//! Invariants:
//! - Unread asks and replies are never dropped while the stream is open. A resuming client may miss notifications, but
//!   never asks or replies. The exception is a batch whose caller is over its limit: its client does not read.
//! - Events that were read stay available until the size limit is reached.

use super::EventId;
use crate::limits::LimitKey;
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

/// Maximum number of stored events of one stream.
const MAX_EVENTS: usize = 1024;

/// A stream with its limits and stored events.
pub(super) struct Stream {
    /// The id of this instance.
    pub(super) instance: String,
    pub(super) number: u64,
    /// The key of the session.
    pub(super) session: Arc<str>,
    /// The encoded [`Purpose`](super::Purpose).
    pub(super) purpose: Option<Arc<str>>,
    /// The maximum size of the stored events.
    pub(super) max_bytes: usize,
    pub(super) caller: LimitKey,
    /// Whether several requests share the stream.
    pub(super) is_batch: bool,
    /// The current size of all streams, and of those of the caller.
    pub(super) stored_bytes: [Arc<AtomicUsize>; 2],
    pub(super) state: Mutex<StreamState>,
}

#[derive(Default)]
pub(super) struct StreamState {
    phase: StreamPhase,
    events: VecDeque<StoredEvent>,
    /// The size of the stored events.
    bytes: usize,
    /// The sequence number of the last event.
    last_sequence: u64,
    /// The sequence number of the last dropped ask or reply.
    last_dropped: u64,
    /// The sequence number of the reply.
    reply_sequence: Option<u64>,
    /// Set if the reply reports a busy resource.
    retry_after: Option<Duration>,
    /// The sequence number of the last event that the current reader has received.
    last_read: u64,
    /// The number of readers so far. Only the latest one is active: an earlier one ends.
    readers: u64,
    /// Whether the latest reader still exists.
    has_reader: bool,
    wakers: Vec<Waker>,
}

/// The phase of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum StreamPhase {
    #[default]
    Open,
    /// No event follows.
    Ended,
    /// The stream can no longer be resumed.
    Removed,
}

struct StoredEvent {
    sequence: u64,
    kind: MessageKind,
    message: Bytes,
}

impl StreamState {
    /// Drops events until the limits are met: first events that were read, then notifications.
    fn shrink_to(&mut self, limit: usize) {
        while self.bytes > limit || self.events.len() > MAX_EVENTS {
            let is_notification = |event: &StoredEvent| event.kind == MessageKind::Notification;
            let index = match self.events.front() {
                Some(first) if first.sequence <= self.last_read => Some(0),
                _ => self.events.iter().position(is_notification),
            };
            let Some(event) = index.and_then(|index| self.events.remove(index)) else {
                return;
            };
            self.bytes -= event.message.len();
            if !is_notification(&event) {
                self.last_dropped = self.last_dropped.max(event.sequence);
            }
        }
    }

    fn register_waker(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }
}

impl Stream {
    pub(super) fn push(&self, kind: MessageKind, message: Vec<u8>) {
        let mut state = self.state.lock();
        if state.phase >= StreamPhase::Ended {
            return;
        }
        let before = state.bytes;
        state.last_sequence += 1;
        state.bytes += message.len();
        let sequence = state.last_sequence;
        if kind == MessageKind::Reply {
            state.reply_sequence = Some(sequence);
        }
        state.events.push_back(StoredEvent {
            sequence,
            kind,
            message: message.into(),
        });
        state.shrink_to(self.max_bytes);
        self.update_stored(&state, before);
        wake(state);
    }

    /// Sets the time after which the client should retry. Called before the reply is pushed.
    pub(super) fn set_retry_after(&self, time: Duration) {
        self.state.lock().retry_after = Some(time);
    }

    /// Drops events of this total size, if possible.
    pub(super) fn shrink(&self, excess: usize) {
        let mut state = self.state.lock();
        let before = state.bytes;
        state.shrink_to(before.saturating_sub(excess));
        self.update_stored(&state, before);
    }

    /// Drops the oldest events of this total size, unread ones included, except the last event.
    pub(super) fn drop_oldest(&self, mut excess: usize) {
        let mut state = self.state.lock();
        let before = state.bytes;
        while excess > 0 && state.events.len() > 1 {
            let Some(event) = state.events.pop_front() else {
                break;
            };
            excess = excess.saturating_sub(event.message.len());
            state.bytes -= event.message.len();
            state.last_dropped = event.sequence;
        }
        self.update_stored(&state, before);
        wake(state);
    }

    /// Updates the size of all streams. `before` is the previous size of this one.
    fn update_stored(&self, state: &StreamState, before: usize) {
        if state.phase < StreamPhase::Removed {
            for stored in &self.stored_bytes {
                stored.fetch_add(state.bytes, Ordering::Relaxed);
                stored.fetch_sub(before, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.phase = state.phase.max(StreamPhase::Ended);
        wake(state);
    }

    pub(super) fn remove(&self) {
        let mut state = self.state.lock();
        if state.phase < StreamPhase::Removed {
            state.phase = StreamPhase::Removed;
            for stored in &self.stored_bytes {
                stored.fetch_sub(state.bytes, Ordering::Relaxed);
            }
        }
        wake(state);
    }

    /// Replaces the reader by a new one, from the start of the stream.
    pub(super) fn reader(self: &Arc<Self>) -> StreamReader {
        self.replace_reader(self.state.lock(), 0)
    }

    /// Replaces the reader by a new one, after this sequence number. `None` if a later ask or reply was dropped.
    pub(super) fn reader_after(self: &Arc<Self>, sequence: u64) -> Option<StreamReader> {
        let state = self.state.lock();
        let is_complete = state.last_dropped <= sequence && sequence <= state.last_sequence;
        is_complete.then(|| self.replace_reader(state, sequence))
    }

    fn replace_reader(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, StreamState>,
        sequence: u64,
    ) -> StreamReader {
        state.readers += 1;
        state.has_reader = true;
        // The previous reader may have received more.
        state.last_read = sequence;
        let number = state.readers;
        // The previous reader ends when it is polled.
        wake(state);
        StreamReader {
            stream: self.clone(),
            number,
            sequence,
        }
    }

    pub(super) fn has_reader(&self) -> bool {
        self.state.lock().has_reader
    }

    /// Waits until all events were read, or the stream ends.
    pub(super) async fn drained(&self) {
        self.wait_until(|state| {
            state.last_read >= state.last_sequence || state.phase >= StreamPhase::Ended
        })
        .await;
    }

    pub(super) async fn removed(&self) {
        self.wait_until(|state| state.phase == StreamPhase::Removed)
            .await;
    }

    /// Waits until the stream had no reader for `time`, or it ends. Returns false if it ended.
    pub(super) async fn abandoned(&self, time: Duration) -> bool {
        let has_ended = |state: &StreamState| state.phase >= StreamPhase::Ended;
        loop {
            self.wait_until(|state| !state.has_reader || has_ended(state))
                .await;
            if has_ended(&self.state.lock()) {
                return false;
            }
            let reattached = self.wait_until(|state| state.has_reader || has_ended(state));
            if within(time, reattached).await.is_none() {
                return true;
            }
        }
    }

    async fn wait_until(&self, condition: impl Fn(&StreamState) -> bool) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            match condition(&state) {
                true => Poll::Ready(()),
                false => {
                    state.register_waker(cx);
                    Poll::Pending
                }
            }
        })
        .await;
    }
}

/// Wakes waiting Tokio tasks. Releases the lock first, because a waker may run arbitrary code.
fn wake(mut state: MutexGuard<'_, StreamState>) {
    let wakers = std::mem::take(&mut state.wakers);
    drop(state);
    wakers.into_iter().for_each(Waker::wake);
}

/// Reads a stream. Dropping it does not end the stream.
pub(crate) struct StreamReader {
    pub(super) stream: Arc<Stream>,
    /// The value of [`StreamState::readers`] for this reader.
    number: u64,
    /// The sequence number of the last event that was read.
    sequence: u64,
}

impl StreamReader {
    /// The id of the last event that was read, or of the start of the stream.
    pub(crate) fn id(&self) -> EventId {
        let stream = &self.stream;
        let reply = stream.state.lock().reply_sequence;
        let purpose = stream.purpose.clone();
        EventId {
            instance: stream.instance.clone(),
            stream: stream.number,
            sequence: self.sequence,
            purpose: purpose.filter(|_| reply.is_none_or(|reply| self.sequence < reply)),
        }
    }

    /// The next message. `None` at the end of the stream, or if another reader has replaced this one.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(MessageKind, Bytes)>> {
        let mut state = self.stream.state.lock();
        let next = ready!(self.poll_locked(&mut state, cx));
        Poll::Ready(next.map(|(sequence, kind, message)| {
            self.sequence = sequence;
            state.last_read = sequence;
            wake(state);
            (kind, message)
        }))
    }

    fn poll_locked(
        &self,
        state: &mut StreamState,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(u64, MessageKind, Bytes)>> {
        // The stream ends at a gap. When the client resumes it, the response is an error.
        if state.readers != self.number || state.last_dropped > self.sequence {
            return Poll::Ready(None);
        }
        let next = state
            .events
            .iter()
            .find(|event| event.sequence > self.sequence);
        if let Some(event) = next {
            return Poll::Ready(Some((event.sequence, event.kind, event.message.clone())));
        }
        if state.phase >= StreamPhase::Ended {
            return Poll::Ready(None);
        }
        state.register_waker(cx);
        Poll::Pending
    }

    /// The next message, which is not marked as read.
    pub(crate) async fn peek(&self) -> Option<(MessageKind, Bytes)> {
        let next = poll_fn(|cx| self.poll_locked(&mut self.stream.state.lock(), cx)).await;
        next.map(|(_, kind, message)| (kind, message))
    }

    /// The time after which the client should retry, if the reply reports a busy resource.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.stream.state.lock().retry_after
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let mut state = self.stream.state.lock();
        if state.readers == self.number {
            state.has_reader = false;
            wake(state);
        }
    }
}

#[cfg(test)]
mod tests;
