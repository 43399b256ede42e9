//! The requests in flight to a process, and the request that each message of the server belongs to.
//!
//! A legacy server does not say which call an ask belongs to. The newest call gets it.

use crate::error::ErrorKind;
use crate::transport::{Incoming, LinkError, LinkResult, Outgoing, Translate};
use refrain_wire::SUBSCRIPTION_ID_KEY;
use refrain_wire::client::{DISCOVER, ReadError};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

const QUEUE_MAX: usize = 1024;
/// Room in the queue for responses and errors, which are never dropped.
const RESERVED: usize = 64;
/// How many misaddressed responses are logged.
const MISADDRESSED_LOGGED: u32 = 10;

pub(super) enum Recipient {
    Request(u64),
    AllCalls,
    /// No request: the client handles it.
    Client,
    Nobody,
    /// A request that was never sent.
    UnknownRequest,
    /// The message is one of our own.
    Echo,
}

/// The requests in flight, and the state of the server.
#[derive(Default)]
pub(super) struct Routes {
    /// By id: the newest is the last.
    by_id: BTreeMap<u64, Route>,
    newest: u64,
    misaddressed: u32,
    /// Whether the server speaks 2026-07-28, and must not send requests.
    pub(super) is_modern: bool,
    pub(super) has_spoken: bool,
    /// The first line that was no message.
    pub(super) noise: Option<String>,
    /// Whether the server has closed its input, though it runs.
    pub(super) is_deaf: bool,
    pub(super) ended: Option<String>,
}

struct Route {
    queue: mpsc::Sender<LinkResult<Incoming>>,
    /// The asks of the server that are not answered yet.
    open_asks: Vec<Incoming>,
    is_call: bool,
    is_silent: bool,
    translate: Option<Translate>,
}

impl Routes {
    /// The recipient of a message. `id` is that of the request it answers.
    pub(super) fn recipient(&self, id: Option<&Value>, message: &Incoming) -> Recipient {
        match message {
            Incoming::Response(_) => self.answered(id),
            Incoming::Alive => Recipient::Nobody,
            Incoming::Notification { method, params } => match method.as_str() {
                // A legacy server cancels an ask; a modern one ends a subscription, and names it.
                "notifications/cancelled" if !self.is_modern => Recipient::AllCalls,
                // It does not name its call.
                "notifications/message" => self.newest_call(),
                _ => match named_request(params.as_deref()) {
                    Some(id) if !self.by_id.contains_key(&id) => Recipient::Nobody,
                    Some(id) => Recipient::Request(id),
                    None => Recipient::Client,
                },
            },
            Incoming::Request { method, .. } => match method.as_str() {
                DISCOVER | "initialize" => Recipient::Echo,
                _ if self.is_modern => {
                    tracing::warn!(method, "request from a modern server ignored");
                    Recipient::Nobody
                }
                "ping" => Recipient::Client,
                _ => self.newest_call(),
            },
        }
    }

    /// The request that a response answers. The error for an unreadable request has no id.
    fn answered(&self, id: Option<&Value>) -> Recipient {
        match id.filter(|id| !id.is_null()) {
            None => self.only().map_or(Recipient::Nobody, Recipient::Request),
            Some(id) => match id.as_u64() {
                Some(id) if id <= self.newest => Recipient::Request(id),
                _ => Recipient::UnknownRequest,
            },
        }
    }

    /// The request that waits for a response, if there is exactly one.
    fn only(&self) -> Option<u64> {
        let mut waiting = self.by_id.iter().filter(|(_, route)| !route.is_silent);
        match (waiting.next(), waiting.next()) {
            (Some((only, _)), None) => Some(*only),
            _ => None,
        }
    }

    fn newest_call(&self) -> Recipient {
        let mut newest_first = self.by_id.iter().rev();
        let newest = newest_first.find(|(_, route)| route.is_call);
        newest.map_or(Recipient::Client, |(id, _)| Recipient::Request(*id))
    }

    /// Adds a request. Its messages come out of the receiver.
    pub(super) fn open(
        &mut self,
        id: u64,
        message: &Outgoing,
    ) -> mpsc::Receiver<LinkResult<Incoming>> {
        let (queue, messages) = mpsc::channel(QUEUE_MAX + RESERVED);
        let route = Route {
            queue,
            open_asks: Vec::new(),
            is_call: message.is_call,
            is_silent: message.is_silent,
            translate: message.translate.clone(),
        };
        self.newest = self.newest.max(id);
        self.by_id.insert(id, route);
        messages
    }

