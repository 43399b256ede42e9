//! Servers of legacy revisions, and servers that run as child processes.
//!
//! The servers are a Python script over a pipe and a fake HTTP server.

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
