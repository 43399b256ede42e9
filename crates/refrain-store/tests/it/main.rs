//! Integration tests of `refrain-store`: the contract on each backend, and each backend's own behaviour.

mod memory;
mod open;
mod postgres;
mod sqlite;
mod support;
