//! The round loop: send a call, answer its asks, and send it again until it completes.
//!
//! The request state is sent back unchanged, in the same call, with the answers of the same round. An error contains
//! the pending call unless the call was rejected or is over.

use crate::ask::{AskAnswer, IncomingAsk};
use crate::call::CallSpec;
use crate::client::{Client, ClientInner};
use crate::error::{Error, ErrorKind, UnansweredAsk};
use crate::handlers::AnswerFailure;
use crate::large_message;
use crate::limits::{count_values, text_bytes};
use crate::pending::{CallOrigin, PendingCall};
use crate::protocol::RequestPlan;
use crate::random;
use crate::retry::{backoff, before_deadline};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, HeaderName, HeaderValue};
use refrain_wire::client::{
    CallReply, ReadError, Request, RpcFailure, URLS_REQUIRED, read_complete, requested_urls,
};
use refrain_wire::limited_event;
use refrain_wire::{CALL_ID_MAX, CallKind, ErrorCode, PromptResult, ReadResult, ToolResult};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::runtime::Handle;
use tracing::Instrument;

/// The maximum length of a task id and of the key of an ask, in bytes.
const ID_MAX: usize = 4096;

/// The result of a round.
#[expect(
    clippy::large_enum_variant,
    reason = "created once per round and moved once"
)]
#[derive(Debug)]
pub enum RoundOutcome {
    /// The call completed with this result.
    Complete(Value),
    /// The call waits for answers, for its next round, or for a task.
    Pending(PendingCall),
}

impl Client {
    /// Calls a tool, answers its asks, and returns its result. `arguments` must be an object.
    ///
    /// Fails with [`ErrorKind::InvalidResult`] if the result does not match the output schema of a listed tool.
    pub async fn call_tool(&self, name: &str, arguments: Value) -> Result<ToolResult, Error> {
        let call = CallSpec::tool(name).with_arguments(object(arguments)?);
        let result = self.call(call).await?;
        let result = self.check_result(name, result).await?;
        let meta = meta(&result);
        let result: ToolResult = typed(result)?;
        Ok(ToolResult { meta, ..result })
    }

    /// Why a result does not match the output schema of a listed tool; `None` if it matches. Of the methods that make
    /// calls, only [`call_tool`](Self::call_tool) checks this.
    pub fn output_schema_mismatch(&self, tool: &str, result: &Value) -> Option<String> {
        let listed = self.inner.connection.tool(tool)?.ok()?;
        listed.output_schema.as_ref()?.mismatch(result)
    }

    async fn check_result(&self, tool: &str, result: Value) -> Result<Value, ErrorKind> {
        if self.output_schema_mismatch(tool, &result).is_none() {
            return Ok(result);
        }
        // The tool may have changed since it was listed.
        if let Err(error) = self.inner.reload_tools().await {
            tracing::debug!(%error, "failed to reload tools");
        }
        match self.output_schema_mismatch(tool, &result) {
            None => Ok(result),
            Some(why) => Err(ErrorKind::InvalidResult { why, result }),
        }
    }

    /// Gets a prompt, answers its asks, and returns its result. `arguments` must be an object.
    pub async fn get_prompt(&self, name: &str, arguments: Value) -> Result<PromptResult, Error> {
        let call = CallSpec::prompt(name).with_arguments(object(arguments)?);
        let result = self.call(call).await?;
        let meta = meta(&result);
        let result: PromptResult = typed(result)?;
        Ok(PromptResult { meta, ..result })
    }

    /// Reads a resource, answers its asks, and returns its contents.
    pub async fn read_resource(&self, uri: &str) -> Result<ReadResult, Error> {
        let mut result = self.call(CallSpec::resource(uri)).await?;
        let meta = meta(&result);
        // Legacy servers send no cache hints; malformed ones are ignored.
        if result["ttlMs"].as_u64().is_none() {
            result["ttlMs"] = 0.into();
        }
        if !matches!(result["cacheScope"].as_str(), Some("public" | "private")) {
            result["cacheScope"] = "private".into();
        }
        let result: ReadResult = typed(result)?;
        Ok(ReadResult { meta, ..result })
    }

    /// Makes a call, answers its asks, and returns its result unchecked.
    pub async fn call(&self, call: CallSpec) -> Result<Value, Error> {
        self.finish(self.prepare(call)).await
    }

    /// Makes the first round of a call, without answering asks.
    pub async fn start(&self, call: CallSpec) -> Result<RoundOutcome, Error> {
        self.resume(self.prepare(call)).await
    }

