//! A runtime for MCP tools that ask their caller, written as straight-line async functions.
//!
//! A tool often needs input before it can finish: a login name, a confirmation, the opinion of a model. With Refrain such
//! a tool is one async function:
//!
//! ```
//! use refrain::prelude::*;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct GetWeather {
//!     /// The city.
//!     location: String,
//! }
//!
//! #[derive(Deserialize, Elicit)]
//! struct Login {
//!     name: String,
//! }
//!
//! /// Returns the weather of a city. Asks for the caller's name first.
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
//! Each round of a call runs the function from the top. Earlier asks and steps are replayed from its journal, which the
//! client keeps as a sealed token; a new ask suspends the function. So any instance can serve any round, and no instance
//! keeps state while it waits for an answer.
//!
//! # Contents
//!
//! | section | content |
//! | --- | --- |
//! | [Serving](#serving) | HTTP, tower, stdio, fleets, authentication |
//! | [Operations of a handler](#operations-of-a-handler) | the methods of [`Cx`] |
//! | [Prompts and resources](#prompts-and-resources) | handlers other than tools |
//! | [Rules for a handler](#rules-for-a-handler) | replay, names, concurrent asks |
//! | [Errors](#errors) | the response to the client for each error |
//! | [Tasks](#tasks) | calls that take long |
//! | [Modules](#modules), [Cargo features](#cargo-features) | where to find things |
//!
//! # Serving
//!
//! ```no_run
//! use refrain::prelude::*;
//! use refrain::server::{AllowedHosts, serve};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder("weather", "1.0").build()?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! serve(listener, server, AllowedHosts::local(), std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | to serve | use |
//! | --- | --- |
//! | over HTTP | [`server::serve`], on hyper |
//! | inside axum or another tower stack | [`server::HttpService`] |
//! | over standard input and output | [`server::serve_stdio`] |
//! | from several instances | one [`KeyRing`](server::KeyRing) for all: [`ServerBuilder::keys`](server::ServerBuilder::keys) |
//! | a fixed list of callers | [`BearerTokens`](auth::BearerTokens) |
//! | callers that a proxy authenticates | [`TrustedProxy`](auth::TrustedProxy) |
//! | callers with access tokens of an authorization server | `auth::JwtVerifier`, feature `jwt` |
//!
//! Tools, prompts and resources with `.scopes(..)` require these scopes of the caller. Logs go to `tracing`: without a
//! subscriber the server logs nothing.
//!
//! # Operations of a handler
//!
//! | to | call |
//! | --- | --- |
//! | ask for a form | [`cx.elicit`](Cx::elicit); [`cx.ask`](Cx::ask) also returns a decline or a cancel |
//! | have the user open a URL | [`cx.elicit_url`](Cx::elicit_url) |
//! | ask the client's model | [`cx.sample`](Cx::sample) |
//! | list the client's roots | [`cx.roots`](Cx::roots) |
//! | run work and journal its value, at least once | [`cx.step`](Cx::step), [`cx.step_with_key`](Cx::step_with_key) |
//! | run work at most once | [`cx.once`](Cx::once) |
//! | save a long computation | [`cx.checkpoint`](Cx::checkpoint), [`cx.resume`](Cx::resume) |
//! | turn the call into a task | [`cx.detach`](Cx::detach), [`cx.is_task`](Cx::is_task) |
//! | sleep for hours or days | [`cx.sleep`](Cx::sleep) |
//! | set the status message of a task | [`cx.status`](Cx::status) |
//! | report progress and logs to the client | [`cx.progress`](Cx::progress), [`cx.log`](Cx::log) |
//! | read the time or a random number | [`cx.now`](Cx::now), [`cx.random`](Cx::random) |
//! | read the caller, the URI or the trace | [`cx.principal`](Cx::principal), [`cx.uri`](Cx::uri), [`cx.trace`](Cx::trace) |
//! | use one name in several parts | [`cx.scope`](Cx::scope) |
//! | manage answers and state by hand | [`cx.answer`](Cx::answer), [`cx.state`](Cx::state), [`Incomplete`], [`Reply`] |
//!
//! [`Cx`] lists all methods.
//!
//! # Prompts and resources
//!
//! | handler | macro | register with | returns |
//! | --- | --- | --- | --- |
//! | tool | [`#[tool]`](macro@tool) | [`.tool(..)`](server::ServerBuilder::tool) | a string, [`Json`], [`Content`](content::Content), [`ToolResult`](content::ToolResult) |
//! | prompt | [`#[prompt]`](macro@prompt) | [`.prompt(..)`](server::ServerBuilder::prompt) | a string, [`PromptMessage`](content::PromptMessage)s |
//! | resource | [`#[resource]`](macro@resource) | [`.resource(..)`](server::ServerBuilder::resource) | a string, [`ResourceContents`](content::ResourceContents) |
//! | resource template | [`#[resource]`](macro@resource) with `{variables}` | [`.resource_template(..)`](server::ServerBuilder::resource_template) | the same |
//!
//! All of them can ask. The doc comment of a handler is the description that models read; write remarks for maintainers
//! as `//` comments.
//!
//! # Rules for a handler
//!
//! Every round runs the code between two operations of `cx` again. So put side effects into steps.
//! Concurrent asks and steps need different names.
//!
//! Concurrent asks are sent in one round:
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
//! // The value is journaled: later rounds read it and drop the work unpolled.
//! let number: u64 = cx.step_with_key("book", async |key| ok(key.len() as u64)).await?;
//! # Ok(format!("{}, {}: {number}", who.name, when.day))
//! # }
//! ```
//!
//! # Errors
//!
//! | a handler returns | the client of a tool receives |
//! | --- | --- |
//! | any `std::error::Error` through `?`, or [`Error::msg`] | a result with `isError` and the error's text, which the model reads |
//! | [`Error::invalid_params`] | JSON-RPC error -32602 with the text |
//! | [`Error::internal`] | JSON-RPC error -32603 without the text, which is logged |
//! | [`Error::retry`] | in a task, nothing yet: the task is retried; otherwise as [`Error::msg`] |
//! | an [`AskError`] through `?`: declined, cancelled, no usable answer | a result with `isError` and the reason |
//! | [`AskError::Unsupported`] through `?` | JSON-RPC error -32021 with the required capabilities; legacy clients a result with `isError` |
//!
//! The client sees the text of an error that `?` passes on. Wrap errors with private details in [`Error::internal`].
//!
//! # Tasks
//!
//! A long call can become a task, whose journal is in a [`store`] instead of a token. Any instance
//! can continue it, also after a crash. A call becomes a task when its handler calls
//! [`Cx::detach`], after [`Tool::task_after`](server::Tool::task_after), or at once with
//! [`Tool::task`](server::Tool::task).
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
//! # Ok("Everything is deleted.".into())
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
//! | [`runtime`] | for embedders, and for custom stores, authenticators and transports |
//!
//! # Cargo features
//!
//! | feature | adds | default |
//! | --- | --- | --- |
//! | `macros` | `#[tool]`, `#[prompt]`, `#[resource]`, `#[derive(Elicit)]` | yes |
//! | `sqlite` | a task store and replay log in a SQLite file | |
//! | `postgres` | a task store and replay log in Postgres, for a fleet | |
//! | `gzip` | request bodies with `Content-Encoding: gzip` | |
//! | `jwt` | `auth::JwtVerifier`: access tokens of an authorization server | |
//! | `metrics` | `server::serve_metrics`: metrics for Prometheus | |
//! | `tls` | relaying requests to instances with an `https` URL | |
//! | `otel` | spans in the trace of the caller, if the program installs an OpenTelemetry layer | |
//! | `client` | the module `client` | |

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

