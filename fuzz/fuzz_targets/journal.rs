//! Rounds that start from a random journal end without a panic and are deterministic.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 0 | bit 0: the journal is composed from the handlers' names; bit 1: the answers belong to a first request; bit 2: every round runs twice |
//! | 1 to 3 | the handler, the missing capabilities and the mode of [`RoundSetting`] |
//! | 4 | the seed for the answers of the following rounds |
//! | rest | the journal and, after the last byte 0xFF, the answers as JSON |

#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::{Corpus, fuzz_target};
use refrain_core::Snapshot;
use refrain_fuzz::compose;
use refrain_fuzz::rounds::{RoundSetting, encode, reencode, round_once, round_twice};
use refrain_wire::Answers;

/// The number of rounds after the first.
const ROUNDS: u8 = 3;

fuzz_target!(|data: &[u8]| -> Corpus {
    let [form, handler, capabilities, mode, choice, rest @ ..] = data else {
        return Corpus::Reject;
    };
    let setting = RoundSetting {
        handler: *handler,
        capabilities: *capabilities,
        mode: *mode,
    };
    let Some((journal, answers)) = split_input(form & 1 != 0, rest) else {
        return Corpus::Reject;
    };
    let Some((claims, snapshot)) = Snapshot::decode(&journal) else {
        assert!(form & 1 == 0, "a composed journal can be decoded");
        return Corpus::Keep;
    };
    let again = snapshot.encode(&claims, b"prefix", 16);
    let again = again
        .strip_prefix(b"prefix")
        .expect("the encoding starts with the prefix");
    let (claims_again, snapshot_again) =
        Snapshot::decode(again).expect("an encoded snapshot can be decoded");
    assert_eq!(claims, claims_again);
    assert_eq!(encode(&snapshot, "2"), encode(&snapshot_again, "2"));

    let answers = serde_json::from_str::<Answers<'_>>(&answers).ok();
    let run = if form & 4 == 0 {
        round_once
    } else {
        round_twice
    };
    let mut snapshot = reencode(&snapshot);
    let mut cut = run(&snapshot, answers.as_ref(), form & 2 != 0, setting);
    for n in 0..ROUNDS {
        let Some(before) = cut else { break };
        snapshot = reencode(&before.snapshot);
        let text = compose::answers_to(&before.asks, u64::from(*choice) << 8 | u64::from(n));
        let answers = serde_json::from_str::<Answers<'_>>(&text).expect("answers are JSON");
        cut = run(&snapshot, Some(&answers), false, setting);
    }
    Corpus::Keep
});

/// The journal and the answers.
fn split_input(composed: bool, rest: &[u8]) -> Option<(Vec<u8>, String)> {
    if composed {
        let mut u = Unstructured::new(rest);
        let journal = compose::journal(&mut u).ok()?;
        let answers = compose::answers(&mut u).ok()?;
        return Some((journal, answers));
    }
    let (journal, answers) = match rest.iter().rposition(|byte| *byte == 0xff) {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &b""[..]),
    };
    Some((
        journal.to_vec(),
        String::from_utf8_lossy(answers).into_owned(),
    ))
}