    /// Makes the next round of a pending call, whose asks must all be answered.
    ///
    /// For a task, sends the available answers and polls once.
    pub async fn resume(&self, mut pending: PendingCall) -> Result<RoundOutcome, Error> {
        let former = pending.move_to(self.origin());
        if let Err(kind) = self.inner.check_asks(pending.raw_asks()) {
            return Err(call_error(kind, pending, former));
        }
        let open = pending.unanswered();
        if pending.task_id().is_none() && !open.is_empty() {
            let unanswered = open.iter().map(|ask| UnansweredAsk {
                key: ask.key().to_owned(),
                why: "no answer was provided".to_owned(),
            });
            return Err(ErrorKind::Unanswered(unanswered.collect()).with_pending(pending));
        }
        match self.inner.round(&mut pending).await {
            Ok(Some(result)) => Ok(RoundOutcome::Complete(result)),
            Ok(None) => Ok(RoundOutcome::Pending(pending)),
            Err(kind) => Err(call_error(kind, pending, former)),
        }
    }

    /// Resumes a pending call, answers its asks, and returns its result unchecked.
    ///
    /// Dropping the future cancels the request in flight or the task.
    pub async fn finish(&self, pending: PendingCall) -> Result<Value, Error> {
        self.finish_unless(pending, std::future::pending()).await
    }

    /// Like [`finish`](Self::finish), but fails with [`ErrorKind::Stopped`] when `stop` completes. That cancels a request
    /// in flight; a task keeps running.
    pub async fn finish_unless(
        &self,
        mut pending: PendingCall,
        stop: impl Future<Output = ()>,
    ) -> Result<Value, Error> {
        let former = pending.move_to(self.origin());
        if let Err(kind) = self.inner.check_asks(pending.raw_asks()) {
            return Err(call_error(kind, pending, former));
        }
        let limit = self.inner.setup.limits.deadline;
        let call = pending.call();
        let meta = call.meta_members();
        let span = self.inner.open_call_span(call.kind(), call.target(), meta);
        let mut guard = TaskGuard {
            client: self,
            pending: &mut pending,
            is_armed: true,
        };
        let driven = tokio::select! {
            // A result takes precedence over `stop`.
            biased;
            driven = before_deadline(limit, Box::pin(self.inner.drive(guard.pending).instrument(span))) => driven,
            () = stop => Err(ErrorKind::Stopped),
        };
        guard.is_armed = false;
        drop(guard);
        driven.map_err(|kind| call_error(kind, pending, former))
    }

    /// A call before its first round, for [`finish`](Self::finish) or [`resume`](Self::resume).
    pub fn prepare(&self, call: CallSpec) -> PendingCall {
        PendingCall::new(call, random::hex_128(), self.origin())
    }

    /// Like [`prepare`](Self::prepare), with a call id of 1 to 128 bytes instead of a random one.
    ///
    /// A server that recognises call ids executes calls of the same caller with the same id once. A program that may repeat
    /// a call after a crash should derive the id from data that it still has then, and that others cannot guess.
    pub fn prepare_with_id(
        &self,
        call: CallSpec,
        call_id: impl Into<String>,
    ) -> Result<PendingCall, Error> {
        let call_id = call_id.into();
        match call_id.len() {
            1..=CALL_ID_MAX => Ok(PendingCall::new(call, call_id, self.origin())),
            length => Err(ErrorKind::InvalidArgument(format!(
                "invalid call id of {length} bytes: expected 1 to {CALL_ID_MAX}"
            ))
            .into()),
        }
    }

    fn origin(&self) -> CallOrigin {
        CallOrigin {
            address: self.address().to_owned(),
            server: self.inner.connection.server().name().map(str::to_owned),
            dialect: self.inner.setup.dialect,
        }
    }

    /// Whether resuming this call could execute it twice: the server [may have executed its next
    /// round](PendingCall::is_delivery_unknown), and does not recognise repeated calls.
    pub fn can_execute_twice(&self, pending: &PendingCall) -> bool {
        pending.is_delivery_unknown() && !self.inner.can_repeat(pending.call().kind())
    }
}

/// Cancels the task of a call on drop, unless disarmed.
struct TaskGuard<'a> {
    client: &'a Client,
    pending: &'a mut PendingCall,
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
                    limited_event!(WARN, task = id, %error, "failed to cancel task");
                }
            });
        }
    }
}

