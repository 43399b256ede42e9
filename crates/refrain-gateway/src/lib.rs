//! Puts existing MCP servers, in any language, behind one MCP 2026-07-28 endpoint.
//!
//! A proxied tool is an ordinary Refrain handler. It calls its backend with the client library, and each question of the
//! backend becomes an ask of its `Cx`. The command `refrain gateway` runs a gateway; a program can
//! also embed one:
//!
//! ```no_run
//! use refrain_gateway::{BackendTable, Gateway, GatewayConfig};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = BackendTable {
//!     command: ["npx", "-y", "@modelcontextprotocol/server-everything", "stdio"].map(Into::into).into(),
//!     ..BackendTable::default()
//! };
//! let config = GatewayConfig::single("everything", backend);
//! let gateway = Gateway::new(config.check().map_err(|errors| errors[0].to_string())?);
//! let server = gateway.connect(true).await?.build()?;
//! gateway.start(&server);
//! // serve the server, then:
//! gateway.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `config`, `settings.toml` | the tables of the configuration file |
//! | `gateway`, `service` | the backends of a process, and their entries in its server |
//! | `backend`, `pool` | connections to one backend |
//! | `catalog`, `sessions` | the entries that a backend offers; handles of backends with state |
//! | `call`, `asks`, `support` | one call of a backend, its asks, and the kinds of asks that the caller can answer |
//! | `check`, `metrics` | a report about each backend; its metrics |

mod asks;
mod backend;
mod call;
mod catalog;
mod check;
mod config;
mod gateway;
mod metrics;
mod pool;
mod service;
mod sessions;
mod support;

pub use backend::BackendStartError;
pub use check::{BackendReport, ToolReport};
pub use config::{
    BackendTable, CheckedGateway, ConfigError, GatewayConfig, GatewayTable, OAuthTable, Sessions,
    Setting, ToolHome, ToolTable, Unavailable,
};
pub use gateway::{Gateway, GatewayError};

/// The settings of a gateway in the configuration file, with their defaults.
pub const SETTINGS: &str = include_str!("settings.toml");
