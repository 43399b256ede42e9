//! A call that waits.
//!
//! | stage | waits for | what is sent next |
//! | --- | --- | --- |
//! | round | answers, if anything is asked | the call with the answers and the state |
//! | visits | visits to URLs that a legacy server wants | the call as it was |
//! | task | the end of a task | answers to the task |
//! | ended | nothing: the task is over | nothing |

use crate::ask::{Answer, Ask, Asker, InvalidAnswer, without_arguments};
use crate::call::Call;
use crate::dialect::Dialect;
use refrain_wire::client::{ReadError, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use stored::Stored;

mod stored;

/// A call that waits: for answers, to be sent again, or for a task to end.
///
/// It is a value. Serialise it, keep it for days, send it to another process, and take it up there with
/// [`Client::resume`](crate::Client::resume) or [`Client::finish`](crate::Client::finish). What the server needs to go
/// on is in it, so keep it as you would keep a password: who has it can answer in your place.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct PendingCall {
    origin: Origin,
    call: Call,
    call_id: String,
    /// How many responses there have been.
    round: u32,
    delivery: Delivery,
    asks: Map<String, Value>,
    answers: BTreeMap<String, Value>,
    stage: Stage,
}

/// The server of a call.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// Its URL, or the command that was started.
    pub(crate) address: String,
    /// Its own name.
    pub(crate) server: Option<String>,
    /// What was spoken with it, if that was chosen.
    pub(crate) dialect: Option<Dialect>,
}

/// What is known of the next round's way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// It was not sent.
    NotSent,
    /// It was sent, and nobody knows what came of it.
    Unknown,
    /// The call comes out of a store: its next round may have been sent if nothing is left to answer.
    Restored,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Before the first round, or between two.
    Round {
        /// The state to send back.
        state: Option<String>,
    },
    /// A legacy server wants visits to URLs, and then to be called again without the answers.
    Visits {
        /// The message of its error.
        message: String,
        /// Whether the same error came again: the person is still on the way.
        is_repeated: bool,
    },
    /// The call has become a task.
    Task {
        id: String,
        /// The keys whose answers are with the server, and what was asked under them, as far as it was seen.
        settled: BTreeMap<String, Option<Value>>,
    },
    /// The task has ended.
    Ended,
}

type Look = dyn Fn(&PendingCall) + Send + Sync;

/// Whoever wants to see calls that wait.
#[derive(Clone, Default)]
pub(crate) struct Onlooker(pub(crate) Option<Arc<Look>>);

impl Onlooker {
    pub(crate) fn see(&self, pending: &PendingCall) {
        if let Some(look) = &self.0 {
            look(pending);
        }
    }
}

impl fmt::Debug for Onlooker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Onlooker")
    }
}

/// Why an answer was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// Nothing of this key is asked.
    #[error("nothing is asked under the key {0:?}")]
    NotAsked(String),
    /// This does not answer the ask.
    #[error("{key}: {why}")]
    Unfit {
        /// The key of the ask.
        key: String,
        /// What is wrong.
        #[source]
        why: InvalidAnswer,
    },
}

impl AnswerError {
    /// What is wrong, without the key.
    pub(crate) fn why(self) -> String {
        match self {
            Self::NotAsked(_) => "nothing of this key is asked".to_owned(),
            Self::Unfit { why, .. } => why.to_string(),
        }
    }
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

    /// A task of which nothing but the id is known, at the server that
    /// [`Client::finish`](crate::Client::finish) is called for. The id stands for the name of what was called.
    pub fn of_task(id: impl Into<String>) -> Self {
        let id = id.into();
        let origin = Origin {
            address: String::new(),
            server: None,
            dialect: None,
        };
        let mut pending = Self::new(Call::tool(&id), String::new(), origin);
        pending.become_task(id);
        pending
    }

    /// What was called.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Where the server was: its URL, or the command that was started.
    pub fn address(&self) -> &str {
        &self.origin.address
    }

    /// The dialect that was spoken, if the client was told to: it takes one of the same to go on.
    pub fn dialect(&self) -> Option<Dialect> {
        self.origin.dialect
    }

    /// The id by which the server knows a repeated request for the same call.
    pub fn call_id(&self) -> &str {
        &self.call_id
    }

    /// How many rounds there have been.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Whether its next round may be with the server already: it was sent, and the response was lost or did not come. A
    /// call that comes out of a store with nothing left to answer may have been sent too; nobody can tell.
    pub fn is_unclear(&self) -> bool {
        match self.delivery {
            Delivery::NotSent => false,
            Delivery::Unknown => true,
            Delivery::Restored => self.task_id().is_none() && self.unanswered().is_empty(),
        }
    }

    /// Whether nobody knows what came of the next round.
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

    /// Who asks.
    pub fn asker(&self) -> Arc<Asker> {
        Arc::new(Asker {
            server: self.origin.server.clone(),
            address: self.origin.address.clone(),
            kind: self.call.kind(),
            target: self.call.target().to_owned(),
        })
    }

    /// Everything that is asked, in the server's order.
    pub fn asks(&self) -> Vec<Ask> {
        let asker = self.asker();
        let asks = self.asks.iter();
        asks.map(|(key, raw)| Ask::read(key, raw, &asker)).collect()
    }

