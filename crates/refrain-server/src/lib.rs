//! Refrain's server: it registers handlers, runs their flows and speaks MCP over HTTP and stdio.
//!
//! | module | contents |
//! | --- | --- |
//! | `server`, `builder` | the facade, and how it is put together |
//! | `services` | clock, keys, counters and limits that all subsystems use |
//! | `catalog` | registered tools, prompts, resources; their lists and changes |
//! | `handler`, `reply` | what a handler function may take and return |
//! | `dispatch` | the entrance for every transport: a request is parsed, and answered or started as a round |
//! | `response` | one message in, and what goes out in response, without a transport |
//! | `drafts` | the drafts as wrappers around the endpoints |
//! | `rounds` | the rounds of calls: found, admitted, opened, running |
//! | `tasks` | flows whose home is a store |
//! | `live` | flows whose home is memory |
//! | `legacy` | sessions of clients that speak earlier revisions |
//! | `subscriptions` | clients that are notified of changes |
//! | `auth` | callers and their scopes |
//! | `limits` | limits and permits |
//! | `http`, `stdio` | the transports |
//! | `metrics` | counters |
//! | `timer`, `retry` | a timer for several deadlines; retries with backoff |
//! | `relay` | requests sent to the instance that holds their call or session |
//! | `http_client` | pooled connections to other servers |
//! | `record` | recorded messages, for tests |

mod auth;
mod builder;
mod catalog;
mod dispatch;
pub mod drafts;
mod handler;
mod http;
mod http_client;
mod legacy;
mod limits;
mod live;
mod metrics;
mod record;
mod relay;
mod reply;
mod response;
mod retry;
mod rounds;
mod server;
mod services;
mod stdio;
mod subscriptions;
mod tasks;
mod timer;

pub use auth::{
    AuthFuture, AuthRejection, Authenticator, BadToken, BadTokenReason, BearerTokens, Caller,
    ResourceMetadata, ScopeError, Scopes, TrustedProxy, TrustedProxyError, UrlError,
};
#[cfg(feature = "jwt")]
pub use auth::{Jwks, JwtVerifier, JwtVerifierBuilder, JwtVerifierError};
pub use builder::{BuildError, ServerBuilder};
pub use catalog::{
    Changes, CompletionInput, Listing, Prompt, Resource, ResourceTemplate, TemplateError,
    TemplateFlaw, Tool,
};
pub use dispatch::Context;
pub use handler::{Handler, State};
#[cfg(feature = "metrics")]
pub use http::serve_metrics;
pub use http::{AllowedHosts, Body, HttpService, MetadataService, serve};
pub use limits::ServerLimits;
#[cfg(feature = "metrics")]
pub use metrics::METRICS_CONTENT_TYPE;
pub use reply::{IntoReply, Json, PromptCall, ReadCall, Reply, ReplyTo, ToolCall};
pub use response::{MessageKind, Response, Status};
pub use rounds::{Round, RoundEvent};
pub use server::Server;
pub use stdio::serve_stdio;
pub use tasks::TaskOptions;
