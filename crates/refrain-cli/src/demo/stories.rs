//! The stories: each makes calls, round by round, and checks claims about them.

mod asks;
mod drafts;
mod handover;
mod task;
mod tokens;

use super::caller::{DemoCaller, DemoDialogue, DemoRound};
use super::world::World;
use crate::AppError;
use clap::builder::PossibleValue;
pub(super) use drafts::ExtraStories;
use drafts::STORIES as EXTRA;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::pin::Pin;

/// A story: its name on the command line, its texts and its code.
pub(super) struct Story {
    pub(super) name: &'static str,
    /// The help text of the name.
    help: &'static str,
    pub(super) title: &'static str,
    pub(super) text: &'static str,
    pub(super) play: for<'a> fn(&'a mut World) -> Played<'a>,
}

pub(super) type Played<'a> = Pin<Box<dyn Future<Output = Result<(), AppError>> + 'a>>;

const MAIN: [&[Story]; 4] = [
    &asks::STORIES,
    &handover::STORIES,
    &tokens::STORIES,
    &task::STORIES,
];

impl Story {
    pub(super) fn all() -> impl Iterator<Item = &'static Self> {
        MAIN.into_iter().flatten().chain(&EXTRA)
    }

    pub(super) fn first() -> &'static Self {
        &MAIN[0][0]
    }

    /// The story with this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        Self::all().find(|story| story.name == name)
    }

    pub(super) fn names() -> impl Iterator<Item = PossibleValue> {
        Self::all().map(|story| PossibleValue::new(story.name).help(story.help))
    }

    pub(super) fn number(&self) -> usize {
        1 + Self::all()
            .take_while(|story| story.name != self.name)
            .count()
    }

    fn is_extra(&self) -> bool {
        EXTRA.iter().any(|story| story.name == self.name)
    }
}

impl Serialize for Story {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
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
