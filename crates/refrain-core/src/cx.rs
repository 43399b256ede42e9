//! What a handler is given.
//!
//! A [`Cx`] is the only way to ask, so an ask always belongs to the call that made it. Its operations are futures
//! that are set down, not failed: a handler cannot catch or swallow a suspension.

mod ask;
mod checkpoint;
mod detach;
mod sleep;
mod step;

pub use ask::{Answer, AskFuture};
pub use checkpoint::{Cancelled, CheckpointFuture};
pub use detach::DetachFuture;
pub use sleep::SleepFuture;
pub use step::StepFuture;

use crate::flow::{Note, Shared, in_step, is_url, no_url};
use crate::journal::{Entry, Held, Kind};
use crate::replay::Keep;
use crate::{AskError, Error, Principal, Result, Trace};
use crate::{Elicit, Form};
use ask::Question;
use refrain_wire::{Capability, LogLevel, Root, SamplingAnswer, SamplingParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A handler's view of its call: asks, steps and checkpoints are made through it.
///
/// Names given to asks and steps must be unique among those alive at the same time in one [scope](Cx::scope).
/// Using a name again later is fine: a loop may ask `item` as often as it likes.
#[derive(Clone)]
pub struct Cx {
    shared: Arc<Shared>,
    scope: Option<Arc<str>>,
}

impl std::fmt::Debug for Cx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cx")
            .field("flow", &self.shared.flow)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl Cx {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            scope: None,
        }
    }

    /// Asks for a form to be filled in, and gives what was filled in. A decline or a cancel is an error.
    #[track_caller]
    pub fn elicit<T: Elicit>(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> AskFuture<'_, T> {
        let question = Question::form(message.into(), T::form());
        AskFuture::new(self, Kind::Form, name.into(), question, ask::accepted::<T>)
    }

    /// Asks for a form to be filled in, and gives the outcome, a decline or a cancel included.
    #[track_caller]
    pub fn ask<T: Elicit>(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> AskFuture<'_, Answer<T>> {
        let question = Question::form(message.into(), T::form());
        AskFuture::new(self, Kind::Form, name.into(), question, ask::outcome::<T>)
    }

    /// Asks for a form that is made at run time, and gives the content that was filled in.
    #[track_caller]
    pub fn ask_form(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
        form: &Form,
    ) -> AskFuture<'_, Answer<serde_json::Value>> {
        let question = Question::form(message.into(), form);
        AskFuture::new(self, Kind::Form, name.into(), question, ask::outcome)
    }

    /// Asks for a URL to be opened, and waits until `done` says that what was to happen there has happened.
    ///
    /// An accept is only the user's consent to open the URL. `done` is asked after each, as a step; while it says
    /// `false` the user is asked again. A `url` that is none is a fault.
    #[track_caller]
    pub fn elicit_url<D, F, E>(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
        url: impl Into<String>,
        done: D,
    ) -> impl Future<Output = Result<()>>
    where
        D: Fn() -> F,
        F: Future<Output = Result<bool, E>>,
        E: Into<Error>,
    {
        let (name, message, url) = (name.into(), message.into(), url.into());
        if !is_url(&url) {
            self.shared.fault(no_url(&name), Some(Location::caller()));
        }
        // The first ask is made now, so that its place among the others is settled.
        let question = Question::Url {
            message: message.clone(),
            url: url.clone(),
        };
        let mut next = AskFuture::new(self, Kind::Url, name.clone(), question, ask::consent);
        async move {
            loop {
                next.await?;
                let check = StepFuture::new(self, Kind::Check, name.clone(), done());
                if check.await? {
                    return Ok(());
                }
                let again = format!("{message}\n\nThis has not been completed yet.");
                let question = Question::Url {
                    message: again.into(),
                    url: url.clone(),
                };
                next = AskFuture::new(self, Kind::Url, name.clone(), question, ask::consent);
            }
        }
    }

    /// Asks the client's model. A conversation that no model can be given (see [`SamplingParams::check`]) is a fault.
    #[track_caller]
    pub fn sample(
        &self,
        name: impl Into<Cow<'static, str>>,
        mut params: SamplingParams,
    ) -> AskFuture<'_, SamplingAnswer> {
        let name = name.into();
        if let Err(reason) = params.check() {
            let message = format!("{name:?} cannot be asked of a model: {reason}");
            self.shared.fault(message, Some(Location::caller()));
        }
        params.keep_to(self.shared.env.capabilities);
        let question = Question::Sampling(Box::new(params));
        AskFuture::new(self, Kind::Sampling, name, question, ask::sampled)
    }

    /// Asks for the client's roots.
    #[track_caller]
    pub fn roots(&self, name: impl Into<Cow<'static, str>>) -> AskFuture<'_, Vec<Root>> {
        AskFuture::new(self, Kind::Roots, name.into(), Question::Roots, ask::roots)
    }

    /// Runs `work` once and keeps its value in the journal: in later rounds `work` is dropped unpolled.
    ///
    /// The value a handler sees is what the journal's JSON decodes to, on the first run too. An error is kept as
    /// well: what failed is not tried again. Until a token that holds the value has been presented, a lost response
    /// means the step runs again; see [`step_with_key`](Cx::step_with_key).
    #[track_caller]
    pub fn step<T, E, F>(&self, name: impl Into<Cow<'static, str>>, work: F) -> StepFuture<'_, F, T>
    where
        F: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<Error>,
    {
        StepFuture::new(self, Kind::Step, name.into(), work)
    }

    /// A step whose work is given an idempotency key: the same on every retry within the flow, and on no other.
    #[track_caller]
    pub fn step_with_key<T, E, F>(
        &self,
        name: impl Into<Cow<'static, str>>,
        work: impl FnOnce(String) -> F,
    ) -> StepFuture<'_, F, T>
    where
        F: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<Error>,
    {
        StepFuture::with_key(self, Kind::Step, name.into(), |key| {
            work(step::idempotency_key(&self.shared, key))
        })
    }

    /// A step that is never run twice, not even when a token is presented again: what is about to be done is
    /// recorded in the replay log first. One that was interrupted is an error ever after.
    ///
    /// The tool must be registered as one that uses `once`, on a server that has a replay log.
    #[track_caller]
    pub fn once<T, E, F>(
        &self,
        name: impl Into<Cow<'static, str>>,
        work: F,
    ) -> impl Future<Output = Result<T>>
    where
        F: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<Error>,
    {
        if self.shared.env.replay_log.is_none() {
            self.shared.fault(
                "cx.once(..) needs a tool registered with .once() and a server with a replay log"
                    .into(),
                Some(Location::caller()),
            );
        }
        let log = self.shared.env.replay_log.clone();
        let flow = self.shared.flow;
        let now = self.shared.env.source.unix_seconds();
        let keep = Keep::for_flow(now, self.shared.deadline());
        StepFuture::with_key(self, Kind::Once, name.into(), |key| {
            step::at_most_once(log, keep, flow, key.unique(), work)
        })
    }

    /// Keeps the latest state of a computation, and is a point where a busy or draining instance can hand the flow
    /// on: another one finds the state with [`resume`](Cx::resume) and goes on from there.
    #[track_caller]
    pub fn checkpoint(
        &self,
        name: impl Into<Cow<'static, str>>,
        state: &impl Serialize,
    ) -> CheckpointFuture<'_> {
        CheckpointFuture::new(self, name.into(), serde_json::to_string(state))
    }

    /// The state that the last [`checkpoint`](Cx::checkpoint) of this name kept, in this round or an earlier one.
    pub fn resume<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let json = {
            let state = self.shared.lock();
            let saved = state
                .saved
                .iter()
                .find(|saved| saved.scope == self.scope && saved.name == name);
            saved.map(|saved| saved.json.clone())
        };
        Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
    }

    /// Makes the call a task from here on: the client is told so, and the handler goes on where it is. From then on its
    /// journal is in the server's store, and whichever instance is alive carries it on.
    ///
    /// Where the client does not know tasks, or the server has no store, nothing changes: the call goes on as it is.
    pub fn detach(&self) -> DetachFuture<'_> {
        DetachFuture::new(self)
    }

    /// Is this call a task?
    pub fn is_task(&self) -> bool {
        self.shared.lock().is_task()
    }

    /// Sleeps. When it ends is journaled: in a task the handler leaves memory meanwhile, and is taken up again by
    /// whichever instance is alive.
    ///
    /// It is part of the call. A task that the handler spawned, and that sleeps when the call is over, is ended: what comes after
    /// the sleep is not done. What is to outlive the call sleeps by the runtime's own clock.
    #[track_caller]
    pub fn sleep(&self, time: Duration) -> SleepFuture<'_> {
        SleepFuture::new(self, time)
    }

    /// Says what the call is doing, for those who look after its task. Silent while earlier work is replayed.
    ///
    /// It stands until the next is said. The result has it only if it was said last of all, with no ask, step or sleep
    /// after it; where the handler ends with an error, that is said instead, and a task that is called off says nothing.
    pub fn status(&self, message: impl Into<String>) {
        {
            let mut state = self.shared.lock();
            if !state.live || state.ended {
                return;
            }
            let message = message.into();
            state.parting = Some(message.clone());
            state.status = Some(message);
        }
        self.shared.kick();
    }

    /// The same call, with names of its own: two parts of a handler can use one name in two scopes.
    pub fn scope(&self, name: impl AsRef<str>) -> Self {
        let scope = match &self.scope {
            Some(outer) => format!("{outer}/{}", name.as_ref()),
            None => name.as_ref().to_owned(),
        };
        Self {
            shared: self.shared.clone(),
            scope: Some(scope.into()),
        }
    }

    /// Tells the client how far the work is. Silent while earlier rounds are replayed, and where the client did not
    /// ask for progress. Values that do not rise are left out, as the protocol demands, and so is what is no number.
    pub fn progress(&self, done: f64, total: Option<f64>, message: &str) {
        if !self.shared.env.wants_progress || !done.is_finite() {
            return;
        }
        let rises = {
            let mut state = self.shared.lock();
            let rises = state.last_progress.is_none_or(|last| done > last);
            if rises && state.live {
                state.last_progress = Some(done);
            }
            rises
        };
        if rises {
            self.note(Note::Progress {
                done,
                total,
                message: (!message.is_empty()).then(|| message.to_owned()),
            });
        }
    }

    /// Sends a log message to the client. Silent while earlier rounds are replayed, and where the client did not
    /// ask for messages of this level.
    pub fn log(&self, level: LogLevel, data: impl Into<serde_json::Value>) {
        if self
            .shared
            .env
            .log_level
            .is_some_and(|least| level >= least)
        {
            self.note(Note::Log {
                level,
                data: data.into(),
            });
        }
    }

    fn note(&self, note: Note) {
        {
            let mut state = self.shared.lock();
            // What a task has to say, its status says.
            if !state.live || state.ended || state.is_task() {
                return;
            }
            if state.notes.len() >= self.shared.env.limits.notes {
                state.notes.remove(0);
            }
            state.notes.push(note);
        }
        self.shared.kick();
    }

    /// Who is calling.
    pub fn principal(&self) -> &Principal {
        &self.shared.env.principal
    }

    /// The URI that is read, in the handler of a resource.
    pub fn uri(&self) -> Option<&str> {
        self.shared.env.uri.as_deref()
    }

    /// The trace this round belongs to, to be handed on to services that are called in it.
    ///
    /// ```
    /// # use refrain_core::Cx;
    /// fn headers(cx: &Cx) -> Vec<(&'static str, String)> {
    ///     let trace = cx.trace();
    ///     let mut headers = vec![("traceparent", trace.traceparent().to_string())];
    ///     headers.extend(trace.tracestate().map(|state| ("tracestate", state.to_owned())));
    ///     headers
    /// }
    /// ```
    pub fn trace(&self) -> &Trace {
        &self.shared.trace
    }

    /// Can the client fill in forms?
    pub fn can_elicit(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Form)
    }

    /// Can the client open URLs?
    pub fn can_elicit_url(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Url)
    }

    /// Can the client ask a model?
    pub fn can_sample(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Sampling)
    }

    /// Can the client ask a model that uses tools?
    pub fn can_sample_with_tools(&self) -> bool {
        self.shared.env.capabilities.has(Capability::SamplingTools)
    }

    /// Can the client list roots?
    pub fn can_list_roots(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Roots)
    }

    /// The settings of an extension that the client declared in this round; `None` if it did not.
    pub fn extension(&self, name: &str) -> Option<serde_json::Value> {
        let declared = self.shared.env.extensions.as_ref()?;
        let mut all: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(declared.get()).ok()?;
        all.remove(name)
    }

    /// The time, journaled: every round sees the same time at this place of the handler.
    pub fn now(&self) -> SystemTime {
        let source = &self.shared.env.source;
        let micros = self.value(Kind::Now, || {
            let since = source.now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        });
        UNIX_EPOCH + Duration::from_micros(micros)
    }

    /// A random number, journaled: every round sees the same number at this place of the handler.
    pub fn random(&self) -> u64 {
        self.value(Kind::Random, || {
            let mut bytes = [0; 8];
            self.shared.env.source.fill(&mut bytes);
            u64::from_le_bytes(bytes)
        })
    }

    /// A value that is drawn once and then read from the journal. Within a step it is the step that is journaled.
    pub(super) fn value(&self, kind: Kind, draw: impl FnOnce() -> u64) -> u64 {
        let drawn = draw();
        if in_step(&self.shared) {
            return drawn;
        }
        let mut state = self.shared.lock();
        let key = state.take_key(self.scope.as_ref(), kind);
        let known = state.find(&key);
        if let Some(index) = known {
            let number = state.entries[index].held.json().parse();
            state.deliver(index);
            return number.unwrap_or(drawn);
        }
        let held = Held::Value(drawn.to_string().into());
        let mut entry = Entry::new(key, 0, held);
        entry.delivered = true;
        if !state.ended {
            let limit = self.shared.env.limits.entries;
            if let Some(index) = state.append(entry, limit) {
                state.deliver(index);
            }
        }
        drawn
    }

    /// Waits until the call is over: the client went away, or the round ended. For tasks a handler spawned.
    pub fn cancelled(&self) -> Cancelled<'_> {
        Cancelled::new(self)
    }

    /// An answer as the client sent it, for handlers in the explicit style. The latest one under this name.
    pub fn answer(&self, name: &str) -> Option<Box<RawValue>> {
        let json = {
            let mut state = self.shared.lock();
            let found = state.entries.iter().rposition(|e| {
                e.key.scope.is_none() && e.key.kind.ask().is_some() && e.key.name == name
            });
            match found {
                Some(index) => {
                    state.deliver(index);
                    state.entries[index].held.json().clone()
                }
                None => {
                    let loose = state.loose.iter().find(|(key, _)| **key == *name);
                    loose.map(|(_, json)| json.clone())?
                }
            }
        };
        RawValue::from_string(json.to_string()).ok()
    }

    /// The state that an earlier incomplete reply of this handler sent along.
    pub fn state<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let json = self.shared.lock().own_state.clone();
        Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
    }
}

impl AskError {
    /// The name of the ask.
    pub fn name(&self) -> &str {
        match self {
            Self::Declined { name }
            | Self::Cancelled { name }
            | Self::Unsupported { name, .. }
            | Self::Invalid { name, .. }
            | Self::Failed { name, .. }
            | Self::Over { name } => name,
        }
    }
}
