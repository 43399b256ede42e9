//! Shared parts of the fuzz targets.
//!
//! Invariant: nothing depends on the time, on randomness or on earlier inputs, so that failures are reproducible.

pub mod compose;
pub mod drafts;
pub mod handlers;
pub mod mutate;
pub mod rounds;
pub mod source;
