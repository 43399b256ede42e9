//! How a client gets access tokens, from an authorization server and for a server that are both real and here.

mod concurrency;
mod grants;
mod loopback;
mod rejections;
mod rules;
mod secrets;
mod setup;
mod support;
