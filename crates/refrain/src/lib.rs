//! Straight-line MCP tools that take more than one round trip, on a fleet that shares nothing.
//!
//! A tool often needs something from its caller before it can finish: a login name, a confirmation, a model's
//! opinion. With Refrain that is one async function:
//!
//! ```
//! use refrain::prelude::*;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct GetWeather {
//!     /// The city to look at.
//!     location: String,
//! }
//!
//! #[derive(Deserialize, Elicit)]
//! struct Login {
//!     name: String,
//! }
//!
//! /// Tells the weather, once it knows who is asking.
//! #[tool]
//! async fn get_weather(cx: Cx, args: GetWeather) -> Result<String> {
//!     let login: Login = cx.elicit("github_login", "Please provide your GitHub username").await?;
//!     Ok(format!("{}, it is sunny in {}.", login.name, args.location))
//! }
//!
//! let server = Server::builder("weather", "1.0").tool(get_weather()).build()?;
//! # let _ = server;
//! # Ok::<(), refrain::BuildError>(())
//! ```
//!
//! Each round of a call runs the function from the top. What it already asked and did is replayed from its journal,
//! which travels with the client as a sealed token; a new ask sets the function down. So any instance can serve any
//! round, and an instance keeps nothing while a person thinks.
//!
//! # What a handler can do
//!
//! | to | call |
//! | --- | --- |
//! | ask for a form | [`cx.elicit`](Cx::elicit), [`cx.ask`](Cx::ask) for the outcome itself |
//! | have a URL opened | [`cx.elicit_url`](Cx::elicit_url) |
//! | ask the client's model | [`cx.sample`](Cx::sample) |
//! | list the client's roots | [`cx.roots`](Cx::roots) |
//! | do something once | [`cx.step`](Cx::step), [`cx.step_with_key`](Cx::step_with_key), [`cx.once`](Cx::once) |
//! | compute for long | [`cx.checkpoint`](Cx::checkpoint), [`cx.resume`](Cx::resume) |
//! | use one name in several places | [`cx.scope`](Cx::scope) |
//! | tell the client how it goes | [`cx.progress`](Cx::progress), [`cx.log`](Cx::log) |
//! | know time, chance and caller | [`cx.now`](Cx::now), [`cx.random`](Cx::random), [`cx.principal`](Cx::principal) |
//! | read answers and keep a state by hand | [`cx.answer`](Cx::answer), [`cx.state`](Cx::state), [`Incomplete`], [`Reply`] |
//!
//! The doc comment of a `#[tool]` is the description that models read; remarks for maintainers are plain `//` comments.
//!
//! # What a handler must not do
//!
//! Between two operations of `cx` a handler is run again in every round. What it does there should have no effect on
//! the world: put effects into steps. Asks and steps made at the same time need different names.
//!
//! Several asks at once go out in one round:
//!
//! ```
//! # use refrain::prelude::*;
//! # #[derive(Deserialize, Elicit)] struct Name { name: String }
//! # #[derive(Deserialize, Elicit)] struct Day { day: String }
//! # async fn book(cx: Cx) -> Result<String> {
//! let (who, when) = tokio::try_join!(
//!     cx.elicit::<Name>("who", "Who is coming?"),
//!     cx.elicit::<Day>("when", "On which day?"),
//! )?;
//! // A step's value is journaled: in later rounds the work is dropped unpolled.
//! let number: u64 = cx.step_with_key("book", async |key| ok(key.len() as u64)).await?;
//! # Ok(format!("{}, {}: {number}", who.name, when.day))
//! # }
//! ```
//!
//! # Errors
//!
//! | a handler returns | a client of a tool sees |
//! | --- | --- |
//! | any `std::error::Error` through `?`, or [`Error::msg`] | a result with `isError` and the error's text: the model reads it |
//! | [`Error::invalid_params`] | JSON-RPC error -32602 with the text |
//! | [`Error::internal`] | JSON-RPC error -32603 without the text, which goes to the log |
//! | an [`AskError`] through `?`: declined, cancelled, no usable answer | a result with `isError` that says so |
//! | [`AskError::Unsupported`] through `?` | JSON-RPC error -32021 with the capabilities that are needed |
//!
//! So the text of an error that `?` passes on reaches the client: wrap what must not in [`Error::internal`].
//!
//! # Tasks
//!
//! A call that takes long becomes a task: when its handler calls [`Cx::detach`], when it has run for its
//! [`Tool::task_after`], or because its tool says so ([`Tool::task`]). Its journal moves from the client into a
//! [`store`], and whichever instance is alive carries it on. The guide is `docs/tasks.md`.
//!
//! ```
//! # use refrain::prelude::*;
//! # use std::time::Duration;
//! # #[derive(Deserialize, Elicit)] struct Sure { sure: bool }
//! # async fn clean(cx: Cx) -> Result<String> {
//! let answer: Sure = cx.elicit("sure", "Delete everything?").await?;
//! if !answer.sure {
//!     return Ok("Nothing was deleted.".into());
//! }
//! cx.detach().await?;
//! for part in 1..=3 {
//!     cx.status(format!("deleting part {part}"));
//!     cx.step(format!("delete {part}"), async { ok(()) }).await?;
//!     cx.sleep(Duration::from_secs(60)).await;
//! }
//! # Ok("All of it is deleted.".into())
//! # }
//! ```
//!
//! # Serving
//!
//! Everything that is worth knowing and not for the client is logged with `tracing`: install a subscriber, or the server
//! is silent.
//!
//! [`serve`] runs a [`Server`] on hyper; [`HttpService`] is the same endpoint as a tower service, to be mounted in
//! axum; [`serve_stdio`] speaks over standard input and output. A fleet shares a [`KeyRing`]. What a server counts is
//! told by [`serve_metrics`] on a port of its own, or by [`Server::metrics_text`].
//!
//! Who is calling over HTTP is found out by an [`Authenticator`]: [`JwtVerifier`] for access tokens of an authorization
//! server, [`BearerTokens`] for a fixed list, [`TrustedProxy`] behind a proxy that knows. What needs `.scopes(..)` is for
//! callers who have them.

