//! The events of a demo: printed for people by `print`, for programs as one JSON object a line.

use super::client::Round;
use super::stories::Story;
use super::task::Look;
use refrain_client::Call;
use serde::Serialize;
use serde_json::{Map, Value};
use std::net::SocketAddr;

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event<'a> {
    /// The fleet is up.
    Fleet {
        instances: Vec<Started>,
        balancer: SocketAddr,
    },
    /// A story begins.
    Story {
        story: Story,
        number: usize,
        title: &'a str,
        watch: &'a str,
    },
    /// A round of a call was served.
    Round {
        story: Story,
        principal: &'a str,
        tool: &'a str,
        arguments: &'a Map<String, Value>,
        /// What is wrong with the token, where something is.
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<&'a str>,
        #[serde(flatten)]
        round: &'a Round,
    },
    /// A request about a task was served.
    Task {
        story: Story,
        principal: &'a str,
        /// The call, where it has just become the task.
        #[serde(skip)]
        call: Option<&'a Call>,
        #[serde(flatten)]
        look: &'a Look,
    },
    Note {
        story: Story,
        note: &'a str,
    },
    /// A claim was checked.
    Claim {
        #[serde(flatten)]
        row: &'a Row,
    },
    /// A story could not be played to its end.
    Broke {
        story: Story,
        problem: &'a str,
        logs: Vec<InstanceLog>,
    },
    /// The final table.
    Table {
        held: bool,
        seconds: f64,
        rows: &'a [Row],
    },
}

/// An instance, as it was started.
#[derive(Serialize)]
pub(super) struct Started {
    pub(super) name: &'static str,
    pub(super) process: u32,
    pub(super) address: SocketAddr,
    pub(super) accounts: u8,
}

/// The last lines of an instance's log.
#[derive(Serialize)]
pub(super) struct InstanceLog {
    pub(super) name: &'static str,
    pub(super) lines: Vec<String>,
}

/// One line of the final table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) story: Story,
    pub(super) claim: &'static str,
    pub(super) held: bool,
}
