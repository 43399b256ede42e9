//! Calls of proxied tools, prompts and resources.
//!
//! | backend | how a call runs |
//! | --- | --- |
//! | 2026-07-28 over HTTP | each round of the backend is a step, so the call needs no connection while it waits for an answer |
//! | other | the call waits on its connection; its asks are answered there |

mod encode;
mod inline;
mod rounds;
#[cfg(test)]
mod tests;

use crate::asks::AskForwarder;
use crate::backend::Backend;
use crate::config::Sessions;
use crate::metrics::BackendOutcome;
use crate::pool::{AcquireError, ConnectionGuard, ConnectionKey, Owner};
use crate::support::AskSupport;
use refrain::client::wire::limited_event;
use refrain::client::{self, CallSpec, Client};
use refrain::runtime::core::Outcome;
use refrain::runtime::wire::{CallKind, Completion, Reference};
use refrain::server::CompletionInput;
use refrain::{Cx, Error, Result};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time after which a caller may repeat a call that got no connection.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A tool, prompt or resource of a backend.
pub(crate) struct ProxiedTarget {
    pub(crate) backend: Arc<Backend>,
    pub(crate) kind: CallKind,
    /// The name or URI at the backend.
    pub(crate) name: String,
    /// Whether a call may run again after its response was lost.
    pub(crate) is_repeatable: bool,
    /// Whether each round of the backend is a step. Fixed when the entry is registered.
    pub(crate) has_portable_rounds: bool,
}

impl ProxiedTarget {
    /// Calls the backend for a caller. `name` is the target's name; for a resource template, the URI to read.
    pub(crate) async fn call(
        &self,
        cx: Cx,
        name: &str,
        arguments: Map<String, Value>,
        handle: Option<Arc<str>>,
    ) -> Result<Outcome> {
        let owner = Owner {
            principal: cx.principal().clone(),
            handle,
        };
        let spec = match self.kind {
            CallKind::Tool => CallSpec::tool(name),
            CallKind::Prompt => CallSpec::prompt(name),
            CallKind::Resource => CallSpec::resource(name),
        };
        let spec = spec.with_arguments(arguments);
        let trace = cx.trace();
        let state = trace.tracestate().map(|state| ("tracestate", state.into()));
        let trace = [("traceparent", trace.traceparent().to_string().into())];
        let trace = trace.into_iter().chain(state);
        let trace = trace.map(|(key, value): (&str, Value)| (key.to_owned(), value));
        let spec = cx
            .meta()
            .into_iter()
            .chain(trace)
            .fold(spec, |spec, (key, value)| spec.meta(key, value));
        let called = match self.has_portable_rounds {
            true => rounds::run(&cx, self, owner, spec).await,
            false => inline::run(&cx, &self.backend, owner, spec).await,
        };
        called?.encode(&self.backend.spec.name, self.kind).await
    }

    /// Asks the backend for suggestions for an argument or a variable.
    pub(crate) async fn complete(
        &self,
        argument: String,
        input: CompletionInput,
    ) -> Result<Completion> {
        let reference = match self.kind {
            CallKind::Prompt => Reference::Prompt(Cow::Borrowed(&self.name)),
            CallKind::Tool | CallKind::Resource => Reference::Resource(Cow::Borrowed(&self.name)),
        };
        let backend = &*self.backend;
        let owner = Owner {
            principal: input.principal.clone(),
            handle: None,
        };
        let support = AskSupport::ALL;
        let key = ConnectionKey { owner, support };
        let connection = backend.pool.acquire(key, &input.account).await;
        let connection = connection.map_err(|error| acquire_error(backend, error))?;
        let client = connection.client();
        let suggestions = client.complete(&reference, &argument, &input.value, &input.arguments);
        let suggestions = suggestions.await;
        if is_answered(&suggestions) {
            connection.finish();
        }
        suggestions.map_err(|error| call_error(backend, &error))
    }
}

/// Records the time and the outcome of a call, also if its future is dropped.
struct CallTimer<'a> {
    backend: &'a Backend,
    begun: Instant,
    outcome: BackendOutcome,
}

