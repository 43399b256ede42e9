//! Steps: work whose value is journaled. It runs at least once; with `once`, at most once.

use super::Cx;
use crate::error::{IntoError, StoredError};
use crate::flow::{Phase, Poller, Shared, SlotGuard, StepSignal, ThreadContext};
use crate::journal::{Entry, EntryKey, OperationKind, StoredOutcome};
use crate::replay::{LogError, LogKey, RecordState, ReplayLog, Retention};
use crate::{Error, ErrorKind, Principal, Result};
use crate::{limited_event, span};
use pin_project_lite::pin_project;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tracing::Span;

pin_project! {
    /// The future of a step. If it is dropped before its work is done, it leaves no journal entry.
    #[must_use = "a step does nothing until it is awaited"]
    pub struct StepFuture<'a, F, T> {
        slot: SlotGuard<'a>,
        key: EntryKey,
        signal: Option<Arc<StepSignal>>,
        // Boxed, since it is rarely enabled. Not part of the signal, which wakers may keep for long.
        span: Option<Box<Span>>,
        #[pin]
        work: Option<F>,
        value: PhantomData<fn() -> T>,
    }
}

impl<'a, F, T> StepFuture<'a, F, T> {
    #[track_caller]
    pub(super) fn new(
        cx: &'a Cx,
        kind: OperationKind,
        name: Cow<'static, str>,
        work: impl FnOnce(&EntryKey) -> F,
    ) -> Self {
        let (slot, key) = cx.shared.open_slot(cx.scope.as_ref(), kind, name);
        Self {
            slot,
            work: Some(work(&key)),
            key,
            signal: None,
            span: None,
            value: PhantomData,
        }
    }
}

/// The next action of a step.
enum StepAction {
    Deliver(StoredOutcome),
    Run,
    Wait,
    Stop,
}

impl<F, T, E> Future for StepFuture<'_, F, T>
where
    F: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: IntoError,
{
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let slot: &SlotGuard<'_> = this.slot;
        let shared = slot.shared;
        let poller = shared.poller(task);
        let mut action = begin(slot, this.key, this.signal, poller);
        if let (StepAction::Run, Some(signal)) = (&action, &*this.signal) {
            signal.begin_poll(task.waker());
            let waker = Waker::from(signal.clone());
            if this.span.is_none() {
                *this.span = span::open_step(shared, this.key);
            }
            let polled = {
                let _entered = this.span.as_ref().map(|span| span.enter());
                let _context = ThreadContext::in_step(shared);
                let work = this.work.as_mut().as_pin_mut();
                work.map_or(Poll::Pending, |work| {
                    work.poll(&mut Context::from_waker(&waker))
                })
            };
            let Poll::Ready(done) = polled else {
                return Poll::Pending;
            };
            // The handler's serialization runs without the lock.
            let outcome = to_outcome(done.map_err(E::into_error));
            if let (Some(span), StoredOutcome::Failure(_)) = (this.span.take(), &outcome) {
                span::record_failure(&span);
            }
            action = finish(slot, this.key, outcome, poller);
        }
        match action {
            StepAction::Deliver(outcome) => {
                slot.close();
                this.work.set(None);
                // The signal holds the handler's waker, which the driver would count as held by a
                // future that is no operation of `cx`.
                *this.signal = None;
                shared.wake_driver();
                Poll::Ready(decode_outcome(&this.key.name, &outcome))
            }
            StepAction::Stop => shared.stopped(Error::ended),
            StepAction::Wait | StepAction::Run => {
                shared.wake_driver();
                Poll::Pending
            }
        }
    }
}

/// Finds a journaled value, or decides whether the work may run.
fn begin(
    slot: &SlotGuard<'_>,
    key: &EntryKey,
    signal: &mut Option<Arc<StepSignal>>,
    poller: Poller<'_>,
) -> StepAction {
    let (shared, id) = (slot.shared, slot.id);
    let Some(mut state) = shared.enter() else {
        return StepAction::Stop;
    };
    if let Some(index) = state.find(key) {
        if !state.take_turn(id, index, poller) {
            return StepAction::Wait;
        }
        state.deliver(index);
        return StepAction::Deliver(state.journal.entries[index].outcome.clone());
    }
    let cleared = match state.slot(id).map(|slot| &slot.phase) {
        Some(Phase::Running(_)) => return StepAction::Run,
        phase => matches!(phase, Some(Phase::Cleared)),
    };
    // An abandoned step has begun, and continues when it is polled again.
    let begun = signal.is_some();
    let unwritten = !cleared && state.has_unwritten_progress();
    if !begun && (!state.replay_complete || unwritten || state.should_hand_on(&shared.env)) {
        state.wait_in(id, Phase::Blocked, poller);
        return StepAction::Wait;
    }
    let signal = signal.get_or_insert_with(|| {
        StepSignal::new(shared.handler_polls.get_or_init(Arc::default).clone())
    });
    let running = Phase::Running(signal.clone());
    if let Some(slot) = state.slot(id) {
        slot.phase = running;
        slot.in_spawned_task = poller.in_spawned_task;
        state.running += 1;
        state.stats.steps += u32::from(!begun);
    }
    StepAction::Run
}

