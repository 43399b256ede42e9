//! Integration tests of the `refrain` binary: real processes, connections and signals.

mod auth;
mod calling;
mod clients;
mod config;
mod drafts;
mod keys;
mod killed;
mod legacy_clients;
mod legacy_fleet;
mod legacy_own_client;
mod limits;
mod logs;
mod metrics;
mod postgres;
mod relay;
mod rolling_restart;
mod shedding;
mod spawned;
mod stdio;
mod store;
mod support;
mod task_crashes;
mod tasks;
mod tasks_command;
mod worker;
