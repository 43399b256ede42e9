//! Servers of legacy revisions and drafts, and servers that run as child processes.
//!
//! The servers are Python scripts over a pipe, a fake HTTP server, and Refrain itself.

mod ask_routing;
mod asks;
mod changes;
mod drafts;
mod http_sse;
mod negotiation;
mod pipe;
mod refrain_server;
mod resumption;
mod sessions;
pub(crate) mod support;
mod urls;
