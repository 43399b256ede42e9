//! Steps: work that is run once and whose value is journaled.

use super::Cx;
use crate::error::StoredError;
use crate::flow::{Mark, Phase, Shared, SlotId, StepSignal, is_driving};
use crate::journal::{Entry, FlowId, Held, Key, Kind};
use crate::replay::{Keep, LogError, LogKey, Recorded, ReplayLog};
use crate::{Error, ErrorKind, Result};
use pin_project_lite::pin_project;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pin_project! {
    /// A step that waits to run, runs, or is replayed. Dropped unfinished, it leaves nothing in the journal.
    #[must_use = "a step does nothing until it is awaited"]
    pub struct StepFuture<'a, F, T> {
        cx: &'a Cx,
        id: SlotId,
        key: Key,
        signal: Option<Arc<StepSignal>>,
        #[pin]
        work: Option<F>,
        value: PhantomData<fn() -> T>,
    }

    impl<F, T> PinnedDrop for StepFuture<'_, F, T> {
        fn drop(this: Pin<&mut Self>) {
            this.cx.shared.close_slot(this.id);
        }
    }
}

impl<'a, F, T> StepFuture<'a, F, T> {
    #[track_caller]
    pub(super) fn new(cx: &'a Cx, kind: Kind, name: Cow<'static, str>, work: F) -> Self {
        Self::with_key(cx, kind, name, |_| work)
    }

    #[track_caller]
    pub(super) fn with_key(
        cx: &'a Cx,
        kind: Kind,
        name: Cow<'static, str>,
        work: impl FnOnce(&Key) -> F,
    ) -> Self {
        let (id, key) = cx
            .shared
            .open_slot(cx.scope.as_ref(), kind, name, Location::caller());
        Self {
            cx,
            id,
            work: Some(work(&key)),
            key,
            signal: None,
            value: PhantomData,
        }
    }
}

/// How a poll of a step goes on after a look at the shared state.
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
        let shared: &Arc<Shared> = &this.cx.shared;
        let outside = !is_driving(shared);
        let mut go = before(
            shared,
            *this.id,
            this.key,
            this.signal,
            task.waker(),
            outside,
        );
        if let (Go::Run, Some(signal)) = (&go, &*this.signal) {
            signal.begin_poll(task.waker());
            let waker = Waker::from(signal.clone());
            let polled = {
                let _mark = Mark::in_step(shared);
                let work = this.work.as_mut().as_pin_mut();
                work.map_or(Poll::Pending, |work| {
                    work.poll(&mut Context::from_waker(&waker))
                })
            };
            let Poll::Ready(done) = polled else {
                return Poll::Pending;
            };
            // The author's serialising runs without the lock.
            let held = to_held(done.map_err(Into::into));
            go = after(shared, *this.id, this.key, held, task.waker(), outside);
        }
        match go {
            Go::Deliver(held) => {
                shared.close_slot(*this.id);
                this.work.set(None);
                // It holds a waker of the handler's, as if something were still awaited.
                *this.signal = None;
                shared.kick();
                Poll::Ready(read(this.key, &held))
            }
            Go::Stop => match shared.is_over() {
                true => Poll::Ready(Err(Error::over())),
                false => Poll::Pending,
            },
            Go::Wait | Go::Run => {
                shared.kick();
                Poll::Pending
            }
        }
    }
}

