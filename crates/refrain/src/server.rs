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

pub use refrain_core::KeyRing;
#[cfg(feature = "metrics")]
pub use refrain_server::serve_metrics;
pub use refrain_server::{
    AllowedHosts, BuildError, Changes, CompletionInput, HandleError, HttpService, Listener,
    Listing, Prompt, RawResult, Resource, ResourceTemplate, Server, ServerBuilder, ServerCard,
    ServerLimits, Skill, SubscribedResources, Tool, serve, serve_stdio,
};
#[cfg(feature = "tls")]
pub use refrain_server::{TlsCertificate, TlsError};
pub use refrain_wire::drafts::Draft;
pub use refrain_wire::{Cache, Icon, ToolAnnotations};
