//! The loop that answers: a call is sent, what it asks is answered, and it is sent again until it is done.
//!
//! Always: the state goes back as it came, with the answers of its own round and in its own call only; nothing of
//! one round is left over in the next. Whatever goes wrong after the first round, the call is in the error.

use crate::ask::{Answer, Ask};
use crate::call::Call;
use crate::client::{Client, Inner, Request, back_off, over};
use crate::error::{ASKS_IN_A_DRAFT, Error, ErrorKind, Unanswered};
use crate::handlers::NoAnswer;
use crate::limits::Limits;
use crate::older;
use crate::ordered::Ordered;
use crate::pending::{Former, PendingCall};
use crate::random;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, HeaderName, HeaderValue};
use refrain_wire::{CallKind, ErrorCode, PromptResult, ReadResult, ToolResult};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::runtime::Handle;

/// What a round came to.
#[expect(
    clippy::large_enum_variant,
    reason = "one is made in each round and moved once"
)]
#[derive(Debug)]
pub enum Outcome {
    /// The call is done, and this is its result.
    Complete(Value),
    /// The call waits: for answers, to be sent again, or for a task to end.
    Pending(PendingCall),
}

impl Client {
    /// Calls a tool, answers what it asks, and gives its result. `arguments` is an object.
    ///
    /// A result that does not fit the output schema of a tool that was listed before is an
    /// [`ErrorKind::BadResult`].
    pub async fn call_tool(&self, name: &str, arguments: Value) -> Result<ToolResult, Error> {
        let result = self
            .call(Call::tool(name).with_arguments(object(arguments)?))
            .await?;
        let result = self.inner.as_promised(name, result).await?;
        let meta = meta(&result);
        let result: ToolResult = typed(result)?;
        Ok(ToolResult { meta, ..result })
    }

    /// Why a result of a tool is not what its output schema promises, if it is not: [`call_tool`](Self::call_tool) has
    /// asked this, the other ways to call do not. Of a tool that was not listed nothing is known.
    pub fn broken_promise(&self, tool: &str, result: &Value) -> Option<String> {
        self.inner.broken_promise(tool, result)
    }

    /// Gets a prompt, answers what it asks, and gives its result. `arguments` is an object.
    pub async fn get_prompt(&self, name: &str, arguments: Value) -> Result<PromptResult, Error> {
        let result = self
            .call(Call::prompt(name).with_arguments(object(arguments)?))
            .await?;
        let meta = meta(&result);
        let result: PromptResult = typed(result)?;
        Ok(PromptResult { meta, ..result })
    }

    /// Reads a resource, answers what it asks, and gives its contents.
    pub async fn read_resource(&self, uri: &str) -> Result<ReadResult, Error> {
        let mut result = self.call(Call::resource(uri)).await?;
        let meta = meta(&result);
        // Older servers say nothing of caching, and what makes no sense is as good as nothing.
        if result["ttlMs"].as_u64().is_none() {
            result["ttlMs"] = 0.into();
        }
        if !matches!(result["cacheScope"].as_str(), Some("public" | "private")) {
            result["cacheScope"] = "private".into();
        }
        let result: ReadResult = typed(result)?;
        Ok(ReadResult { meta, ..result })
    }

    /// Makes a call, answers what it asks, and gives the object that is its result.
    pub async fn call(&self, call: Call) -> Result<Value, Error> {
        self.finish(self.prepare(call)).await
    }

    /// Makes the first round of a call, and gives what came of it. Nothing is answered.
    pub async fn start(&self, call: Call) -> Result<Outcome, Error> {
        self.resume(self.prepare(call)).await
    }

    /// Makes the next round of a call that waits, with the answers it was given. All that is asked must be answered.
    ///
    /// A call that has become a task is told the answers there are, and then looked at once.
    pub async fn resume(&self, mut pending: PendingCall) -> Result<Outcome, Error> {
        let former = self.adopt(&mut pending);
        let open = pending.unanswered();
        if pending.task_id().is_none() && !open.is_empty() {
            let unanswered = open.iter().map(|ask| Unanswered {
                key: ask.key().to_owned(),
                why: "it was not answered".to_owned(),
            });
            return Err(ErrorKind::Unanswered(unanswered.collect()).of(&pending));
        }
        let done = self.inner.round(&mut pending).await;
        match done {
            Ok(Some(result)) => Ok(Outcome::Complete(result)),
            Ok(None) => Ok(Outcome::Pending(pending)),
            Err(kind) => Err(failed(kind, pending, former)),
        }
    }

