//! Mutations that keep JSON valid: members and items are duplicated, moved, removed or swapped.

use crate::source::mix;
use std::ops::Range;

/// Mutates a text. `None` if it has no members or items.
pub fn mutate(text: &[u8], seed: u64) -> Option<Vec<u8>> {
    let pieces = pieces(text);
    if pieces.is_empty() {
        return None;
    }
    let mut state = seed;
    let mut draw = |below: usize| {
        state = mix(state);
        (state >> 16) as usize % below
    };
    let one = pieces[draw(pieces.len())].clone();
    let other = pieces[draw(pieces.len())].clone();
    let out = match draw(5) {
        0 => join(&[&text[..other.start], &text[one], b",", &text[other.start..]]),
        1 => join(&[
            &text[..one.start],
            &text[one.clone()],
            b",",
            &text[one.start..],
        ]),
        2 => {
            // Remove a comma too: the one after the piece, or else the one before.
            let after = text[one.end..].starts_with(b",");
            let before = !after && text[..one.start].ends_with(b",");
            let start = one.start - usize::from(before);
            let end = one.end + usize::from(after);
            join(&[&text[..start], &text[end..]])
        }
        3 => join(&[&text[..other.start], &text[one], &text[other.end..]]),
        _ => {
            let (a, b) = if one.start < other.start {
                (one, other)
            } else {
                (other, one)
            };
            if a.end > b.start {
                return None;
            }
            let between = a.end..b.start;
            let (before, after) = (&text[..a.start], &text[b.end..]);
            join(&[before, &text[b], &text[between], &text[a], after])
        }
    };
    Some(out)
}

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// The members of all objects and the items of all arrays, at every depth.
fn pieces(text: &[u8]) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut starts = Vec::new();
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => starts.push(at + 1),
            b',' | b'}' | b']' => {
                let Some(start) = starts.pop() else { continue };
                if start < at {
                    pieces.push(start..at);
                }
                if *byte == b',' {
                    starts.push(at + 1);
                }
            }
            _ => {}
        }
    }
    pieces
}

/// Defines the mutator of a target: every second mutation keeps JSON valid.
#[macro_export]
macro_rules! mutate_json {
    () => {
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            if seed.is_multiple_of(2) {
                return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
            }
            match $crate::mutate::mutate(&data[..size], u64::from(seed)) {
                Some(changed) if changed.len() <= max_size => {
                    data[..changed.len()].copy_from_slice(&changed);
                    changed.len()
                }
                _ => libfuzzer_sys::fuzzer_mutate(data, size, max_size),
            }
        });
    };
}
