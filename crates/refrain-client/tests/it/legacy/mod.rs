//! Servers of legacy revisions, and servers that run as child processes.
//!
//! The servers are a Python script over a pipe and a fake HTTP server.

mod ask_routing;
mod asks;
mod drafts;
mod negotiation;
mod pipe;
mod refrain_server;
mod resumption;
mod sessions;
mod support;
mod urls;
