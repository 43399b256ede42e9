//! The server as its clients meet it: over real sockets, and over streams for stdio.

mod auth;
mod bad_headers;
mod bad_input;
mod bad_params;
mod bad_tokens;
mod build;
mod complete;
mod connections;
mod drain;
mod keys;
mod lifecycle;
mod listen;
mod lists;
mod metrics;
mod mounted;
mod output;
mod param_headers;
mod replay_log;
mod rounds;
mod sampling;
mod schemas;
mod stateless;
mod stdio;
mod streams;
mod support;
mod versions;
