//! `--trace`: every message on standard error.
//!
//! Credentials are not part of messages, and are not shown; the state of a server is cut short.

use super::json::{self, Fold};
use super::screen;
use super::text::{harmless, one_line, shortened};
use crate::style::DIM;
use anstyle::{AnsiColor, Style};
use parking_lot::Mutex;
use refrain_client::WireMessage;
use refrain_wire::CallKind;
use serde_json::Value;
use std::collections::HashMap;

/// The default depth, up to which `_meta` is not shown.
const USUAL_DEPTH: usize = 5;
/// Longer texts are cut short.
const TEXT: usize = 64;
/// The length that is shown of a message that is not JSON.
const NO_JSON: usize = 300;
const INDENT: usize = 2;
/// How many requests are remembered.
const REMEMBERED: usize = 1000;

const SENT: Style = AnsiColor::Blue.on_default().bold();
const RECEIVED: Style = AnsiColor::Magenta.on_default().bold();

pub(super) struct Trace {
    depth: usize,
    rounds: Mutex<Rounds>,
}

/// Which requests are rounds of a call.
#[derive(Default)]
struct Rounds {
    last: u32,
    /// The parameters of the last round, to recognize it when it is sent again.
    sent: Option<Value>,
    /// The rounds of requests, by id.
    of: HashMap<String, u32>,
}

impl Trace {
    /// Shows messages, folded below a depth. `rounds` of the call were made before.
    pub(super) fn new(depth: usize, rounds: u32) -> Self {
        let rounds = Rounds {
            last: rounds,
            ..Rounds::default()
        };
        Self {
            depth,
            rounds: Mutex::new(rounds),
        }
    }

    pub(super) fn show(&self, wire: WireMessage<'_>) {
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
        let what = message.as_ref().map_or("no JSON".to_owned(), what);
        let status = status.map_or(String::new(), |status| format!("{status} "));
        let shown = match &message {
            Some(message) => {
                let fold = Fold {
                    depth: self.depth,
                    text: TEXT,
                    meta: self.depth <= USUAL_DEPTH,
                };
                json::shown(message, fold, INDENT)
            }
            None => harmless(shortened(text, NO_JSON).0),
        };
        screen::say(&format!(
            "{style}{arrow}{style:#} {DIM}{round:<9}{DIM:#}{style}{status}{}{style:#}\n{:INDENT$}{shown}",
            one_line(&what),
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
                Some(rounds.sent(id, message.get("params")))
            }
            (None, Some(id)) => rounds.of.get(&id).copied(),
            // A message without an id belongs to the request in flight.
            _ => rounds.sent.as_ref().map(|_| rounds.last),
        }
    }
}

impl Rounds {
    /// A round is sent, or sent again.
    fn sent(&mut self, id: String, params: Option<&Value>) -> u32 {
        let mut params = params.cloned();
        if let Some(Value::Object(members)) = &mut params {
            members.remove("_meta");
        }
        if self.sent != params {
            self.last += 1;
            self.sent = params;
        }
        if self.of.len() >= REMEMBERED {
            self.of.clear();
        }
        self.of.insert(id, self.last);
        self.last
    }
}

/// A message in a few words.
fn what(message: &Value) -> String {
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
