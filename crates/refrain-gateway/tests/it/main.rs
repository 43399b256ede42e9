//! Gateways in this process, in front of real backend processes.

mod backends;
mod credentials;
mod homes;
mod http;
mod http_backend;
mod processes;
mod support;
mod waiting;
