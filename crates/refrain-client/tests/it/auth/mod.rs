//! OAuth against a local MCP server and a local authorization server.

mod concurrency;
mod grants;
mod loopback;
mod rejections;
mod rules;
mod secrets;
mod setup;
mod support;