    /// Removes a request. Returns the asks that were not answered.
    pub(super) fn close(&mut self, id: u64) -> Vec<Incoming> {
        let route = self.by_id.remove(&id);
        route.map(|route| route.open_asks).unwrap_or_default()
    }

    /// The server has ended: no request gets more messages.
    pub(super) fn end(&mut self, status: String) {
        self.ended.get_or_insert(status);
        self.by_id.clear();
    }

    /// A response has the id of no request. A single waiting request fails.
    pub(super) fn fail_misaddressed(&mut self) {
        if self.by_id.is_empty() {
            return;
        }
        self.misaddressed = self.misaddressed.saturating_add(1);
        if self.misaddressed <= MISADDRESSED_LOGGED {
            tracing::warn!("response with the id of no request");
        }
        if let Some(id) = self.only() {
            self.fail(id, ReadError::OtherRequest.into());
        }
    }

    pub(super) fn translation_of(&self, line: &str) -> Option<Translate> {
        let mut routes = self.by_id.values();
        routes.find(|route| route.translate.is_some())?;
        self.by_id.get(&answered_id(line)?)?.translate.clone()
    }

    pub(super) fn fail_all(&mut self, why: impl Fn() -> ErrorKind) {
        for route in self.by_id.values_mut() {
            route.fail(why());
        }
    }

    pub(super) fn fail(&mut self, id: u64, why: ErrorKind) {
        if let Some(route) = self.by_id.get_mut(&id) {
            route.fail(why);
        }
    }

    /// Fails the request that an invalid line answers. Returns the error if there is none.
    pub(super) fn fail_answered(&mut self, line: &str, error: ReadError) -> Result<(), ReadError> {
        match answered_id(line).and_then(|id| self.by_id.get_mut(&id)) {
            Some(route) => route.fail(error.into()),
            None => return Err(error),
        }
        Ok(())
    }

    /// An ask of the server has been answered, or was cancelled.
    pub(super) fn settled(&mut self, ask: &Value) {
        for route in self.by_id.values_mut() {
            let is_other = |open: &_| !matches!(open, Incoming::Request { id, .. } if id == ask);
            route.open_asks.retain(is_other);
        }
    }

    pub(super) fn push_to_calls(&mut self, message: &Incoming) {
        for route in self.by_id.values_mut().filter(|route| route.is_call) {
            route.push(message.clone());
        }
    }

    pub(super) fn push(&mut self, id: u64, message: Incoming) {
        if let Some(route) = self.by_id.get_mut(&id) {
            route.push(message);
        }
    }
}

impl Route {
    fn push(&mut self, message: Incoming) {
        if self.queue.capacity() <= RESERVED && !matches!(message, Incoming::Response(_)) {
            tracing::warn!("message queue of a request is full; message dropped");
            return;
        }
        if let Incoming::Request { .. } = message {
            self.open_asks.push(message.clone());
        }
        let _ = self.queue.try_send(Ok(message));
    }

    fn fail(&mut self, why: ErrorKind) {
        let _ = self.queue.try_send(Err(LinkError::Final(why)));
    }
}

/// The id of the request that a line answers, even if the rest is invalid.
fn answered_id(line: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Answer {
        id: u64,
        method: Option<IgnoredAny>,
    }
    let answer: Answer = serde_json::from_str(line).ok()?;
    answer.method.is_none().then_some(answer.id)
}

/// The request that a notification names.
fn named_request(params: Option<&RawValue>) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        progress_token: Option<Value>,
        request_id: Option<Value>,
        #[serde(rename = "_meta", default)]
        meta: BTreeMap<String, Value>,
    }
    let params: Params = serde_json::from_str(params?.get()).ok()?;
    let subscription = params.meta.get(SUBSCRIPTION_ID_KEY);
    let id = params.progress_token.as_ref().or(subscription);
    let id = id.or(params.request_id.as_ref())?;
    id.as_u64().or_else(|| id.as_str()?.parse().ok())
}