    /// What is asked and not answered yet, in the server's order.
    pub fn unanswered(&self) -> Vec<Ask> {
        let mut asks = self.asks();
        asks.retain(|ask| !self.answers.contains_key(ask.key()));
        asks
    }

    /// Answers an ask. The defaults of a form are filled in, and what does not fit the ask is refused.
    pub fn answer(&mut self, key: &str, answer: Answer) -> Result<(), AnswerError> {
        let not_asked = || AnswerError::NotAsked(key.to_owned());
        let raw = self.asks.get(key).ok_or_else(not_asked)?;
        let ask = Ask::read(key, raw, &self.asker());
        let unfit = |why| AnswerError::Unfit {
            key: key.to_owned(),
            why,
        };
        let answer = ask.take(answer).map_err(unfit)?;
        let answer = answer.to_json(ask.kind());
        self.answers.insert(key.to_owned(), answer);
        Ok(())
    }

    /// The request of the next round.
    pub(crate) fn request(&self) -> Request {
        let request = self.call.request();
        match &self.stage {
            Stage::Round { state } => {
                request.answered(self.answers.clone().into_iter().collect(), state.as_deref())
            }
            Stage::Visits { .. } | Stage::Task { .. } | Stage::Ended => request,
        }
    }

    /// The answers, as they are sent.
    pub(crate) fn answers(&self) -> &BTreeMap<String, Value> {
        &self.answers
    }

    /// The response to a round. Nothing of the round before is left over.
    fn advance(&mut self, asks: Map<String, Value>, stage: Stage) {
        self.round += 1;
        self.asks = asks;
        self.answers.clear();
        self.stage = stage;
        self.delivery = Delivery::NotSent;
    }

    /// The next round is asked for.
    pub(crate) fn next(&mut self, asks: Map<String, Value>, state: Option<String>) {
        self.advance(asks, Stage::Round { state });
    }

    /// A legacy server wants visits to URLs, and to be called again after them.
    pub(crate) fn visits(&mut self, asks: Map<String, Value>, message: &str) {
        // Their ids say nothing: some servers give them new ones each time.
        let targets = |asks: &Map<String, Value>| -> Vec<(String, Value)> {
            let asks = asks.iter();
            asks.map(|(key, ask)| (key.clone(), ask["params"]["url"].clone()))
                .collect()
        };
        let is_repeated =
            matches!(self.stage, Stage::Visits { .. }) && targets(&self.asks) == targets(&asks);
        let answers = std::mem::take(&mut self.answers);
        let message = message.to_owned();
        self.advance(
            asks,
            Stage::Visits {
                message,
                is_repeated,
            },
        );
        if is_repeated {
            // Nobody is sent to the same URL twice.
            self.answers = answers;
        }
    }

    /// The message with which a legacy server asked for visits to URLs, if one of them was not agreed to.
    pub(crate) fn not_visited(&self) -> Option<&str> {
        let Stage::Visits { message, .. } = &self.stage else {
            return None;
        };
        let is_visit = |answer: &Value| answer["action"] == "accept";
        (!self.answers.values().all(is_visit)).then_some(message)
    }

    /// Whether a legacy server can go on with it: it knows nothing of states and answers.
    pub(crate) fn suits_older(&self) -> bool {
        self.round == 0 || matches!(self.stage, Stage::Visits { .. })
    }

    /// The call has become a task.
    pub(crate) fn become_task(&mut self, id: String) {
        let settled = BTreeMap::new();
        self.advance(Map::new(), Stage::Task { id, settled });
    }

    /// What the task asks now, without what was answered before. Answers to what is asked no more are dropped. An error
    /// if something else is asked under a key that was answered.
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

    /// The answers are with the task.
    pub(crate) fn answers_sent(&mut self) {
        if let Stage::Task { settled, .. } = &mut self.stage {
            for key in std::mem::take(&mut self.answers).into_keys() {
                let asked = self.asks.shift_remove(&key);
                settled.insert(key, asked);
            }
        }
    }

    /// The task has ended: there is nothing to take up.
    pub(crate) fn end(&mut self) {
        self.stage = Stage::Ended;
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    /// Whether nothing is asked, or nothing new: the next round brings nothing that the server does not have.
    pub(crate) fn only_state(&self) -> bool {
        let is_repeated = matches!(
            self.stage,
            Stage::Visits {
                is_repeated: true,
                ..
            }
        );
        is_repeated || self.asks.is_empty()
    }

    /// The server is where it was before, unless it has gone on with the call since.
    pub(crate) fn moved_back(&mut self, former: Former) {
        if self.round == former.round {
            self.origin = former.origin;
        }
    }

    /// The server is somewhere else now. Returns where it was.
    pub(crate) fn moved_to(&mut self, mut origin: Origin) -> Former {
        origin.server = origin.server.or_else(|| self.origin.server.clone());
        Former {
            round: self.round,
            origin: std::mem::replace(&mut self.origin, origin),
        }
    }
}

/// The server of a call, up to a round.
#[derive(Debug)]
pub(crate) struct Former {
    round: u32,
    origin: Origin,
}

/// The state and the answers are secrets, and so may the arguments of a command be; they are left out.
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