pub use refrain_core::{
    Answer, AskError, AskFuture, Cancelled, CheckpointFuture, Choice, Cx, DetachFuture, Elicit,
    ElicitEnum, Error, ErrorKind, Field, FlowId, Form, Incomplete, Keep, KeyId, KeyRing,
    KeyRingError, KeyState, Limits, LogError, LogFuture, LogKey, MemoryReplayLog, Note, Outcome,
    Principal, Recorded, ReplayLog, Result, SealerOptions, SleepFuture, Source, StepFuture,
    SystemSource, Trace, ok,
};
pub use refrain_macros::{Elicit, prompt, resource, tool};
pub use refrain_server::{
    AllowedHosts, AuthFuture, Authenticator, BadToken, BearerTokens, Body, BuildError, Caller,
    Changes, Context, Handler, HttpService, IntoReply, Json, Jwks, JwtVerifier, JwtVerifierBuilder,
    JwtVerifierError, Listing, METRICS_CONTENT_TYPE, MessageKind, MetadataService, Peers, Prompt,
    PromptCall, ReadCall, Refused, Reply, ReplyTo, Resource, ResourceMetadata, ResourceTemplate,
    Response, Round, RoundEvent, Scopes, Server, ServerBuilder, ServerLimits, State, Status,
    TaskOptions, TemplateError, TemplateFlaw, Tool, ToolCall, TrustedProxy, TrustedProxyError,
    Typed, drafts, serve, serve_metrics, serve_stdio,
};
pub use refrain_wire::{
    Annotations, Cache, CacheScope, Capability, Completion, Content, Draft, Icon, LogLevel,
    PROTOCOL_VERSION, PromptMessage, PromptResult, ReadResult, ResourceContents, ResourceLink,
    Role, Root, SamplingAnswer, SamplingBlock, SamplingMessage, SamplingParams, SpanId, Theme,
    ToolAnnotations, ToolChoice, ToolInfo, ToolResult, ToolUse, ToolUseResult, TraceId,
    Traceparent,
};

/// Where tasks live: the stores, and what one of your own needs to be.
pub use refrain_store as store;

/// The versions of these crates that Refrain's own types use. A crate that derives `Deserialize` or `JsonSchema`
/// needs `serde` (with its `derive` feature) and `schemars` among its own dependencies as well.
pub use {schemars, serde, serde_json};

/// What a file with handlers in it wants to import.
pub mod prelude {
    pub use crate::{
        Answer, AskError, Content, Cx, Elicit, Error, Incomplete, Json, LogLevel, PromptMessage,
        Reply, ResourceContents, Result, SamplingParams, Server, ServerBuilder, State, Tool,
        ToolResult, ok, prompt, resource, tool,
    };
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples of the guide to tasks.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tasks.md")]
struct Tasks;
