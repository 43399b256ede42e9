//! Integration tests of `refrain-store`: the contract and the specific behaviour of each store.

mod failover;
mod group_commit;
mod memory;
mod open;
mod postgres;
mod sqlite;
mod support;
