//! Refrain's server: it registers handlers, runs their flows and speaks MCP over HTTP and stdio.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `handler` | what a handler function may look like |
//! | `tool`, `prompt`, `resource` | what can be registered |
//! | `server` | the builder and the registered server |
//! | `dispatch` | a request read, and answered or begun |
//! | `outgoing` | one message in, and what goes out in response, without a transport |
//! | `round` | one round of a call: token opened, flow driven, token sealed |
//! | `load` | how much is running, and when flows are handed on |
//! | `http` | the tower service and the hyper front |
//! | `stdio` | the same server on standard input and output |
//! | `auth` | who is calling, and what they may do |

mod auth;
mod dispatch;
mod handler;
mod http;
mod limits;
mod load;
mod outgoing;
mod prompt;
mod reply;
mod resource;
mod round;
mod server;
mod stdio;
mod tool;

pub use auth::{
    AuthFuture, Authenticator, BadToken, BearerTokens, Caller, Jwks, JwtVerifier,
    JwtVerifierBuilder, JwtVerifierError, Refused, ResourceMetadata, Scopes, TrustedProxy,
    TrustedProxyError,
};
pub use handler::{Handler, State};
pub use http::{AllowedHosts, Body, HttpService, MetadataService, serve};
pub use limits::ServerLimits;
pub use outgoing::Outgoing;
pub use prompt::Prompt;
pub use reply::{IntoReply, Json, PromptCall, ReadCall, Reply, ReplyTo, ToolCall};
pub use resource::{Resource, ResourceTemplate, TemplateError};
pub use round::{Round, RoundEvent};
pub use server::{BuildError, Server, ServerBuilder};
pub use stdio::serve_stdio;
pub use tool::Tool;
