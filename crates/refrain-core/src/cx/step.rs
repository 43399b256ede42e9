//! Steps: work that runs once and whose value is journaled.

use super::Cx;
use crate::error::StoredError;
use crate::flow::{Phase, Poller, Shared, SlotGuard, StepSignal, ThreadContext};
use crate::journal::{Entry, Held, Key, Kind};
use crate::replay::{Keep, LogKey, Recorded, ReplayLog};
use crate::{Error, ErrorKind, Result};
use pin_project_lite::pin_project;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pin_project! {
    /// A step that waits to run, runs, or is replayed. Dropped unfinished, it leaves no journal entry.
    #[must_use = "a step does nothing until it is awaited"]
    pub struct StepFuture<'a, F, T> {
        slot: SlotGuard<'a>,
        key: Key,
        signal: Option<Arc<StepSignal>>,
        #[pin]
        work: Option<F>,
        value: PhantomData<fn() -> T>,
    }
}

impl<'a, F, T> StepFuture<'a, F, T> {
    #[track_caller]
    pub(super) fn new(
        cx: &'a Cx,
        kind: Kind,
        name: Cow<'static, str>,
        work: impl FnOnce(&Key) -> F,
    ) -> Self {
        let (slot, key) = cx.shared.open_slot(cx.scope.as_ref(), kind, name);
        Self {
            slot,
            work: Some(work(&key)),
            key,
            signal: None,
            value: PhantomData,
        }
    }
}

/// How a poll of a step continues.
enum Go {
    Deliver(Held),
    Run,
    Wait,
    Stop,
}

impl<F, T, E> Future for StepFuture<'_, F, T>
where
    F: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: Into<Error>,
{
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let slot: &SlotGuard<'_> = this.slot;
        let shared = slot.shared;
        let poller = shared.poller(task);
        let mut go = before(slot, this.key, this.signal, poller);
        if let (Go::Run, Some(signal)) = (&go, &*this.signal) {
            signal.begin_poll(task.waker());
            let waker = Waker::from(signal.clone());
            let polled = {
                let _context = ThreadContext::in_step(shared);
                let work = this.work.as_mut().as_pin_mut();
                work.map_or(Poll::Pending, |work| {
                    work.poll(&mut Context::from_waker(&waker))
                })
            };
            let Poll::Ready(done) = polled else {
                return Poll::Pending;
            };
            // The author's serialization runs without the lock.
            let held = to_held(done.map_err(Into::into));
            go = after(slot, this.key, held, poller);
        }
        match go {
            Go::Deliver(held) => {
                slot.close();
                this.work.set(None);
                // It holds a waker of the handler, which looks like a pending foreign await.
                *this.signal = None;
                shared.kick();
                Poll::Ready(read(&this.key.name, &held))
            }
            Go::Stop => shared.stopped(Error::over),
            Go::Wait | Go::Run => {
                shared.kick();
                Poll::Pending
            }
        }
    }
}

/// Looks for a value, or lets the work run or wait.
fn before(
    slot: &SlotGuard<'_>,
    key: &Key,
    signal: &mut Option<Arc<StepSignal>>,
    poller: Poller<'_>,
) -> Go {
    let (shared, id) = (slot.shared, slot.id);
    let Some(mut state) = shared.enter() else {
        return Go::Stop;
    };
    if let Some(index) = state.find(key) {
        if !state.take_turn(id, index, poller) {
            return Go::Wait;
        }
        state.deliver(index);
        return Go::Deliver(state.journal.entries[index].held.clone());
    }
    let free = match state.slot(id).map(|slot| &slot.phase) {
        Some(Phase::Running(_)) => return Go::Run,
        phase => matches!(phase, Some(Phase::Free)),
    };
    let begun = signal.is_some();
    let unwritten = !free && state.is_unwritten();
    if !begun && (!state.live || unwritten || state.should_shed(&shared.env)) {
        state.park(id, Phase::Held, poller);
        return Go::Wait;
    }
    let signal = signal
        .get_or_insert_with(|| StepSignal::new(shared.passes.get_or_init(Arc::default).clone()));
    let running = Phase::Running(signal.clone());
    if let Some(slot) = state.slot(id) {
        slot.phase = running;
        slot.outside = poller.outside;
        state.running += 1;
        state.stats.steps += u32::from(!begun);
    }
    Go::Run
}

