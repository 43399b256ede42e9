//! Environment and handler of a flow: for rounds, live calls and tasks.

use super::admit::invalid_arguments;
use super::target::Target;
use crate::catalog::Catalog;
use crate::handler::{HandlerInput, StateMap};
use crate::live::Subscribed;
use crate::server::{Server, WeakServer};
use crate::services::Services;
use refrain_core::{Cx, Env, Error, Flow, HandlerFuture, Outcome, Pressure, Principal, Start};
use refrain_wire::{Capabilities, Excerpt, ResultBody, ToolResult, parse_value};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::future::ready;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// The input for running a handler from the beginning, except for its arguments.
pub(crate) struct FlowSpec<'a> {
    pub(crate) target: Target,
    /// The name or URI in the call.
    pub(crate) name: Cow<'a, str>,
    pub(crate) principal: Principal,
    /// The client's address, if it is known.
    pub(crate) address: Option<IpAddr>,
    pub(crate) capabilities: Capabilities,
    /// The JSON text of the extensions that the client declared.
    pub(crate) extensions: Option<Arc<str>>,
    /// The JSON text of the members of `_meta` that are not reserved.
    pub(crate) meta: Option<Arc<str>>,
    pub(crate) notes: Subscribed,
    /// Whether the flow can become a task.
    pub(crate) can_detach: bool,
}

/// The input for running the handler of a live call again. The arguments are kept as text: parsed, they would take up to
/// a hundred times as many bytes.
pub(crate) struct LiveSpec {
    pub(crate) flow: FlowSpec<'static>,
    /// `None` if the call has no arguments.
    arguments: Option<Box<RawValue>>,
}

impl LiveSpec {
    /// `parse_value` must have accepted the arguments.
    pub(super) fn new(flow: FlowSpec<'static>, arguments: Option<Box<RawValue>>) -> Self {
        Self { flow, arguments }
    }

    /// The arguments of another run.
    pub(crate) fn parse_arguments(&self) -> Value {
        match &self.arguments {
            Some(raw) => parse_value(raw.get()).expect("the arguments were parsed before"),
            None => json!({}),
        }
    }

    /// The number of bytes that the client sent and the call keeps. A URI is also kept by the flow and for the reply.
    pub(crate) fn held_bytes(&self) -> usize {
        let arguments = self.arguments.as_ref().map_or(0, |raw| raw.get().len());
        let extensions = self.flow.extensions.as_ref().map_or(0, |text| text.len());
        let meta = self.flow.meta.as_ref().map_or(0, |text| text.len());
        3 * self.flow.name.len() + arguments + extensions + meta
    }
}

/// The environment that all flows of a server share.
pub(crate) struct Flows {
    server: WeakServer,
    catalog: Arc<Catalog>,
    services: Services,
}

impl Flows {
    pub(crate) fn new(server: WeakServer, catalog: Arc<Catalog>, services: Services) -> Self {
        Self {
            server,
            catalog,
            services,
        }
    }

    /// The server, for `State<Server>`.
    pub(crate) fn server(&self) -> Option<Server> {
        self.server.upgrade()
    }

    pub(crate) fn states(&self) -> &StateMap {
        self.catalog.states()
    }

    /// Creates a flow. The handler is not polled yet.
    pub(crate) fn start(&self, spec: &FlowSpec<'_>, arguments: Value, start: Start) -> Flow {
        let services = &self.services;
        let (target, name) = (&spec.target, &spec.name);
        let env = Env {
            principal: spec.principal.clone(),
            address: spec.address,
            uri: target.uri().map(|_| name.to_string()),
            capabilities: spec.capabilities,
            extensions: spec.extensions.clone(),
            meta: spec.meta.clone(),
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
            run_handler(self, target, name, cx, arguments)
        })
    }
}

fn run_handler(
    flows: &Flows,
    target: &Target,
    name: &str,
    cx: Cx,
    mut arguments: Value,
) -> HandlerFuture {
    target.entry().text_fields.convert(&mut arguments);
    let input = HandlerInput {
        flows,
        arguments,
        to: target.reply_to(name),
    };
    let started = catch_unwind(AssertUnwindSafe(|| (target.entry().start)(cx, input)));
    let reason = match started {
        Ok(Ok(future)) => return future,
        Ok(Err(reason)) => Excerpt(reason),
        // The handler function or the deserialization of its arguments panicked before it returned a future.
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
            "invalid URI variables: {reason}"
        ))),
    };
    Box::pin(ready(outcome))
}
