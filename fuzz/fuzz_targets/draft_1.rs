//! Random messages of the first draft.

#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_fuzz::drafts::check_message;
use refrain_wire::drafts::Draft;

fuzz_target!(|data: &[u8]| check_message(Draft::First, data));

refrain_fuzz::mutate_json!();
