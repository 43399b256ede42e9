//! The loop of rounds: a call is sent, its asks are answered, and it is sent again until it is done.
//!
//! The state goes back unchanged, in its own call and with the answers of its own round. Errors after the first round
//! contain the call.

use crate::ask::{Answer, Ask};
use crate::call::Call;
use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind, Unanswered};
use crate::handlers::NoAnswer;
use crate::pending::{Origin, PendingCall};
use crate::protocol::RequestPlan;
use crate::random;
use crate::retry::{backoff, by_deadline};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, HeaderName, HeaderValue};
use refrain_wire::client::{
    CallReply, ReadError, Request, RpcFailure, URLS_REQUIRED, requested_urls,
};
use refrain_wire::{CallKind, ErrorCode, PromptResult, ReadResult, ToolResult};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The outcome of a round.
#[expect(
    clippy::large_enum_variant,
    reason = "one is made in each round and moved once"
)]
#[derive(Debug)]
pub enum Outcome {
    /// The call is done, with this result.
    Complete(Value),
    /// The call waits for answers, for its next round, or for a task.
    Pending(PendingCall),
}

impl Client {
    /// Calls a tool, answers its asks, and returns its result. `arguments` is an object.
    ///
    /// A result that does not match the output schema of a listed tool is an [`ErrorKind::BadResult`].
    pub async fn call_tool(&self, name: &str, arguments: Value) -> Result<ToolResult, Error> {
        let call = Call::tool(name).with_arguments(object(arguments)?);
        let result = self.call(call).await?;
        let result = self.check_result(name, result).await?;
        let meta = meta(&result);
        let result: ToolResult = typed(result)?;
        Ok(ToolResult { meta, ..result })
    }

    /// Why a result does not match the output schema of a listed tool. [`call_tool`](Self::call_tool) checks this, the
    /// other ways to call do not.
    pub fn broken_promise(&self, tool: &str, result: &Value) -> Option<String> {
        let known = self.inner.tool(tool)?.ok()?;
        known.output_schema.as_ref()?.mismatch(result)
    }

    async fn check_result(&self, tool: &str, result: Value) -> Result<Value, ErrorKind> {
        if self.broken_promise(tool, &result).is_none() {
            return Ok(result);
        }
        // The tool may have changed since it was listed.
        if let Err(error) = self.inner.reload_tools().await {
            tracing::debug!(%error, "failed to list the tools again");
        }
        match self.broken_promise(tool, &result) {
            None => Ok(result),
            Some(why) => Err(ErrorKind::BadResult { why, result }),
        }
    }

    /// Gets a prompt, answers its asks, and returns its result. `arguments` is an object.
    pub async fn get_prompt(&self, name: &str, arguments: Value) -> Result<PromptResult, Error> {
        let call = Call::prompt(name).with_arguments(object(arguments)?);
        let result = self.call(call).await?;
        let meta = meta(&result);
        let result: PromptResult = typed(result)?;
        Ok(PromptResult { meta, ..result })
    }

    /// Reads a resource, answers its asks, and returns its contents.
    pub async fn read_resource(&self, uri: &str) -> Result<ReadResult, Error> {
        let mut result = self.call(Call::resource(uri)).await?;
        let meta = meta(&result);
        // Legacy servers have no cache hints, and invalid ones are ignored.
        if result["ttlMs"].as_u64().is_none() {
            result["ttlMs"] = 0.into();
        }
        if !matches!(result["cacheScope"].as_str(), Some("public" | "private")) {
            result["cacheScope"] = "private".into();
        }
        let result: ReadResult = typed(result)?;
        Ok(ReadResult { meta, ..result })
    }

    /// Makes a call, answers its asks, and returns its result as an object.
    pub async fn call(&self, call: Call) -> Result<Value, Error> {
        self.finish(self.prepare(call)).await
    }

    /// Makes the first round of a call. No ask is answered.
    pub async fn start(&self, call: Call) -> Result<Outcome, Error> {
        self.resume(self.prepare(call)).await
    }

