//! The stories: each makes calls, round by round, and checks claims about them.

mod asks;
mod drafts;
mod handover;
mod task;
mod tokens;

use super::caller::{DemoCaller, DemoDialogue, DemoRound};
use super::world::World;
use crate::AppError;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A story, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Story {
    /// One ask; the answer goes to another instance
    Weather,
    /// A tool that asks twice, over three rounds
    WorkItem,
    /// Several asks in one round
    Together,
    /// Two versions of a tool behind one balancer
    Upgrade,
    /// A busy instance hands the rest of its work on
    Shedding,
    /// An instance is killed between two rounds
    Killed,
    /// Tokens that are changed, stolen, misused or expired
    Refused,
    /// A task whose instance is killed while it runs
    Task,
    /// The weather in draft-0; requires --drafts
    Sketch,
    /// The weather in draft-1; requires --drafts
    FirstDraft,
    /// The work item in draft-2; requires --drafts
    SecondDraft,
}

impl Story {
    pub(super) fn number(self) -> usize {
        self as usize + 1
    }

    pub(super) fn is_draft(self) -> bool {
        matches!(self, Self::Sketch | Self::FirstDraft | Self::SecondDraft)
    }

    pub(super) fn title(self) -> &'static str {
        self.text().0
    }

    pub(super) fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::Weather => (
                "The weather",
                "A tool asks for a name before it can answer. No instance remembers the call: the client \
                 sends its state back, as a sealed token, to whichever instance is next.",
            ),
            Self::WorkItem => (
                "The work item",
                "One rule asks how a bug was resolved, and the answer makes a second rule ask, too. Each \
                 round runs the same function from the top and replays the answers so far.",
            ),
            Self::Together => (
                "Several asks at once",
                "A tool awaits a form and the answer of a model concurrently. Both asks are sent in one \
                 round, and both answers come back in the next.",
            ),
            Self::Upgrade => (
                "The rolling upgrade",
                "The old version asks for GitHub and Google, the new one for GitHub and Microsoft. \
                 The first round runs on the old version, the rest on the new one, which does not ask \
                 for GitHub again.",
            ),
            Self::Shedding => (
                "Load shedding",
                "An overloaded instance returns the state of a computation as a token without an ask. \
                 The next instance continues from there: the ledger has each number once.",
            ),
            Self::Killed => (
                "An instance killed",
                "An order reserves an item, asks for a confirmation, and charges. While it waits for the \
                 answer, the instance that made the reservation is killed with SIGKILL.",
            ),
            Self::Refused => (
                "Rejected tokens",
                "A token is valid for one caller, one tool, the same arguments and a limited time. The \
                 error is always the same, so that it reveals nothing to a thief.",
            ),
            Self::Task => (
                "The echo as a task",
                "The call becomes a task in a store, so that the client need not wait. Any instance can \
                 deliver its asks and answers, and another one continues it after a crash.",
            ),
            Self::Sketch => (
                "draft-0, the sketch",
                "In the first sketch of the protocol, the client repeats the call with all answers, and \
                 there is no state. The same tools serve it at another path.",
            ),
            Self::FirstDraft => (
                "draft-1, the first draft",
                "The first draft adds a state that the client sends back. Asks and state are members of \
                 the message, next to its id. The call is that of the first story.",
            ),
            Self::SecondDraft => (
                "draft-2, the second draft",
                "The second draft moves asks and state into the result, which does not have a type yet. \
                 The call is that of the second story.",
            ),
        }
    }

    pub(super) async fn play(self, world: &mut World) -> Result<(), AppError> {
        match self {
            Self::Weather => asks::weather(world).await,
            Self::WorkItem => asks::work_item(world).await,
            Self::Together => asks::together(world).await,
            Self::Upgrade => handover::upgrade(world).await,
            Self::Shedding => handover::shedding(world).await,
            Self::Killed => handover::killed(world).await,
            Self::Refused => tokens::rejected(world).await,
            Self::Task => task::killed_in_a_step(world).await,
            Self::Sketch => drafts::sketch(world).await,
            Self::FirstDraft => drafts::first(world).await,
            Self::SecondDraft => drafts::second(world).await,
        }
    }
}

const WEATHER: &str = "Current weather in New York:\nTemperature: 72°F\nConditions: Partly cloudy";

fn weather_call(caller: &DemoCaller) -> DemoDialogue {
    DemoDialogue::new(caller, "get_weather", &json!({"location": "New York"}))
}

fn github_login() -> (&'static str, Value) {
    ("github_login", form(&json!({"name": "octocat"})))
}

fn work_item_call(caller: &DemoCaller) -> (DemoDialogue, [(&'static str, Value); 2]) {
    let arguments = json!({"workItemId": 4522, "fields": {"System.State": "Resolved"}});
    let script = [
        ("resolution", form(&json!({"resolution": "Duplicate"}))),
        ("duplicate_of", form(&json!({"duplicateOfId": 4301}))),
    ];
    (
        DemoDialogue::new(caller, "update_work_item", &arguments),
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

fn instances(rounds: &[DemoRound]) -> usize {
    let names: BTreeSet<&str> = rounds.iter().map(DemoRound::instance).collect();
    names.len()
}

fn asked(rounds: &[DemoRound]) -> Vec<Vec<&str>> {
    rounds.iter().map(DemoRound::asked).collect()
}

fn result(rounds: &[DemoRound]) -> Option<&str> {
    rounds.last()?.text()
}
