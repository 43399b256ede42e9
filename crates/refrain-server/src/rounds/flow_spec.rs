//! Environment and handler of a flow, for a round, a live call and a task.

use super::admitted::invalid_arguments;
use super::target::Target;
use crate::handler::Run;
use crate::live::Subscribed;
use crate::server::Server;
use refrain_core::{Cx, Env, Error, Flow, HandlerFuture, Outcome, Pressure, Principal, Start};
use refrain_wire::{Capabilities, ResultBody, ToolResult};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Everything that one run of a handler needs, from the top.
#[derive(Clone)]
pub(crate) struct FlowSpec<'a> {
    pub(crate) target: Target,
    /// The name or the URI of the call.
    pub(crate) name: Cow<'a, str>,
    pub(crate) arguments: Value,
    pub(crate) principal: Principal,
    pub(crate) capabilities: Capabilities,
    pub(crate) extensions: Option<Box<RawValue>>,
    /// The notes that the handler produces.
    pub(crate) notes: Subscribed,
    /// May the flow become a task?
    pub(crate) can_detach: bool,
}

impl FlowSpec<'_> {
    /// Creates the flow. The handler is not polled yet.
    pub(crate) fn start(self, server: &Server, start: Start) -> Flow {
        let inner = &server.0;
        let env = Env {
            principal: self.principal,
            uri: self.target.uri().map(|_| self.name.to_string()),
            capabilities: self.capabilities,
            extensions: self.extensions,
            log_level: self.notes.log,
            wants_progress: self.notes.progress,
            source: inner.source.clone(),
            limits: inner.limits.flow.clone(),
            pressure: Some(inner.load.clone() as Arc<dyn Pressure>),
            replay_log: match self.target.uses_once() {
                true => inner.replay_log.clone(),
                false => None,
            },
            can_detach: self.can_detach,
        };
        let (target, name, arguments) = (self.target, self.name, self.arguments);
        Flow::new(env, start, |cx| {
            run_handler(server, &target, &name, cx, arguments)
        })
    }
}

/// Starts the handler of a call.
fn run_handler(
    server: &Server,
    target: &Target,
    name: &str,
    cx: Cx,
    mut arguments: Value,
) -> HandlerFuture {
    target.read_texts(&mut arguments);
    let run = Run {
        server,
        arguments,
        to: target.reply_to(name),
    };
    let started = catch_unwind(AssertUnwindSafe(|| target.handler()(cx, run)));
    let reason = match started {
        Ok(Ok(future)) => return future,
        Ok(Err(reason)) => reason,
        // A function that returns a future, or the deserialization of its arguments, may panic before there is a future.
        Err(panic) => return Box::pin(async move { resume_unwind(panic) }),
    };
    let outcome = match target {
        Target::Tool(_) => {
            let result = ToolResult::error(invalid_arguments(name, &reason));
            ResultBody::from_tool(result)
                .map(Outcome::Complete)
                .map_err(Error::internal)
        }
        Target::Prompt(_) => Err(Error::invalid_params(format!("arguments: {reason}"))),
        Target::Resource(_) | Target::Template(_) => Err(Error::invalid_params(format!(
            "the variables of the URI: {reason}"
        ))),
    };
    Box::pin(ready(outcome))
}
