//! The loop that answers: a call is sent, what it asks is answered, and it is sent again until it is done.
//!
//! Always: the state goes back as it came, with the answers of its own round and in its own call only; nothing of
//! one round is left over in the next. Whatever goes wrong after the first round, the call is in the error.

use crate::ask::{Answer, Ask};
use crate::call::Call;
use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind, Unanswered};
use crate::handlers::NoAnswer;
use crate::older;
use crate::pending::{Former, Origin, PendingCall};
use crate::protocol::RequestPlan;
use crate::random;
use crate::retry::{backoff, by_deadline};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, HeaderName, HeaderValue};
use refrain_wire::client::{CallReply, ReadError, Request, requested_urls};
use refrain_wire::{CallKind, ErrorCode, PromptResult, ReadResult, ToolResult};
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
            driven = by_deadline(limit, Box::pin(self.inner.drive(care.pending()))) => driven,
            () = stop => Err(ErrorKind::Stopped),
        };
        let pending = care.done();
        driven.map_err(|kind| failed(kind, pending, former))
    }

    /// A call that has not been made yet. It can be stored, and made by [`finish`](Self::finish) or
    /// [`resume`](Self::resume).
    pub fn prepare(&self, call: Call) -> PendingCall {
        PendingCall::new(call, random::unguessable(), self.origin())
    }

    fn origin(&self) -> Origin {
        Origin {
            address: self.address().to_owned(),
            server: self.inner.server.name().map(str::to_owned),
            dialect: self.inner.setup.dialect,
        }
    }

    /// Whether going on with this call might do its work twice: [it may be with the server
    /// already](PendingCall::is_unclear), and the server would not know that it is the same.
    pub fn might_repeat(&self, pending: &PendingCall) -> bool {
        pending.is_unclear() && !self.inner.may_repeat(pending.call().kind())
    }

    /// The call is this client's now, wherever it came from. Returns where it was.
    fn adopt(&self, pending: &mut PendingCall) -> Former {
        pending.moved_to(self.origin())
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
                    tokio::time::sleep(backoff(idle)).await;
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
        let request = pending.request();
        let may_keep = pending.round() == 0 && kind == CallKind::Resource;
        if may_keep && let Some(result) = self.kept(&request) {
            return Ok(Some(result));
        }
        let authorization = self.link.authorization();
        self.check_older(pending)?;
        let mut is_unclear = pending.is_unclear();
        if is_unclear && !self.may_repeat(kind) {
            let target = pending.call().target();
            tracing::debug!(target, "call may be done twice: its response was lost");
        }
        // A caller that stops waiting for the response does not know either.
        pending.set_unclear(true);
        let sent = Box::pin(self.send_round(pending, request.clone(), &mut is_unclear)).await;
        pending.set_unclear(is_unclear);
        let raw = match sent {
            Err(ErrorKind::Refused(refusal)) if self.older.is_some() => {
                let Some(asks) = requested_urls(&refusal) else {
                    return Err(ErrorKind::Refused(refusal));
                };
                pending.visits(asks, &refusal.message);
                return Ok(None);
            }
            sent => sent?,
        };
        match self.read_reply(kind, &raw)? {
            CallReply::Complete(result) => {
                if may_keep {
                    self.keep(authorization, &request, &result);
                }
                return Ok(Some(result));
            }
            CallReply::Incomplete { asks, state } => pending.next(asks, state),
            CallReply::Task(id) => pending.become_task(id),
        }
        Ok(None)
    }

    /// Reads the reply to a round, within the limits.
    fn read_reply(&self, kind: CallKind, raw: &RawValue) -> Result<CallReply, ErrorKind> {
        let limits = &self.setup.limits;
        let reply = CallReply::read(raw)?;
        match &reply {
            CallReply::Incomplete {
                state: Some(state), ..
            } if state.len() > limits.state => Err(ErrorKind::TooLarge {
                what: "a state",
                limit: limits.state,
            }),
            CallReply::Incomplete { asks, .. } if asks.len() > limits.asks => {
                Err(ErrorKind::TooManyAsks {
                    asks: asks.len(),
                    limit: limits.asks,
                })
            }
            CallReply::Task(_) if kind != CallKind::Tool => {
                let why = format!("{} cannot become a task", kind.method());
                Err(ReadError::Unexpected(why).into())
            }
            _ => Ok(reply),
        }
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
        request: Request,
        is_unclear: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let call = pending.call();
        let mut plan = RequestPlan {
            request,
            headers: self.mirrored(call)?,
            call_id: Some(pending.call_id()),
            may_repeat: self.may_repeat(call.kind()),
        };
        let result = self.request_round(&plan, is_unclear).await;
        match &result {
            Err(ErrorKind::Refused(refusal))
                if refusal.is(ErrorCode::HeaderMismatch) && call.kind() == CallKind::Tool =>
            {
                self.learn_tools().await?;
                plan.headers = self.mirrored(call)?;
                self.request_round(&plan, is_unclear).await
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
                why,
            }),
        }
    }
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
                | ErrorKind::Dialect(_)
        );
    if is_refused || pending.is_over() {
        return kind.into();
    }
    pending.moved_back(former);
    kind.of(&pending)
}
