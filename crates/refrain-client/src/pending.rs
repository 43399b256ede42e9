//! A pending call, as a state machine.
//!
//! | stage | waits for | next message |
//! | --- | --- | --- |
//! | round | answers to the asks, if there are any | the call with the answers and the state |
//! | visits | visits to the URLs of a legacy server's error | the call as it was |
//! | task | the end of a task | answers to the task |
//! | ended | nothing: the task is over | none |

use crate::ask::{Answer, Ask, Asker, InvalidAnswer, without_arguments};
use crate::call::Call;
use crate::dialect::Dialect;
use crate::handlers::NoAnswer;
use refrain_wire::client::{ReadError, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use stored::Stored;

mod stored;

/// A call that waits for answers, for its next round, or for a task.
///
/// It is a value: serialise it, store it for days, and take it up in any process with
/// [`Client::resume`](crate::Client::resume) or [`Client::finish`](crate::Client::finish). Store it like a password: with
/// it, anybody can answer in your place.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct PendingCall {
    origin: Origin,
    call: Call,
    call_id: String,
    /// The number of responses.
    round: u32,
    delivery: Delivery,
    asks: Map<String, Value>,
    pub(crate) answers: BTreeMap<String, Value>,
    stage: Stage,
}

#[derive(Clone, Default)]
pub(crate) struct Origin {
    pub(crate) address: String,
    pub(crate) server: Option<String>,
    pub(crate) dialect: Option<Dialect>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    NotSent,
    /// It was sent, and its response was lost.
    Unknown,
    /// The call was stored: its next round may have been sent if nothing is left to answer.
    Restored,
}

#[derive(Clone)]
enum Stage {
    /// Before the first round, or between two.
    Round {
        state: Option<String>,
    },
    /// A legacy server wants visits to URLs, and then the call again, without answers.
    Visits {
        message: String,
        /// Whether the same error came again: the person is still on the way.
        is_repeated: bool,
    },
    Task {
        id: String,
        /// The keys whose answers were sent, with their asks, if they were seen.
        settled: BTreeMap<String, Option<Value>>,
    },
    Ended,
}

/// Why an answer was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// There is no ask with this key.
    #[error("nothing is asked under the key {0:?}")]
    NotAsked(String),
    /// The answer does not fit the ask.
    #[error("{key}: {why}")]
    Unfit {
        /// The key of the ask.
        key: String,
        /// The reason.
        #[source]
        why: InvalidAnswer,
    },
}

impl PendingCall {
    pub(crate) fn new(call: Call, call_id: String, origin: Origin) -> Self {
        Self {
            origin,
            call,
            call_id,
            round: 0,
            delivery: Delivery::NotSent,
            asks: Map::new(),
            answers: BTreeMap::new(),
            stage: Stage::Round { state: None },
        }
    }

    /// A task that is known only by its id. The id stands for the name of the tool.
    pub fn of_task(id: impl Into<String>) -> Self {
        let id = id.into();
        let mut pending = Self::new(Call::tool(&id), String::new(), Origin::default());
        pending.become_task(id);
        pending
    }

    /// The call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The server's URL, or the command that was started.
    pub fn address(&self) -> &str {
        &self.origin.address
    }

    /// The configured dialect. Only a client of the same dialect can take the call up.
    pub fn dialect(&self) -> Option<Dialect> {
        self.origin.dialect
    }

    /// The id by which the server recognises a repeated request.
    pub fn call_id(&self) -> &str {
        &self.call_id
    }

    /// The number of completed rounds.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Whether its next round may have been executed: it was sent, and its response was lost. The same is assumed of a
    /// stored call with nothing left to answer.
    pub fn is_unclear(&self) -> bool {
        match self.delivery {
            Delivery::NotSent => false,
            Delivery::Unknown => true,
            Delivery::Restored => self.task_id().is_none() && self.unanswered().is_empty(),
        }
    }

    pub(crate) fn set_unclear(&mut self, unclear: bool) {
        self.delivery = if unclear {
            Delivery::Unknown
        } else {
            Delivery::NotSent
        };
    }

