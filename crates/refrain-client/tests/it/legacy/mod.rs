//! Servers of legacy revisions, and servers that are processes.
//!
//! The servers here are small, and written for the purpose: one in Python behind a pipe, one behind HTTP.

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
