//! Rounds: one request and one response of a call.
//!
//! A round passes four stages. Each is a type that holds what is known by then and consumes the stage before it.
//!
//! | stage | type | known |
//! | --- | --- | --- |
//! | found | `Found` | the tool, prompt or resource that is called |
//! | admitted | `Admitted` | permit, scopes, valid arguments, the binding of the token |
//! | opened | `Opened` | the journal so far, or the holder of the call |
//! | running | `Round` | the flow and its home |
//!
//! | module | contents |
//! | --- | --- |
//! | `found`, `admitted`, `opened`, `running` | the stages |
//! | `start` | an opened flow is created in its home |
//! | `client` | a flow whose home is the client: run, sealed into a token, or made a task |
//! | `session` | a flow of a legacy session, which asks while its round goes on |
//! | `park` | the first round of a live call |
//! | `attach` | a request that waits for the reply of a parked call |
//! | `flow_spec` | environment and handler of a flow |
//! | `target` | the tool, prompt, resource or template of a call |
//! | `outcome` | the reply for the last event of a flow |
//! | `single_use` | claims and records in the replay log |
//! | `metrics`, `span` | observation |

mod admitted;
mod attach;
mod client;
mod flow_spec;
mod found;
mod metrics;
mod opened;
mod outcome;
mod park;
mod running;
mod session;
mod single_use;
mod span;
mod start;
mod target;

pub(crate) use flow_spec::{FlowSpec, Flows};
pub(crate) use outcome::{outcome_of, reply_of};
pub use running::{Round, RoundEvent};
pub(crate) use single_use::{Record, lacks_capability};
pub(crate) use span::RoundHook;
pub(crate) use target::Target;

use crate::auth::{Auth, Caller, MissingScopes};
use crate::catalog::Catalog;
use crate::dispatch::Dispatch;
use crate::limits::LimitReached;
use crate::live::LiveCalls;
use crate::relay::{PendingRelay, Relay};
use crate::services::Services;
use crate::tasks::Tasks;
use found::Found;
use http::HeaderMap;
use metrics::RoundMetrics;
use opened::Opened;
use refrain_wire::{Call, Reply, RpcError};
use std::sync::Arc;

/// Where the token of a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The client sent it.
    Sent,
    /// It was too large to travel and comes from the store.
    Fetched,
}

/// Where the flow of a request waits while the client is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home<'a> {
    /// With the client: each round is a request of its own.
    Client,
    /// In memory, for the legacy session with this key: asks go out while the round goes on, as [`RoundEvent::Asks`].
    Session(&'a Arc<str>),
}

/// A call as it arrived.
pub(crate) struct CallRequest<'a> {
    pub(crate) call: &'a Call<'a>,
    pub(crate) token: Token,
    pub(crate) home: Home<'a>,
    pub(crate) caller: Caller,
    /// The HTTP headers, if the transport has any.
    pub(crate) headers: Option<&'a HeaderMap>,
}

/// Why a round ends before its handler runs.
enum Rejection {
    /// The reply to an invalid call.
    Reply(Reply),
    /// The request itself is malformed; transports with status codes respond with one.
    Malformed(RpcError),
    Forbidden(MissingScopes),
    Busy(RpcError),
}

impl From<RpcError> for Rejection {
    fn from(error: RpcError) -> Self {
        Self::Reply(Reply::Error(error))
    }
}

impl From<LimitReached> for Rejection {
    fn from(reached: LimitReached) -> Self {
        Self::Busy(reached.into())
    }
}

impl From<Rejection> for Dispatch {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Reply(reply) => Self::Reply(reply),
            Rejection::Malformed(error) => Self::Invalid(error),
            Rejection::Forbidden(missing) => Self::Forbidden(missing),
            Rejection::Busy(error) => Self::Busy(error),
        }
    }
}

/// A round that passed all stages.
enum Started {
    Round(Box<Round>),
    /// Another instance holds the call.
    Relay(Box<PendingRelay>),
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
        (live, relay): (Arc<LiveCalls>, Arc<Relay>),
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

    /// Starts a round of a call.
    pub(crate) fn begin(self: &Arc<Self>, request: CallRequest<'_>) -> Dispatch {
        let mut metrics = RoundMetrics::start(request.call.kind, &request.caller.principal);
        match self.start(request, &mut metrics) {
            Ok(Started::Round(mut round)) => {
                round.measure(metrics);
                Dispatch::Round(round)
            }
            Ok(Started::Relay(relay)) => Dispatch::Relay(relay),
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
    ) -> Result<Started, Rejection> {
        let permit = self.services.limits.calls.acquire(None)?;
        let found = Found::find(self, request)?;
        metrics.found(found.counts());
        Ok(match found.admit(permit)?.open()? {
            Opened::Flow(flow) => Started::Round(flow.run()?),
            Opened::Attached(attached) => Started::Round(attached.run()),
            Opened::Relay(relay) => Started::Relay(relay),
        })
    }
}
