//! Random messages of the sketch.

#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_fuzz::drafts::check_message;
use refrain_wire::drafts::Draft;

fuzz_target!(|data: &[u8]| check_message(Draft::Sketch, data));

refrain_fuzz::mutate_json!();
