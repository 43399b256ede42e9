//! Any bytes can come in where the first draft is spoken.

#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_fuzz::drafts::speak;
use refrain_wire::drafts::Draft;

fuzz_target!(|data: &[u8]| speak(Draft::First, data));

// Every other change is one that leaves JSON as JSON.
refrain_fuzz::mutate_json!();