    /// Takes up a call that waits, answers what it asks, and gives the object that is its result.
    ///
    /// Dropping the future cancels the call: a request under way is ended, and a task is called off.
    pub async fn finish(&self, pending: PendingCall) -> Result<Value, Error> {
        self.finish_unless(pending, std::future::pending()).await
    }

    /// As [`finish`](Self::finish), unless `stop` is ready first: then the call comes back in the error, to be taken
    /// up again. A request under way is ended; a task goes on.
    pub async fn finish_unless(
        &self,
        mut pending: PendingCall,
        stop: impl Future<Output = ()>,
    ) -> Result<Value, Error> {
        let former = self.adopt(&mut pending);
        let limit = self.inner.setup.limits.deadline;
        let mut care = Care {
            client: self.clone(),
            pending: Some(pending),
        };
        let driven = tokio::select! {
            // What is done is done, though the time is up.
            biased;
            driven = self.inner.drive(care.pending()) => driven,
            () = stop => Err(ErrorKind::Stopped),
            () = over(limit) => Err(ErrorKind::Deadline(limit.unwrap_or_default())),
        };
        let pending = care.done();
        driven.map_err(|kind| failed(kind, pending, former))
    }

    /// A call that has not been made yet. It can be stored, and made by [`finish`](Self::finish) or
    /// [`resume`](Self::resume).
    pub fn prepare(&self, call: Call) -> PendingCall {
        let server = self.inner.server.name().map(str::to_owned);
        let (id, address) = (random::unguessable(), self.address().to_owned());
        PendingCall::new(call, id, address, server).spoken_in(self.inner.setup.dialect)
    }

    /// Whether going on with this call might do its work twice: [it may be with the server
    /// already](PendingCall::is_unclear), and the server would not know that it is the same.
    pub fn might_repeat(&self, pending: &PendingCall) -> bool {
        pending.is_unclear() && !self.inner.may_repeat(pending.call().kind())
    }

    /// The call is this client's now, wherever it came from. Gives where it was.
    fn adopt(&self, pending: &mut PendingCall) -> Former {
        let server = self.inner.server.name();
        pending.moved_to(self.address(), server, self.inner.setup.dialect)
    }
}

/// A call under way. If nobody waits for it any more, the task it has become is called off.
struct Care {
    client: Client,
    /// There until it is done.
    pending: Option<PendingCall>,
}

impl Care {
    fn pending(&mut self) -> &mut PendingCall {
        self.pending.as_mut().expect("it is not done")
    }

    fn done(mut self) -> PendingCall {
        self.pending.take().expect("it is done once")
    }
}

impl Drop for Care {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let (Some(id), Ok(runtime)) = (pending.task_id(), Handle::try_current()) else {
            return;
        };
        let (client, id) = (self.client.clone(), id.to_owned());
        runtime.spawn(async move {
            if let Err(error) = client.cancel_task(&id).await {
                tracing::warn!(task = id, %error, "the task could not be cancelled");
            }
        });
    }
}

impl Inner {
    /// Makes rounds until the call is done.
    async fn drive(self: &Arc<Self>, pending: &mut PendingCall) -> Result<Value, ErrorKind> {
        let (mut rounds, mut idle) = (0, 0);
        loop {
            if let Some(id) = pending.task_id().map(str::to_owned) {
                // It is large, and most calls become none.
                return Box::pin(self.drive_task(pending, &id)).await;
            }
            if rounds == self.setup.limits.rounds {
                return Err(ErrorKind::Rounds(rounds));
            }
            if pending.round() > 0 {
                self.answer(pending).await?;
                if pending.only_state() {
                    idle += 1;
                    tokio::time::sleep(back_off(idle)).await;
                } else {
                    idle = 0;
                }
            }
            rounds += 1;
            if let Some(result) = self.round(pending).await? {
                return Ok(result);
            }
            self.setup.onlooker.see(pending);
        }
    }

