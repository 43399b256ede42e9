//! A question to a model, which a person answers in its place.

use super::asker::{CANCEL, CHANGE, DECLINE, SEND, hanging, introduce, question, quote};
use super::console::{Console, Left};
use super::style::{DIM, GIVEN, STRONG};
use super::text::{Line, harmless, one_line};
use refrain_client::SamplingAsk;
use refrain_client::wire::{Content, Role, SamplingAnswer, SamplingBlock, SamplingParams};

const WRITE: &str = "Write an answer";

/// What an answer names as the model that gave it.
const MODEL: &str = "person";

/// Has a question to a model answered by hand.
pub(super) fn ask(console: &mut dyn Console, ask: &SamplingAsk) -> Result<SamplingAnswer, Left> {
    introduce(console, &ask.asker, "asks for what a model would say")?;
    show(console, &ask.params)?;
    let begin = question(&ask.asker, "Answer in the model's place?", "");
    let choices = [WRITE, DECLINE, CANCEL].map(str::to_owned);
    leave(&choices, console.choose(&begin, &choices, 0)?)?;
    let mut text = String::new();
    loop {
        let mut write = question(&ask.asker, "The answer", "");
        write.takes_lines = true;
        let check = |text: &str| match text.trim() {
            "" => Err("is empty".to_owned()),
            _ => Ok(()),
        };
        text = console.write(&write, &text, &check)?;
        console.say(&Line::plain("This would be sent:"))?;
        for line in harmless(&text).lines() {
            hanging(console, "  ", GIVEN, line)?;
        }
        let choices = [SEND, CHANGE, DECLINE, CANCEL].map(str::to_owned);
        let chosen = console.choose(&question(&ask.asker, "Send it?", ""), &choices, 0)?;
        leave(&choices, chosen)?;
        if choices[chosen] == SEND {
            return Ok(SamplingAnswer {
                role: Role::Assistant,
                content: vec![SamplingBlock::from(Content::text(text))],
                model: MODEL.to_owned(),
                stop_reason: Some("endTurn".to_owned()),
            });
        }
    }
}

fn leave(choices: &[String], chosen: usize) -> Result<(), Left> {
    match choices[chosen].as_str() {
        DECLINE => Err(Left::Declined),
        CANCEL => Err(Left::Cancelled),
        _ => Ok(()),
    }
}

/// Says what a model would be given.
fn show(console: &mut dyn Console, params: &SamplingParams) -> Result<(), Left> {
    if let Some(system) = &params.system_prompt {
        console.say(&Line::styled(STRONG, "  system"))?;
        quote(console, system)?;
    }
    for message in &params.messages {
        let who = match message.role {
            Role::User => "  user",
            Role::Assistant => "  assistant",
        };
        console.say(&Line::styled(STRONG, who))?;
        for block in &message.content {
            quote(console, &described(block))?;
        }
    }
    let mut wishes = vec![format!("at most {} tokens", params.max_tokens)];
    let hints = params.model_preferences.iter().flat_map(|p| &p.hints);
    wishes.extend(hints.filter_map(|hint| Some(format!("as {} would", hint.name.as_ref()?))));
    if !params.tools.is_empty() {
        let names: Vec<&str> = params.tools.iter().map(|tool| tool.name.as_ref()).collect();
        wishes.push(format!("with the tools {}", names.join(", ")));
    }
    let wishes = one_line(&wishes.join(", "));
    Ok(hanging(console, "  ", DIM, &format!("({wishes})"))?)
}

/// A block of a conversation as text.
fn described(block: &SamplingBlock) -> String {
    match block {
        SamplingBlock::Content(Content::Text { text, .. }) => text.clone(),
        SamplingBlock::Content(Content::Image {
            data, mime_type, ..
        }) => {
            format!(
                "[an image, {mime_type}, {} characters of base64]",
                data.len()
            )
        }
        SamplingBlock::Content(Content::Audio {
            data, mime_type, ..
        }) => {
            format!(
                "[a sound, {mime_type}, {} characters of base64]",
                data.len()
            )
        }
        other => serde_json::to_string(other).unwrap_or_else(|error| format!("[{error}]")),
    }
}