/// Journals the outcome of the work, which then waits for its turn or for the flow to be handed on.
fn finish(
    slot: &SlotGuard<'_>,
    key: &EntryKey,
    outcome: StoredOutcome,
    poller: Poller<'_>,
) -> StepAction {
    let (shared, id) = (slot.shared, slot.id);
    let mut state = shared.lock();
    if state.ended {
        return StepAction::Stop;
    }
    if let Some(slot) = state.slot(id)
        && matches!(slot.phase, Phase::Running(_))
    {
        slot.phase = Phase::Idle;
        state.running -= 1;
    }
    let failure = failure(&outcome);
    let is_busy = matches!(failure, Some((ErrorKind::Busy { .. }, _)));
    if let Some((ErrorKind::Retry, error)) = failure
        && state.can_retry()
    {
        state.retry = Some(Box::new(error));
        return StepAction::Stop;
    }
    let entry = Entry::new(key.clone(), 0, outcome);
    let Some(index) = state.append(entry, shared.env.limits.entries) else {
        return StepAction::Stop;
    };
    // A flow that failed as busy is not handed on: its token would make every repeated request fail.
    let phase = match !is_busy && state.should_hand_on(&shared.env) {
        true => Phase::HandingOn,
        false => Phase::Waiting(index),
    };
    state.wait_in(id, phase, poller);
    StepAction::Wait
}

/// The error of a failed step.
fn failure(outcome: &StoredOutcome) -> Option<(ErrorKind, Error)> {
    let StoredOutcome::Failure(json) = outcome else {
        return None;
    };
    let error = Error::from(serde_json::from_str::<StoredError>(json).ok()?);
    Some((error.kind().clone(), error))
}

fn to_outcome<T: Serialize>(done: Result<T>) -> StoredOutcome {
    let error = match done {
        Ok(value) => match serde_json::to_string(&value) {
            Ok(json) => return StoredOutcome::Value(json.into()),
            Err(error) => Error::internal(format!("step value cannot be serialized: {error}")),
        },
        Err(error) => error,
    };
    let json = serde_json::to_string(error.stored()).expect("a StoredError serializes to JSON");
    StoredOutcome::Failure(json.into())
}

fn decode_outcome<T: DeserializeOwned>(name: &str, outcome: &StoredOutcome) -> Result<T> {
    let mismatch = |error: serde_json::Error| {
        Error::internal(format!(
            "journaled value of {name:?} does not match its type: {error}"
        ))
    };
    match outcome {
        StoredOutcome::Value(json) => serde_json::from_str(json).map_err(mismatch),
        StoredOutcome::Failure(json) => {
            Err(serde_json::from_str::<StoredError>(json).map_or_else(mismatch, Error::from))
        }
    }
}

/// A key that is the same each time one step of one flow runs, and unique otherwise.
pub(super) fn idempotency_key(shared: &Shared, key: &EntryKey) -> String {
    let mut hash = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    hash.update(b"refrain idempotency key");
    hash.update(shared.flow.as_bytes());
    hash.update(key.unique_name().as_bytes());
    let digest = hash.finish();
    digest.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A record of `once` in the replay log.
pub(super) struct OnceRecord {
    pub(super) key: LogKey,
    pub(super) account: Principal,
    pub(super) retention: Retention,
    /// Whether to record the outcome too. If not, the work counts as interrupted when the step is
    /// dropped before its outcome is journaled.
    pub(super) needs_outcome: bool,
}

/// The error of work whose start was not recorded.
fn not_recorded(error: &LogError, shared: &Shared) -> Error {
    if !matches!(error, LogError::Quota(_)) {
        limited_event!(ERROR, %error, "failed to record the start of work");
    }
    // No work was done, so a task retries, unless an earlier run was recorded.
    let can_retry = shared.lock().can_retry();
    match error {
        LogError::Unreadable { .. } => Error::msg(
            "this work was already done, but its recorded outcome cannot be opened; it is not repeated",
        ),
        LogError::Quota(reached) => {
            let reached = format!("this work was not started: {reached}");
            match can_retry {
                true => Error::retry(reached),
                false => Error::msg(reached),
            }
        }
        _ if can_retry => Error::retry("replay log unavailable; try again later"),
        _ => Error::internal("replay log unavailable; try again later"),
    }
}

/// Runs `work` unless the replay log contains an earlier start.
pub(super) async fn at_most_once<T, E, F>(
    shared: &Shared,
    log: Option<Arc<dyn ReplayLog>>,
    record: OnceRecord,
    work: F,
) -> Result<T>
where
    F: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: IntoError,
{
    let Some(log) = log else {
        // `Cx::once` has set a fault, which ends the call.
        return std::future::pending().await;
    };
    let OnceRecord { key, account, .. } = &record;
    let begun = log.begin(key, account, record.retention).await;
    match begun.map_err(|error| not_recorded(&error, shared))? {
        RecordState::Fresh => {}
        RecordState::Begun => {
            return Err(Error::msg(
                "outcome unknown: this work was started before, and is still running or was interrupted; it is not repeated",
            ));
        }
        RecordState::Done(json) => {
            let (failed, json): (bool, String) = serde_json::from_str(&json)?;
            let outcome = match failed {
                true => StoredOutcome::Failure(json.into()),
                false => StoredOutcome::Value(json.into()),
            };
            return decode_outcome(key.name(), &outcome);
        }
    }
    // Neither a task nor a client may repeat work that was started.
    let outcome = to_outcome(
        work.await
            .map_err(|error| error.into_error().without_retry()),
    );
    if record.needs_outcome {
        let failed = matches!(outcome, StoredOutcome::Failure(_));
        let json = serde_json::to_string(&(failed, &**outcome.json()))?;
        if let Err(error) = log.finish(key, &json).await {
            // If the token is lost too, the work counts as interrupted.
            limited_event!(ERROR, %error, "failed to record the outcome of work");
        }
    }
    decode_outcome(key.name(), &outcome)
}
