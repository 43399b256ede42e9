//! Gateways in this process, in front of real backend processes.

mod backends;
mod homes;
mod http;
mod processes;
mod support;
