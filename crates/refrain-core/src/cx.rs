//! The context of a handler.
//!
//! A handler can ask only through its [`Cx`], so an ask always belongs to a call. The operations are futures that stay
//! pending while the flow is suspended, so a handler cannot catch or swallow a suspension.

mod ask;
mod checkpoint;
mod detach;
mod explicit;
mod info;
mod report;
mod sleep;
mod step;
mod values;

pub use ask::{Answer, AskFuture};
pub use checkpoint::{CancelledFuture, CheckpointFuture};
pub use detach::DetachFuture;
pub use sleep::SleepFuture;
pub use step::StepFuture;

use crate::error::IntoError;
use crate::flow::{Shared, is_url, malformed_url};
use crate::journal::OperationKind;
use crate::replay::{LogKey, Retention};
use crate::{Elicit, Form, Result};
use ask::Question;
use refrain_wire::{Root, SamplingAnswer, SamplingParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// The context of a call, through which its handler does everything that must be journaled or reach the client.
///
/// | method | effect |
/// | --- | --- |
/// | **asks** | |
/// | [`elicit`](Cx::elicit) | asks for a form; a decline or a cancel is an error |
/// | [`ask`](Cx::ask) | asks for a form; returns an [`Answer`]: accepted, declined or cancelled |
/// | [`ask_form`](Cx::ask_form) | the same, for a form that is built at run time |
/// | [`elicit_url`](Cx::elicit_url) | asks the user to open a URL, and waits until a check confirms the action there |
/// | [`sample`](Cx::sample) | asks the client's model |
/// | [`roots`](Cx::roots) | asks for the client's roots |
/// | **effects** | |
/// | [`step`](Cx::step) | runs work and journals its value; at least once |
/// | [`step_with_key`](Cx::step_with_key) | the same, with an idempotency key that is stable across retries |
/// | [`once`](Cx::once) | runs work at most once, recorded in the replay log |
/// | [`checkpoint`](Cx::checkpoint), [`resume`](Cx::resume) | saves and reads the state of a long computation |
/// | [`now`](Cx::now), [`random`](Cx::random) | a journaled time and a journaled random number |
/// | **tasks** | |
/// | [`detach`](Cx::detach) | turns the call into a task |
/// | [`is_task`](Cx::is_task) | whether the call is a task |
/// | [`sleep`](Cx::sleep) | sleeps until a journaled time |
/// | [`status`](Cx::status) | sets the status message of the task |
/// | **reports** | |
/// | [`progress`](Cx::progress), [`log`](Cx::log) | sends progress and log messages to the client |
/// | **information** | |
/// | [`principal`](Cx::principal), [`uri`](Cx::uri), [`trace`](Cx::trace) | the caller, the URI being read, the trace context |
/// | [`can_elicit`](Cx::can_elicit), [`can_elicit_url`](Cx::can_elicit_url) | whether the client supports forms, URLs |
/// | [`can_sample`](Cx::can_sample), [`can_sample_with_tools`](Cx::can_sample_with_tools) | whether the client supports sampling, with tools |
/// | [`can_list_roots`](Cx::can_list_roots), [`extension`](Cx::extension) | whether the client lists roots; its settings of an extension |
/// | [`meta`](Cx::meta) | the members of the request's `_meta` that are not reserved |
/// | **structure** | |
/// | [`scope`](Cx::scope) | opens a namespace for names |
/// | [`cancelled`](Cx::cancelled) | waits for the end of the round, in spawned Tokio tasks |
/// | **explicit style** | |
/// | [`answer`](Cx::answer), [`state`](Cx::state) | reads answers and state by hand, with [`Incomplete`](crate::Incomplete) replies |
///
/// # Names
///
/// Asks and steps that are pending at the same time in one [scope](Cx::scope) need different names. A name can be used
/// again later: a loop may ask `item` any number of times.
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
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # #[derive(Deserialize, Elicit)] struct Login { name: String }
    /// # async fn example(cx: Cx) -> Result<()> {
    /// let login: Login = cx.elicit("login", "What is your user name?").await?;
    /// # let _ = login.name; Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn elicit<T: Elicit>(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> AskFuture<'_, T> {
        let question = Question::form(message.into(), T::form());
        AskFuture::new(self, name.into(), question, ask::decode_accepted)
    }

    /// Asks for a form and returns the outcome, so that the handler can react to a decline or a cancel.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # #[derive(Deserialize, Elicit)] struct Login { name: String }
    /// # async fn example(cx: Cx) -> Result<String> {
    /// match cx.ask::<Login>("login", "What is your user name?").await? {
    ///     Answer::Accepted(login) => Ok(format!("Hello, {}.", login.name)),
    ///     Answer::Declined | Answer::Cancelled => Ok("Hello.".into()),
    /// }
    /// # }
    /// ```
    #[track_caller]
    pub fn ask<T: Elicit>(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> AskFuture<'_, Answer<T>> {
        let question = Question::form(message.into(), T::form());
        AskFuture::new(self, name.into(), question, ask::decode_outcome)
    }

    /// Asks for a form that is built at run time and returns the outcome.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<()> {
    /// use refrain::ask::{Field, Form};
    ///
    /// let form = Form::new([Field::string("name"), Field::integer("age").optional()]);
    /// if let Answer::Accepted(content) = cx.ask_form("who", "Who are you?", &form).await? {
    ///     println!("{}", content["name"]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn ask_form(
        &self,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
        form: &Form,
    ) -> AskFuture<'_, Answer<serde_json::Value>> {
        let question = Question::form(message.into(), form);
        AskFuture::new(self, name.into(), question, ask::decode_outcome)
    }

    /// Asks the user to open a URL, and waits until `done` confirms that the action there is complete.
    ///
    /// An accept is only the user's consent to open the URL. `done` runs after each accept, as a [step](Cx::step); while
    /// it returns `false`, the user is asked again. A malformed `url` is a fault.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn is_paid() -> bool { true }
    /// # async fn example(cx: Cx) -> Result<()> {
    /// let url = "https://example.com/pay?order=1";
    /// cx.elicit_url("pay", "Please pay for the order.", url, async || ok(is_paid().await)).await?;
    /// # Ok(())
    /// # }
    /// ```
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
        E: IntoError,
    {
        let (name, message, url) = (name.into(), message.into(), url.into());
        if !is_url(&url) {
            self.shared.fault(malformed_url(&name));
        }
        // The first ask is created now, so that asks are ordered by the calls of the handler.
        let mut next = self.ask_url(name.clone(), message.clone(), url.clone());
        async move {
            loop {
                next.await?;
                let check = StepFuture::new(self, OperationKind::Check, name.clone(), |_| done());
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
        AskFuture::new(self, name, question, ask::decode_consent)
    }

    /// Asks the client's model. Parameters that fail [`SamplingParams::check`] are a fault.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<String> {
    /// let params = SamplingParams::new(200).user("Summarize the report in one sentence.");
    /// let answer = cx.sample("summary", params).await?;
    /// Ok(answer.text())
    /// # }
    /// ```
    #[track_caller]
    pub fn sample(
        &self,
        name: impl Into<Cow<'static, str>>,
        mut params: SamplingParams,
    ) -> AskFuture<'_, SamplingAnswer> {
        let name = name.into();
        if let Err(reason) = params.check() {
            self.shared
                .fault(format!("invalid sampling request {name:?}: {reason}"));
        }
        params.drop_undeclared(self.shared.env.capabilities);
        let question = Question::Sampling(Box::new(params));
        AskFuture::new(self, name, question, ask::decode_sampling)
    }

    /// Asks for the client's roots.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<usize> {
    /// let roots = cx.roots("roots").await?;
    /// Ok(roots.len())
    /// # }
    /// ```
    #[track_caller]
    pub fn roots(&self, name: impl Into<Cow<'static, str>>) -> AskFuture<'_, Vec<Root>> {
        AskFuture::new(self, name.into(), Question::Roots, ask::decode_roots)
    }

    /// Runs `work` and journals its value: later rounds read the value and drop `work` unpolled.
    ///
    /// The work runs **at least once**. It runs again if the response whose token contains the
    /// value is lost, or, in a task, if the worker crashes before the value is written. Use
    /// [`step_with_key`](Cx::step_with_key) if the work has effects elsewhere, and
    /// [`once`](Cx::once) if it must never run twice.
    ///
    /// The handler always receives the value decoded from the journal's JSON. An error is journaled as well, so failed
    /// work is not repeated. In a task, [`Error::retry`](crate::Error::retry) is not journaled: the task retries the step.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<u64> {
    /// let size: u64 = cx.step("size", async { std::fs::metadata("report.pdf").map(|file| file.len()) }).await?;
    /// Ok(size)
    /// # }
    /// ```
    #[track_caller]
    pub fn step<T, E, F>(&self, name: impl Into<Cow<'static, str>>, work: F) -> StepFuture<'_, F, T>
    where
        F: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: IntoError,
    {
        StepFuture::new(self, OperationKind::Step, name.into(), |_| work)
    }

    /// Runs a [`step`](Cx::step) whose work receives an idempotency key.
    ///
    /// The key is the same each time this step of this call runs, and unique otherwise. A service that knows
    /// idempotency keys can ignore the repetition.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn charge(_euros: u32, key: String) -> Result<String> { Ok(key) }
    /// # async fn example(cx: Cx) -> Result<String> {
    /// let receipt = cx.step_with_key("charge", |key| charge(20, key)).await?;
    /// Ok(receipt)
    /// # }
    /// ```
    #[track_caller]
    pub fn step_with_key<T, E, F>(
        &self,
        name: impl Into<Cow<'static, str>>,
        work: impl FnOnce(String) -> F,
    ) -> StepFuture<'_, F, T>
    where
        F: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: IntoError,
    {
        StepFuture::new(self, OperationKind::Step, name.into(), |key| {
            work(step::idempotency_key(&self.shared, key))
        })
    }

    /// Runs a step **at most once**, even if a token is presented again: the replay log records its start first.
    ///
    /// If the work is interrupted, its outcome is unknown: it is not repeated, and `once` returns an error from then on.
    ///
    /// The tool must be registered with `#[tool(once)]` or `.once()`, on a server with a replay log.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn transfer() -> String { "17".into() }
    /// # async fn example(cx: Cx) -> Result<String> {
    /// let receipt: String = cx.once("transfer", async { ok(transfer().await) }).await?;
    /// Ok(receipt)
    /// # }
    /// ```
    #[track_caller]
    pub fn once<T, E, F>(
        &self,
        name: impl Into<Cow<'static, str>>,
        work: F,
    ) -> impl Future<Output = Result<T>>
    where
        F: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: IntoError,
    {
        let (shared, env) = (&self.shared, &self.shared.env);
        if env.replay_log.is_none() {
            shared.fault(
                "cx.once(..) needs a tool registered with .once() and a server with a replay log",
            );
        }
        let log = env.replay_log.clone();
        let retention = Retention::for_flow(env.source.unix_seconds(), shared.lock().deadline);
        let account = self.account();
        // If no other request can run this round and the call cannot become a task, every later
        // token contains the outcome. Otherwise another request can run the round, or a worker can
        // crash before the journal is written.
        let needs_outcome = shared.is_repeatable || env.can_detach;
        StepFuture::new(self, OperationKind::Once, name.into(), |key| {
            let key = LogKey::once(shared.flow, &key.unique_name());
            let record = step::OnceRecord {
                key,
                account,
                retention,
                needs_outcome,
            };
            step::at_most_once(shared, log, record, work)
        })
    }

    /// Saves the latest state of a computation, to be read with [`resume`](Cx::resume).
    ///
    /// A draining or overloaded instance can hand the flow on here. The next instance runs the handler from the top and
    /// continues from this state.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<u64> {
    /// let (mut number, mut sum) = cx.resume("sum")?.unwrap_or((0_u64, 0_u64));
    /// while number < 1_000_000 {
    ///     number += 1;
    ///     sum += number;
    ///     if number % 10_000 == 0 {
    ///         cx.checkpoint("sum", &(number, sum)).await?;
    ///     }
    /// }
    /// Ok(sum)
    /// # }
    /// ```
    #[track_caller]
    pub fn checkpoint(
        &self,
        name: impl Into<Cow<'static, str>>,
        state: &impl Serialize,
    ) -> CheckpointFuture<'_> {
        CheckpointFuture::new(self, name.into(), state)
    }

    /// Returns the state of the last [`checkpoint`](Cx::checkpoint) with this name, from this round or an earlier one.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<usize> {
    /// let done: Vec<String> = cx.resume("done")?.unwrap_or_default();
    /// Ok(done.len())
    /// # }
    /// ```
    pub fn resume<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let json = {
            let state = self.shared.lock();
            let mut checkpoints = state.journal.checkpoints.iter();
            let found = checkpoints.find(|c| c.scope == self.scope && c.name == name);
            found.map(|checkpoint| checkpoint.json.clone())
        };
        Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
    }

    /// Turns the call into a task: the client receives the task id, and the handler continues.
    ///
    /// The journal moves to the server's store, and any instance can continue the task. This does
    /// nothing if the client does not support tasks or the server has no store. A live tool, and a
    /// tool for clients of a draft, must be registered with `#[tool(detaches)]` or `.detaches()`.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<()> {
    /// cx.detach().await?;
    /// cx.step("import", async { ok(()) }).await?; // may take hours
    /// # Ok(())
    /// # }
    /// ```
    pub fn detach(&self) -> DetachFuture<'_> {
        DetachFuture::new(self)
    }

    /// Returns whether the call is a task.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<()> {
    /// cx.detach().await?;
    /// if !cx.is_task() {
    ///     cx.log(LogLevel::Warning, "this call is not a task: keep the connection open");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_task(&self) -> bool {
        self.shared.lock().is_task()
    }

    /// Sleeps until a journaled time. A task can leave memory meanwhile, and any instance can resume it.
    ///
    /// The sleep belongs to the call. If a spawned Tokio task is asleep when the call ends, it is
    /// unwound, and the code after the sleep does not run. Work that outlives the call must use a
    /// timer of the async runtime.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<()> {
    /// use std::time::Duration;
    ///
    /// cx.detach().await?;
    /// cx.sleep(Duration::from_secs(24 * 3600)).await;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn sleep(&self, time: Duration) -> SleepFuture<'_> {
        SleepFuture::new(self, time)
    }

    /// Opens a namespace: two parts of a handler can use the same name in two scopes.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # #[derive(Deserialize, Elicit)] struct Address { street: String }
    /// # async fn example(cx: Cx) -> Result<()> {
    /// let (home, work) = (cx.scope("home"), cx.scope("work"));
    /// let (home, work) = tokio::try_join!(
    ///     home.elicit::<Address>("address", "Where do you live?"),
    ///     work.elicit::<Address>("address", "Where do you work?"),
    /// )?;
    /// # let _ = (home.street, work.street); Ok(())
    /// # }
    /// ```
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

    /// Waits until the client disconnects or the round ends. For Tokio tasks that the handler
    /// spawned.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) {
    /// let watcher = cx.clone();
    /// tokio::spawn(async move {
    ///     watcher.cancelled().await;
    ///     println!("the round has ended");
    /// });
    /// # }
    /// ```
    pub fn cancelled(&self) -> CancelledFuture<'_> {
        CancelledFuture(self)
    }
}
