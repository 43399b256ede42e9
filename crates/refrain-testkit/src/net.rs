//! Servers, clients, proxies and processes for tests over real sockets. Feature `net`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`wait`] | waiting with a limit |
//! | [`http`], [`request`], [`reply`] | a raw HTTP client, requests and the parts of replies |
//! | [`instance`], [`stdio`] | a server in this process, on a port or on a pipe |
//! | [`process`], [`installed`] | programs under test, and programs that `scripts/tools` installs |
//! | [`sdk_programs`], [`mcpdo`] | servers and clients in other SDKs, and the command line of the MCP Inspector |
//! | [`legacy`] | a client of the legacy revisions |
//! | [`fake_server`], `http_server` | an MCP server whose responses a test chooses, and its HTTP server |
//! | [`issuer`], [`oauth`] | access tokens, key sets and an authorization server |
//! | [`proxy`], [`balancer`] | a proxy with faults, and a round-robin balancer |
//! | [`certificate`] | self-signed certificates |
//! | [`store`] | a task store that fails on demand |
//! | [`metrics`] | a strict parser of OpenMetrics text |
//!
//! The module is only for Refrain's own tests, and may change at any time.
// Many accessors and builder methods need no documentation besides their names.
#![allow(missing_docs)]

pub mod balancer;
pub mod certificate;
pub mod fake_server;
pub mod http;
mod http_server;
pub mod installed;
pub mod instance;
pub mod issuer;
pub mod legacy;
pub mod mcpdo;
pub mod metrics;
pub mod oauth;
pub mod process;
pub mod proxy;
pub mod reply;
pub mod request;
pub mod sdk_programs;
pub mod stdio;
pub mod store;
pub mod wait;

pub use balancer::Balancer;
pub use certificate::Certificate;
pub use fake_server::{Events, FakeServer, Received, Respond};
pub use http::{Connection, Response};
pub use instance::{
    Instance, listen, serve_forever, start, start_advertised, start_for, start_on, url_of,
};
pub use metrics::{MetricsPort, Scrape};
pub use proxy::FaultProxy;
pub use reply::{asked, assert_contains, result, text, token};
pub use request::{
    CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, Request, TASKS_EXTENSION, VERSION_KEY,
};
pub use stdio::StdioClient;
pub use store::FaultyStore;
pub use wait::{PATIENCE, until, within};