    /// Has everything that is still open answered, all at once. What was answered stays answered, whatever becomes
    /// of the rest.
    pub(crate) async fn answer(&self, pending: &mut PendingCall) -> Result<(), ErrorKind> {
        let asks = pending.unanswered();
        let answering = asks
            .iter()
            .map(|ask: &Ask| async move { (ask.key(), self.setup.handlers.answer(ask).await) });
        let mut answering: FuturesUnordered<_> = answering.collect();
        let mut unanswered = Vec::new();
        while let Some((key, answer)) = answering.next().await {
            let taken = answer.and_then(|answer| {
                let taken = pending.answer(key, answer);
                taken.map_err(|error| NoAnswer::later(error.why()))
            });
            self.setup.onlooker.see(pending);
            if let Err(none) = taken {
                let (key, why) = (key.to_owned(), none.why);
                unanswered.push(Unanswered { key, why });
            }
        }
        if unanswered.is_empty() {
            Ok(())
        } else {
            Err(ErrorKind::Unanswered(unanswered))
        }
    }

    /// Has one ask answered. What is answered by hand has no answer yet.
    pub(crate) async fn try_answer(&self, ask: &Ask) -> Result<Answer, NoAnswer> {
        let handlers = &self.setup.handlers;
        match ask.kind() {
            Some(kind) if !handlers.has(kind) && self.setup.by_hand.contains(&kind) => {
                Err(NoAnswer::later("it is to be answered by hand"))
            }
            _ => handlers.answer(ask).await,
        }
    }

    /// Makes one round. Gives the result if the call is done; if not, `pending` is what it waits for now.
    async fn round(&self, pending: &mut PendingCall) -> Result<Option<Value>, ErrorKind> {
        if let Some(id) = pending.task_id().map(str::to_owned) {
            return self.task_round(pending, &id).await;
        }
        let kind = pending.call().kind();
        let is_first = pending.round() == 0;
        let params = pending.params();
        let may_keep = is_first && kind == CallKind::Resource;
        if may_keep && let Some(result) = self.kept(kind.method(), &params) {
            return Ok(Some(result));
        }
        let authorization = self.link.authorization();
        self.check_older(pending)?;
        let mut is_unclear = pending.is_unclear();
        if is_unclear && !self.may_repeat(kind) {
            tracing::debug!(
                target = pending.call().target(),
                "the call may have been taken before, and the server does not know call ids: it may be done twice"
            );
        }
        // Whoever stops waiting for the response does not know either.
        pending.set_unclear(true);
        let sending = self.send_round(pending, params.clone(), &mut is_unclear);
        let sent = Box::pin(sending).await;
        pending.set_unclear(is_unclear);
        let raw = match sent {
            Err(ErrorKind::Refused(refusal)) if self.older.is_some() => {
                let asks = older::url_asks(&refusal);
                let asks = asks.ok_or_else(|| ErrorKind::Refused(refusal.clone()))?;
                pending.next_by_error(asks, &refusal.message);
                return Ok(None);
            }
            sent => sent?,
        };
        let is_draft = self.setup.draft().is_some();
        match Reply::read(&raw, is_draft, &self.setup.limits)? {
            Reply::Complete(result) => {
                if may_keep {
                    self.keep(authorization, kind.method(), &params, &result);
                }
                return Ok(Some(result));
            }
            Reply::Incomplete { asks, state } => pending.next(asks, state),
            Reply::Task(id) if kind == CallKind::Tool => pending.become_task(id),
            Reply::Task(_) => {
                let why = format!("{} cannot become a task", kind.method());
                return Err(ErrorKind::BadAnswer(why));
            }
        }
        Ok(None)
    }

    /// Whether the server can go on with the call, if it is an older one.
    fn check_older(&self, pending: &PendingCall) -> Result<(), ErrorKind> {
        if let Some(message) = pending.not_visited() {
            return Err(ErrorKind::Refused(older::urls_not_visited(message)));
        }
        if self.older.is_some() && !pending.suits_older() {
            return Err(ErrorKind::BadPending(format!(
                "the server speaks {}, and cannot go on with a call that waits",
                self.server.version
            )));
        }
        Ok(())
    }

