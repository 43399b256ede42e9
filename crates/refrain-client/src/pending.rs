//! [`PendingCall`]: the state machine of a call between its rounds.
//!
//! | stage | waits for | next message |
//! | --- | --- | --- |
//! | round | answers to the asks, if any | the call with the answers and the request state |
//! | visits | visits to the URLs in a legacy server's error | the unchanged call |
//! | task | the end of the task | answers to the task |
//! | ended | nothing: the task has ended | none |

use crate::ask::{AskAnswer, Asker, IncomingAsk, InvalidAnswer, without_arguments};
use crate::call::CallSpec;
use crate::dialect::Dialect;
use crate::handlers::AnswerFailure;
use refrain_wire::client::{ReadError, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use stored::StoredPendingCall;

mod stored;

/// A call that waits for answers, for its next round, or for a task.
///
/// Serialize it, store it for days, and resume it in any process with [`Client::resume`](crate::Client::resume) or
/// [`Client::finish`](crate::Client::finish). Store it as a secret: anyone who has it can answer for you.
///
/// ```no_run
/// # async fn run(client: refrain_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use refrain_client::{AskAnswer, CallSpec, PendingCall, RoundOutcome};
///
/// if let RoundOutcome::Pending(pending) = client.start(CallSpec::tool("greet")).await? {
///     let stored = serde_json::to_string(&pending)?;
///     // Later, maybe in another process:
///     let mut pending: PendingCall = serde_json::from_str(&stored)?;
///     for ask in pending.unanswered() {
///         pending.answer(ask.key(), AskAnswer::Decline)?;
///     }
///     let result = client.finish(pending).await?;
///     println!("{result}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "StoredPendingCall", into = "StoredPendingCall")]
pub struct PendingCall {
    origin: CallOrigin,
    call: CallSpec,
    call_id: String,
    round: u32,
    delivery: RoundDelivery,
    asks: Map<String, Value>,
    pub(crate) answers: BTreeMap<String, Value>,
    stage: CallStage,
}

#[derive(Clone, Default)]
pub(crate) struct CallOrigin {
    pub(crate) address: String,
    pub(crate) server: Option<String>,
    pub(crate) dialect: Option<Dialect>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RoundDelivery {
    /// The next round was certainly not executed.
    NotSent,
    /// The next round was sent, and its response was lost.
    Unknown,
    /// The call was loaded from storage without open asks, so the process that stored it may have sent its next round.
    Restored,
}

#[derive(Clone)]
enum CallStage {
    /// `state` is the request state for the next round.
    Round {
        state: Option<String>,
    },
    /// A legacy server requires visits to URLs, and then the same call again.
    Visits {
        message: String,
        /// Whether the server repeated the error, because the person has not finished the visit.
        is_repeated: bool,
    },
    Task {
        id: String,
        /// The keys whose answers were sent, with the hash of each ask. A call from storage has no hashes.
        answered: BTreeMap<String, Option<u64>>,
    },
    Ended,
}

/// Why a [`PendingCall`] rejected an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerRejection {
    /// There is no ask with this key.
    #[error("no ask has the key {0:?}")]
    UnknownKey(String),
    /// The answer does not match the ask.
    #[error("invalid answer to ask {key:?}: {source}")]
    Invalid {
        /// The key of the ask.
        key: String,
        /// The reason.
        source: InvalidAnswer,
    },
}

impl PendingCall {
    pub(crate) fn new(call: CallSpec, call_id: String, origin: CallOrigin) -> Self {
        Self {
            origin,
            call,
            call_id,
            round: 0,
            delivery: RoundDelivery::NotSent,
            asks: Map::new(),
            answers: BTreeMap::new(),
            stage: CallStage::Round { state: None },
        }
    }

    /// The call of an existing task, by the task's id. The id also serves as the name of the tool.
    pub fn of_task(id: impl Into<String>) -> Self {
        let id = id.into();
        let mut pending = Self::new(CallSpec::tool(&id), String::new(), CallOrigin::default());
        pending.become_task(id);
        pending
    }

    /// The call.
    pub fn call(&self) -> &CallSpec {
        &self.call
    }

    /// The server's URL, or the command that was started.
    pub fn address(&self) -> &str {
        &self.origin.address
    }

    /// The configured dialect. Only a client with the same dialect can resume the call.
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

    /// Whether the server may already have executed the next round: it was sent, and its response was lost. Also true for
    /// a call that was loaded from storage without open asks.
    pub fn is_delivery_unknown(&self) -> bool {
        self.delivery != RoundDelivery::NotSent
    }

    pub(crate) fn set_delivery_unknown(&mut self, unknown: bool) {
        self.delivery = if unknown {
            RoundDelivery::Unknown
        } else {
            RoundDelivery::NotSent
        };
    }

    /// The id of the task, if the call has become one.
    pub fn task_id(&self) -> Option<&str> {
        match &self.stage {
            CallStage::Task { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The origin of the asks of this call.
    pub fn asker(&self) -> Arc<Asker> {
        Arc::new(Asker {
            server: self.origin.server.clone(),
            address: self.origin.address.clone(),
            kind: self.call.kind(),
            target: self.call.target().to_owned(),
        })
    }

    pub(crate) fn raw_asks(&self) -> &Map<String, Value> {
        &self.asks
    }

    /// All asks, in the server's order.
    pub fn asks(&self) -> Vec<IncomingAsk> {
        let asker = self.asker();
        let read = |(key, raw): (&String, &Value)| IncomingAsk::read(key, raw, &asker);
        self.asks.iter().map(read).collect()
    }

    /// The asks without an answer, in the server's order.
    pub fn unanswered(&self) -> Vec<IncomingAsk> {
        let mut asks = self.asks();
        asks.retain(|ask| !self.answers.contains_key(ask.key()));
        asks
    }

    /// Answers an ask, after filling in the defaults of a form. Rejects an answer that does not match the ask.
    pub fn answer(&mut self, key: &str, answer: AskAnswer) -> Result<(), AnswerRejection> {
        let unknown = || AnswerRejection::UnknownKey(key.to_owned());
        let raw = self.asks.get(key).ok_or_else(unknown)?;
        let ask = IncomingAsk::read(key, raw, &self.asker());
        let invalid = |source| AnswerRejection::Invalid {
            key: key.to_owned(),
            source,
        };
        let answer = ask.check(answer).map_err(invalid)?.to_json(ask.kind());
        self.answers.insert(key.to_owned(), answer);
        Ok(())
    }

    pub(crate) fn record_answer(
        &mut self,
        key: &str,
        answer: Result<AskAnswer, AnswerFailure>,
    ) -> Result<(), AnswerFailure> {
        self.answer(key, answer?).map_err(|error| match error {
            AnswerRejection::Invalid { source, .. } => AnswerFailure::temporary(source.to_string()),
            error => AnswerFailure::temporary(error.to_string()),
        })
    }

    pub(crate) fn request(&self) -> Request {
        let request = self.call.request();
        match &self.stage {
            CallStage::Round { state } => {
                request.with_answers(self.answers.clone().into_iter().collect(), state.as_deref())
            }
            CallStage::Visits { .. } | CallStage::Task { .. } | CallStage::Ended => request,
        }
    }

    /// Enters the next stage, and clears the asks and answers of the last round.
    fn advance(&mut self, asks: Map<String, Value>, stage: CallStage) {
        self.round += 1;
        self.asks = asks;
        self.answers.clear();
        self.stage = stage;
        self.delivery = RoundDelivery::NotSent;
    }

    pub(crate) fn next_round(&mut self, asks: Map<String, Value>, state: Option<String>) {
        self.advance(asks, CallStage::Round { state });
    }

    pub(crate) fn require_visits(&mut self, asks: Map<String, Value>, message: String) {
        // Compared by URL, because some servers use new ids each time.
        let urls = |asks: &Map<String, Value>| -> Vec<(String, Value)> {
            let asks = asks.iter();
            asks.map(|(key, ask)| (key.clone(), ask["params"]["url"].clone()))
                .collect()
        };
        let is_repeated =
            matches!(self.stage, CallStage::Visits { .. }) && urls(&self.asks) == urls(&asks);
        let answers = std::mem::take(&mut self.answers);
        let stage = CallStage::Visits {
            message,
            is_repeated,
        };
        self.advance(asks, stage);
        if is_repeated {
            // Do not send the person to the same URL twice.
            self.answers = answers;
        }
    }

    /// The message of a legacy server's error, if the person declined one of its URLs.
    pub(crate) fn declined_visit(&self) -> Option<&str> {
        let CallStage::Visits { message, .. } = &self.stage else {
            return None;
        };
        let is_visit = |answer: &Value| answer["action"] == "accept";
        (!self.answers.values().all(is_visit)).then_some(message)
    }

    /// Whether a legacy server can resume the call: it accepts neither request state nor answers.
    pub(crate) fn is_legacy_compatible(&self) -> bool {
        self.round == 0 || matches!(self.stage, CallStage::Visits { .. })
    }

    pub(crate) fn become_task(&mut self, id: String) {
        let answered = BTreeMap::new();
        self.advance(Map::new(), CallStage::Task { id, answered });
    }

    /// Sets the open asks of the task, and drops answers to withdrawn asks. Fails if the task reuses an answered key for
    /// another ask.
    pub(crate) fn set_task_asks(&mut self, mut asks: Map<String, Value>) -> Result<(), ReadError> {
        if let CallStage::Task { answered, .. } = &mut self.stage {
            for (key, ask) in &asks {
                if let Some(before) = answered.get_mut(key)
                    && *before.get_or_insert_with(|| hash(ask)) != hash(ask)
                {
                    let why = format!("the task reuses the key {key:?} of an answered ask");
                    return Err(ReadError::Unexpected(why));
                }
            }
            asks.retain(|key, _| !answered.contains_key(key));
        }
        self.answers.retain(|key, _| asks.contains_key(key));
        self.asks = asks;
        Ok(())
    }

    pub(crate) fn mark_answers_sent(&mut self) {
        if let CallStage::Task { answered, .. } = &mut self.stage {
            for key in std::mem::take(&mut self.answers).into_keys() {
                let ask = self.asks.shift_remove(&key);
                answered.insert(key, ask.as_ref().map(hash));
            }
        }
    }

    /// The number of asks of the task whose answers were sent.
    pub(crate) fn answered_count(&self) -> usize {
        match &self.stage {
            CallStage::Task { answered, .. } => answered.len(),
            _ => 0,
        }
    }

    pub(crate) fn end(&mut self) {
        self.stage = CallStage::Ended;
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.stage, CallStage::Ended)
    }

    /// Whether the last reply contains no new ask, so that the client pauses before the next round.
    pub(crate) fn has_nothing_new(&self) -> bool {
        matches!(
            self.stage,
            CallStage::Visits {
                is_repeated: true,
                ..
            }
        ) || self.asks.is_empty()
    }

    /// Sets the origin. Returns the former one and the current round, for [`move_back`](Self::move_back).
    pub(crate) fn move_to(&mut self, mut origin: CallOrigin) -> (u32, CallOrigin) {
        origin.server = origin.server.or_else(|| self.origin.server.clone());
        (self.round, std::mem::replace(&mut self.origin, origin))
    }

    /// Restores the former origin, unless the new server has made a round.
    pub(crate) fn move_back(&mut self, (round, origin): (u32, CallOrigin)) {
        if self.round == round {
            self.origin = origin;
        }
    }
}

fn hash(ask: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    ask.hash(&mut hasher);
    hasher.finish()
}

/// Omits the request state, the answers and the arguments of a command: they may be secrets.
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
