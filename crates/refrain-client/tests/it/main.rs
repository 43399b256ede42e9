//! Tests of the client against Refrain servers and fake servers over real connections.

/// Asserts that a value matches a pattern, and shows the value otherwise.
macro_rules! assert_matches {
    ($value:expr, $($pattern:tt)+) => {
        assert!(matches!($value, $($pattern)+), "{:?}", $value)
    };
}

mod answers;
mod auth;
mod call_options;
mod delivery_unknown;
mod faults;
mod hostile_server;
mod legacy;
mod lists;
mod misbehaving_server;
mod pending;
mod rounds;
mod rules_asks;
mod rules_cache;
mod rules_http;
mod rules_listen;
mod rules_pipe;
mod rules_tasks;
mod rules_time;
mod scoped;
mod support;
mod tasks;
