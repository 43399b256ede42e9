//! The serialized form of a [`PendingCall`].

use super::{CallOrigin, CallStage, PendingCall, RoundDelivery};
use crate::call::CallSpec;
use crate::dialect::Dialect;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct StoredPendingCall {
    #[serde(deserialize_with = "check_format")]
    format: u32,
    address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dialect: Option<Dialect>,
    call: CallSpec,
    call_id: String,
    round: u32,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    asks: Map<String, Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    answers: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    /// The keys of the asks of a task whose answers were already sent.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    answered: BTreeSet<String>,
    /// The message of the error -32042: a legacy server rejects the call until the person has
    /// visited some URLs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by_error: Option<String>,
    /// Whether the next round was sent and its response was lost.
    #[serde(
        default,
        rename = "unclear",
        skip_serializing_if = "std::ops::Not::not"
    )]
    is_delivery_unknown: bool,
}

impl From<StoredPendingCall> for PendingCall {
    fn from(stored: StoredPendingCall) -> Self {
        let stage = match (stored.task, stored.by_error) {
            (Some(id), _) => {
                let answered = stored.answered.into_iter().map(|key| (key, None));
                CallStage::Task {
                    id,
                    answered: answered.collect(),
                }
            }
            (None, Some(message)) => CallStage::Visits {
                message,
                is_repeated: false,
            },
            (None, None) => CallStage::Round {
                state: stored.state,
            },
        };
        let mut call = Self {
            origin: CallOrigin {
                address: stored.address,
                server: stored.server,
                dialect: stored.dialect,
            },
            call: stored.call,
            call_id: stored.call_id,
            round: stored.round,
            delivery: RoundDelivery::NotSent,
            asks: stored.asks,
            answers: stored.answers,
            stage,
        };
        if stored.is_delivery_unknown {
            call.delivery = RoundDelivery::Unknown;
        } else if call.task_id().is_none() && call.unanswered().is_empty() {
            call.delivery = RoundDelivery::Restored;
        }
        call
    }
}

impl From<PendingCall> for StoredPendingCall {
    fn from(pending: PendingCall) -> Self {
        let (mut state, mut task, mut by_error) = (None, None, None);
        let mut answered = BTreeSet::new();
        match pending.stage {
            CallStage::Round { state: sent } => state = sent,
            CallStage::Visits { message, .. } => by_error = Some(message),
            CallStage::Task { id, answered: sent } => {
                task = Some(id);
                answered = sent.into_keys().collect();
            }
            CallStage::Ended => {}
        }
        Self {
            format: FORMAT,
            address: pending.origin.address,
            server: pending.origin.server,
            dialect: pending.origin.dialect,
            call: pending.call,
            call_id: pending.call_id,
            round: pending.round,
            asks: pending.asks,
            answers: pending.answers,
            state,
            task,
            answered,
            by_error,
            is_delivery_unknown: pending.delivery == RoundDelivery::Unknown,
        }
    }
}

fn check_format<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let format = u32::deserialize(deserializer)?;
    if format == FORMAT {
        return Ok(format);
    }
    Err(serde::de::Error::custom(format_args!(
        "unsupported pending call format {format} (this version reads only format {FORMAT}),"
    )))
}