    /// The id of the task that the call has become.
    pub fn task_id(&self) -> Option<&str> {
        match &self.stage {
            Stage::Task { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The origin of its asks.
    pub fn asker(&self) -> Arc<Asker> {
        Arc::new(Asker {
            server: self.origin.server.clone(),
            address: self.origin.address.clone(),
            kind: self.call.kind(),
            target: self.call.target().to_owned(),
        })
    }

    /// All asks, in the server's order.
    pub fn asks(&self) -> Vec<Ask> {
        let asker = self.asker();
        let asks = self.asks.iter();
        asks.map(|(key, raw)| Ask::read(key, raw, &asker)).collect()
    }

    /// The asks without an answer, in the server's order.
    pub fn unanswered(&self) -> Vec<Ask> {
        let mut asks = self.asks();
        asks.retain(|ask| !self.answers.contains_key(ask.key()));
        asks
    }

    /// Answers an ask. The defaults of a form are filled in; an answer that does not fit is rejected.
    pub fn answer(&mut self, key: &str, answer: Answer) -> Result<(), AnswerError> {
        let not_asked = || AnswerError::NotAsked(key.to_owned());
        let raw = self.asks.get(key).ok_or_else(not_asked)?;
        let ask = Ask::read(key, raw, &self.asker());
        let unfit = |why| AnswerError::Unfit {
            key: key.to_owned(),
            why,
        };
        let answer = ask.check(answer).map_err(unfit)?.to_json(ask.kind());
        self.answers.insert(key.to_owned(), answer);
        Ok(())
    }

    /// Takes the answer of a handler.
    pub(crate) fn take(
        &mut self,
        key: &str,
        answer: Result<Answer, NoAnswer>,
    ) -> Result<(), NoAnswer> {
        self.answer(key, answer?).map_err(|error| match error {
            AnswerError::NotAsked(_) => NoAnswer::later("nothing of this key is asked"),
            AnswerError::Unfit { why, .. } => NoAnswer::later(why.to_string()),
        })
    }

    pub(crate) fn request(&self) -> Request {
        let request = self.call.request();
        match &self.stage {
            Stage::Round { state } => {
                request.with_answers(self.answers.clone().into_iter().collect(), state.as_deref())
            }
            Stage::Visits { .. } | Stage::Task { .. } | Stage::Ended => request,
        }
    }

    /// Enters the next stage. Nothing of the last round is left over.
    fn advance(&mut self, asks: Map<String, Value>, stage: Stage) {
        self.round += 1;
        self.asks = asks;
        self.answers.clear();
        self.stage = stage;
        self.delivery = Delivery::NotSent;
    }

    pub(crate) fn next(&mut self, asks: Map<String, Value>, state: Option<String>) {
        self.advance(asks, Stage::Round { state });
    }

    pub(crate) fn visits(&mut self, asks: Map<String, Value>, message: String) {
        // Some servers use new ids each time.
        let targets = |asks: &Map<String, Value>| -> Vec<(String, Value)> {
            let asks = asks.iter();
            asks.map(|(key, ask)| (key.clone(), ask["params"]["url"].clone()))
                .collect()
        };
        let is_repeated =
            matches!(self.stage, Stage::Visits { .. }) && targets(&self.asks) == targets(&asks);
        let answers = std::mem::take(&mut self.answers);
        let stage = Stage::Visits {
            message,
            is_repeated,
        };
        self.advance(asks, stage);
        if is_repeated {
            // The person is not sent to the same URL twice.
            self.answers = answers;
        }
    }

    /// The message of a legacy server's error, if a visit to one of its URLs was declined.
    pub(crate) fn not_visited(&self) -> Option<&str> {
        let Stage::Visits { message, .. } = &self.stage else {
            return None;
        };
        let is_visit = |answer: &Value| answer["action"] == "accept";
        (!self.answers.values().all(is_visit)).then_some(message)
    }

    /// Whether a legacy server can continue it: it has no states and answers.
    pub(crate) fn suits_legacy(&self) -> bool {
        self.round == 0 || matches!(self.stage, Stage::Visits { .. })
    }

    pub(crate) fn become_task(&mut self, id: String) {
        let settled = BTreeMap::new();
        self.advance(Map::new(), Stage::Task { id, settled });
    }

    /// Sets the asks of the task, without those that were answered. Answers to withdrawn asks are dropped. Fails if an
    /// answered key has another ask.
    pub(crate) fn task_asks(&mut self, mut asks: Map<String, Value>) -> Result<(), ReadError> {
        if let Stage::Task { settled, .. } = &mut self.stage {
            for (key, ask) in &asks {
                if let Some(before) = settled.get_mut(key)
                    && before.get_or_insert_with(|| ask.clone()) != ask
                {
                    let why =
                        format!("the task asks something else under {key:?}, which was answered");
                    return Err(ReadError::Unexpected(why));
                }
            }
            asks.retain(|key, _| !settled.contains_key(key));
        }
        self.answers.retain(|key, _| asks.get(key).is_some());
        self.asks = asks;
        Ok(())
    }

    pub(crate) fn answers_sent(&mut self) {
        if let Stage::Task { settled, .. } = &mut self.stage {
            for key in std::mem::take(&mut self.answers).into_keys() {
                let asked = self.asks.shift_remove(&key);
                settled.insert(key, asked);
            }
        }
    }

    pub(crate) fn end(&mut self) {
        self.stage = Stage::Ended;
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    /// Whether there are no new asks: the next round has nothing new for the server.
    pub(crate) fn only_state(&self) -> bool {
        matches!(
            self.stage,
            Stage::Visits {
                is_repeated: true,
                ..
            }
        ) || self.asks.is_empty()
    }

    /// Sets the server. Returns the one before, and the round up to which it was that.
    pub(crate) fn move_to(&mut self, mut origin: Origin) -> (u32, Origin) {
        origin.server = origin.server.or_else(|| self.origin.server.clone());
        (self.round, std::mem::replace(&mut self.origin, origin))
    }

    /// Restores the server before, unless the new one has continued the call.
    pub(crate) fn move_back(&mut self, (round, origin): (u32, Origin)) {
        if self.round == round {
            self.origin = origin;
        }
    }
}

/// Leaves out the state, the answers and the arguments of a command: they are secrets.
impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asks: Vec<_> = self.asks.keys().collect();
        f.debug_struct("PendingCall")
            .field("address", &without_arguments(&self.origin.address))
            .field("kind", &self.call.kind())
            .field("target", &self.call.target())
            .field("round", &self.round)
            .field("asks", &asks)
            .field("task", &self.task_id())
            .finish_non_exhaustive()
    }
}
