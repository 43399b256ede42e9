//! Serves MCP servers written with [rmcp] by Refrain, and offers Refrain tools inside rmcp servers.
//!
//! rmcp 3.x rejects `peer.elicit` for clients of the protocol revision 2026-07-28, which has no requests from the server.
//! Behind Refrain the same handler works unchanged for these clients, because each of its requests becomes a round:
//!
//! ```no_run
//! use rmcp::handler::server::wrapper::Parameters;
//! use rmcp::model::{CallToolResult, ContentBlock};
//! use rmcp::schemars::JsonSchema;
//! use rmcp::service::{ElicitationError, Peer};
//! use rmcp::{ErrorData, RoleServer, ServerHandler, elicit_safe, tool, tool_handler, tool_router};
//! use serde::Deserialize;
//! use std::process::ExitCode;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Table { seats: u32 }
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Guest { name: String }
//! elicit_safe!(Guest);
//!
//! struct Restaurant;
//!
//! #[tool_router]
//! impl Restaurant {
//!     #[tool(description = "Reserves a table")]
//!     async fn reserve(
//!         &self,
//!         peer: Peer<RoleServer>,
//!         Parameters(table): Parameters<Table>,
//!     ) -> Result<String, String> {
//!         match peer.elicit::<Guest>("For whom?").await {
//!             Ok(Some(guest)) => Ok(format!("{} seats for {}", table.seats, guest.name)),
//!             Ok(None) | Err(ElicitationError::UserDeclined) => Ok("nothing reserved".into()),
//!             Err(error) => Err(error.to_string()),
//!         }
//!     }
//! }
//!
//! #[tool_handler]
//! impl ServerHandler for Restaurant {}
//!
//! fn main() -> ExitCode {
//!     refrain_app::run(refrain_rmcp::serve(Restaurant))
//! }
//! ```
//!
//! | to | use |
//! | --- | --- |
//! | serve a handler | [`serve`] |
//! | choose tools that any instance can continue; set scopes, tasks, time limits | [`Adapter`] |
//! | run an effect once in a tool that runs again | [`step`](step()) |
//! | offer Refrain's tools in an rmcp server | [`router`](router()) |
//!
//! The page "Migrating from rmcp" of the guide lists the supported features of rmcp.
//!
//! [rmcp]: https://docs.rs/rmcp

// Sampling, roots and logging are deprecated in rmcp, and still served.
#![allow(deprecated)]

mod adapter;
mod asks;
mod catalog;
mod connection;
mod forward;
mod handler;
mod router;
mod step;
mod watch;

pub use adapter::Adapter;
pub use router::router;
pub use step::step;

use refrain::server::ServerBuilder;
use rmcp::ServerHandler;

/// Serves an rmcp handler: its tools in the home `live`, its prompts, resources and completions. Short for
/// [`Adapter::new(handler).into_builder()`](Adapter::into_builder).
///
/// ```
/// use rmcp::ServerHandler;
///
/// struct Shop;
/// impl ServerHandler for Shop {}
///
/// let server = refrain_rmcp::serve(Shop).build()?;
/// # Ok::<(), refrain::server::BuildError>(())
/// ```
pub fn serve(handler: impl ServerHandler) -> ServerBuilder {
    Adapter::new(handler).into_builder()
}

/// Runs the examples of the page about rmcp.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/migrating-rmcp.md")]
struct MigratingRmcpPage;
