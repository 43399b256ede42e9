//! Resident memory of the server while dialogues wait.
//!
//! Each dialogue is opened for a place of its own and left after round 1. The one opened before
//! all others is answered at the end, as proof that waiting is all they do.

use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;

use crate::child::Server;
use crate::error::Error;
use crate::load::{Fleet, Workload};

const PARTS: u64 = 10;

/// Resident memory at each tenth of the way.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Memory {
    /// How many dialogues were left waiting.
    pub(crate) dialogues: u64,
    /// KiB at 0 %, 10 %, … 100 %.
    pub(crate) resident_kib: Vec<u64>,
    /// The last of them over the one at 10 %; 1 is flat.
    pub(crate) growth: f64,
}

/// Opens the dialogues and watches the server meanwhile.
pub(crate) async fn watch(
    server: &Server,
    dialogues: u64,
    connections: usize,
    progress: &ProgressBar,
) -> Result<Memory, Error> {
    let mut resident_kib = vec![server.resident_kib()?];
    let mut fleet = Fleet::open(server, Workload::Round1, connections).await?;
    for part in 0..PARTS {
        progress.set_message(format!("memory: {part}0 % of {dialogues} dialogues"));
        let first = dialogues * part / PARTS;
        let count = dialogues * (part + 1) / PARTS - first;
        // A thousand a second is far below any server worth measuring.
        let limit = Duration::from_secs(30 + count / 1000);
        fleet.open_dialogues(first, count, limit).await?;
        resident_kib.push(server.resident_kib()?);
    }
    fleet.answer_the_first().await?;

    let (early, last) = (resident_kib[1], resident_kib[PARTS as usize]);
    Ok(Memory {
        dialogues,
        growth: last as f64 / early.max(1) as f64,
        resident_kib,
    })
}
