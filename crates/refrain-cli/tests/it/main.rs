//! The `refrain` binary, tested as its users meet it: real processes, real connections, real signals.

mod auth;
mod calling;
mod clients;
mod config;
mod drafts;
mod keys;
mod killed;
mod legacy_fleet;
mod limits;
mod logs;
mod metrics;
mod older_clients;
mod older_ours;
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