    /// Makes the next round of a pending call. All its asks must be answered.
    ///
    /// A task is sent the answers there are, and then polled once.
    pub async fn resume(&self, mut pending: PendingCall) -> Result<Outcome, Error> {
        let former = pending.move_to(self.origin());
        let open = pending.unanswered();
        if pending.task_id().is_none() && !open.is_empty() {
            let unanswered = open.iter().map(|ask| Unanswered {
                key: ask.key().to_owned(),
                why: "it was not answered".to_owned(),
            });
            return Err(ErrorKind::Unanswered(unanswered.collect()).of(&pending));
        }
        match self.inner.round(&mut pending).await {
            Ok(Some(result)) => Ok(Outcome::Complete(result)),
            Ok(None) => Ok(Outcome::Pending(pending)),
            Err(kind) => Err(failed(kind, pending, former)),
        }
    }

    /// Takes up a pending call, answers its asks, and returns its result as an object.
    ///
    /// Dropping the future cancels the call: its request, or its task.
    pub async fn finish(&self, pending: PendingCall) -> Result<Value, Error> {
        self.finish_unless(pending, std::future::pending()).await
    }

    /// As [`finish`](Self::finish), unless `stop` is ready first: then the error contains the call. A request in flight is
    /// cancelled; a task goes on.
    pub async fn finish_unless(
        &self,
        mut pending: PendingCall,
        stop: impl Future<Output = ()>,
    ) -> Result<Value, Error> {
        let former = pending.move_to(self.origin());
        let limit = self.inner.setup.limits.deadline;
        let mut guard = TaskGuard {
            client: self,
            pending,
            is_armed: true,
        };
        let driven = tokio::select! {
            // A result counts even if the time is up.
            biased;
            driven = by_deadline(limit, Box::pin(self.inner.drive(&mut guard.pending))) => driven,
            () = stop => Err(ErrorKind::Stopped),
        };
        guard.is_armed = false;
        driven.map_err(|kind| failed(kind, guard.pending.clone(), former))
    }

    /// A call before its first round. It can be stored, and made by [`finish`](Self::finish) or [`resume`](Self::resume).
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

    /// Whether this call might be executed twice if it is continued: [its next round may have been
    /// executed](PendingCall::is_unclear), and the server does not recognise repeated calls.
    pub fn might_repeat(&self, pending: &PendingCall) -> bool {
        pending.is_unclear() && !self.inner.may_repeat(pending.call().kind())
    }
}

/// A call in flight. Dropping it cancels its task, unless it is disarmed.
struct TaskGuard<'a> {
    client: &'a Client,
    pending: PendingCall,
    is_armed: bool,
}

impl Drop for TaskGuard<'_> {
    fn drop(&mut self) {
        if let (true, Some(id)) = (self.is_armed, self.pending.task_id())
            && let Ok(runtime) = Handle::try_current()
        {
            let (client, id) = (self.client.clone(), id.to_owned());
            runtime.spawn(async move {
                if let Err(error) = client.cancel_task(&id).await {
                    tracing::warn!(task = id, %error, "failed to cancel task");
                }
            });
        }
    }
}

