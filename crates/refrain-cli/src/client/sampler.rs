//! `--sampler`: a shell command answers for the model.

use super::options::TOKEN;
use refrain_client::{HandlerError, SamplingAsk};
use refrain_wire::{Content, Role, SamplingAnswer, SamplingBlock};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

const ANSWER_MAX: u64 = 16 * 1024 * 1024;

/// The name of a model that the answer does not name.
const NO_NAME: &str = "unknown";

/// Why an output is not an answer of a model.
#[derive(Debug, thiserror::Error)]
pub(super) enum SamplerError {
    #[error("the sampler wrote nothing")]
    Empty,
    #[error("this is no answer of a model (a CreateMessageResult): {0}")]
    Invalid(#[from] serde_json::Error),
}

/// Writes the question to the command as JSON, and reads the answer from its output.
pub(super) async fn answer(
    command: &str,
    ask: &SamplingAsk,
) -> Result<SamplingAnswer, HandlerError> {
    let mut process = Command::new("sh")
        .args(["-c", command])
        .env_remove(TOKEN)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("the sampler cannot be started: {error}"))?;
    let (Some(mut input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
        return Err("the sampler has no standard input and output".into());
    };
    let question = serde_json::to_vec(&ask.params)?;
    let mut said = Vec::new();
    let give = async {
        // A command need not read its question.
        let _ = input.write_all(&question).await;
        drop(input);
        Ok(())
    };
    let mut output = output.take(ANSWER_MAX + 1);
    tokio::try_join!(give, output.read_to_end(&mut said))?;
    if said.len() as u64 > ANSWER_MAX {
        return Err(format!("the sampler wrote more than {ANSWER_MAX} bytes").into());
    }
    let status = process.wait().await?;
    if !status.success() {
        return Err(format!("the sampler failed ({status})").into());
    }
    let text = String::from_utf8(said).map_err(|_| "the sampler did not write UTF-8")?;
    Ok(read(&text)?)
}

/// Reads an answer in the protocol's form, or a text.
fn read(text: &str) -> Result<SamplingAnswer, SamplerError> {
    if let Ok(value) = serde_json::from_str::<Value>(text)
        && value.get("role").is_some()
        && value.get("content").is_some()
    {
        return from_json(value);
    }
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() {
        return Err(SamplerError::Empty);
    }
    Ok(from_text(text))
}

pub(super) fn from_text(text: &str) -> SamplingAnswer {
    SamplingAnswer {
        role: Role::Assistant,
        content: vec![SamplingBlock::from(Content::text(text))],
        model: NO_NAME.to_owned(),
        stop_reason: Some("endTurn".to_owned()),
    }
}

/// An answer in the protocol's form. Its role and its model may be left out.
pub(super) fn from_json(mut value: Value) -> Result<SamplingAnswer, SamplerError> {
    for (member, default) in [("role", "assistant"), ("model", NO_NAME)] {
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
    fn a_text_is_an_answer_and_so_is_the_protocols_form() {
        assert_eq!(read("Paris.\n").expect("a text").text(), "Paris.");
        // JSON that is no answer is a text like any other.
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
