//! The server: its builder, registrations, HTTP and stdio, keys and limits.
//!
//! ```no_run
//! use refrain::prelude::*;
//! use refrain::server::{AllowedHosts, serve};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder("docs", "1.0").build()?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! serve(listener, server, AllowedHosts::local(), std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

pub use refrain_core::{KeyRing, KeyRingError, KeyState, SealerOptions};
pub use refrain_server::{
    AllowedHosts, Body, BuildError, Changes, HttpService, Listing, MetadataService, Prompt,
    Resource, ResourceTemplate, Server, ServerBuilder, ServerLimits, TemplateError, Tool, Typed,
    drafts, serve, serve_stdio,
};
#[cfg(feature = "metrics")]
pub use refrain_server::{METRICS_CONTENT_TYPE, serve_metrics};
pub use refrain_wire::drafts::Draft;
pub use refrain_wire::{Cache, CacheScope, Completion, Icon, Theme, ToolAnnotations};