impl Inner {
    async fn drive(self: &Arc<Self>, pending: &mut PendingCall) -> Result<Value, ErrorKind> {
        let (mut rounds, mut idle) = (0, 0);
        loop {
            if let Some(id) = pending.task_id().map(str::to_owned) {
                // The future is large, and most calls do not become tasks.
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
            (self.setup.on_pending)(pending);
        }
    }

    /// Answers all open asks concurrently. Answers are kept even if others fail.
    pub(crate) async fn answer(&self, pending: &mut PendingCall) -> Result<(), ErrorKind> {
        let asks = pending.unanswered();
        let answering = asks
            .iter()
            .map(|ask: &Ask| async move { (ask.key(), self.setup.handlers.answer(ask).await) });
        let mut answering: FuturesUnordered<_> = answering.collect();
        let mut unanswered = Vec::new();
        while let Some((key, answer)) = answering.next().await {
            let taken = pending.take(key, answer);
            (self.setup.on_pending)(pending);
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

    /// Answers one ask, unless that is done by hand.
    pub(crate) async fn try_answer(&self, ask: &Ask) -> Result<Answer, NoAnswer> {
        let handlers = &self.setup.handlers;
        match ask.kind() {
            Some(kind) if !handlers.has(kind) && self.setup.by_hand.contains(&kind) => {
                Err(NoAnswer::later("it is to be answered by hand"))
            }
            _ => handlers.answer(ask).await,
        }
    }

    /// Makes one round. Returns the result if the call is done; otherwise `pending` is its new state.
    async fn round(&self, pending: &mut PendingCall) -> Result<Option<Value>, ErrorKind> {
        if let Some(id) = pending.task_id().map(str::to_owned) {
            return self.task_round(pending, &id).await;
        }
        let kind = pending.call().kind();
        let request = pending.request();
        let is_cacheable = pending.round() == 0 && kind == CallKind::Resource;
        if is_cacheable && let Some(result) = self.cached(&request) {
            return Ok(Some(result));
        }
        let authorization = self.link.authorization();
        self.check_legacy(pending)?;
        let mut is_unclear = pending.is_unclear();
        if is_unclear && !self.may_repeat(kind) {
            let target = pending.call().target();
            tracing::debug!(target, "call may be done twice: its response was lost");
        }
        // This stays if the future is dropped.
        pending.set_unclear(true);
        let sent = Box::pin(self.send_round(pending, request.clone(), &mut is_unclear)).await;
        pending.set_unclear(is_unclear);
        let raw = match sent {
            Err(ErrorKind::Refused(refusal)) if self.legacy.is_some() => {
                let Some(asks) = requested_urls(&refusal) else {
                    return Err(ErrorKind::Refused(refusal));
                };
                pending.visits(asks, refusal.message);
                return Ok(None);
            }
            sent => sent?,
        };
        match self.read_reply(kind, &raw)? {
            CallReply::Complete(result) => {
                if is_cacheable {
                    self.store_cached(authorization, &request, &result);
                }
                return Ok(Some(result));
            }
            CallReply::Incomplete { asks, state } => pending.next(asks, state),
            CallReply::Task(id) => pending.become_task(id),
        }
        Ok(None)
    }

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

    fn check_legacy(&self, pending: &PendingCall) -> Result<(), ErrorKind> {
        if let Some(message) = pending.not_visited() {
            return Err(ErrorKind::Refused(RpcFailure {
                code: URLS_REQUIRED,
                message: message.to_owned(),
                data: Value::Null,
            }));
        }
        if self.legacy.is_some() && !pending.suits_legacy() {
            return Err(ErrorKind::BadPending(format!(
                "the server speaks {}, and cannot go on with a call that waits",
                self.server.version
            )));
        }
        Ok(())
    }

    /// Sends a round. If the server misses a header, the tools are listed again: the tool may have changed.
    async fn send_round(
        &self,
        pending: &PendingCall,
        request: Request,
        is_unclear: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let call = pending.call();
        let mut plan = RequestPlan {
            request,
            headers: self.argument_headers(call)?,
            call_id: Some(pending.call_id()),
            may_repeat: self.may_repeat(call.kind()),
        };
        let result = self.request_round(&plan, is_unclear).await;
        match &result {
            Err(ErrorKind::Refused(refusal))
                if refusal.is(ErrorCode::HeaderMismatch) && call.kind() == CallKind::Tool =>
            {
                self.reload_tools().await?;
                plan.headers = self.argument_headers(call)?;
                self.request_round(&plan, is_unclear).await
            }
            _ => result,
        }
    }

    /// Whether a repeated round of such a call is executed only once.
    fn may_repeat(&self, kind: CallKind) -> bool {
        kind != CallKind::Tool || (self.legacy.is_none() && self.server.supports_call_ids())
    }

    fn argument_headers(&self, call: &Call) -> Result<HeaderMap, ErrorKind> {
        match self.tool(call.target()) {
            _ if call.kind() != CallKind::Tool => Ok(HeaderMap::new()),
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

/// Deserialises a result. The error contains it, since the call cannot be undone.
fn typed<T: DeserializeOwned>(result: Value) -> Result<T, ErrorKind> {
    T::deserialize(&result).map_err(|error| ErrorKind::BadResult {
        why: error.to_string(),
        result,
    })
}

/// The error of a call. It contains the call, unless the server has refused it as a whole.
fn failed(kind: ErrorKind, mut pending: PendingCall, former: (u32, Origin)) -> Error {
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
    pending.move_back(former);
    kind.of(&pending)
}
