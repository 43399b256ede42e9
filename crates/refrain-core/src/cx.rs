//! The context of a handler.
//!
//! A [`Cx`] is the only way to ask, so an ask always belongs to its call. Its operations are futures that are
//! suspended, not failed: a handler cannot catch or swallow a suspension.

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

use crate::flow::{Note, Shared, in_step, is_url, micros, no_url};
use crate::journal::{Entry, Held, Key, Kind};
use crate::replay::{Keep, LogKey};
use crate::{Elicit, Error, Form, Principal, Result, Trace};
use ask::Question;
use refrain_wire::{Capability, LogLevel, Root, SamplingAnswer, SamplingParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The context of a call: a handler makes asks, steps and checkpoints through it.
///
/// Names of asks and steps must be unique among those alive at the same time in one [scope](Cx::scope).
/// A name can be used again later: a loop may ask `item` any number of times.
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

    /// Asks for a form and returns its content. A decline or a cancel is an error.
    #[track_caller]
    pub fn elicit<T: Elicit>(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> AskFuture<'_, T> {
        let question = Question::form(message.into(), T::form());
        AskFuture::new(self, Kind::Form, name.into(), question, ask::accepted::<T>)
    }

    /// Asks for a form and returns the outcome, including a decline or a cancel.
    #[track_caller]
    pub fn ask<T: Elicit>(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> AskFuture<'_, Answer<T>> {
        let question = Question::form(message.into(), T::form());
        AskFuture::new(self, Kind::Form, name.into(), question, ask::outcome::<T>)
    }

    /// Asks for a form that is built at run time and returns the outcome.
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

    /// Asks for a URL to be opened, and waits until `done` confirms that the action there is complete.
    ///
    /// An accept is only the user's consent to open the URL. `done` runs after each accept, as a step; while it
    /// returns `false` the user is asked again. A malformed `url` is a fault.
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
            self.shared.fault(&no_url(&name));
        }
        // The first ask is made now, so that it has its place in the order of asks.
        let mut next = self.ask_url(name.clone(), message.clone(), url.clone());
        async move {
            loop {
                next.await?;
                let check = StepFuture::new(self, Kind::Check, name.clone(), |_| done());
                if check.await? {
                    return Ok(());
                }
                let again = format!("{message}\n\nThis has not been completed yet.");
                next = self.ask_url(name.clone(), again.into(), url.clone());
            }
        }
    }

    #[track_caller]
    fn ask_url(
        &self,
        name: Cow<'static, str>,
        message: Cow<'static, str>,
        url: String,
    ) -> AskFuture<'_, ()> {
        let question = Question::Url { message, url };
        AskFuture::new(self, Kind::Url, name, question, ask::consent)
    }

    /// Asks the client's model. Parameters that fail [`SamplingParams::check`] are a fault.
    #[track_caller]
    pub fn sample(
        &self,
        name: impl Into<Cow<'static, str>>,
        mut params: SamplingParams,
    ) -> AskFuture<'_, SamplingAnswer> {
        let name = name.into();
        if let Err(reason) = params.check() {
            let message = format!("{name:?} cannot be asked of a model: {reason}");
            self.shared.fault(&message);
        }
        params.drop_undeclared(self.shared.env.capabilities);
        let question = Question::Sampling(Box::new(params));
        AskFuture::new(self, Kind::Sampling, name, question, ask::sampled)
    }

    /// Asks for the client's roots.
    #[track_caller]
    pub fn roots(&self, name: impl Into<Cow<'static, str>>) -> AskFuture<'_, Vec<Root>> {
        AskFuture::new(self, Kind::Roots, name.into(), Question::Roots, ask::roots)
    }

    /// Runs `work` once and keeps its value in the journal: later rounds drop `work` unpolled.
    ///
    /// The handler always sees the value decoded from the journal's JSON. An error is kept as well: failed work is
    /// not repeated. If a response is lost before its token is presented, the step runs again; see
    /// [`step_with_key`](Cx::step_with_key).
    #[track_caller]
    pub fn step<T, E, F>(&self, name: impl Into<Cow<'static, str>>, work: F) -> StepFuture<'_, F, T>
    where
        F: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<Error>,
    {
        StepFuture::new(self, Kind::Step, name.into(), |_| work)
    }

    /// Runs a step whose work gets an idempotency key: the same on every retry within the flow, and unique otherwise.
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
        StepFuture::new(self, Kind::Step, name.into(), |key| {
            work(step::idempotency_key(&self.shared, key))
        })
    }

    /// Runs a step at most once, even if a token is presented again: its start is recorded in the replay log first.
    /// An interrupted run is an error from then on.
    ///
    /// The tool must be registered with `.once()`, on a server with a replay log.
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
        let (shared, env) = (&self.shared, &self.shared.env);
        if env.replay_log.is_none() {
            shared.fault(
                "cx.once(..) needs a tool registered with .once() and a server with a replay log",
            );
        }
        let log = env.replay_log.clone();
        let keep = Keep::for_flow(env.source.unix_seconds(), shared.lock().deadline);
        StepFuture::new(self, Kind::Once, name.into(), |key| {
            let key = LogKey::once(shared.flow, &key.unique());
            step::at_most_once(log, keep, key, work)
        })
    }

    /// Saves the latest state of a computation. A busy or draining instance can hand the flow on here: the next one
    /// reads the state with [`resume`](Cx::resume) and continues from there.
    #[track_caller]
    pub fn checkpoint(
        &self,
        name: impl Into<Cow<'static, str>>,
        state: &impl Serialize,
    ) -> CheckpointFuture<'_> {
        CheckpointFuture::new(self, name.into(), state)
    }

    /// Returns the state of the last [`checkpoint`](Cx::checkpoint) of this name, from this round or an earlier one.
    pub fn resume<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let json = {
            let state = self.shared.lock();
            let mut saved = state.journal.saved.iter();
            let saved = saved.find(|saved| saved.scope == self.scope && saved.name == name);
            saved.map(|saved| saved.json.clone())
        };
        Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
    }

    /// Makes the call a task from here on: the client gets its id, and the handler continues. Its journal is then in
    /// the server's store, and any instance can continue it.
    ///
    /// Without a client that supports tasks and a server with a store this does nothing.
    pub fn detach(&self) -> DetachFuture<'_> {
        DetachFuture::new(self)
    }

    /// Returns whether this call is a task.
    pub fn is_task(&self) -> bool {
        self.shared.lock().is_task()
    }

    /// Sleeps until a time that is journaled: a task leaves memory meanwhile, and any instance can resume it.
    ///
    /// The sleep belongs to the call. A spawned task that sleeps when the call is over is unwound, so the code after
    /// the sleep does not run. Work that outlives the call must sleep by the runtime's clock.
    #[track_caller]
    pub fn sleep(&self, time: Duration) -> SleepFuture<'_> {
        SleepFuture::new(self, time)
    }

    /// Sets the status of the call's task. Silent while earlier work is replayed.
    ///
    /// It stays until the next status. The result includes it only if no ask, step or sleep came after it. An error of
    /// the handler replaces it, and a cancelled task has no status.
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

    /// Opens a namespace: two parts of a handler can use one name in two scopes.
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

    /// Reports progress to the client. Silent while earlier rounds are replayed, and if the client did not ask for
    /// progress. Values that do not increase are skipped, as the protocol demands, and so are NaN and infinities.
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

    /// Sends a log message to the client. Silent while earlier rounds are replayed, and if the client did not ask for
    /// messages of this level.
    pub fn log(&self, level: LogLevel, data: impl Into<serde_json::Value>) {
        let least = self.shared.env.log_level;
        if least.is_some_and(|least| level >= least) {
            let data = data.into();
            self.note(Note::Log { level, data });
        }
    }

    fn note(&self, note: Note) {
        {
            let mut state = self.shared.lock();
            // A task reports through its status.
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

    /// Returns the authenticated caller.
    pub fn principal(&self) -> &Principal {
        &self.shared.env.principal
    }

    /// Returns the URI being read, in the handler of a resource.
    pub fn uri(&self) -> Option<&str> {
        self.shared.env.uri.as_deref()
    }

    /// Returns the trace of this round, to propagate to other services.
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

    /// Returns whether the client supports forms.
    pub fn can_elicit(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Form)
    }

    /// Returns whether the client can open URLs.
    pub fn can_elicit_url(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Url)
    }

    /// Returns whether the client supports sampling.
    pub fn can_sample(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Sampling)
    }

    /// Returns whether the client supports sampling with tools.
    pub fn can_sample_with_tools(&self) -> bool {
        self.shared.env.capabilities.has(Capability::SamplingTools)
    }

    /// Returns whether the client can list roots.
    pub fn can_list_roots(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Roots)
    }

    /// Returns the settings of an extension that the client declared in this round.
    pub fn extension(&self, name: &str) -> Option<serde_json::Value> {
        let declared = self.shared.env.extensions.as_ref()?;
        let mut all: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(declared.get()).ok()?;
        all.remove(name)
    }

    /// Returns the time, journaled: every round sees the same time at this place of the handler.
    pub fn now(&self) -> SystemTime {
        let source = &self.shared.env.source;
        UNIX_EPOCH + Duration::from_micros(self.value(Kind::Now, || micros(source.now())))
    }

    /// Returns a random number, journaled: every round sees the same number at this place of the handler.
    pub fn random(&self) -> u64 {
        self.value(Kind::Random, || {
            let mut bytes = [0; 8];
            self.shared.env.source.fill(&mut bytes);
            u64::from_le_bytes(bytes)
        })
    }

    /// A value that is drawn once and then read from the journal. Inside a step only the step is journaled.
    fn value(&self, kind: Kind, draw: impl FnOnce() -> u64) -> u64 {
        let drawn = draw();
        if in_step(&self.shared) {
            return drawn;
        }
        let mut state = self.shared.lock();
        let key = state.number(Key::new(self.scope.as_ref(), kind, "".into()));
        if let Some(index) = state.find(&key) {
            let number = state.journal.entries[index].held.json().parse();
            state.deliver(index);
            return number.unwrap_or(drawn);
        }
        let mut entry = Entry::new(key, 0, Held::Value(drawn.to_string().into()));
        entry.delivered = true;
        let limit = self.shared.env.limits.entries;
        if !state.ended
            && let Some(index) = state.append(entry, limit)
        {
            state.deliver(index);
        }
        drawn
    }

    /// Waits until the client disconnects or the round ends. For tasks that a handler spawned.
    pub fn cancelled(&self) -> Cancelled<'_> {
        Cancelled(self)
    }

    /// Returns the latest answer under this name as the client sent it, for handlers in the explicit style.
    pub fn answer(&self, name: &str) -> Option<Box<RawValue>> {
        let json = {
            let mut state = self.shared.lock();
            let found = state.journal.entries.iter().rposition(|e| {
                e.key.scope.is_none() && e.key.kind.ask().is_some() && e.key.name == name
            });
            match found {
                Some(index) => {
                    state.deliver(index);
                    state.journal.entries[index].held.json().clone()
                }
                None => {
                    let loose = state.loose.iter().find(|(key, _)| **key == *name);
                    loose.map(|(_, json)| json.clone())?
                }
            }
        };
        RawValue::from_string(json.to_string()).ok()
    }

    /// Returns the state that an earlier [`Incomplete`](crate::Incomplete) reply of this handler carried.
    pub fn state<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let json = self.shared.lock().journal.state.clone();
        Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
    }
}
