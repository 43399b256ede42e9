//! What happens in a demo, as it is told: to people by `print`, to machines as one JSON object a line.

use super::client::{Call, Round};
use super::task::Look;
use serde::Serialize;
use serde_json::Value;
use std::net::SocketAddr;

/// One thing that happened.
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
        story: &'a str,
        number: usize,
        title: &'a str,
        watch: &'a str,
    },
    /// A round of a call was served.
    Round {
        story: &'a str,
        principal: &'a str,
        tool: &'a str,
        arguments: &'a Value,
        /// What is wrong with the token, where something is.
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<&'a str>,
        #[serde(flatten)]
        round: &'a Round,
    },
    /// Something was asked about a task.
    Task {
        story: &'a str,
        principal: &'a str,
        /// The call, where it has just become the task.
        #[serde(skip)]
        call: Option<&'a Call>,
        #[serde(flatten)]
        look: &'a Look,
    },
    /// Something else worth knowing.
    Note { story: &'a str, note: &'a str },
    /// A claim was checked.
    Claim {
        #[serde(flatten)]
        row: &'a Row,
    },
    /// A story could not be played to its end.
    Broke {
        story: &'a str,
        problem: &'a str,
        /// The last lines of the instances' logs.
        logs: Vec<InstanceLog>,
    },
    /// The end: what held.
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

#[derive(Serialize)]
pub(super) struct InstanceLog {
    pub(super) name: &'static str,
    pub(super) lines: Vec<String>,
}

/// One line of the final table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) story: &'static str,
    #[serde(skip)]
    pub(super) title: &'static str,
    pub(super) claim: String,
    pub(super) held: bool,
}
