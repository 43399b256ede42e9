//! Whatever a journal says, a round that begins with it ends, without a panic, and ends the same way twice.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 0 | bit 0: the rest is composed of the handlers' words; bit 1: answers come as with a first request |
//! | | bit 2: every round is played twice |
//! | 1 to 3 | the handler, what the client lacks, and the mode of [`Setting`] |
//! | 4 | chooses the answers of the rounds that follow |
//! | others | the journal and, after the last byte 0xFF, the answers as JSON |

#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::{Corpus, fuzz_target};
use refrain_core::Snapshot;
use refrain_fuzz::compose;
use refrain_fuzz::play::{Setting, carried, encode, round_once, round_twice};
use refrain_wire::Answers;

/// Rounds played after the first.
const ROUNDS: u8 = 3;

fuzz_target!(|data: &[u8]| -> Corpus {
    let [form, handler, capabilities, mode, choice, rest @ ..] = data else {
        return Corpus::Reject;
    };
    let setting = Setting {
        handler: *handler,
        capabilities: *capabilities,
        mode: *mode,
    };
    let Some((journal, answers)) = parts(form & 1 != 0, rest) else {
        return Corpus::Reject;
    };
    let Some((claims, snapshot)) = Snapshot::decode(&journal) else {
        assert!(form & 1 == 0, "a composed journal can be read");
        return Corpus::Keep;
    };
    let again = snapshot.encode(&claims, b"prefix", 16);
    let again = again.strip_prefix(b"prefix").expect("the prefix stays");
    let (claims_again, snapshot_again) = Snapshot::decode(again).expect("it can be read again");
    assert_eq!(claims, claims_again);
    assert_eq!(encode(&snapshot, "2"), encode(&snapshot_again, "2"));

    let answers = serde_json::from_str::<Answers<'_>>(&answers).ok();
    let play = if form & 4 == 0 {
        round_once
    } else {
        round_twice
    };
    let mut snapshot = carried(&snapshot);
    let mut cut = play(&snapshot, answers.as_ref(), form & 2 != 0, setting);
    for n in 0..ROUNDS {
        let Some(before) = cut else { break };
        snapshot = carried(&before.snapshot);
        let text = compose::answers_to(&before.asks, u64::from(*choice) << 8 | u64::from(n));
        let answers = serde_json::from_str::<Answers<'_>>(&text).expect("answers are JSON");
        cut = play(&snapshot, Some(&answers), false, setting);
    }
    Corpus::Keep
});

/// The journal and the answers.
fn parts(composed: bool, rest: &[u8]) -> Option<(Vec<u8>, String)> {
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
