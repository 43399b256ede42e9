//! `--sampler`: a shell command that answers sampling requests.

use super::options::secrets;
use crate::process_group::ProcessGroup;
use refrain_client::HandlerError;
use refrain_wire::{SamplingAnswer, SamplingParams};
use serde_json::{Value, json};
use std::io::{self, BufWriter};
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// The maximum size of an answer, in bytes.
const ANSWER_MAX: u64 = 16 * 1024 * 1024;
/// The maximum size of a piece of a request, in bytes.
const PIECE_MAX: usize = 64 * 1024;

/// The model of an answer that does not name one.
const UNKNOWN_MODEL: &str = "unknown";

#[derive(Debug, thiserror::Error)]
pub(super) enum SamplerError {
    #[error("the sampler wrote nothing")]
    Empty,
    #[error("invalid sampling answer: expected a CreateMessageResult: {0}")]
    Invalid(#[from] serde_json::Error),
}

/// Writes the request to the command as JSON, and reads the answer from its output.
pub(super) async fn answer(
    command: &str,
    params: Arc<SamplingParams>,
) -> Result<SamplingAnswer, HandlerError> {
    let mut shell = Command::new("sh");
    for secret in secrets() {
        shell.env_remove(secret);
    }
    shell
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = ProcessGroup::spawn(&mut shell)
        .map_err(|error| format!("cannot start the sampler: {error}"))?;
    let child = &mut process.child;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("the sampler has no standard input and output".into());
    };
    let mut stdout = Vec::new();
    let write_request = async {
        let mut pieces = serialize(params);
        while let Some(piece) = pieces.recv().await {
            // The command need not read the request.
            if input.write_all(&piece).await.is_err() {
                break;
            }
        }
        drop(input);
        Ok(())
    };
    let mut output = output.take(ANSWER_MAX + 1);
    tokio::try_join!(write_request, output.read_to_end(&mut stdout))?;
    if stdout.len() as u64 > ANSWER_MAX {
        return Err(format!("the sampler wrote more than {ANSWER_MAX} bytes").into());
    }
    let status = process.wait().await?;
    if !status.success() {
        return Err(format!("the sampler failed with {status}").into());
    }
    let text = String::from_utf8(stdout).map_err(|_| "the sampler did not write UTF-8")?;
    Ok(read(text)?)
}

/// The JSON of a request in pieces: the whole text could be large.
fn serialize(params: Arc<SamplingParams>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, pieces) = mpsc::channel(1);
    spawn_blocking(move || {
        let mut out = BufWriter::with_capacity(PIECE_MAX, PieceWriter(sender));
        // Fails if the receiver is dropped.
        let _ = serde_json::to_writer(&mut out, &*params);
    });
    pieces
}

struct PieceWriter(mpsc::Sender<Vec<u8>>);

impl io::Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes[..bytes.len().min(PIECE_MAX)].to_vec();
        let length = piece.len();
        let sent = self.0.blocking_send(piece);
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn read(mut text: String) -> Result<SamplingAnswer, SamplerError> {
    if let Ok(value) = serde_json::from_str::<Value>(&text)
        && value.get("role").is_some()
        && value.get("content").is_some()
    {
        return from_json(value);
    }
    text.truncate(text.trim_end_matches(['\n', '\r']).len());
    if text.is_empty() {
        return Err(SamplerError::Empty);
    }
    Ok(from_text(text))
}

pub(super) fn from_text(text: String) -> SamplingAnswer {
    SamplingAnswer {
        stop_reason: Some("endTurn".to_owned()),
        ..SamplingAnswer::new(UNKNOWN_MODEL, text)
    }
}

/// Reads a CreateMessageResult. Its role and its model may be missing.
pub(super) fn from_json(mut value: Value) -> Result<SamplingAnswer, SamplerError> {
    for (member, default) in [("role", "assistant"), ("model", UNKNOWN_MODEL)] {
        if value.get(member).is_none() {
            value[member] = json!(default);
        }
    }
    Ok(serde_json::from_value(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_a_text_or_a_create_message_result() {
        let read = |text: &str| read(text.to_owned());
        assert_eq!(read("Paris.\n").expect("a text").text(), "Paris.");
        // Other JSON is a text.
        assert_eq!(read("{\"a\": 1}").expect("a text").text(), "{\"a\": 1}");
        let whole =
            r#"{"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"}"#;
        let answer = read(whole).expect("an answer");
        assert_eq!(
            (answer.text().as_str(), answer.model.as_str()),
            ("Paris", "m")
        );
        let broken = read(r#"{"role": "nobody", "content": {"type": "text", "text": "x"}}"#);
        assert!(broken.is_err_and(|why| why.to_string().contains("CreateMessageResult")));
        assert!(read("\n").is_err_and(|why| why.to_string().contains("nothing")));
    }
}
