//! Creates a flow in its home: the client, a legacy session or memory.

use super::admit::AdmittedCall;
use super::client::ClientFlow;
use super::park::LiveStart;
use super::round::{NewFlow, Round, RoundState};
use super::single_use::{ReplayClaim, ReplayRecord};
use super::{FlowSpec, Home, LiveSpec, RoundRejection, Target};
use crate::limits::{LimitReached, LivePermit, Permit};
use crate::live::{LiveFlow, SealContext, Subscribed};
use crate::request_span;
use crate::tasks::{TaskSeed, Tasks};
use refrain_core::{LogKey, Retention, Start};
use refrain_wire::{Answers, Call, Capability, LogLevel, RpcError};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::borrow::Cow;
use std::sync::Arc;

impl AdmittedCall<'_> {
    /// Creates the flow and its round.
    pub(super) fn run(self, mut start: Start) -> Result<Box<Round>, RoundRejection> {
        let (rounds, call, span) = (self.rounds, self.request.call, self.request.span);
        self.receive_trace(&mut start);
        let (uri, home) = (self.target.uri(), self.home_name());
        request_span::set_flow(span, &mut start, uri, home);
        let (number, record) = (start.round(), self.record(&start));
        let deadline = start.deadline();
        let limits = &rounds.services.limits;
        let round_time = self.target.round_time();
        let live_time = limits
            .live_time
            .saturating_add(round_time.unwrap_or(limits.round_time));
        let flow = match self.request.home {
            Home::Client if self.is_live() => self.create_live(start)?,
            Home::Client => self.create_client(start)?,
            Home::Session => self.create_session(start)?,
        };
        let claim = record.as_ref().map(|record| {
            let now = rounds.services.source.unix_seconds();
            match &flow {
                NewFlow::Live(live) => {
                    // A call that does not become a task has ended by this time. An idle call ends
                    // after `limits.live_time`. A handler that is busy then has one more round,
                    // which `live_time` includes here.
                    let live_end = now.saturating_add(live_time.as_secs());
                    let end = match live.seed {
                        Some(_) => deadline.max(live_end),
                        None => live_end,
                    };
                    let retention = Retention::for_flow(now, end);
                    ReplayClaim::for_live(&rounds.live, record, retention)
                }
                NewFlow::Client(_) | NewFlow::Session(_) => {
                    ReplayClaim::new(record, Retention::for_flow(now, deadline))
                }
            }
        });
        let mut round = Round::new(rounds, call, number, span.clone(), record);
        match claim {
            None => round.start(flow),
            Some(claim) => round.state = RoundState::Claiming(claim, Box::new(flow)),
        }
        Ok(round)
    }

    /// The flow's home, as in the span.
    fn home_name(&self) -> &'static str {
        match self.request.home {
            Home::Client if self.is_live() => "live",
            Home::Client => "client",
            Home::Session => "session",
        }
    }

    fn receive_trace(&self, start: &mut Start) {
        let Some(trace) = &self.request.call.meta.trace else {
            return;
        };
        if let Some(key) = trace.ignored {
            tracing::debug!(key, "trace context ignored: malformed or too long");
        }
        start.receive_trace(trace);
    }

    /// The entry in the replay log, if the round may run only once.
    fn record(&self, start: &Start) -> Option<ReplayRecord> {
        let log = self.rounds.services.replay_log.as_ref()?;
        // Another instance must not run the first round of a live call again.
        let request = self.request.call;
        let is_first_of_live = self.is_live() && request.state.is_none();
        // No request can repeat a first round without a call id.
        let can_repeat = request.state.is_some() || request.meta.call_id.is_some();
        let runs_once = can_repeat && (self.target.is_single_use() || is_first_of_live);
        runs_once.then(|| {
            let key = LogKey::round(start.flow(), start.round());
            let account = self.request.caller.limit_key().account();
            ReplayRecord::new(log, key, account)
        })
    }

    #[inline]
    fn create_client(self, start: Start) -> Result<NewFlow, RoundRejection> {
        let call = self.request.call;
        let seed = self.task_seed()?;
        let spec = self.flow_spec(
            Cow::Borrowed(&call.target),
            Subscribed::by(call),
            seed.is_some(),
        );
        let _inside = self.request.span.enter();
        let flow = self.rounds.flows.start(&spec, self.arguments, start);
        Ok(NewFlow::Client(ClientFlow::new(
            flow,
            self.target,
            self.binding,
            seed,
            self.permit,
        )))
    }

    fn create_session(self, start: Start) -> Result<NewFlow, RoundRejection> {
        let (rounds, call, span) = (self.rounds, self.request.call, self.request.span);
        self.check_task_required()?;
        let notes = Subscribed::by(call);
        let (spec, arguments, permit, live_permit) = self.into_live(notes, None)?;
        let permit = Some(permit);
        let live = span
            .in_scope(|| LiveFlow::new(&rounds.live, spec, arguments, start, permit, live_permit));
        Ok(NewFlow::Session(Box::new(live)))
    }

    fn create_live(self, start: Start) -> Result<NewFlow, RoundRejection> {
        let (rounds, call, span) = (self.rounds, self.request.call, self.request.span);
        let seed = self.task_seed()?;
        let seed = seed.filter(|seed| seed.tool.tool.task.support().is_some());
        if rounds.services.limits.is_draining() || rounds.live.is_closed() {
            return Err(RoundRejection::Busy(RpcError::internal(
                "this instance is shutting down and accepts no live calls; retry the call",
            )));
        }
        let context = SealContext {
            flow: start.flow(),
            binding: self.binding.live(),
            deadline: start.deadline(),
            kind: call.kind,
        };
        // The handler reports all progress and logs. Each round sends those that its request subscribed to.
        let notes = Subscribed {
            progress: true,
            log: Some(LogLevel::Debug),
        };
        let (spec, arguments, permit, live_permit) = self.into_live(notes, seed.as_deref())?;
        let live = span
            .in_scope(|| LiveFlow::new(&rounds.live, spec, arguments, start, None, live_permit));
        Ok(NewFlow::Live(Box::new(LiveStart {
            live,
            context,
            has_call_id: call.meta.call_id.is_some(),
            notes: Subscribed::by(call),
            seed,
            permit,
        })))
    }

    #[inline]
    fn flow_spec<'n>(
        &self,
        name: Cow<'n, str>,
        notes: Subscribed,
        can_detach: bool,
    ) -> FlowSpec<'n> {
        let meta = &self.request.call.meta;
        FlowSpec {
            target: self.target.clone(),
            name,
            address: self.request.caller.address,
            principal: self.request.caller.principal.clone(),
            capabilities: meta.capabilities,
            extensions: meta.extensions.map(|raw| raw.get().into()),
            meta: meta.custom.as_ref().map(|custom| custom.to_json().into()),
            notes,
            can_detach,
        }
    }

    /// The input of a live call, the arguments of its first run, the permit of the request, and the permit to keep the call
    /// in memory. With a seed, the call can become a task.
    fn into_live(
        self,
        notes: Subscribed,
        seed: Option<&TaskSeed>,
    ) -> Result<(LiveSpec, Value, Permit, LivePermit), LimitReached> {
        let (rounds, call) = (self.rounds, self.request.call);
        let key = self.request.caller.limit_key();
        let raw = match &self.target {
            Target::Template(_) => to_raw_value(&self.arguments).ok(),
            _ => call.arguments.map(ToOwned::to_owned),
        };
        let name = Cow::Owned(call.target.to_string());
        let spec = LiveSpec::new(self.flow_spec(name, notes, seed.is_some()), raw);
        let bytes = spec.held_bytes() + memory_size(&self.arguments) + request_bytes(call);
        let bytes = bytes + seed.map_or(0, TaskSeed::held_bytes);
        let live_permit = rounds.services.limits.acquire_live(key, bytes)?;
        Ok((spec, self.arguments, self.permit, live_permit))
    }

    /// The server's tasks, if the client supports tasks.
    fn tasks(&self) -> Option<&Arc<Tasks>> {
        let is_supported = self.request.call.meta.capabilities.has(Capability::Tasks);
        self.rounds.tasks.as_ref().filter(|_| is_supported)
    }

    fn check_task_required(&self) -> Result<(), RpcError> {
        match &self.target {
            Target::Tool(tool) if tool.tool.task.required && self.tasks().is_none() => {
                Err(RpcError::missing_capability(&[Capability::Tasks]))
            }
            _ => Ok(()),
        }
    }

    /// The data for a task, if the call can become one.
    fn task_seed(&self) -> Result<Option<Box<TaskSeed>>, RpcError> {
        self.check_task_required()?;
        let Target::Tool(tool) = &self.target else {
            return Ok(None);
        };
        let meta = &self.request.call.meta;
        Ok(self.tasks().map(|tasks| {
            Box::new(TaskSeed {
                tasks: tasks.clone(),
                tool: tool.clone(),
                owner: self.request.caller.principal.clone(),
                caller: self.permit.key().clone(),
                arguments: self.request.call.arguments.map(ToOwned::to_owned),
                capabilities: meta.capabilities,
                extensions: meta.extensions.map(ToOwned::to_owned),
                meta: meta
                    .custom
                    .as_ref()
                    .and_then(|custom| RawValue::from_string(custom.to_json()).ok()),
                ttl: meta.task_ttl,
            })
        }))
    }
}

/// The size of the answers and the progress token in a call.
fn request_bytes(call: &Call<'_>) -> usize {
    let answers = call.answers.iter().flat_map(Answers::iter);
    let answers = answers.map(|(key, raw)| key.len() + raw.get().len());
    let token = call.meta.progress_token.map_or(0, |raw| raw.get().len());
    answers.sum::<usize>() + token
}

/// The approximate size of a parsed value in memory. A handler may keep its arguments until it ends.
fn memory_size(value: &Value) -> usize {
    const ENTRY: usize = 2 * size_of::<String>() + size_of::<usize>();
    size_of::<Value>()
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(values) => values.iter().map(memory_size).sum(),
            Value::Object(members) => members
                .iter()
                .map(|(key, value)| ENTRY + key.len() + memory_size(value))
                .sum(),
        }
}
