//! Integration tests of `refrain-wire`, one module per area.

#![allow(clippy::unwrap_used)] // a failed parse fails the test

mod answer;
mod call;
mod drafts;
mod drafts_there_and_back;
mod envelope;
mod form;
mod older;
mod older_and_back;
mod param_headers;
mod reply;
mod sampling;
mod strict;
mod tasks;
mod trace;
mod words;
