//! OAuth against a local MCP server and a local authorization server.

mod bound_tokens;
mod concurrency;
mod grants;
mod loopback;
mod rejections;
mod rules;
mod secrets;
mod setup;
mod support;