    /// Sends a round. If the server misses a header, the tool may have changed, or was never listed.
    async fn send_round(
        &self,
        pending: &PendingCall,
        params: Map<String, Value>,
        is_unclear: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let call = pending.call();
        let mut request = Request {
            method: call.kind().method(),
            params,
            headers: self.mirrored(call)?,
            call_id: Some(pending.call_id()),
            may_repeat: self.may_repeat(call.kind()),
        };
        let result = self.request_round(&request, is_unclear).await;
        let mismatch = i64::from(ErrorCode::HeaderMismatch.as_i32());
        match &result {
            Err(ErrorKind::Refused(refusal))
                if refusal.code == mismatch && call.kind() == CallKind::Tool =>
            {
                self.learn_tools().await?;
                request.headers = self.mirrored(call)?;
                self.request_round(&request, is_unclear).await
            }
            _ => result,
        }
    }

    fn broken_promise(&self, tool: &str, result: &Value) -> Option<String> {
        let known = self.known_tool(tool)?.ok()?;
        known.promise.as_ref()?.broken_by(result)
    }

    /// A result that is as the tool promises.
    async fn as_promised(&self, tool: &str, result: Value) -> Result<Value, ErrorKind> {
        if self.broken_promise(tool, &result).is_none() {
            return Ok(result);
        }
        // The tool may have changed since it was listed.
        if let Err(error) = self.learn_tools().await {
            tracing::debug!(%error, "the tools are known as they were");
        }
        match self.broken_promise(tool, &result) {
            None => Ok(result),
            Some(why) => Err(ErrorKind::BadResult { why, result }),
        }
    }

    /// Whether the same round of such a call may be sent twice, and is not done twice.
    fn may_repeat(&self, kind: CallKind) -> bool {
        kind != CallKind::Tool || (self.older.is_none() && self.server.knows_call_ids())
    }

    /// What of a call goes into headers of its own.
    fn mirrored(&self, call: &Call) -> Result<HeaderMap, ErrorKind> {
        if call.kind() != CallKind::Tool {
            return Ok(HeaderMap::new());
        }
        match self.known_tool(call.target()) {
            None => Ok(HeaderMap::new()),
            Some(Ok(known)) => {
                let written = known.headers.write(call.arguments());
                let written = written.map_err(|error| ErrorKind::BadArgument(error.to_string()))?;
                let pair = |(name, value): (&str, String)| {
                    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
                    Some((name, HeaderValue::from_str(&value).ok()?))
                };
                Ok(written.into_iter().filter_map(pair).collect())
            }
            Some(Err(why)) => Err(ErrorKind::BadTool {
                name: call.target().to_owned(),
                why: why.to_string(),
            }),
        }
    }
}

/// What a response says.
enum Reply {
    Complete(Value),
    Incomplete {
        asks: Ordered<Box<RawValue>>,
        state: Option<String>,
    },
    Task(String),
}

impl Reply {
    /// A draft's results have no type but the one that its translation gives them.
    fn read(raw: &RawValue, is_draft: bool, limits: &Limits) -> Result<Self, ErrorKind> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Incomplete {
            #[serde(default)]
            input_requests: Ordered<Box<RawValue>>,
            request_state: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Created {
            task_id: String,
        }

        let kind = result_type(raw)?;
        match kind.as_deref() {
            None | Some("complete") => {
                let result = object_of(raw)?;
                if kind.is_none() || is_draft {
                    check_asks_nothing(&result)?;
                }
                Ok(Self::Complete(result))
            }
            Some("input_required") => {
                let read: Incomplete = read(raw)?;
                let (asks, state) = (read.input_requests, read.request_state);
                if asks.is_empty() && state.is_none() {
                    return Err(ErrorKind::BadAnswer(
                        "it is incomplete, but asks nothing and has no state".to_owned(),
                    ));
                }
                if state
                    .as_ref()
                    .is_some_and(|state| state.len() > limits.state)
                {
                    return Err(ErrorKind::TooLarge {
                        what: "a state",
                        limit: limits.state,
                    });
                }
                if asks.0.len() > limits.asks {
                    return Err(ErrorKind::TooManyAsks {
                        asks: asks.0.len(),
                        limit: limits.asks,
                    });
                }
                Ok(Self::Incomplete { asks, state })
            }
            Some("task") => read(raw).map(|created: Created| Self::Task(created.task_id)),
            Some(other) => Err(ErrorKind::UnknownResultType(other.to_owned())),
        }
    }
}

