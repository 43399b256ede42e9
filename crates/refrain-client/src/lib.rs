//! A client for MCP servers whose calls may take more than one round trip.
//!
//! A [`Client`] is set up with handlers for asks, and connects to a URL. Its calls continue, round after round, until
//! there is a result:
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use refrain_client::{Answer, Client};
//! use serde_json::json;
//!
//! let client = Client::builder()
//!     .on_form(|ask| async move {
//!         println!("{}", ask.message);
//!         Ok(Answer::accept(json!({"name": "Ada"}))?)
//!     })
//!     .connect("http://127.0.0.1:8080/mcp")
//!     .await?;
//! let result = client.call_tool("greet", json!({})).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A call that cannot be answered now is returned as a [`PendingCall`], a value that can be stored and taken up days
//! later, by another process.
//!
//! # Layers
//!
//! | layer | modules | decides |
//! | --- | --- | --- |
//! | client | [`Client`], `lists`, `listen` | which requests are made |
//! | rounds | `rounds`, `task`, `pending` | the next step of a call: answer, send again, poll |
//! | protocol | `protocol`, `connect`, `legacy` | the form of a request in the server's revision, and its retries |
//! | transport | `transport`, `dialect` | the way of one message and its replies; `dialect` translates drafts |
//! | socket | `transport/http`, `transport/pipe` | HTTP requests, and the process behind a pipe |
//!
//! [`wire::client`] writes and reads the messages.

mod ask;
mod auth;
mod builder;
mod cache;
mod call;
mod client;
mod connect;
mod dialect;
mod error;
mod handlers;
mod legacy;
mod limits;
mod listen;
mod lists;
mod notifications;
mod output_schema;
mod pending;
mod protocol;
mod random;
mod retry;
mod rounds;
mod task;
mod transport;

pub use ask::{
    Answer, Ask, Asker, FormAsk, InvalidAnswer, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk,
};
pub use auth::{
    AuthError, Authorize, Bearer, Grant, Grants, IdentityProvider, Loopback, OAuth, OAuthBuilder,
    RedirectError, Refusal, RegisteredClient, ResponseError, SetupError,
};
pub use builder::ClientBuilder;
pub use call::Call;
pub use client::Client;
pub use dialect::{Dialect, DialectError};
pub use error::{Error, ErrorKind, Unanswered};
pub use handlers::{HandlerError, Refused};
pub use limits::Limits;
pub use listen::{Change, Listening};
pub use notifications::{LogMessage, Progress};
pub use pending::{AnswerError, PendingCall};
pub use rounds::Outcome;
pub use transport::Wire;

pub use refrain_wire as wire;
pub use refrain_wire::client::{ReadError, RpcFailure, ServerInfo, Task, TaskStatus};
pub use refrain_wire::{
    AskKind, Content, Filter, Form, Implementation, LogLevel, PromptResult, ReadResult, Root,
    SamplingAnswer, SamplingParams, ToolInfo, ToolResult,
};
