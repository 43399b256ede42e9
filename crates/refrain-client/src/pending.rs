//! A call that waits.

use crate::ask::{Answer, Ask, Asker, without_arguments};
use crate::call::Call;
use crate::dialect::Dialect;
use crate::ordered::Ordered;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The form of the text that this version writes.
const FORMAT: u32 = 1;

/// A call that waits: for answers, to be sent again, or for a task to end.
///
/// It is a value. Serialise it, keep it for days, send it to another process, and take it up there with
/// [`Client::resume`](crate::Client::resume) or [`Client::finish`](crate::Client::finish). What the server needs to go
/// on is in it, so keep it as you would keep a password: who has it can answer in your place.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PendingCall {
    #[serde(deserialize_with = "known_format")]
    format: u32,
    /// Where the server was: its URL, or the command that was started.
    address: String,
    /// The server's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// What was spoken with it, if that was not the newest that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dialect: Option<Dialect>,
    call: Call,
    call_id: String,
    /// How many responses there have been.
    round: u32,
    #[serde(default, skip_serializing_if = "Ordered::is_empty")]
    asks: Ordered<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    answers: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    /// The keys of a task's asks whose answers are with the server.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    answered: BTreeSet<String>,
    /// What was asked under those keys, as far as it was seen.
    #[serde(skip)]
    settled: BTreeMap<String, Value>,
    /// The task has ended.
    #[serde(skip)]
    is_over: bool,
    /// The asks came with an error of an older server, and this is its message: the server is called again without
    /// the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by_error: Option<String>,
    /// The same error came again: somebody is still on the way to the URLs.
    #[serde(skip)]
    is_asked_again: bool,
    /// The next round was sent, and nobody knows what came of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unclear: bool,
    /// The call was made here, so that it is known whether it was sent.
    #[serde(skip)]
    is_new: bool,
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
        why: String,
    },
}

impl AnswerError {
    /// What is wrong, without the key.
    pub(crate) fn why(self) -> String {
        match self {
            Self::NotAsked(_) => "nothing of this key is asked".to_owned(),
            Self::Unfit { why, .. } => why,
        }
    }
}

impl PendingCall {
    pub(crate) fn new(
        call: Call,
        call_id: String,
        address: String,
        server: Option<String>,
    ) -> Self {
        Self {
            format: FORMAT,
            address,
            server,
            dialect: None,
            call,
            call_id,
            round: 0,
            asks: Ordered::default(),
            answers: BTreeMap::new(),
            state: None,
            task: None,
            answered: BTreeSet::new(),
            settled: BTreeMap::new(),
            is_over: false,
            by_error: None,
            is_asked_again: false,
            unclear: false,
            is_new: true,
        }
    }

    /// The same call, made in a dialect that was chosen.
    pub(crate) fn spoken_in(self, dialect: Option<Dialect>) -> Self {
        Self { dialect, ..self }
    }

    /// A task of which nothing but the id is known, at the server that
    /// [`Client::finish`](crate::Client::finish) is called for. The id stands for the name of what was called.
    pub fn of_task(id: impl Into<String>) -> Self {
        let id = id.into();
        let mut pending = Self::new(Call::tool(&id), String::new(), String::new(), None);
        pending.become_task(id);
        pending
    }