/// The result of a request that asks nothing.
pub(crate) fn complete(raw: &RawValue) -> Result<Value, ErrorKind> {
    check_complete(raw)?;
    object_of(raw)
}

/// Whether a result is a complete one.
pub(crate) fn check_complete(raw: &RawValue) -> Result<(), ErrorKind> {
    match result_type(raw)?.as_deref() {
        None | Some("complete") => Ok(()),
        Some(other) => Err(ErrorKind::UnknownResultType(other.to_owned())),
    }
}

/// Whether a result that does not say of what type it is asks nothing. The second draft asks in such results.
pub(crate) fn check_asks_nothing(result: &Value) -> Result<(), ErrorKind> {
    if result.get("inputRequests").is_some() || result.get("requestState").is_some() {
        return Err(ErrorKind::BadAnswer(ASKS_IN_A_DRAFT.to_owned()));
    }
    Ok(())
}

/// Of what type a result is. Servers of earlier revisions do not say, and mean a complete one.
fn result_type(raw: &RawValue) -> Result<Option<String>, ErrorKind> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        #[serde(default, deserialize_with = "present")]
        result_type: Option<Value>,
    }
    fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
        Value::deserialize(from).map(Some)
    }

    match read::<Head>(raw)?.result_type {
        None => Ok(None),
        Some(Value::String(name)) => Ok(Some(name)),
        Some(other) => Err(ErrorKind::UnknownResultType(other.to_string())),
    }
}

fn object_of(raw: &RawValue) -> Result<Value, ErrorKind> {
    let result: Value = read(raw)?;
    if result.is_object() {
        return Ok(result);
    }
    Err(ErrorKind::BadAnswer("the result is no object".to_owned()))
}

fn read<T: DeserializeOwned>(raw: &RawValue) -> Result<T, ErrorKind> {
    serde_json::from_str(raw.get()).map_err(|error| ErrorKind::BadAnswer(error.to_string()))
}

fn object(arguments: Value) -> Result<Map<String, Value>, ErrorKind> {
    match arguments {
        Value::Object(arguments) => Ok(arguments),
        other => Err(ErrorKind::BadArgument(format!(
            "the arguments of a call are an object, not {other}"
        ))),
    }
}

fn meta(result: &Value) -> Option<Map<String, Value>> {
    result.get("_meta").and_then(Value::as_object).cloned()
}

/// A result as its type. What the call did is done: a result that does not fit is not lost.
fn typed<T: DeserializeOwned>(result: Value) -> Result<T, ErrorKind> {
    T::deserialize(&result).map_err(|error| ErrorKind::BadResult {
        why: error.to_string(),
        result,
    })
}

/// What happened, with the call unless the server has refused it as a whole. One that may have been taken when it was
/// sent before is not lost with a refusal. A server that did not go on with it is not where it is.
fn failed(kind: ErrorKind, mut pending: PendingCall, former: Former) -> Error {
    if matches!(&kind, ErrorKind::Refused(refusal) if refusal.is_call_over()) {
        return kind.into();
    }
    let is_untouched = pending.round() == 0 && !pending.is_unclear();
    let is_refused = (is_untouched || pending.not_visited().is_some())
        && matches!(
            kind,
            ErrorKind::Refused(_)
                | ErrorKind::BadTool { .. }
                | ErrorKind::BadArgument(_)
                | ErrorKind::Draft(_)
        );
    if is_refused || pending.is_over() {
        return kind.into();
    }
    pending.moved_back(former);
    kind.of(&pending)
}
