//! A client for MCP servers whose calls may take more than one round trip.
//!
//! A server may answer a call with *asks*: a form, a URL, a question to a model, the roots. A [`Client`] passes them to
//! the handlers of the host, sends the answers, and repeats that until the call has a result:
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use refrain_client::{AskAnswer, Client};
//! use serde_json::json;
//!
//! let client = Client::builder()
//!     .on_form(|ask| async move {
//!         println!("{}", ask.message);
//!         Ok(AskAnswer::accept(json!({"name": "Ada"}))?)
//!     })
//!     .connect("http://127.0.0.1:8080/mcp")
//!     .await?;
//! let result = client.call_tool("greet", json!({})).await?;
//! println!("{:?}", result.content);
//! # Ok(())
//! # }
//! ```
//!
//! A call that cannot be answered now is returned as a [`PendingCall`]. It can be stored, and resumed days later by
//! another process.
//!
//! # Contents
//!
//! | purpose | items |
//! | --- | --- |
//! | connect to a server | [`Client::builder`], [`ClientBuilder`], [`ClientLimits`], [`Dialect`] |
//! | give each user of a connection their own handlers | [`Client::scoped`] |
//! | call tools, prompts and resources | [`Client::call_tool`], [`Client::get_prompt`], [`Client::read_resource`], [`CallSpec`] |
//! | answer asks | [`FormAsk`], [`UrlAsk`], [`SamplingAsk`], [`RootsAsk`], [`UnknownAsk`], [`AskAnswer`], [`AskRefusal`] |
//! | store and resume calls | [`PendingCall`], [`Client::start`], [`Client::resume`], [`Client::finish`], [`RoundOutcome`] |
//! | run tasks | [`Client::task`], [`Client::cancel_task`], [`Task`] |
//! | list features, subscribe to changes, complete arguments | [`Client::tools`], [`Client::listen`], [`ChangeStream`], [`Client::complete`] |
//! | authorize requests | [`Bearer`], [`OAuth`], [`Authorize`], [`Grants`], [`Loopback`] |
//! | handle errors | [`Error`], [`ErrorKind`], [`AuthError`] |
//! | observe messages, requests, retries, tasks, progress and logs | [`WireMessage`], [`RequestReport`], [`Retry`], [`Task`], [`Progress`], [`LogMessage`] |
//! | read and write protocol types | [`wire`] |
//!
//! # Layers
//!
//! | layer | modules | decides |
//! | --- | --- | --- |
//! | client | `client`, `lists`, `listen`, `complete` | which requests to send |
//! | rounds | `rounds`, `task`, `pending` | the next step of a call: answer, send again, poll |
//! | protocol | `protocol`, `connect`, `legacy`, `request_span` | the form of a request in the server's revision, and its retries |
//! | transport | `transport`, `dialect` | how one message and its replies travel |
//! | socket | `transport/http`, `transport/pipe` | HTTP requests, and pipes to a child process |

mod ask;
mod auth;
mod budget;
mod builder;
mod cache;
mod call;
mod client;
mod complete;
mod connect;
mod dialect;
mod error;
mod handlers;
mod large_message;
mod legacy;
mod limits;
mod listen;
mod lists;
mod notifications;
mod output_schema;
mod pace;
mod pending;
mod protocol;
mod random;
mod request_span;
mod retry;
mod rounds;
mod task;
mod transport;

pub use ask::{
    AskAnswer, Asker, FormAsk, IncomingAsk, InvalidAnswer, RootsAsk, SamplingAsk, UnknownAsk,
    UrlAsk,
};
pub use auth::{
    AuthError, Authorize, Bearer, Grant, Grants, IdentityProvider, Loopback, OAuth, OAuthBuilder,
    RedirectError, RegisteredClient, RejectedRequest, ResponseError, SetupError,
};
pub use budget::ByteBudget;
pub use builder::ClientBuilder;
pub use call::CallSpec;
pub use client::Client;
pub use dialect::{Dialect, DialectError};
pub use error::{Error, ErrorKind, UnansweredAsk};
pub use handlers::{AskRefusal, HandlerError};
pub use limits::ClientLimits;
pub use listen::{ChangeStream, ServerChange};
pub use notifications::{LogMessage, Progress};
pub use pending::{AnswerRejection, PendingCall};
pub use request_span::RequestReport;
pub use retry::{Retry, RetrySafety};
pub use rounds::RoundOutcome;
pub use transport::WireMessage;

pub use refrain_wire as wire;
pub use refrain_wire::client::{AsSent, ReadError, RpcFailure, ServerInfo, Task, TaskStatus};
pub use refrain_wire::{
    AskKind, Content, Filter, Form, Implementation, LogLevel, PromptResult, ReadResult, Root,
    SamplingAnswer, SamplingParams, ToolInfo, ToolResult,
};
