//! Refrain's guarantees, tested with the kit as a user would test them.

mod asks;
mod crash;
mod faults;
mod kit;
mod limits;
mod once;
mod shapes;
mod stories;
mod tasks;
mod tokens;
