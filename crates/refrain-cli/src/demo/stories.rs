//! The stories: each plays calls, round by round, and checks its claims.

mod asking;
mod drafts;
mod lasting;
mod moving;
mod refused;

use super::client::{Caller, Dialogue, Round};
use super::world::World;
use crate::Failure;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A story, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
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
    pub(super) fn number(self) -> usize {
        self as usize + 1
    }

    pub(super) fn title(self) -> &'static str {
        self.text().0
    }

    /// The title, and what to look at.
    pub(super) fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::Weather => (
                "The weather",
                "A tool needs a name before it can answer. No instance remembers the question: the \
                 client carries it, as a sealed token, to whichever instance is next.",
            ),
            Self::WorkItem => (
                "The work item",
                "A rule asks how the bug was resolved; the answer makes a second rule ask for more. \
                 Each round runs the same function from the top and replays what it knows.",
            ),
            Self::Together => (
                "Several asks at once",
                "A tool awaits a form for a person and a question for a model side by side. Both go \
                 out in one round, and both answers come back in the next.",
            ),
            Self::Upgrade => (
                "The rolling upgrade",
                "The old version asks for GitHub and Google, the new one for GitHub and Microsoft. \
                 The first round meets the old one, the rest the new one: GitHub is not asked for again.",
            ),
            Self::Shedding => (
                "Load shedding",
                "An instance that has too much to do hands on what it has so far, in a token that \
                 asks for nothing. The next one goes on from there: the ledger has each number once.",
            ),
            Self::Killed => (
                "An instance killed",
                "An order reserves an item, asks for a confirmation, and charges. In between, the \
                 instance that made the reservation is killed with SIGKILL.",
            ),
            Self::Refused => (
                "Refused tokens",
                "A token is good for one caller, one tool, its arguments and a while. Whatever is \
                 wrong with it, the error is the same, so that it tells a thief nothing.",
            ),
            Self::Task => (
                "The echo as a task",
                "Nobody has to wait: the call becomes a task, which lives in a store. It asks, and is \
                 answered, through any instance, and outlives the one that works on it.",
            ),
            Self::Sketch => (
                "The sketch",
                "How it began: the call is made again with all the answers, and nothing else goes back \
                 and forth. The same runtime speaks it, at another path.",
            ),
            Self::FirstDraft => (
                "The first draft",
                "The first draft has a state to send back, beside the id of the message, and each \
                 answer is in a separate result. The tool is the one of the first story.",
            ),
            Self::SecondDraft => (
                "The second draft",
                "The second draft moves asks and state into the result, and says nowhere which kind \
                 of result it is. The tool is the one of the second story, and so are its rounds.",
            ),
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

const WEATHER: &str = "Current weather in New York:\nTemperature: 72°F\nConditions: Partly cloudy";

fn weather_call(caller: &Caller) -> Dialogue {
    Dialogue::new(caller, "get_weather", &json!({"location": "New York"}))
}

fn github_login() -> (&'static str, Value) {
    ("github_login", form(&json!({"name": "octocat"})))
}

/// The call that resolves a work item, and its answers.
fn work_item_call(caller: &Caller) -> (Dialogue, [(&'static str, Value); 2]) {
    let arguments = json!({"workItemId": 4522, "fields": {"System.State": "Resolved"}});
    let script = [
        ("resolution", form(&json!({"resolution": "Duplicate"}))),
        ("duplicate_of", form(&json!({"duplicateOfId": 4301}))),
    ];
    (
        Dialogue::new(caller, "update_work_item", &arguments),
        script,
    )
}

fn form(content: &Value) -> Value {
    json!({"action": "accept", "content": content})
}

fn model(text: &str) -> Value {
    json!({
        "role": "assistant",
        "content": {"type": "text", "text": text},
        "model": "a-model",
        "stopReason": "endTurn",
    })
}

fn instances(rounds: &[Round]) -> usize {
    let names: BTreeSet<&str> = rounds.iter().map(Round::instance).collect();
    names.len()
}

fn asked(rounds: &[Round]) -> Vec<Vec<&str>> {
    rounds.iter().map(Round::asked).collect()
}

fn result(rounds: &[Round]) -> Option<&str> {
    rounds.last()?.text()
}
