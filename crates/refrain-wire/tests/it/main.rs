//! Integration tests of `refrain-wire`, by area.

#![allow(clippy::unwrap_used)] // a failed parse fails the test

mod answer;
mod call;
mod canonical;
mod drafts;
mod drafts_losses;
mod drafts_round_trip;
mod envelope;
mod error_texts;
mod form;
mod legacy;
mod legacy_losses;
mod legacy_round_trip;
mod param_headers;
mod read_call;
mod reply;
mod sampling;
mod support;
mod tasks;
mod trace;
mod value_count;