    /// What was called.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Where the server was: its URL, or the command that was started.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The dialect that was spoken, if the client was told to: it takes one of the same to go on.
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
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
        let is_stored = !self.is_new && self.task.is_none();
        self.unclear || is_stored && self.unanswered().is_empty()
    }

    /// Whether anybody knows what came of the next round.
    pub(crate) fn set_unclear(&mut self, unclear: bool) {
        self.unclear = unclear;
    }

    /// The id of the task that the call has become.
    pub fn task_id(&self) -> Option<&str> {
        self.task.as_deref()
    }

    /// Who asks.
    pub fn asker(&self) -> Arc<Asker> {
        Arc::new(Asker {
            server: self.server.clone(),
            address: self.address.clone(),
            kind: self.call.kind(),
            target: self.call.target().to_owned(),
        })
    }

    /// Everything that is asked, in the server's order.
    pub fn asks(&self) -> Vec<Ask> {
        let asker = self.asker();
        let read = |(key, raw): &(String, Box<RawValue>)| Ask::read(key, raw, &asker);
        self.asks.0.iter().map(read).collect()
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

    /// The params of the next round.
    pub(crate) fn params(&self) -> Map<String, Value> {
        let mut params = self.call.params();
        if self.by_error.is_some() {
            return params;
        }
        if !self.answers.is_empty() {
            let answers = Map::from_iter(self.answers.clone());
            params.insert("inputResponses".to_owned(), answers.into());
        }
        if let Some(state) = &self.state {
            params.insert("requestState".to_owned(), state.as_str().into());
        }
        params
    }

    /// The answers, as they are sent.
    pub(crate) fn answers(&self) -> &BTreeMap<String, Value> {
        &self.answers
    }

    /// Something else is asked now. Nothing of the round before is left over.
    pub(crate) fn next(&mut self, asks: Ordered<Box<RawValue>>, state: Option<String>) {
        self.round += 1;
        self.asks = asks;
        self.answers.clear();
        self.state = state;
        self.by_error = None;
        self.is_asked_again = false;
        self.unclear = false;
    }

    /// An older server asks for visits to URLs, and to be called again after them.
    pub(crate) fn next_by_error(&mut self, asks: Ordered<Box<RawValue>>, message: &str) {
        let same = |(before, now): (&(_, Box<RawValue>), &(_, Box<RawValue>))| {
            before.0 == now.0 && url_of(&before.1) == url_of(&now.1)
        };
        let is_asked_again = self.by_error.is_some()
            && self.asks.0.len() == asks.0.len()
            && self.asks.0.iter().zip(&asks.0).all(same);
        let answers = std::mem::take(&mut self.answers);
        self.next(asks, None);
        self.by_error = Some(message.to_owned());
        if is_asked_again {
            // Nobody is sent to the same URL twice.
            self.answers = answers;
            self.is_asked_again = true;
        }
    }

    /// What an older server said when it asked for visits to URLs, if one of them was not agreed to.
    pub(crate) fn not_visited(&self) -> Option<&str> {
        let message = self.by_error.as_deref()?;
        let is_visit = |answer: &Value| answer["action"] == "accept";
        (!self.answers.values().all(is_visit)).then_some(message)
    }

    /// Whether an older server can go on with it: it knows nothing of states and answers.
    pub(crate) fn suits_older(&self) -> bool {
        self.round == 0 || self.by_error.is_some()
    }

    /// The call has become a task.
    pub(crate) fn become_task(&mut self, id: String) {
        self.next(Ordered::default(), None);
        self.task = Some(id);
    }

    /// What the task asks now, without what was answered before. Answers to what is asked no more are dropped. Gives the
    /// key, if something else is asked under one that was answered: a server must not do that.
    pub(crate) fn task_asks(&mut self, mut asks: Ordered<Box<RawValue>>) -> Result<(), String> {
        for (key, ask) in &asks.0 {
            if self.answered.contains(key) && self.settle(key, ask) != value_of(ask) {
                return Err(key.clone());
            }
        }
        asks.0.retain(|(key, _)| !self.answered.contains(key));
        self.answers.retain(|key, _| asks.get(key).is_some());
        self.asks = asks;
        Ok(())
    }

    /// Remembers what is asked under a key that was answered. Gives what was.
    fn settle(&mut self, key: &str, ask: &RawValue) -> Value {
        let settled = self.settled.entry(key.to_owned());
        settled.or_insert_with(|| value_of(ask)).clone()
    }

    /// The answers are with the server.
    pub(crate) fn answers_sent(&mut self) {
        for key in std::mem::take(&mut self.answers).into_keys() {
            if let Some(ask) = self.asks.get(&key).cloned() {
                self.settle(&key, &ask);
            }
            self.asks.0.retain(|(asked, _)| *asked != key);
            self.answered.insert(key);
        }
    }

    /// The task has ended: there is nothing to take up.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether nothing is asked, or nothing new: the next round brings nothing that the server does not have.
    pub(crate) fn only_state(&self) -> bool {
        self.asks.is_empty() || self.is_asked_again
    }

    /// The server is where it was before, unless it has gone on with the call since.
    pub(crate) fn moved_back(&mut self, former: Former) {
        if self.round == former.round {
            self.address = former.address;
            self.server = former.server;
            self.dialect = former.dialect;
        }
    }

    /// The server is somewhere else now. Gives where it was.
    pub(crate) fn moved_to(
        &mut self,
        address: &str,
        server: Option<&str>,
        dialect: Option<Dialect>,
    ) -> Former {
        let former = Former {
            round: self.round,
            address: std::mem::replace(&mut self.address, address.to_owned()),
            server: self.server.clone(),
            dialect: std::mem::replace(&mut self.dialect, dialect),
        };
        self.server = server.map(str::to_owned).or_else(|| self.server.take());
        former
    }
}

/// Where the server of a call was, up to a round.
#[derive(Debug)]
pub(crate) struct Former {
    round: u32,
    address: String,
    server: Option<String>,
    dialect: Option<Dialect>,
}

/// The state and the answers are secrets, and so may the arguments of a command be; they are left out.
impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asks: Vec<_> = self.asks.0.iter().map(|(key, _)| key).collect();
        f.debug_struct("PendingCall")
            .field("address", &without_arguments(&self.address))
            .field("kind", &self.call.kind())
            .field("target", &self.call.target())
            .field("round", &self.round)
            .field("asks", &asks)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

/// Where an ask for a visit leads. Its id says nothing: some servers give it a new one each time.
fn url_of(ask: &RawValue) -> Option<String> {
    let url = &value_of(ask)["params"]["url"];
    url.as_str().map(str::to_owned)
}

/// An ask, without its order and its blanks.
fn value_of(ask: &RawValue) -> Value {
    serde_json::from_str(ask.get()).unwrap_or_default()
}

fn known_format<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let format = u32::deserialize(deserializer)?;
    if format == FORMAT {
        return Ok(format);
    }
    Err(serde::de::Error::custom(format_args!(
        "a pending call of format {format} cannot be read by this version, which reads format {FORMAT}"
    )))
}
