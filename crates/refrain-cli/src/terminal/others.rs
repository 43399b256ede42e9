//! Asks other than forms and URLs: questions to a model, roots, and asks that cannot be shown.

use super::asker::{CHANGE, SEND, decide, hanging, introduce, question, quote};
use super::console::{Console, Invalid, Left};
use super::text::{Line, harmless, one_line};
use crate::style::{BOLD, DIM, GIVEN};
use refrain_client::wire::{Content, Role, Root, SamplingAnswer, SamplingBlock, SamplingParams};
use refrain_client::{RootsAsk, SamplingAsk, UnknownAsk};

/// The model that an answer written by a person names.
const MODEL: &str = "person";

pub(super) fn roots(console: &mut dyn Console, ask: &RootsAsk, roots: &[Root]) -> Result<(), Left> {
    introduce(console, &ask.asker, "asks which directories it may work in")?;
    console.say(&match roots {
        [] => Line::styled(DIM, "  It would be told that there are none."),
        _ => Line::plain("  It would be told:"),
    })?;
    for root in roots {
        hanging(console, "    ", GIVEN, &one_line(&root.uri))?;
    }
    decide(console, &ask.asker, "Tell it?", &["Tell it"], None).map(drop)
}

/// Has an ask that cannot be shown declined or cancelled, or left open.
pub(super) fn unknown(console: &mut dyn Console, ask: &UnknownAsk) -> Result<(), Left> {
    let what = "asks you something that cannot be shown here";
    introduce(console, &ask.asker, what)?;
    quote(console, &ask.why)?;
    let leave = "Leave it open: the call stops here";
    decide(
        console,
        &ask.asker,
        "What is to be done with it?",
        &[leave],
        Some(0),
    )
    .map(drop)
}

pub(super) fn sampling(
    console: &mut dyn Console,
    ask: &SamplingAsk,
) -> Result<SamplingAnswer, Left> {
    introduce(console, &ask.asker, "asks for what a model would say")?;
    show(console, &ask.params)?;
    let label = "Answer in the model's place?";
    decide(console, &ask.asker, label, &["Write an answer"], Some(0))?;
    let mut write = question(&ask.asker, "The answer", "");
    write.takes_lines = true;
    let check = |text: &str| match text.trim() {
        "" => Err(Invalid::Empty),
        _ => Ok(()),
    };
    let mut text = String::new();
    loop {
        text = console.write(&write, &text, &check)?;
        console.say(&Line::plain("This would be sent:"))?;
        for line in harmless(&text).lines() {
            hanging(console, "  ", GIVEN, line)?;
        }
        if decide(console, &ask.asker, "Send it?", &[SEND, CHANGE], Some(0))? == 0 {
            return Ok(SamplingAnswer {
                role: Role::Assistant,
                content: vec![SamplingBlock::from(Content::text(text))],
                model: MODEL.to_owned(),
                stop_reason: Some("endTurn".to_owned()),
            });
        }
    }
}

fn show(console: &mut dyn Console, params: &SamplingParams) -> Result<(), Left> {
    if let Some(system) = &params.system_prompt {
        console.say(&Line::styled(BOLD, "  system"))?;
        quote(console, system)?;
    }
    for message in &params.messages {
        let who = match message.role {
            Role::User => "  user",
            Role::Assistant => "  assistant",
        };
        console.say(&Line::styled(BOLD, who))?;
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

fn described(block: &SamplingBlock) -> String {
    match block {
        SamplingBlock::Content(Content::Text { text, .. }) => text.clone(),
        SamplingBlock::Content(Content::Image {
            data, mime_type, ..
        }) => {
            let size = data.len();
            format!("[an image, {mime_type}, {size} characters of base64]")
        }
        SamplingBlock::Content(Content::Audio {
            data, mime_type, ..
        }) => {
            let size = data.len();
            format!("[a sound, {mime_type}, {size} characters of base64]")
        }
        other => serde_json::to_string(other).unwrap_or_else(|error| format!("[{error}]")),
    }
}
