//! What users of Refrain may rely on, tested as they would test it: with the kit, on fleets of fresh instances.

mod asks;
mod crash;
mod faults;
mod kit;
mod limits;
mod once;
mod shapes;
mod stories;
mod tokens;