/// Is there a value, may the work run, or must it wait?
fn before(
    shared: &Shared,
    id: SlotId,
    key: &Key,
    signal: &mut Option<Arc<StepSignal>>,
    waker: &Waker,
    outside: bool,
) -> Go {
    let mut state = shared.lock();
    if !state.may_go_on() {
        return Go::Stop;
    }
    if let Some(index) = state.find(key) {
        if !state.take_turn(id, index, waker, outside) {
            return Go::Wait;
        }
        state.deliver(index);
        return Go::Deliver(state.entries[index].held.clone());
    }
    let running = state
        .slot(id)
        .is_some_and(|slot| matches!(slot.phase, Phase::Running(_)));
    if running {
        return Go::Run;
    }
    let begun = signal.is_some();
    let free = matches!(state.slot(id).map(|slot| &slot.phase), Some(Phase::Free));
    let unwritten = !free && state.is_unwritten();
    if !begun && (!state.live || unwritten || state.should_shed(&shared.env)) {
        state.park(id, Phase::Held, waker, outside);
        return Go::Wait;
    }
    let signal = signal
        .get_or_insert_with(|| StepSignal::new(shared.passes.get_or_init(Arc::default).clone()));
    let phase = Phase::Running(signal.clone());
    if let Some(slot) = state.slot(id) {
        slot.phase = phase;
        slot.outside = outside;
        state.running += 1;
        state.stats.steps += u32::from(!begun);
    }
    Go::Run
}

/// The work is done: journal its value. It waits for its turn, or for the flow to be handed on here.
fn after(shared: &Shared, id: SlotId, key: &Key, held: Held, waker: &Waker, outside: bool) -> Go {
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
        // The log could not be reached, and nothing is there that could try again.
        Some(error) if key.kind == Kind::Once => to_held::<()>(Err(Error::internal(error))),
        _ => held,
    };
    let entry = Entry::new(key.clone(), 0, held);
    let Some(index) = state.append(entry, shared.env.limits.entries) else {
        return Go::Stop;
    };
    if state.should_shed(&shared.env) {
        state.park(id, Phase::Parked, waker, outside);
    } else {
        state.park(id, Phase::Waiting(index), waker, outside);
    }
    Go::Wait
}

/// The error of a step that may well succeed later.
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
    let json = serde_json::to_string(&error.to_stored()).expect("an error is plain strings");
    Held::Failure(json.into())
}

fn read<T: DeserializeOwned>(key: &Key, held: &Held) -> Result<T> {
    let misfit = |error: serde_json::Error| {
        Error::internal(format!(
            "the journaled value of {:?} does not fit its type: {error}",
            key.name
        ))
    };
    match held {
        Held::Value(json) => serde_json::from_str(json).map_err(misfit),
        Held::Failure(json) => {
            Err(serde_json::from_str::<StoredError>(json).map_or_else(misfit, Error::from))
        }
    }
}

/// The same for every run of one step in one flow, and for no other.
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

/// Nothing was done yet, and nothing was recorded: a task may try again.
fn not_begun(error: &LogError) -> Error {
    tracing::error!(%error, "what is to be done once could not be recorded");
    Error::retry("the replay log cannot be reached; try again")
}

/// Runs `work` unless the log says that it was begun before.
pub(super) async fn at_most_once<T, E, F>(
    log: Option<Arc<dyn ReplayLog>>,
    keep: Keep,
    flow: FlowId,
    name: String,
    work: F,
) -> Result<T>
where
    F: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: Into<Error>,
{
    let Some(log) = log else {
        // The fault that says so is on its way; the driver ends the call.
        return std::future::pending().await;
    };
    let key = LogKey::once(flow, &name);
    match log
        .begin(&key, keep)
        .await
        .map_err(|error| not_begun(&error))?
    {
        Recorded::Fresh => {}
        Recorded::Begun => {
            return Err(Error::msg(
                "this is being done elsewhere, or was interrupted; it is not done twice",
            ));
        }
        Recorded::Done(json) => {
            let (failed, json): (bool, String) = serde_json::from_str(&json)?;
            let held = if failed {
                Held::Failure(json.into())
            } else {
                Held::Value(json.into())
            };
            return read(&key.as_journal_key(), &held);
        }
    }
    // What was done once is not done again, however it failed.
    let held = to_held(work.await.map_err(|error| error.into().for_good()));
    let failed = matches!(held, Held::Failure(_));
    let record = serde_json::to_string(&(failed, &**held.json()))?;
    if let Err(error) = log.finish(&key, &record).await {
        tracing::error!(%error, "what was done once could not be recorded; if its token is lost it counts as interrupted");
    }
    read(&key.as_journal_key(), &held)
}
