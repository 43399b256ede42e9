//! Any bytes can come in where the sketch is spoken.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use refrain_fuzz::drafts::speak;
use refrain_fuzz::mutate::mutate;
use refrain_wire::Draft;

fuzz_target!(|data: &[u8]| speak(Draft::Sketch, data));

// Every other change is one that leaves JSON as JSON.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed.is_multiple_of(2) {
        return fuzzer_mutate(data, size, max_size);
    }
    match mutate(&data[..size], u64::from(seed)) {
        Some(changed) if changed.len() <= max_size => {
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
});
