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
use refrain_core::{Binding, LogKey, Retention, Start};
use refrain_wire::{Answers, Call, Capability, LogLevel, RpcError};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::borrow::Cow;
use std::sync::Arc;
use tracing::Span;

/// A call and the journal of its flow.
pub(super) struct OpenedFlow<'a> {
    pub(super) admitted: AdmittedCall<'a>,
    pub(super) start: Start,
}

/// The parts of an admitted call that its flow needs.
struct FlowInput<'a> {
    spec: FlowSpec<'a>,
    arguments: Value,
    permit: Permit,
    binding: Binding,
}

impl OpenedFlow<'_> {
    #[inline]
    pub(super) fn run(mut self) -> Result<Box<Round>, RoundRejection> {
        let (rounds, call) = (self.admitted.rounds, self.admitted.request.call);
        self.receive_trace();
        let span = std::mem::replace(&mut self.admitted.request.span, Span::none());
        let (uri, home) = (self.admitted.target.uri(), self.home_name());
        request_span::set_flow(&span, &mut self.start, uri, home);
        let (number, record) = (self.start.round(), self.record());
        let deadline = self.start.deadline();
        let limits = &rounds.services.limits;
        let round_time = self.admitted.target.round_time();
        let live_time = limits
            .live_time
            .saturating_add(round_time.unwrap_or(limits.round_time));
        let flow = self.create(&span)?;
        let claim = record.as_ref().map(|record| {
            let now = rounds.services.source.unix_seconds();
            match &flow {
                NewFlow::Live(live) => {
                    // A call that does not become a task is over after this time: an idle one after `live_time`, and a
                    // handler that is busy then after a round.
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
        let mut round = Round::new(rounds, call, number, span, record);
        match claim {
            None => round.start(flow),
            Some(claim) => round.state = RoundState::Claiming(claim, Box::new(flow)),
        }
        Ok(round)
    }

    /// The flow's home, as in the span.
    fn home_name(&self) -> &'static str {
        match self.admitted.request.home {
            Home::Client if self.admitted.is_live() => "live",
            Home::Client => "client",
            Home::Session => "session",
        }
    }

    fn receive_trace(&mut self) {
        let Some(trace) = &self.admitted.request.call.meta.trace else {
            return;
        };
        if let Some(key) = trace.ignored {
            tracing::debug!(key, "trace context ignored: malformed or too long");
        }
        self.start.receive_trace(trace);
    }

    /// The entry in the replay log, if the round may run only once.
    fn record(&self) -> Option<ReplayRecord> {
        let admitted = &self.admitted;
        let log = admitted.rounds.services.replay_log.as_ref()?;
        // Another instance must not run the first round of a live call again.
        let request = admitted.request.call;
        let is_first_of_live = admitted.is_live() && request.state.is_none();
        // No request can repeat a first round without a call id.
        let can_repeat = request.state.is_some() || request.meta.call_id.is_some();
        let runs_once = can_repeat && (admitted.target.is_single_use() || is_first_of_live);
        runs_once.then(|| {
            let key = LogKey::round(self.start.flow(), self.start.round());
            let account = admitted.request.caller.limit_key().account();
            ReplayRecord::new(log, key, account)
        })
    }

    #[inline]
    fn create(self, span: &Span) -> Result<NewFlow, RoundRejection> {
        match self.admitted.request.home {
            Home::Client if self.admitted.is_live() => self.create_live(span),
            Home::Client => self.create_client(span),
            Home::Session => self.create_session(span),
        }
    }

    #[inline]
    fn create_client(self, span: &Span) -> Result<NewFlow, RoundRejection> {
        let Self { admitted, start } = self;
        let (rounds, call) = (admitted.rounds, admitted.request.call);
        let seed = admitted.task_seed()?;
        let target = admitted.target.clone();
        let name = Cow::Borrowed(&*call.target);
        let notes = Subscribed::by(call);
        let input = admitted.into_input(name, notes, seed.is_some());
        let flow = span.in_scope(|| rounds.flows.start(input.spec, input.arguments, start));
        let (binding, permit) = (input.binding, input.permit);
        Ok(NewFlow::Client(ClientFlow::new(
            flow, target, binding, seed, permit,
        )))
    }

    fn create_session(self, span: &Span) -> Result<NewFlow, RoundRejection> {
        let Self { admitted, start } = self;
        let (rounds, call) = (admitted.rounds, admitted.request.call);
        admitted.check_task_required()?;
        let notes = Subscribed::by(call);
        let (spec, arguments, permit, live_permit) = admitted.into_live(notes, None)?;
        let permit = Some(permit);
        let live = span
            .in_scope(|| LiveFlow::new(&rounds.live, spec, arguments, start, permit, live_permit));
        Ok(NewFlow::Session(Box::new(live)))
    }

    fn create_live(self, span: &Span) -> Result<NewFlow, RoundRejection> {
        let Self { admitted, start } = self;
        let (rounds, call) = (admitted.rounds, admitted.request.call);
        let seed = admitted.task_seed()?;
        let seed = seed.filter(|seed| seed.tool.tool.task.support().is_some());
        if rounds.services.limits.is_draining() || rounds.live.is_closed() {
            return Err(RoundRejection::Busy(RpcError::internal(
                "this instance is shutting down and accepts no live calls; retry the call",
            )));
        }
        let context = SealContext {
            flow: start.flow(),
            binding: admitted.binding.live(),
            deadline: start.deadline(),
            kind: call.kind,
        };
        // The handler reports all progress and logs. Each round sends those that its request subscribed to.
        let notes = Subscribed {
            progress: true,
            log: Some(LogLevel::Debug),
        };
        let (spec, arguments, permit, live_permit) = admitted.into_live(notes, seed.as_deref())?;
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
}

impl AdmittedCall<'_> {
    #[inline]
    fn into_input<'n>(
        self,
        name: Cow<'n, str>,
        notes: Subscribed,
        can_detach: bool,
    ) -> FlowInput<'n> {
        let meta = &self.request.call.meta;
        FlowInput {
            spec: FlowSpec {
                target: self.target,
                name,
                address: self.request.caller.address,
                principal: self.request.caller.principal,
                capabilities: meta.capabilities,
                extensions: meta.extensions.map(|raw| raw.get().into()),
                meta: meta.custom.as_ref().map(|custom| custom.to_json().into()),
                notes,
                can_detach,
            },
            arguments: self.arguments,
            permit: self.permit,
            binding: self.binding,
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
        let input = self.into_input(name, notes, seed.is_some());
        let (spec, arguments) = (LiveSpec::new(input.spec, raw), input.arguments);
        let bytes = spec.held_bytes() + memory_size(&arguments) + request_bytes(call);
        let bytes = bytes + seed.map_or(0, TaskSeed::held_bytes);
        let live_permit = rounds.services.limits.acquire_live(key, bytes)?;
        Ok((spec, arguments, input.permit, live_permit))
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
