//! The outcome of a call.

use crate::diff::with_numbered_keys;
use crate::script::ReceivedAsk;
use refrain_core::Note;
use refrain_wire::LogLevel;
use serde_json::Value;
use std::fmt;

/// One round of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundReport {
    pub(crate) asks: Vec<ReceivedAsk>,
    pub(crate) token: Option<String>,
    pub(crate) notes: Vec<Note>,
    pub(crate) version: usize,
    pub(crate) deliveries: usize,
    pub(crate) replayed: u32,
    pub(crate) steps: u32,
}

impl RoundReport {
    /// The asks and their answers, sorted by key.
    pub fn asks(&self) -> &[ReceivedAsk] {
        &self.asks
    }

    /// The keys of the asks.
    pub fn keys(&self) -> Vec<&str> {
        self.asks.iter().map(ReceivedAsk::key).collect()
    }

    /// The token of the reply; `None` in the last round, and once the call is a task.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Progress and log messages before the reply.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Which version of the server sent the reply: 0 is that of [`Fleet::new`](crate::Fleet::new).
    pub fn version(&self) -> usize {
        self.version
    }

    /// The number of deliveries of the request.
    pub fn deliveries(&self) -> usize {
        self.deliveries
    }

    /// Entries of the journal that were replayed for the reply, including the answers in the request.
    pub fn replayed(&self) -> u32 {
        self.replayed
    }

    /// Steps that ran for the reply. Crashed and lost deliveries are not counted.
    pub fn steps(&self) -> u32 {
        self.steps
    }
}

/// Where an instance crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// The round, counted from 1.
    pub round: usize,
    /// Polls of asks, steps and checkpoints before the crash. `None`: the reply was ready, but not sent.
    pub operation: Option<u32>,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let round = self.round;
        match self.operation {
            Some(operation) => write!(f, "in round {round} after {operation} operations"),
            None => write!(f, "in round {round} before its reply was sent"),
        }
    }
}

/// A JSON-RPC error that ended a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallError {
    /// The code, as in `-32602`.
    pub code: i64,
    /// The error message.
    pub message: String,
    /// The data of the error; null without any.
    pub data: Value,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallOutcome {
    pub(crate) rounds: Vec<RoundReport>,
    pub(crate) reply: Value,
    pub(crate) crash: Option<CrashPoint>,
    pub(crate) task_id: Option<String>,
}

impl CallOutcome {
    /// The texts in the result of a tool, prompt or resource, one per line.
    ///
    /// # Panics
    ///
    /// If the call ended with a JSON-RPC error.
    #[track_caller]
    pub fn text(&self) -> String {
        let result = self.result();
        let lists = ["/content", "/messages", "/contents"].map(|list| result.pointer(list));
        let items = lists.into_iter().flatten().filter_map(Value::as_array);
        let text = |item: &Value| {
            let text = item["text"].as_str().or(item["content"]["text"].as_str());
            text.map(str::to_owned)
        };
        let all: Vec<String> = items.flatten().filter_map(text).collect();
        all.join("\n")
    }

    /// The JSON of the result.
    ///
    /// # Panics
    ///
    /// If the call ended with a JSON-RPC error.
    #[track_caller]
    pub fn result(&self) -> &Value {
        match self.error() {
            None => &self.reply["result"],
            Some(CallError { code, message, .. }) => {
                panic!("the call ended with the error {code}: {message}")
            }
        }
    }

    /// Whether the call failed, with a result marked `isError` or with a JSON-RPC error.
    pub fn is_error(&self) -> bool {
        self.reply["result"]["isError"] == true || self.error().is_some()
    }

    /// The JSON-RPC error that ended the call.
    pub fn error(&self) -> Option<CallError> {
        let error = self.reply.get("error")?;
        Some(CallError {
            code: error["code"].as_i64().unwrap_or_default(),
            message: error["message"].as_str().unwrap_or_default().to_owned(),
            data: error["data"].clone(),
        })
    }

    /// The rounds of the call, in order.
    pub fn rounds(&self) -> &[RoundReport] {
        &self.rounds
    }

    /// The asks of all rounds.
    pub fn asks(&self) -> impl Iterator<Item = &ReceivedAsk> {
        self.rounds.iter().flat_map(RoundReport::asks)
    }

    /// Progress and log messages of all rounds.
    pub fn notes(&self) -> impl Iterator<Item = &Note> {
        self.rounds.iter().flat_map(RoundReport::notes)
    }

    /// Where an instance crashed, if one did.
    pub fn crash(&self) -> Option<CrashPoint> {
        self.crash
    }

    /// The id of the task that the call became, if it became one.
    pub fn task_id(&self) -> Option<&str> {
        self.task_id.as_deref()
    }

    /// Whether both calls ended with the same result or error. Their rounds are not compared.
    ///
    /// Two calls have different idempotency keys. So texts of 32 hexadecimal digits are compared by
    /// where they occur, not by their digits.
    pub fn ends_like(&self, other: &Self) -> bool {
        self.end() == other.end()
    }

    /// The result or error, without `_meta` of the result and with numbers instead of idempotency keys.
    pub(crate) fn end(&self) -> Value {
        let mut reply = self.reply.clone();
        if let Some(result) = reply.get_mut("result").and_then(Value::as_object_mut) {
            result.remove("_meta");
        }
        if let Some(reply) = reply.as_object_mut() {
            reply.retain(|member, _| member == "result" || member == "error");
        }
        with_numbered_keys(reply)
    }
}

/// Parses a notification of progress or a log message.
pub(crate) fn parse_note(message: &Value) -> Option<Note> {
    let params = &message["params"];
    match message["method"].as_str()? {
        "notifications/progress" => Some(Note::Progress {
            done: params["progress"].as_f64()?,
            total: params["total"].as_f64(),
            message: params["message"].as_str().map(str::to_owned),
        }),
        "notifications/message" => Some(Note::Log {
            level: serde_json::from_value::<LogLevel>(params["level"].clone()).ok()?,
            data: params["data"].clone(),
        }),
        _ => None,
    }
}
