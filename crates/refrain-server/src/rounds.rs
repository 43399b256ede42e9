//! Rounds: one request and one response of a call.
//!
//! A round passes four stages. The type of each stage consumes the one before it and adds data.
//!
//! | stage | type | adds |
//! | --- | --- | --- |
//! | `resolve` | `ResolvedCall` | the tool, prompt, resource or resource template |
//! | `admit` | `AdmittedCall` | permit, checked scopes, valid arguments, token binding |
//! | `open` | `AdmittedCall` and `Start` | the journal so far; or the call is attached or relayed to its holder |
//! | `round` | `Round` | the running flow and its home |
//!
//! | module | contents |
//! | --- | --- |
//! | `start` | creates a flow in its home |
//! | `client` | flows whose home is the client: each round ends with a result, a token or a task |
//! | `session` | flows of legacy sessions, which send asks during the round |
//! | `park` | the first round of a live call |
//! | `pin` | the instance that must run a pinned call |
//! | `attach` | later requests of a live call |
//! | `flow_spec` | environment and handler of a flow |
//! | `target` | the tool, prompt, resource or resource template of a call |
//! | `outcome` | the result or error of an ended flow |
//! | `single_use` | claims and records in the replay log |
//! | `sealed_log` | a replay log with sealed values |
//! | `metrics` | metrics and log events |

mod admit;
mod attach;
mod client;
mod flow_spec;
mod metrics;
mod open;
mod outcome;
mod park;
mod pin;
mod resolve;
mod round;
mod sealed_log;
mod session;
mod single_use;
mod start;
mod target;

pub(crate) use flow_spec::{FlowSpec, Flows, LiveSpec};
pub(crate) use outcome::{outcome_of, reply_of};
pub(crate) use pin::state_lost;
pub use round::{Round, RoundEvent};
pub(crate) use sealed_log::SealedLog;
pub(crate) use single_use::{ReplayRecord, counts_as_run, delete_once_records};
pub(crate) use target::Target;

use crate::auth::{Auth, Caller, MissingScopes};
use crate::catalog::Catalog;
use crate::dispatch::Dispatch;
use crate::limits::LimitReached;
use crate::live::{AttachError, LiveCalls};
use crate::relay::Relay;
use crate::request_span;
use crate::services::Services;
use crate::tasks::Tasks;
use http::HeaderMap;
use metrics::RoundMetrics;
use open::OpenedCall;
use refrain_wire::{Call, Reply, RpcError};
use resolve::ResolvedCall;
use std::sync::Arc;
use tracing::Span;

/// The source of a call's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenSource {
    /// The request contains it.
    Request,
    /// The request contains a reference to a token in the store.
    Store,
}

/// The home of a flow while an ask is open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home {
    /// The client. Each round is a separate request.
    Client,
    /// Memory, for a legacy session. Asks are sent during the round, as [`RoundEvent::Asks`].
    Session,
}

/// One request of a call.
pub(crate) struct CallRequest<'a> {
    pub(crate) call: &'a Call<'a>,
    pub(crate) token: TokenSource,
    pub(crate) home: Home,
    pub(crate) caller: &'a Caller,
    /// Whether the request can be relayed to another instance.
    pub(crate) can_relay: bool,
    /// `None` on transports without headers.
    pub(crate) headers: Option<&'a HeaderMap>,
    pub(crate) span: &'a Span,
}

/// The reason why a round ends before its handler runs.
enum RoundRejection {
    Reply(Reply),
    /// The request itself is malformed. HTTP responds with an error status.
    Malformed(RpcError),
    Forbidden(MissingScopes),
    Busy(RpcError),
}

impl From<RpcError> for RoundRejection {
    fn from(error: RpcError) -> Self {
        Self::Reply(Reply::Error(error))
    }
}

impl From<LimitReached> for RoundRejection {
    fn from(reached: LimitReached) -> Self {
        Self::Busy(reached.into())
    }
}

impl From<AttachError> for RoundRejection {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Rejected(error) => error.into(),
            AttachError::Busy(reached) => reached.into(),
        }
    }
}

impl From<RoundRejection> for Dispatch {
    fn from(rejection: RoundRejection) -> Self {
        match rejection {
            RoundRejection::Reply(reply) => Self::Reply(reply),
            RoundRejection::Malformed(error) => Self::Invalid(error),
            RoundRejection::Forbidden(missing) => Self::Forbidden(missing),
            RoundRejection::Busy(error) => Self::Busy(error),
        }
    }
}

/// Runs the rounds of all calls.
pub(crate) struct Rounds {
    catalog: Arc<Catalog>,
    auth: Arc<Auth>,
    flows: Arc<Flows>,
    tasks: Option<Arc<Tasks>>,
    live: Arc<LiveCalls>,
    relay: Arc<Relay>,
    services: Services,
}

impl Rounds {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        auth: Arc<Auth>,
        flows: Arc<Flows>,
        tasks: Option<Arc<Tasks>>,
        live: Arc<LiveCalls>,
        relay: Arc<Relay>,
        services: Services,
    ) -> Arc<Self> {
        Arc::new(Self {
            catalog,
            auth,
            flows,
            tasks,
            live,
            relay,
            services,
        })
    }

    /// Starts a round, or counts its rejection.
    pub(crate) fn begin(self: &Arc<Self>, request: CallRequest<'_>) -> Dispatch {
        let mut metrics = RoundMetrics::start(request.call.kind, &request.caller.principal);
        match self.start(request, &mut metrics) {
            Ok(OpenedCall::Round(mut round)) => {
                round.metrics = Some(metrics);
                Dispatch::Round(round)
            }
            Ok(OpenedCall::Relay(relay)) => Dispatch::Relay(relay),
            Err(rejection) => {
                metrics.reject(&self.services.metrics, &rejection);
                rejection.into()
            }
        }
    }

    fn start(
        self: &Arc<Self>,
        request: CallRequest<'_>,
        metrics: &mut RoundMetrics,
    ) -> Result<OpenedCall, RoundRejection> {
        let key = request.caller.limit_key();
        let permit = self.services.limits.calls.acquire(key)?;
        let resolved = ResolvedCall::resolve(self, request)?;
        metrics.set_target(resolved.target.counts());
        let call = resolved.request.call;
        request_span::set_target(resolved.request.span, call.kind, &call.target);
        resolved.admit(permit)?.open()
    }
}
