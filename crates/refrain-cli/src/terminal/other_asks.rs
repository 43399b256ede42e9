//! The dialogs for sampling requests, roots, and unsupported asks.

use super::asker::{CHANGE, SEND, decide, introduce, prompt, quote, say_hanging};
use super::console::{Console, InvalidInput, PromptError};
use super::display_text::{StyledLine, one_line, sanitize};
use crate::style::{BOLD, DIM, VALUE};
use refrain_client::wire::{Content, Role, Root, SamplingAnswer, SamplingBlock, SamplingParams};
use refrain_client::{RootsAsk, SamplingAsk, UnknownAsk};

/// The model name of an answer that the user wrote.
const MODEL: &str = "person";

pub(super) fn roots(
    console: &mut dyn Console,
    ask: &RootsAsk,
    roots: &[Root],
) -> Result<(), PromptError> {
    introduce(
        console,
        &ask.asker,
        "asks for the directories that it may work in",
    )?;
    console.say(&match roots {
        [] => StyledLine::styled(DIM, "  There are no directories to send."),
        _ => StyledLine::plain("  These directories would be sent:"),
    })?;
    for root in roots {
        say_hanging(console, "    ", VALUE, &one_line(&root.uri))?;
    }
    decide(console, &ask.asker, "Send them?", &[SEND], None).map(drop)
}

/// Offers to decline or cancel an unsupported ask, or to leave it unanswered.
pub(super) fn unknown(console: &mut dyn Console, ask: &UnknownAsk) -> Result<(), PromptError> {
    let what = "asks for something that this client does not support";
    introduce(console, &ask.asker, what)?;
    quote(console, &ask.why)?;
    let leave = "Leave it unanswered: the call stops here";
    decide(
        console,
        &ask.asker,
        "How do you want to answer?",
        &[leave],
        Some(0),
    )
    .map(drop)
}

pub(super) fn sampling(
    console: &mut dyn Console,
    ask: &SamplingAsk,
) -> Result<SamplingAnswer, PromptError> {
    introduce(
        console,
        &ask.asker,
        "asks for the answer of a language model",
    )?;
    show(console, &ask.params)?;
    let label = "Answer instead of a model?";
    decide(console, &ask.asker, label, &["Write an answer"], Some(0))?;
    let mut write = prompt(&ask.asker, "The answer", "");
    write.is_multiline = true;
    let validate = |text: &str| match text.trim() {
        "" => Err(InvalidInput::Empty),
        _ => Ok(()),
    };
    let mut text = String::new();
    loop {
        text = console.read_text(&write, &text, &validate)?;
        console.say(&StyledLine::plain("This would be sent:"))?;
        for line in sanitize(&text).lines() {
            say_hanging(console, "  ", VALUE, line)?;
        }
        if decide(console, &ask.asker, "Send it?", &[SEND, CHANGE], Some(0))? == 0 {
            return Ok(SamplingAnswer {
                stop_reason: Some("endTurn".to_owned()),
                ..SamplingAnswer::new(MODEL, text)
            });
        }
    }
}

fn show(console: &mut dyn Console, params: &SamplingParams) -> Result<(), PromptError> {
    if let Some(system) = &params.system_prompt {
        console.say(&StyledLine::styled(BOLD, "  system"))?;
        quote(console, system)?;
    }
    for message in &params.messages {
        let who = match message.role {
            Role::User => "  user",
            Role::Assistant => "  assistant",
        };
        console.say(&StyledLine::styled(BOLD, who))?;
        for block in &message.content {
            quote(console, &described(block))?;
        }
    }
    let mut limits = vec![format!("at most {} tokens", params.max_tokens)];
    let hints = params.model_preferences.iter().flat_map(|p| &p.hints);
    limits
        .extend(hints.filter_map(|hint| Some(format!("preferred model {}", hint.name.as_ref()?))));
    if !params.tools.is_empty() {
        let names: Vec<&str> = params.tools.iter().map(|tool| tool.name.as_ref()).collect();
        limits.push(format!("with the tools {}", names.join(", ")));
    }
    let limits = one_line(&limits.join(", "));
    Ok(say_hanging(console, "  ", DIM, &format!("({limits})"))?)
}

fn described(block: &SamplingBlock) -> String {
    match block {
        SamplingBlock::Content(Content::Text { text, .. }) => text.clone(),
        SamplingBlock::Content(Content::Image {
            data, mime_type, ..
        }) => bytes("image", mime_type, data),
        SamplingBlock::Content(Content::Audio {
            data, mime_type, ..
        }) => bytes("audio", mime_type, data),
        other => serde_json::to_string(other).unwrap_or_else(|error| format!("[{error}]")),
    }
}

fn bytes(kind: &str, mime_type: &str, base64: &str) -> String {
    let size = base64.len();
    format!("[{kind}, {mime_type}, {size} characters of base64]")
}
