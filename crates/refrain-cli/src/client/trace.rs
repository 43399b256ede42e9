//! `--trace`: prints every message to standard error.
//!
//! Credentials are not part of messages. Long texts, such as the request state, are shortened.

use super::json::{self, Fold};
use super::sanitize::{one_line, sanitize, truncated};
use super::stderr;
use crate::style::DIM;
use anstyle::{AnsiColor, Style};
use parking_lot::Mutex;
use refrain_client::WireMessage;
use refrain_wire::CallKind;
use serde_json::Value;
use std::collections::HashMap;

/// The default depth. `_meta` is printed in full only with a greater depth.
const DEFAULT_DEPTH: usize = 5;
/// The printed length of a text in a message.
const MAX_TEXT: usize = 64;
/// The printed length of a message that is not JSON.
const MAX_INVALID: usize = 300;
const INDENT: usize = 2;
/// The maximum number of requests whose round is remembered.
const MAX_REQUESTS: usize = 1000;

const SENT: Style = AnsiColor::Blue.on_default().bold();
const RECEIVED: Style = AnsiColor::Magenta.on_default().bold();

pub(super) struct WireTrace {
    depth: usize,
    rounds: Mutex<RoundNumbers>,
}

#[derive(Default)]
struct RoundNumbers {
    /// The number of the last round.
    last: u32,
    /// The parameters of the last round, to recognize a retry.
    sent: Option<Value>,
    /// The round numbers of requests.
    by_id: HashMap<String, u32>,
}

impl WireTrace {
    /// `rounds` is the number of earlier rounds of the call.
    pub(super) fn new(depth: usize, rounds: u32) -> Self {
        let rounds = RoundNumbers {
            last: rounds,
            ..RoundNumbers::default()
        };
        Self {
            depth,
            rounds: Mutex::new(rounds),
        }
    }

    pub(super) fn print(&self, wire: WireMessage<'_>) {
        let (arrow, style, text, status) = match wire {
            WireMessage::Sent { message } => ('→', SENT, message, None),
            WireMessage::Received { message, status } => ('←', RECEIVED, message, status),
            _ => return,
        };
        let message = serde_json::from_str::<Value>(text).ok();
        let round = message
            .as_ref()
            .and_then(|message| self.round(message, arrow == '→'));
        let round = round.map_or(String::new(), |round| format!("round {round}"));
        let summary_text = message.as_ref().map_or("not JSON".to_owned(), summary);
        let status = status.map_or(String::new(), |status| format!("{status} "));
        let shown = match &message {
            Some(message) => {
                let fold = Fold {
                    depth: self.depth,
                    text: MAX_TEXT,
                    meta: self.depth <= DEFAULT_DEPTH,
                };
                json::format(message, fold, INDENT)
            }
            None => sanitize(truncated(text, MAX_INVALID).0),
        };
        stderr::print(&format!(
            "{style}{arrow}{style:#} {DIM}{round:<9}{DIM:#}{style}{status}{}{style:#}\n{:INDENT$}{shown}",
            one_line(&summary_text),
            ""
        ));
    }

    /// The round that a message belongs to, if it is part of a call.
    fn round(&self, message: &Value, is_sent: bool) -> Option<u32> {
        let mut rounds = self.rounds.lock();
        let id = message.get("id").map(Value::to_string);
        let method = message["method"].as_str();
        match (method, id) {
            (Some(method), Some(id)) if is_sent => {
                CallKind::from_method(method)?;
                Some(rounds.number(id, message.get("params")))
            }
            (None, Some(id)) => rounds.by_id.get(&id).copied(),
            // A notification, or a request from the server, belongs to the request in flight.
            _ => rounds.sent.as_ref().map(|_| rounds.last),
        }
    }
}

impl RoundNumbers {
    /// The round number of a request; a retry has the number of the first attempt.
    fn number(&mut self, id: String, params: Option<&Value>) -> u32 {
        let mut params = params.cloned();
        if let Some(Value::Object(members)) = &mut params {
            members.remove("_meta");
        }
        if self.sent != params {
            self.last += 1;
            self.sent = params;
        }
        if self.by_id.len() >= MAX_REQUESTS {
            self.by_id.clear();
        }
        self.by_id.insert(id, self.last);
        self.last
    }
}

fn summary(message: &Value) -> String {
    if let Some(method) = message["method"].as_str() {
        let mut names = ["name", "uri", "taskId"].iter();
        return match names.find_map(|name| message["params"][name].as_str()) {
            Some(target) => format!("{method} {target}"),
            None => method.to_owned(),
        };
    }
    if let Some(error) = message.get("error") {
        return match &error["code"] {
            Value::Number(code) => format!("error {code}"),
            _ => "error".to_owned(),
        };
    }
    let result = &message["result"];
    let mut words = vec![result["resultType"].as_str().unwrap_or("complete")];
    let asks = result["inputRequests"].as_object().into_iter().flatten();
    words.extend(asks.map(|(key, _)| key.as_str()));
    words.extend(result["status"].as_str());
    words.join(" ")
}
