//! Refrain's server: it registers handlers, runs their flows and speaks MCP over HTTP and stdio.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `handler` | what a handler function may look like |
//! | `tool`, `prompt`, `resource` | what can be registered |
//! | `template` | URI templates, matched against URIs |
//! | `texts` | arguments that come as text |
//! | `builder` | puts a server together |
//! | `catalog`, `shelf` | what is registered: found, listed in pages |
//! | `changes` | what is added and removed while running |
//! | `server` | what all rounds share |
//! | `dispatch` | the entrance for every transport: a message read, answered or begun |
//! | `drafts` | endpoints that speak a draft, wrapped around the ratified ones |
//! | `complete` | suggestions for arguments that are being typed |
//! | `listen` | clients that listen for changes |
//! | `response` | the messages that go out in response to one |
//! | `rounds` | the rounds of calls: found, admitted, opened, running |
//! | `live` | calls whose home is memory |
//! | `load` | how much is running, and when flows are handed on |
//! | `metrics` | what is counted |
//! | `http` | the tower service and the hyper front |
//! | `remote` | connections to other servers |
//! | `record` | what tests keep of what was sent |
//! | `stdio` | the same server on standard input and output |
//! | `tasks` | flows whose home is a store |
//! | `older` | clients of earlier revisions, and their sessions |
//! | `auth` | who is calling, and what they may do |

mod alarm;
mod auth;
mod builder;
mod catalog;
mod changes;
mod complete;
mod dispatch;
pub mod drafts;
mod handler;
mod http;
mod legacy;
mod limits;
mod listen;
mod live;
mod load;
mod metrics;
mod prompt;
mod record;
mod remote;
mod reply;
mod resource;
mod response;
mod rounds;
mod server;
mod shelf;
mod shown;
mod stdio;
mod tasks;
mod template;
mod texts;
mod tool;

pub use auth::{
    AuthFuture, Authenticator, BadToken, BearerTokens, Caller, Jwks, JwtVerifier,
    JwtVerifierBuilder, JwtVerifierError, Refused, ResourceMetadata, Scopes, TrustedProxy,
    TrustedProxyError,
};
pub use builder::{BuildError, ServerBuilder};
pub use catalog::Listing;
pub use changes::Changes;
pub use complete::Typed;
pub use dispatch::Context;
pub use handler::{Handler, State};
pub use http::{AllowedHosts, Body, HttpService, MetadataService, serve, serve_metrics};
pub use limits::ServerLimits;
pub use live::Peers;
pub use metrics::METRICS_CONTENT_TYPE;
pub use prompt::Prompt;
pub use reply::{IntoReply, Json, PromptCall, ReadCall, Reply, ReplyTo, ToolCall};
pub use resource::{Resource, ResourceTemplate};
pub use response::{MessageKind, Response, Status};
pub use rounds::{Round, RoundEvent};
pub use server::Server;
pub use stdio::serve_stdio;
pub use tasks::TaskOptions;
pub use template::{TemplateError, TemplateFlaw};
pub use tool::Tool;
