//! The stories of the documents. Each plays calls, round by round, and checks what it claims.

mod asking;
mod drafts;
mod lasting;
mod moving;
mod refused;

use super::client::Round;
use super::world::World;
use crate::Failure;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// One story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Story {
    /// One ask, and the answer goes to another instance
    Weather,
    /// Rules that ask for more, over three rounds
    WorkItem,
    /// Several asks in one round
    Together,
    /// Two versions of a tool behind one balancer
    Upgrade,
    /// A busy instance hands on the rest of its work
    Shedding,
    /// An instance is killed between two rounds
    Killed,
    /// Tokens changed, stolen, used elsewhere or too late
    Refused,
    /// The echo as a task, whose instance is killed while it works
    Task,
    /// The weather in the sketch that came first
    Sketch,
    /// The weather in the first draft
    FirstDraft,
    /// The work item in the second draft
    SecondDraft,
}

impl Story {
    /// All of them, in the order in which they are told.
    pub(super) const ALL: [Self; 11] = [
        Self::Weather,
        Self::WorkItem,
        Self::Together,
        Self::Upgrade,
        Self::Shedding,
        Self::Killed,
        Self::Refused,
        Self::Task,
        Self::Sketch,
        Self::FirstDraft,
        Self::SecondDraft,
    ];

    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Weather => "weather",
            Self::WorkItem => "work-item",
            Self::Together => "together",
            Self::Upgrade => "upgrade",
            Self::Shedding => "shedding",
            Self::Killed => "killed",
            Self::Refused => "refused",
            Self::Task => "task",
            Self::Sketch => "sketch",
            Self::FirstDraft => "first-draft",
            Self::SecondDraft => "second-draft",
        }
    }

    /// Its place among the stories, from 1.
    pub(super) fn number(self) -> usize {
        Self::ALL.iter().take_while(|other| **other != self).count() + 1
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Weather => "The weather",
            Self::WorkItem => "The work item",
            Self::Together => "Several asks at once",
            Self::Upgrade => "The rolling upgrade",
            Self::Shedding => "Load shedding",
            Self::Killed => "An instance killed",
            Self::Refused => "Refused tokens",
            Self::Task => "The echo as a task",
            Self::Sketch => "The sketch",
            Self::FirstDraft => "The first draft",
            Self::SecondDraft => "The second draft",
        }
    }

    /// What to look at.
    pub(super) fn watch(self) -> &'static str {
        match self {
            Self::Weather => {
                "A tool needs a name before it can answer. No instance remembers the question: the \
                 client carries it, as a sealed token, to whichever instance is next."
            }
            Self::WorkItem => {
                "A rule asks how the bug was resolved; the answer makes a second rule ask for more. \
                 Each round runs the same function from the top and replays what it knows."
            }
            Self::Together => {
                "A tool awaits a form for a person and a question for a model side by side. Both go \
                 out in one round, and both answers come back in the next."
            }
            Self::Upgrade => {
                "The old version asks for GitHub and Google, the new one for GitHub and Microsoft. \
                 The first round meets the old one, the rest the new one: GitHub is not asked for again."
            }
            Self::Shedding => {
                "An instance that has too much to do hands on what it has so far, in a token that \
                 asks for nothing. The next one goes on from there: the ledger has each number once."
            }
            Self::Killed => {
                "An order reserves an item, asks for a confirmation, and charges. In between, the \
                 instance that made the reservation is killed with SIGKILL."
            }
            Self::Refused => {
                "A token is good for one caller, one tool, its arguments and a while. Whatever is \
                 wrong with it, the error is the same, so that it tells a thief nothing."
            }
            Self::Task => {
                "Nobody has to wait: the call becomes a task, which lives in a store. It asks, and is \
                 answered, through any instance, and outlives the one that works on it."
            }
            Self::Sketch => {
                "How it began: the call is made again with all the answers, and nothing else goes back \
                 and forth. The same runtime speaks it, at a path of its own."
            }
            Self::FirstDraft => {
                "The first draft has a state to send back, beside the id of the message, and each \
                 answer is in a result of its own. The tool is the one of the first story."
            }
            Self::SecondDraft => {
                "The second draft moves asks and state into the result, and says nowhere which kind \
                 of result it is. The tool is the one of the second story, and so are its rounds."
            }
        }
    }

    pub(super) async fn play(self, world: &mut World) -> Result<(), Failure> {
        match self {
            Self::Weather => asking::weather(world).await,
            Self::WorkItem => asking::work_item(world).await,
            Self::Together => asking::together(world).await,
            Self::Upgrade => moving::upgrade(world).await,
            Self::Shedding => moving::shedding(world).await,
            Self::Killed => moving::killed(world).await,
            Self::Refused => refused::refused(world).await,
            Self::Task => lasting::task(world).await,
            Self::Sketch => drafts::sketch(world).await,
            Self::FirstDraft => drafts::first(world).await,
            Self::SecondDraft => drafts::second(world).await,
        }
    }
}

/// The weather, as the documents have it.
const WEATHER: &str = "Current weather in New York:\nTemperature: 72°F\nConditions: Partly cloudy";

/// A form filled in.
fn form(content: &Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// A model's answer.
fn model(text: &str) -> Value {
    json!({
        "role": "assistant",
        "content": {"type": "text", "text": text},
        "model": "a-model",
        "stopReason": "endTurn",
    })
}

/// How many instances had a hand in these rounds.
fn instances(rounds: &[Round]) -> usize {
    let names: BTreeSet<&str> = rounds.iter().map(Round::instance).collect();
    names.len()
}

/// The keys that each round asked for.
fn asked(rounds: &[Round]) -> Vec<Vec<&str>> {
    rounds.iter().map(Round::asked).collect()
}

/// The text of the last round's result.
fn result(rounds: &[Round]) -> Option<&str> {
    rounds.last()?.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for story in Story::ALL {
            let value = story.to_possible_value().unwrap();
            assert_eq!(value.get_name(), story.name());
        }
        assert_eq!(Story::value_variants(), Story::ALL);
    }
}
