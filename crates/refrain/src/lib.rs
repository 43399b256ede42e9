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
//! # Ok::<(), refrain::server::BuildError>(())
//! ```
//!
//! Each round of a call runs the function from the top. Earlier asks and steps are replayed from its journal, which
//! travels with the client as a sealed token; a new ask suspends the function. So any instance can serve any round, and no
//! instance keeps state while a person thinks.
//!
//! # Operations of a handler
//!
//! | to | call |
//! | --- | --- |
//! | ask for a form | [`cx.elicit`](Cx::elicit), [`cx.ask`](Cx::ask) for the outcome itself |
//! | have a URL opened | [`cx.elicit_url`](Cx::elicit_url) |
//! | ask the client's model | [`cx.sample`](Cx::sample) |
//! | list the client's roots | [`cx.roots`](Cx::roots) |
//! | do something and keep its value | [`cx.step`](Cx::step), [`cx.step_with_key`](Cx::step_with_key), [`cx.once`](Cx::once) |
//! | compute for long | [`cx.checkpoint`](Cx::checkpoint), [`cx.resume`](Cx::resume) |
//! | use one name in several places | [`cx.scope`](Cx::scope) |
//! | tell the client how it goes | [`cx.progress`](Cx::progress), [`cx.log`](Cx::log) |
//! | read the time, a random number, the caller | [`cx.now`](Cx::now), [`cx.random`](Cx::random), [`cx.principal`](Cx::principal) |
//! | read answers and keep a state by hand | [`cx.answer`](Cx::answer), [`cx.state`](Cx::state), [`Incomplete`], [`Reply`] |
//!
//! The doc comment of a `#[tool]` is the description that models read; remarks for maintainers are plain `//` comments.
//!
//! # Rules for a handler
//!
//! The code between two operations of `cx` runs again in every round, so it must have no side effects: put these into
//! steps. Concurrent asks and steps need different names.
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
//! [`Tool::task_after`](server::Tool::task_after), or because its tool says so ([`Tool::task`](server::Tool::task)). Its journal moves from the client into a
//! [`store`], and whichever instance is alive carries it on. The guide is `docs/guide/tasks.md`.
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
//! # Modules
//!
//! | module | contents |
//! | --- | --- |
//! | [`prelude`] | imports for a file with handlers |
//! | [`ask`] | forms, and requests to the client's model |
//! | [`content`] | results of tools, prompts and resources |
//! | [`server`] | [`Server`](server::Server) and its builder, registrations, HTTP and stdio, keys, limits |
//! | [`task`] | options of tasks |
//! | [`auth`] | authentication of callers |
//! | [`store`] | task stores and replay logs |
//! | `client` | the client |
//! | [`runtime`] | for embedders, and for your own stores, authenticators and transports |
//!
//! # Cargo features
//!
//! | feature | adds | default |
//! | --- | --- | --- |
//! | `macros` | `#[tool]`, `#[prompt]`, `#[resource]`, `#[derive(Elicit)]` | yes |
//! | `sqlite` | a task store and replay log in a SQLite file | |
//! | `postgres` | the same in Postgres, for a fleet | |
//! | `jwt` | `auth::JwtVerifier`: access tokens of an authorization server | |
//! | `metrics` | `server::serve_metrics`: counters for Prometheus | |
//! | `tls` | requests are relayed to instances with an `https` URL | |
//! | `client` | the module `client` | |
//!
//! # Serving
//!
//! [`server::serve`] runs a server on hyper; [`server::HttpService`] is the same endpoint as a tower service, to be
//! mounted in axum; [`server::serve_stdio`] speaks over standard input and output. A fleet shares a
//! [`KeyRing`](server::KeyRing). Logs go to `tracing`: install a subscriber, or the server is silent.
//!
//! An [`Authenticator`](auth::Authenticator) identifies callers over HTTP. [`BearerTokens`](auth::BearerTokens) is a fixed
//! list, [`TrustedProxy`](auth::TrustedProxy) trusts a proxy, and `auth::JwtVerifier` verifies the access tokens of an
//! authorization server. Tools, prompts and resources with `.scopes(..)` are only for callers that have these scopes.

#[cfg(feature = "macros")]
pub use refrain_macros::{Elicit, prompt, resource, tool};

pub use refrain_core::{Answer, AskError, Cx, Elicit, ElicitEnum, Error, Incomplete, Result, ok};
pub use refrain_server::{Json, Reply, State};

pub mod ask;
pub mod auth;
pub mod content;
pub mod server;
pub mod store;
pub mod task;

/// The client: the loop that answers rounds, transports, pending calls, tasks, OAuth.
#[cfg(feature = "client")]
pub use refrain_client as client;

/// The crates that Refrain consists of, for programs that embed the runtime and for your own stores, authenticators,
/// transports and clocks.
///
/// Their public items change more often than those of the other modules.
pub mod runtime {
    pub use refrain_core as core;
    pub use refrain_server as server;
    pub use refrain_store as store;
    pub use refrain_wire as wire;

    pub use refrain_core::{Source, SystemSource};
    pub use refrain_wire::PROTOCOL_VERSION;

    /// The versions of these crates that Refrain's own types use. A crate that derives `Deserialize` or `JsonSchema`
    /// needs `serde` (with its `derive` feature) and `schemars` among its own dependencies as well.
    pub use {schemars, serde, serde_json};
}

/// Imports for a file with handlers.
pub mod prelude {
    pub use crate::ask::SamplingParams;
    pub use crate::content::{Content, LogLevel, PromptMessage, ResourceContents, ToolResult};
    pub use crate::server::{Server, ServerBuilder, Tool};
    pub use crate::{
        Answer, AskError, Cx, Elicit, Error, Incomplete, Json, Reply, Result, State, ok,
    };
    #[cfg(feature = "macros")]
    pub use crate::{prompt, resource, tool};
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
}

/// The examples of the README and of the book.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/index.md")]
    struct Index;
    #[doc = include_str!("../../../docs/guide/first-server.md")]
    struct FirstServer;
    #[doc = include_str!("../../../docs/guide/tutorial.md")]
    struct Tutorial;
    #[doc = include_str!("../../../docs/guide/asking.md")]
    struct Asking;
    #[doc = include_str!("../../../docs/guide/steps.md")]
    struct Steps;
    #[doc = include_str!("../../../docs/guide/tasks.md")]
    struct Tasks;
    #[doc = include_str!("../../../docs/guide/offering.md")]
    struct Offering;
    #[doc = include_str!("../../../docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/guide/client.md")]
    struct Client;
    #[doc = include_str!("../../../docs/guide/why-refrain.md")]
    struct WhyRefrain;
    #[doc = include_str!("../../../docs/guide/migrating-inline.md")]
    struct MigratingInline;
    #[doc = include_str!("../../../docs/guide/migrating-rmcp.md")]
    struct MigratingRmcp;
    #[doc = include_str!("../../../docs/guide/migrating-fastmcp.md")]
    struct MigratingFastmcp;
    #[doc = include_str!("../../../docs/guide/migrating-typescript.md")]
    struct MigratingTypescript;
    #[doc = include_str!("../../../docs/operate/authorization.md")]
    struct Authorization;
    #[doc = include_str!("../../../docs/operate/keys.md")]
    struct Keys;
    #[doc = include_str!("../../../docs/operate/limits.md")]
    struct Limits;
    #[doc = include_str!("../../../docs/operate/traces.md")]
    struct Traces;
    #[doc = include_str!("../../../docs/reference/cx.md")]
    struct Cx;
    #[doc = include_str!("../../../docs/reference/guarantees.md")]
    struct Guarantees;
}