/// The client: calls with several rounds, transports, pending calls, tasks, OAuth.
#[cfg(feature = "client")]
pub use refrain_client as client;

/// The crates of Refrain, for programs that embed the runtime and for custom stores, authenticators, transports and
/// clocks.
///
/// These crates change more often than the other modules.
pub mod runtime {
    pub use refrain_core as core;
    pub use refrain_server as server;
    pub use refrain_store as store;
    pub use refrain_wire as wire;

    pub use refrain_core::{Source, SystemSource};
    pub use refrain_wire::PROTOCOL_VERSION;

    /// The versions of these crates that Refrain uses. A crate that derives `Deserialize` or `JsonSchema` must also depend
    /// on `serde` (with the feature `derive`) and `schemars`.
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

/// Runs the examples of the README and of the book.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../README.md")]
    struct ReadmePage;
    #[doc = include_str!("../../../docs/index.md")]
    struct IndexPage;
    #[doc = include_str!("../../../docs/guide/first-server.md")]
    struct FirstServerPage;
    #[doc = include_str!("../../../docs/guide/tutorial.md")]
    struct TutorialPage;
    #[doc = include_str!("../../../docs/guide/asking.md")]
    struct AskingPage;
    #[doc = include_str!("../../../docs/guide/steps.md")]
    struct StepsPage;
    #[doc = include_str!("../../../docs/guide/tasks.md")]
    struct TasksGuidePage;
    #[doc = include_str!("../../../docs/guide/offering.md")]
    struct OfferingPage;
    #[doc = include_str!("../../../docs/guide/app.md")]
    struct AppPage;
    #[doc = include_str!("../../../docs/guide/testing.md")]
    struct TestingPage;
    #[doc = include_str!("../../../docs/guide/client.md")]
    struct ClientPage;
    #[doc = include_str!("../../../docs/guide/why-refrain.md")]
    struct WhyRefrainPage;
    #[doc = include_str!("../../../docs/guide/migrating-inline.md")]
    struct MigratingInlinePage;
    #[doc = include_str!("../../../docs/guide/migrating-fastmcp.md")]
    struct MigratingFastmcpPage;
    #[doc = include_str!("../../../docs/guide/migrating-typescript.md")]
    struct MigratingTypescriptPage;
    #[doc = include_str!("../../../docs/operate/authorization.md")]
    struct AuthorizationPage;
    #[doc = include_str!("../../../docs/operate/fleet.md")]
    struct FleetPage;
    #[doc = include_str!("../../../docs/operate/keys.md")]
    struct KeysPage;
    #[doc = include_str!("../../../docs/operate/stores.md")]
    struct StoresPage;
    #[doc = include_str!("../../../docs/operate/capacity.md")]
    struct CapacityPage;
    #[doc = include_str!("../../../docs/operate/limits.md")]
    struct LimitsPage;
    #[doc = include_str!("../../../docs/operate/traces.md")]
    struct TracesPage;
    #[doc = include_str!("../../../docs/reference/cx.md")]
    struct CxPage;
    #[doc = include_str!("../../../docs/reference/guarantees.md")]
    struct GuaranteesPage;
}
