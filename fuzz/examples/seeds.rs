//! Writes the seeds with journals of real rounds.
//!
//! Run `cargo run --example seeds` in this folder when the format of the journal changes.

use refrain_core::{FlowId, Snapshot};
use refrain_fuzz::compose::answers_to;
use refrain_fuzz::handlers::HANDLERS;
use refrain_fuzz::rounds::{RoundSetting, encode, round_twice};
use refrain_fuzz::source::NOW;
use refrain_wire::Answers;
use std::fs::write;

fn main() -> std::io::Result<()> {
    for handler in 0..HANDLERS {
        let setting = RoundSetting {
            handler,
            capabilities: 0,
            mode: 0,
        };
        let mut snapshot = Snapshot::first(FlowId::from_bytes([9; 16]), NOW + 1000);
        let mut answers = "{}".to_owned();
        for n in 0..3 {
            let decoded: Answers<'_> = serde_json::from_str(&answers).expect("answers are JSON");
            let Some(cut) = round_twice(&snapshot, Some(&decoded), n == 0, setting) else {
                break;
            };
            snapshot = cut.snapshot;
            answers = answers_to(&cut.asks, 3 + n);
        }
        let mut seed = vec![4, handler, 0, 0, 1];
        seed.extend(encode(&snapshot, "1"));
        seed.push(0xff);
        seed.extend(answers.as_bytes());
        write(format!("seeds/journal/handler-{handler}"), seed)?;
        if handler == 1 {
            let mut seed = vec![5, 2, 4, 10, 3, 1, 0, b'x'];
            seed.extend(encode(&snapshot, "1"));
            write("seeds/token/journal", seed)?;
        }
    }
    // Composed journals.
    for (number, fill) in [0_u8, 0x55, 0x13].into_iter().enumerate() {
        let mut seed = vec![5, fill, 0, 0, 1];
        let bytes = (0..200_u8).map(|at| at.wrapping_mul(fill) ^ (at >> 3));
        seed.extend(bytes);
        write(format!("seeds/journal/composed-{number}"), seed)?;
    }
    Ok(())
}