/// Journals the outcome of the work, which then waits for its turn or for the flow to be handed on.
fn after(slot: &SlotGuard<'_>, key: &Key, held: Held, poller: Poller<'_>) -> Go {
    let (shared, id) = (slot.shared, slot.id);
    let mut state = shared.lock();
    if state.ended {
        return Go::Stop;
    }
    if let Some(slot) = state.slot(id)
        && matches!(slot.phase, Phase::Running(_))
    {
        slot.phase = Phase::Idle;
        state.running -= 1;
    }
    let held = match to_be_repeated(&held) {
        Some(error) if state.is_task() => {
            state.retry = Some(Box::new(error));
            return Go::Stop;
        }
        // The log is unavailable, and only a task can retry.
        Some(error) if key.kind == Kind::Once => to_held::<()>(Err(Error::internal(error))),
        _ => held,
    };
    let entry = Entry::new(key.clone(), 0, held);
    let Some(index) = state.append(entry, shared.env.limits.entries) else {
        return Go::Stop;
    };
    let phase = match state.should_shed(&shared.env) {
        true => Phase::Parked,
        false => Phase::Waiting(index),
    };
    state.park(id, phase, poller);
    Go::Wait
}

/// The error of a step that a task retries.
fn to_be_repeated(held: &Held) -> Option<Error> {
    let Held::Failure(json) = held else {
        return None;
    };
    let error = Error::from(serde_json::from_str::<StoredError>(json).ok()?);
    matches!(error.kind(), ErrorKind::Retry).then_some(error)
}

fn to_held<T: Serialize>(done: Result<T>) -> Held {
    let error = match done {
        Ok(value) => match serde_json::to_string(&value) {
            Ok(json) => return Held::Value(json.into()),
            Err(error) => Error::internal(format!("a step's value cannot be journaled: {error}")),
        },
        Err(error) => error,
    };
    let json = serde_json::to_string(error.stored()).expect("an error is plain strings");
    Held::Failure(json.into())
}

fn read<T: DeserializeOwned>(name: &str, held: &Held) -> Result<T> {
    let misfit = |error: serde_json::Error| {
        Error::internal(format!(
            "the journaled value of {name:?} does not fit its type: {error}"
        ))
    };
    match held {
        Held::Value(json) => serde_json::from_str(json).map_err(misfit),
        Held::Failure(json) => {
            Err(serde_json::from_str::<StoredError>(json).map_or_else(misfit, Error::from))
        }
    }
}

/// A key that is the same for every run of one step in one flow, and unique otherwise.
pub(super) fn idempotency_key(shared: &Shared, key: &Key) -> String {
    let mut hash = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    hash.update(b"refrain idempotency key");
    hash.update(shared.flow.as_bytes());
    hash.update(key.unique().as_bytes());
    let digest = hash.finish();
    digest.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Runs `work` unless the log contains an earlier start.
pub(super) async fn at_most_once<T, E, F>(
    log: Option<Arc<dyn ReplayLog>>,
    keep: Keep,
    key: LogKey,
    work: F,
) -> Result<T>
where
    F: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: Into<Error>,
{
    let Some(log) = log else {
        // The call is about to end with a fault.
        return std::future::pending().await;
    };
    let begun = log.begin(&key, keep).await.map_err(|error| {
        // Nothing was recorded and no work was done, so a task may retry.
        tracing::error!(%error, "what is to be done once could not be recorded");
        Error::retry("the replay log cannot be reached; try again")
    })?;
    match begun {
        Recorded::Fresh => {}
        Recorded::Begun => {
            return Err(Error::msg(
                "this is being done elsewhere, or was interrupted; it is not done twice",
            ));
        }
        Recorded::Done(json) => {
            let (failed, json): (bool, String) = serde_json::from_str(&json)?;
            let held = match failed {
                true => Held::Failure(json.into()),
                false => Held::Value(json.into()),
            };
            return read(key.name(), &held);
        }
    }
    // A task does not retry work that was started.
    let held = to_held(work.await.map_err(|error| error.into().for_good()));
    let failed = matches!(held, Held::Failure(_));
    let record = serde_json::to_string(&(failed, &**held.json()))?;
    if let Err(error) = log.finish(&key, &record).await {
        tracing::error!(%error, "what was done once could not be recorded; if its token is lost it counts as interrupted");
    }
    read(key.name(), &held)
}
