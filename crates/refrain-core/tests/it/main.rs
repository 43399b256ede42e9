//! Integration tests of `refrain-core`, one module per area.

#![allow(clippy::unwrap_used)] // a failed call fails the test

mod answers;
mod asks;
mod clones;
mod crash;
mod ends;
mod handing_on;
mod memory;
mod once;
mod random;
mod random_tasks;
mod seal;
mod spawned;
mod steps;
mod support;
mod task;
mod task_asks;
mod task_ends;
mod task_upgrades;
mod upgrades;
