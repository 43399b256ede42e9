//! What came of a call.

use crate::script::Asked;
use refrain_core::Note;
use refrain_wire::LogLevel;
use serde_json::Value;

/// One round of a call, as the client saw it and the server counted it.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundReport {
    pub(crate) asks: Vec<Asked>,
    pub(crate) token: Option<String>,
    pub(crate) notes: Vec<Note>,
    pub(crate) version: usize,
    pub(crate) deliveries: usize,
    pub(crate) replayed: u32,
    pub(crate) steps: u32,
}

impl RoundReport {
    /// What was asked, by key, with the answers that were given to it.
    pub fn asks(&self) -> &[Asked] {
        &self.asks
    }

    /// The keys of what was asked.
    pub fn keys(&self) -> Vec<&str> {
        self.asks.iter().map(Asked::key).collect()
    }

    /// The token of the reply; none in the last round.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Progress and log messages that came before the reply.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Which of the fleet's versions gave the reply, counted from 0.
    pub fn version(&self) -> usize {
        self.version
    }

    /// How often the request reached an instance.
    pub fn deliveries(&self) -> usize {
        self.deliveries
    }

    /// Entries of the journal that were replayed to give the reply, the answers of the request included.
    pub fn replayed(&self) -> u32 {
        self.replayed
    }

    /// Steps that ran to give the reply. What crashed or was lost is not counted.
    pub fn steps(&self) -> u32 {
        self.steps
    }
}

/// Where an instance was made to crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// The round, counted from 1.
    pub round: usize,
    /// Polls of asks, steps and checkpoints that went well before. `None`: the reply was ready, and never left.
    pub operation: Option<u32>,
}

/// A JSON-RPC error that ended a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallError {
    /// The code, as in `-32602`.
    pub code: i64,
    /// What was wrong.
    pub message: String,
    /// More about it; null if there is none.
    pub data: Value,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub(crate) rounds: Vec<RoundReport>,
    pub(crate) reply: Value,
    pub(crate) crash: Option<CrashPoint>,
}

impl Outcome {
    /// The text of the result: of a tool's content, a prompt's messages or a resource's contents, a line for each.
    ///
    /// # Panics
    ///
    /// If the call ended with a JSON-RPC error.
    #[track_caller]
    pub fn text(&self) -> String {
        let result = self.result();
        let texts = |list: &str, text: fn(&Value) -> &Value| -> Vec<String> {
            let items = result[list].as_array().into_iter().flatten();
            items
                .filter_map(|item| text(item).as_str().map(str::to_owned))
                .collect()
        };
        let mut all = texts("content", |item| &item["text"]);
        all.extend(texts("messages", |item| &item["content"]["text"]));
        all.extend(texts("contents", |item| &item["text"]));
        all.join("\n")
    }

    /// The result as it was sent.
    ///
    /// # Panics
    ///
    /// If the call ended with a JSON-RPC error.
    #[track_caller]
    pub fn result(&self) -> &Value {
        match self.error() {
            None => &self.reply["result"],
            Some(CallError { code, message, .. }) => {
                panic!("the call has no result but the error {code}: {message}")
            }
        }
    }

    /// Did it fail, with a result marked `isError` or with a JSON-RPC error?
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

    /// The rounds of the call, the first one first.
    pub fn rounds(&self) -> &[RoundReport] {
        &self.rounds
    }

    /// Everything that was asked, round by round.
    pub fn asks(&self) -> impl Iterator<Item = &Asked> {
        self.rounds.iter().flat_map(RoundReport::asks)
    }

    /// Progress and log messages of all rounds.
    pub fn notes(&self) -> impl Iterator<Item = &Note> {
        self.rounds.iter().flat_map(RoundReport::notes)
    }

    /// Where an instance was made to crash, if one was.
    pub fn crash(&self) -> Option<CrashPoint> {
        self.crash
    }

    /// Did both end in the same way? Who served them is not compared, nor what was asked on the way.
    pub fn ends_like(&self, other: &Self) -> bool {
        let end = |outcome: &Self| match outcome.error() {
            Some(error) => (None, Some(error)),
            None => {
                let mut result = outcome.reply["result"].clone();
                if let Some(members) = result.as_object_mut() {
                    members.remove("_meta");
                }
                (Some(result), None)
            }
        };
        end(self) == end(other)
    }
}

/// Reads a notification of progress or of a log message.
pub(crate) fn note(message: &Value) -> Option<Note> {
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
