//! Refrain's server: runs handlers as flows and serves them as MCP over HTTP and stdio.
//!
//! Programs use these items through the crate `refrain`.
//!
//! | module | contents |
//! | --- | --- |
//! | `server`, `builder` | the server and its builder |
//! | `services` | clock, keys, metrics and limits, shared by all subsystems |
//! | `catalog` | registered tools, prompts and resources, their lists and changes |
//! | `handler`, `reply` | argument and return types of handlers |
//! | `dispatch` | entry point of all transports: parses a message and routes it |
//! | `response` | response to one message, independent of the transport |
//! | `drafts` | endpoints for clients that speak a draft |
//! | `endpoint` | handler of the messages of a transport: a server, or a draft around it |
//! | `rounds` | the rounds of calls |
//! | `tasks` | flows whose home is a store |
//! | `live` | flows whose home is memory |
//! | `legacy` | sessions of legacy clients |
//! | `skills` | directories with instructions, served as resources |
//! | `subscriptions` | notifications of changes |
//! | `auth` | authentication and scopes |
//! | `limits` | limits and permits |
//! | `http`, `stdio` | the transports |
//! | `metrics` | counters, gauges and histograms |
//! | `request_span` | spans of requests, tasks and live calls |
//! | `timer`, `retry` | timers and timeouts; retries with backoff |
//! | `relay`, `handles` | forwards requests to the instance that holds or must run their call; sealed handles that name it |
//! | `wire_recorder` | records sent messages, for tests |

mod auth;
mod backoff;
mod builder;
mod catalog;
mod dispatch;
pub mod drafts;
mod endpoint;
mod handler;
mod handles;
mod http;
mod legacy;
mod limits;
mod live;
mod metrics;
mod relay;
mod reply;
mod request_span;
mod response;
mod rounds;
mod server;
mod services;
mod skills;
mod stdio;
mod subscriptions;
mod tasks;
mod timer;
mod wire_recorder;

pub use auth::{
    AuthFuture, AuthRejection, Authenticator, BearerTokens, Caller, HttpUrlError, ResourceMetadata,
    ScopeError, Scopes, TokenListError, TokenListErrorKind, TrustedProxy, TrustedProxyError,
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
pub use handles::HandleError;
#[cfg(feature = "metrics")]
pub use http::serve_metrics;
pub use http::{AllowedHosts, Body, HttpService, Listener, ServerCard, ServerCardError, serve};
#[cfg(feature = "tls")]
pub use http::{TlsCertificate, TlsError};
pub use limits::ServerLimits;
#[cfg(feature = "metrics")]
pub use metrics::METRICS_CONTENT_TYPE;
/// This crate defines `Registry`, the parameter of [`ServerBuilder::register_metrics`].
#[cfg(feature = "metrics")]
pub use prometheus_client;
pub use reply::{IntoReply, Json, PromptCall, RawResult, ReadCall, Reply, ReplyTo, ToolCall};
pub use response::{MessageKind, MessageResponse, Status};
pub use rounds::{Round, RoundEvent};
pub use server::{Server, WeakServer};
pub use skills::{FrontmatterError, Skill, SkillError};
pub use stdio::serve_stdio;
pub use subscriptions::SubscribedResources;
pub use tasks::{TaskOptions, Webhook, WebhookError};
