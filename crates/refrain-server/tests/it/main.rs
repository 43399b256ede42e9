//! The server as its clients meet it: over real sockets, and over streams for stdio.

mod auth;
mod bad_headers;
mod bad_input;
mod bad_params;
mod bad_tokens;
mod build;
mod complete;
mod drain;
mod jwks;
mod jwt;
mod keys;
mod lifecycle;
mod listen;
mod lists;
mod metadata;
mod mounted;
mod output;
mod param_headers;
mod proxy;
mod replay_log;
mod rounds;
mod scopes;
mod stdio;
mod streams;
mod support;
mod versions;