impl ClientInner {
    async fn drive(self: &Arc<Self>, pending: &mut PendingCall) -> Result<Value, ErrorKind> {
        let (mut rounds, mut idle) = (0, 0);
        loop {
            if let Some(id) = pending.task_id().map(str::to_owned) {
                // Boxed because the future is large, and most calls do not become tasks.
                return Box::pin(self.drive_task(pending, &id)).await;
            }
            if rounds == self.setup.limits.rounds {
                return Err(ErrorKind::TooManyRounds(rounds));
            }
            if pending.round() > 0 {
                self.answer(pending).await?;
                if pending.has_nothing_new() {
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

    /// Answers all open asks concurrently. A failed handler does not discard the other answers.
    pub(crate) async fn answer(&self, pending: &mut PendingCall) -> Result<(), ErrorKind> {
        let answering = pending.unanswered().into_iter().map(|ask| async move {
            let key = ask.key().to_owned();
            (key, self.setup.handlers.answer(ask).await)
        });
        let answering: FuturesUnordered<_> = answering.collect();
        let count = answering.len().max(1);
        // Answers that are available together are saved together.
        let mut answering = answering.ready_chunks(count);
        let mut unanswered = Vec::new();
        while let Some(answers) = answering.next().await {
            for (key, answer) in answers {
                if let Err(failure) = pending.record_answer(&key, answer) {
                    let why = failure.why;
                    unanswered.push(UnansweredAsk { key, why });
                }
            }
            (self.setup.on_pending)(pending);
        }
        if unanswered.is_empty() {
            Ok(())
        } else {
            Err(ErrorKind::Unanswered(unanswered))
        }
    }

    /// Answers one ask, unless the host answers its kind manually.
    pub(crate) async fn try_answer(&self, ask: IncomingAsk) -> Result<AskAnswer, AnswerFailure> {
        let handlers = &self.setup.handlers;
        match ask.kind() {
            Some(kind) if !handlers.has(kind) && self.setup.manual_kinds.contains(&kind) => Err(
                AnswerFailure::temporary("asks of this kind are answered manually"),
            ),
            _ => handlers.answer(ask).await,
        }
    }

    /// Makes one round. Returns the result if the call completed; otherwise updates `pending`.
    async fn round(&self, pending: &mut PendingCall) -> Result<Option<Value>, ErrorKind> {
        if let Some(id) = pending.task_id().map(str::to_owned) {
            return self.task_round(pending, &id).await;
        }
        let kind = pending.call().kind();
        let request = pending.request();
        // The result may depend on additional metadata.
        let is_plain = pending.call().meta_members().is_empty();
        let is_cacheable = pending.round() == 0 && kind == CallKind::Resource && is_plain;
        let cached = is_cacheable.then(|| request.clone());
        if let Some(request) = &cached
            && let Some(raw) = self.cached(request)
        {
            return Ok(Some(read_complete(&raw)?));
        }
        let authorization = self.connection.link.authorization_changes();
        self.check_legacy(pending)?;
        let mut is_delivery_unknown = pending.is_delivery_unknown();
        if is_delivery_unknown && !self.can_repeat(kind) {
            let target = pending.call().target();
            tracing::debug!(target, "call may execute twice: its response was lost");
        }
        // Remains set if the future is dropped.
        pending.set_delivery_unknown(true);
        let sent = Box::pin(self.send_round(pending, request, &mut is_delivery_unknown)).await;
        pending.set_delivery_unknown(is_delivery_unknown);
        let raw = match sent {
            Err(ErrorKind::Rpc(failure)) if self.connection.legacy().is_some() => {
                let Some(asks) = requested_urls(&failure) else {
                    return Err(ErrorKind::Rpc(failure));
                };
                pending.require_visits(asks, failure.message);
                return Ok(None);
            }
            sent => sent?,
        };
        let (raw, reply) = large_message::parse(raw.get().len(), move || {
            let reply = CallReply::read(&raw);
            (raw, reply)
        })
        .await;
        match self.check_reply(kind, reply?)? {
            CallReply::Complete(result) => {
                if let Some(request) = cached {
                    self.store_cached(authorization, &request, &raw, &result);
                }
                return Ok(Some(result));
            }
            CallReply::Incomplete { asks, state } => pending.next_round(asks, state),
            CallReply::Task(id) => pending.become_task(id),
        }
        Ok(None)
    }

    fn check_reply(&self, kind: CallKind, reply: CallReply) -> Result<CallReply, ErrorKind> {
        let limits = &self.setup.limits;
        match &reply {
            CallReply::Incomplete {
                state: Some(state), ..
            } if state.len() > limits.state => Err(ErrorKind::too_large(
                "request state",
                limits.state,
                "bytes",
                "ClientLimits::state",
            )),
            CallReply::Incomplete { asks, .. } => {
                self.check_asks(asks)?;
                Ok(reply)
            }
            CallReply::Task(_) if kind != CallKind::Tool => {
                let why = format!("{} returned a task, which only tools may do", kind.method());
                Err(ReadError::Unexpected(why).into())
            }
            CallReply::Task(id) if id.len() > ID_MAX => {
                let why = format!("the task id is longer than {ID_MAX} bytes");
                Err(ReadError::Unexpected(why).into())
            }
            _ => Ok(reply),
        }
    }

    /// Checks the number and the size of asks, and the length of their keys.
    pub(crate) fn check_asks(&self, asks: &Map<String, Value>) -> Result<(), ErrorKind> {
        if asks.keys().any(|key| key.len() > ID_MAX) {
            let why = format!("the key of an ask is longer than {ID_MAX} bytes");
            return Err(ReadError::Unexpected(why).into());
        }
        let limits = &self.setup.limits;
        let (count, limit) = (asks.len(), limits.asks);
        if count > limit {
            return Err(ErrorKind::TooManyAsks { asks: count, limit });
        }
        limits.check_ask_bytes(asks.values().map(text_bytes).sum())?;
        limits.check_ask_values(asks.values().map(count_values).sum())
    }

    fn check_legacy(&self, pending: &PendingCall) -> Result<(), ErrorKind> {
        if let Some(message) = pending.declined_visit() {
            return Err(ErrorKind::Rpc(RpcFailure {
                code: URLS_REQUIRED,
                message: message.to_owned(),
                data: Value::Null,
            }));
        }
        if self.connection.legacy().is_some() && !pending.is_legacy_compatible() {
            return Err(ErrorKind::CannotResume(format!(
                "the connection uses {}, which cannot resume calls",
                self.connection.server().version
            )));
        }
        Ok(())
    }

    /// Sends a round. After a header mismatch, reloads the tools and tries once more: the tool may have changed.
    async fn send_round(
        &self,
        pending: &PendingCall,
        request: Request,
        is_delivery_unknown: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let call = pending.call();
        let mut plan = RequestPlan {
            request,
            headers: self.argument_headers(call)?,
            call_id: Some(pending.call_id()),
            meta: Some(call.meta_members()),
            can_repeat: self.can_repeat(call.kind()),
        };
        let result = self.request_round(&plan, is_delivery_unknown).await;
        match &result {
            Err(ErrorKind::Rpc(failure))
                if failure.is(ErrorCode::HeaderMismatch) && call.kind() == CallKind::Tool =>
            {
                self.reload_tools().await?;
                plan.headers = self.argument_headers(call)?;
                self.request_round(&plan, is_delivery_unknown).await
            }
            _ => result,
        }
    }

    /// Whether a round of a call of this kind can safely be sent twice.
    fn can_repeat(&self, kind: CallKind) -> bool {
        kind != CallKind::Tool
            || (self.connection.legacy().is_none() && self.connection.server().supports_call_ids())
    }

    fn argument_headers(&self, call: &CallSpec) -> Result<HeaderMap, ErrorKind> {
        let listed = self.connection.tool(call.target());
        match listed.filter(|_| call.kind() == CallKind::Tool) {
            None => Ok(HeaderMap::new()),
            Some(Ok(listed)) => {
                let written = listed.headers.write(call.arguments());
                let written =
                    written.map_err(|error| ErrorKind::InvalidArgument(error.to_string()))?;
                let pair = |(name, value): (&str, String)| {
                    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
                    Some((name, HeaderValue::from_str(&value).ok()?))
                };
                Ok(written.into_iter().filter_map(pair).collect())
            }
            Some(Err(source)) => Err(ErrorKind::InvalidTool {
                name: call.target().to_owned(),
                source,
            }),
        }
    }
}

fn object(arguments: Value) -> Result<Map<String, Value>, ErrorKind> {
    match arguments {
        Value::Object(arguments) => Ok(arguments),
        other => Err(ErrorKind::InvalidArgument(format!(
            "invalid call arguments: expected an object, not {other}"
        ))),
    }
}

fn meta(result: &Value) -> Option<Map<String, Value>> {
    result.get("_meta").and_then(Value::as_object).cloned()
}

/// Deserializes a result. The error contains the result, because the call has been executed.
fn typed<T: DeserializeOwned>(result: Value) -> Result<T, ErrorKind> {
    T::deserialize(&result).map_err(|error| ErrorKind::InvalidResult {
        why: error.to_string(),
        result,
    })
}

/// The error of a call, with the pending call unless the server rejected the whole call.
fn call_error(kind: ErrorKind, mut pending: PendingCall, former: (u32, CallOrigin)) -> Error {
    if matches!(&kind, ErrorKind::Rpc(failure) if failure.is_call_over()) {
        return kind.into();
    }
    // The server has not executed the first round.
    let is_unsent = pending.round() == 0 && !pending.is_delivery_unknown();
    let is_request_invalid = matches!(
        kind,
        ErrorKind::Rpc(_)
            | ErrorKind::Dialect(_)
            | ErrorKind::InvalidTool { .. }
            | ErrorKind::InvalidArgument(_)
    );
    let is_rejected = is_request_invalid && (is_unsent || pending.declined_visit().is_some());
    if is_rejected || pending.has_ended() {
        return kind.into();
    }
    pending.move_back(former);
    kind.with_pending(pending)
}
