//! Environment and handler of a flow, for a round, a live call and a task.

use super::admitted::invalid_arguments;
use super::span::RoundHook;
use super::target::Target;
use crate::catalog::Catalog;
use crate::handler::{Run, States};
use crate::live::Subscribed;
use crate::server::{Server, WeakServer};
use crate::services::Services;
use refrain_core::{
    Cx, Env, Error, Flow, HandlerFuture, Outcome, Pressure, Principal, Start, Trace,
};
use refrain_wire::{Capabilities, ResultBody, ToolResult};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use tracing::Span;

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

/// What all flows of a server share.
pub(crate) struct Flows {
    server: WeakServer,
    catalog: Arc<Catalog>,
    services: Services,
    on_round: Option<RoundHook>,
}

impl Flows {
    pub(crate) fn new(
        server: WeakServer,
        catalog: Arc<Catalog>,
        services: Services,
        on_round: Option<RoundHook>,
    ) -> Self {
        Self {
            server,
            catalog,
            services,
            on_round,
        }
    }

    /// The server, for handlers that take it as a state. Work that outlives a request holds it too.
    pub(crate) fn server(&self) -> Option<Server> {
        self.server.upgrade()
    }

    /// The application's states.
    pub(crate) fn states(&self) -> &States {
        self.catalog.states()
    }

    /// Passes the span of a round or a task to the application's hook.
    pub(crate) fn observe(&self, span: &Span, trace: &mut Trace) {
        if let Some(hook) = &self.on_round {
            hook(span, trace);
        }
    }

    /// Creates a flow. The handler is not polled yet.
    pub(crate) fn start(&self, spec: FlowSpec<'_>, start: Start) -> Flow {
        let services = &self.services;
        let FlowSpec {
            target,
            name,
            arguments,
            ..
        } = spec;
        let env = Env {
            principal: spec.principal,
            uri: target.uri().map(|_| name.to_string()),
            capabilities: spec.capabilities,
            extensions: spec.extensions,
            log_level: spec.notes.log,
            wants_progress: spec.notes.progress,
            source: services.source.clone(),
            limits: services.limits.flow.clone(),
            pressure: Some(services.limits.clone() as Arc<dyn Pressure>),
            replay_log: match target.uses_once() {
                true => services.replay_log.clone(),
                false => None,
            },
            can_detach: spec.can_detach,
        };
        Flow::new(env, start, |cx| {
            run_handler(self, &target, &name, cx, arguments)
        })
    }
}

/// Starts the handler of a call.
fn run_handler(
    flows: &Flows,
    target: &Target,
    name: &str,
    cx: Cx,
    mut arguments: Value,
) -> HandlerFuture {
    target.entry().texts.convert(&mut arguments);
    let run = Run {
        flows,
        arguments,
        to: target.reply_to(name),
    };
    let started = catch_unwind(AssertUnwindSafe(|| (target.entry().start)(cx, run)));
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