impl<'a> CallTimer<'a> {
    fn new(backend: &'a Backend) -> Self {
        Self {
            backend,
            begun: Instant::now(),
            outcome: BackendOutcome::Abandoned,
        }
    }
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        let metrics = &self.backend.metrics;
        metrics.called(self.outcome, self.begun.elapsed());
    }
}

/// The connection of a call.
struct CallConnection {
    connection: ConnectionGuard,
    /// The client of the connection, whose asks reach the caller.
    client: Client,
    asks: AskForwarder,
}

impl CallConnection {
    /// Waits for a connection for the caller of a call.
    async fn acquire(cx: &Cx, owner: Owner, timer: &mut CallTimer<'_>) -> Result<Self> {
        let (backend, account) = (timer.backend, cx.account());
        let support = AskSupport::of(cx);
        // A connection with state serves all clients of its owner.
        let declared = match backend.spec.sessions {
            Sessions::None => support,
            Sessions::Caller | Sessions::Handle => AskSupport::ALL,
        };
        let key = ConnectionKey {
            owner,
            support: declared,
        };
        let begun = Instant::now();
        let connection = backend.pool.acquire(key, &account).await;
        backend.metrics.waited(begun.elapsed());
        let connection = connection.map_err(|error| {
            timer.outcome = BackendOutcome::Unavailable;
            acquire_error(backend, error)
        })?;
        let asks = AskForwarder::new(cx, backend);
        let budget = backend.pool.response_budget(account);
        let client = connection.client().scoped(|builder| {
            let builder = asks.clone().handle(builder, support);
            builder.response_budget(budget)
        });
        Ok(Self {
            connection,
            client,
            asks,
        })
    }
}

/// Whether the backend has answered a request, so that its connection is free again.
fn is_answered<T>(outcome: &Result<T, client::Error>) -> bool {
    use client::ErrorKind::{Rpc, Unanswered};
    match outcome {
        Ok(_) => true,
        Err(error) => matches!(error.kind, Rpc(_) | Unanswered(_)),
    }
}

/// The error of a call for the caller: the backend's own error unchanged, any other with the name of the backend. The
/// command line and the output of the backend may be secret, so they are only logged.
fn call_error(backend: &Backend, error: &client::Error) -> Error {
    let name = &backend.spec.name;
    let why = match &error.kind {
        client::ErrorKind::Rpc(failure) => {
            return Error::rpc(failure.code, &failure.message, failure.data.clone());
        }
        client::ErrorKind::Unanswered(_) | client::ErrorKind::InvalidArgument(_) => {
            return Error::msg(format!("backend {name}: {}", error.kind));
        }
        client::ErrorKind::Exited { .. } => "its process exited",
        client::ErrorKind::Timeout(_) => "it was silent for too long",
        client::ErrorKind::TooLarge { .. } => "its response is too large",
        client::ErrorKind::InvalidResponse { .. } | client::ErrorKind::InvalidResult { .. } => {
            "its response is invalid"
        }
        client::ErrorKind::ConnectionLost(_) | client::ErrorKind::Unreachable { .. } => {
            "the connection failed"
        }
        _ => "the call failed",
    };
    let may_have_run = error.is_outcome_unknown();
    limited_event!(WARN, backend = name, may_have_run, %error, "backend call failed");
    let advice = match may_have_run {
        true => "; it may have been executed, so check before you repeat it",
        false => "",
    };
    Error::msg(format!("backend {name}: {why}{advice}"))
}

/// The error of a call without a connection.
pub(crate) fn acquire_error(backend: &Backend, error: AcquireError) -> Error {
    match error {
        AcquireError::Start(error) => {
            let name = &backend.spec.name;
            limited_event!(WARN, backend = name, %error, "backend is unavailable");
            Error::msg(format!("backend {name} is unavailable; retry later"))
        }
        AcquireError::Busy { .. } | AcquireError::Closed => Error::busy(error, RETRY_AFTER),
        AcquireError::SessionEnded { .. } => error.into(),
    }
}
