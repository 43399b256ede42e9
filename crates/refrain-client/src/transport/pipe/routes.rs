//! Which request a message of the server's belongs to, where all of them come on one stream.
//!
//! What an older server asks does not say to which call it belongs. It is taken to belong to the newest.

use crate::error::ErrorKind;
use crate::transport::{Incoming, LinkError, Outgoing, Translate};
use refrain_wire::SUBSCRIPTION_ID_KEY;
use refrain_wire::client::{DISCOVER, ReadError};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

/// How many messages are kept for a request that does not ask for them.
const KEPT: usize = 1024;

/// How many responses to nothing are told of.
const UNASKED_TOLD: u32 = 10;

/// Where a message belongs.
pub(super) enum Way {
    /// To the request of this id.
    To(u64),
    /// To all calls.
    All,
    /// To no request.
    Stray,
    /// It is not heard.
    Nobody,
    /// To no request that there has ever been.
    Unasked,
    /// To nobody but the server: it is our own.
    Back,
}

/// The requests under way, and what is known of the server.
#[derive(Default)]
pub(super) struct Routes {
    /// The requests under way, by id: the newest is the last.
    by_id: BTreeMap<u64, Route>,
    /// The id of the newest request there has been.
    newest: u64,
    /// How many responses were to no request that there has ever been.
    unasked: u32,
    /// Whether the server is known to be modern, and must not send requests.
    pub(super) is_modern: bool,
    /// Whether the server has ever sent a message.
    pub(super) has_spoken: bool,
    /// The first line that was no message.
    pub(super) noise: Option<String>,
    /// Whether the server has closed its input, though it goes on.
    pub(super) is_deaf: bool,
    /// How the server ended.
    pub(super) ended: Option<String>,
}

/// Where the messages for one request go.
pub(super) struct Route {
    ready: VecDeque<Result<Incoming, LinkError>>,
    /// What the server asked and somebody is to answer.
    open: Vec<Incoming>,
    pub(super) heard: Arc<Notify>,
    is_call: bool,
    /// Whether it is answered only if it is refused.
    is_silent: bool,
    translate: Option<Translate>,
}

impl Routes {
    /// Where a message belongs. The id is that of the request it answers.
    pub(super) fn way(&self, id: Option<&Value>, message: &Incoming) -> Way {
        match message {
            Incoming::Response(_) => self.answered(id),
            Incoming::Alive => Way::Nobody,
            Incoming::Notification { method, params } => match method.as_str() {
                // An ask is withdrawn: the call that has it knows. A modern server ends a subscription, and names it.
                "notifications/cancelled" if !self.is_modern => Way::All,
                // It does not say to which call it belongs.
                "notifications/message" => self.newest_call(),
                _ => match Mark::read(params.as_deref()) {
                    Some(id) if !self.by_id.contains_key(&id) => Way::Nobody,
                    Some(id) => Way::To(id),
                    None => Way::Stray,
                },
            },
            Incoming::Request { method, .. } => match method.as_str() {
                DISCOVER | "initialize" => Way::Back,
                _ if self.is_modern => {
                    tracing::warn!(method, "the server must not send requests; passed over");
                    Way::Nobody
                }
                "ping" => Way::Stray,
                _ => self.newest_call(),
            },
        }
    }

    /// Which request a response answers. The response to one that could not be read has no id, and one that nobody waits
    /// for any longer may be answered all the same.
    fn answered(&self, id: Option<&Value>) -> Way {
        match id {
            None | Some(Value::Null) => self.only().map_or(Way::Nobody, Way::To),
            Some(id) => match id.as_u64() {
                Some(id) if id <= self.newest => Way::To(id),
                _ => Way::Unasked,
            },
        }
    }

    /// The request that waits for a response, if there is but one.
    fn only(&self) -> Option<u64> {
        let mut waiting = self.by_id.iter().filter(|(_, route)| !route.is_silent);
        match (waiting.next(), waiting.next()) {
            (Some((only, _)), None) => Some(*only),
            _ => None,
        }
    }

    /// A request is under way.
    pub(super) fn open(&mut self, id: u64, route: Route) {
        self.newest = self.newest.max(id);
        self.by_id.insert(id, route);
    }

    /// Somebody asks for what there is for a request.
    pub(super) fn get(&mut self, id: u64) -> Option<&mut Route> {
        self.by_id.get_mut(&id)
    }

    /// Nobody waits for a request any longer.
    pub(super) fn close(&mut self, id: u64) -> Option<Route> {
        self.by_id.remove(&id)
    }

    /// The server has ended: whoever waits looks why.
    pub(super) fn wake_all(&self) {
        for route in self.by_id.values() {
            route.heard.notify_one();
        }
    }

    /// There is a response to no request that there has ever been. If only one waits, it waits in vain.
    pub(super) fn unasked(&mut self) {
        if self.by_id.is_empty() {
            return;
        }
        self.unasked = self.unasked.saturating_add(1);
        if self.unasked <= UNASKED_TOLD {
            tracing::warn!("a response of the server's has the id of no request");
        }
        if let Some(id) = self.only() {
            self.fail(id, ReadError::OtherRequest.into());
        }
    }

    /// How the reply to a request is translated, if it is.
    pub(super) fn translation_of(&self, line: &str) -> Option<Translate> {
        self.by_id
            .values()
            .find(|route| route.translate.is_some())?;
        self.by_id.get(&answered_id(line)?)?.translate.clone()
    }

    /// Nobody gets an answer.
    pub(super) fn fail_all(&mut self, why: impl Fn() -> ErrorKind) {
        for route in self.by_id.values_mut() {
            route.fail(why());
        }
    }

    /// One request gets no answer.
    pub(super) fn fail(&mut self, id: u64, why: ErrorKind) {
        if let Some(route) = self.by_id.get_mut(&id) {
            route.fail(why);
        }
    }

    /// The request that this line answers fails, since the line cannot be read. Returns the error if there is none.
    pub(super) fn fail_answered(&mut self, line: &str, error: ReadError) -> Result<(), ReadError> {
        let route = answered_id(line).and_then(|id| self.by_id.get_mut(&id));
        match route {
            Some(route) => route.fail(error.into()),
            None => return Err(error),
        }
        Ok(())
    }

    /// Something that the server asked has its answer, or wants none any more.
    pub(super) fn settled(&mut self, ask: &Value) {
        for route in self.by_id.values_mut() {
            let is_other = |open: &_| !matches!(open, Incoming::Request { id, .. } if id == ask);
            route.open.retain(is_other);
        }
    }

    /// Tells all calls.
    pub(super) fn push_to_calls(&mut self, message: &Incoming) {
        let Incoming::Notification { method, params } = message else {
            return;
        };
        for route in self.by_id.values_mut().filter(|route| route.is_call) {
            route.push(Incoming::Notification {
                method: method.clone(),
                params: params.clone(),
            });
        }
    }

    /// Tells one request, if it is still under way.
    pub(super) fn push(&mut self, id: u64, message: Incoming) {
        if let Some(route) = self.by_id.get_mut(&id) {
            route.push(message);
        }
    }

    fn newest_call(&self) -> Way {
        let mut newest_first = self.by_id.iter().rev();
        let newest = newest_first.find(|(_, route)| route.is_call);
        newest.map_or(Way::Stray, |(id, _)| Way::To(*id))
    }
}

impl Route {
    pub(super) fn new(heard: Arc<Notify>, message: &Outgoing) -> Self {
        Self {
            ready: VecDeque::new(),
            open: Vec::new(),
            heard,
            is_call: message.is_call,
            is_silent: message.is_silent,
            translate: message.translate.clone(),
        }
    }

    fn push(&mut self, message: Incoming) {
        if self.ready.len() >= KEPT && !matches!(message, Incoming::Response(_)) {
            tracing::warn!("nobody hears what the server says; some of it is dropped");
            return;
        }
        self.ready.push_back(Ok(message));
        self.heard.notify_one();
    }

    fn fail(&mut self, why: ErrorKind) {
        self.ready.push_back(Err(LinkError::Final(why)));
        self.heard.notify_one();
    }

    /// The next message. What is asked in it stays open.
    pub(super) fn pop(&mut self) -> Option<Result<Incoming, LinkError>> {
        let message = self.ready.pop_front()?;
        if let Ok(Incoming::Request { id, method, params }) = &message {
            self.open.push(Incoming::Request {
                id: id.clone(),
                method: method.clone(),
                params: params.clone(),
            });
        }
        Some(message)
    }

    /// What the server asked and nobody has answered.
    pub(super) fn into_open(self) -> impl Iterator<Item = Incoming> {
        let unheard = self.ready.into_iter().filter_map(Result::ok);
        let unheard = unheard.filter(|message| matches!(message, Incoming::Request { .. }));
        self.open.into_iter().chain(unheard)
    }

    pub(super) fn is_answered(&self) -> bool {
        let is_response = |message: &_| matches!(message, Ok(Incoming::Response(_)));
        self.ready.iter().any(is_response)
    }
}

/// The id of the request that a line answers, whatever else it is.
fn answered_id(line: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Answer {
        id: u64,
        method: Option<IgnoredAny>,
    }
    let answer: Answer = serde_json::from_str(line).ok()?;
    answer.method.is_none().then_some(answer.id)
}

/// What says to which request a notification belongs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    progress_token: Option<Value>,
    request_id: Option<Value>,
    #[serde(rename = "_meta", default)]
    meta: BTreeMap<String, Value>,
}

impl Mark {
    fn read(params: Option<&RawValue>) -> Option<u64> {
        let mark: Self = serde_json::from_str(params?.get()).ok()?;
        let subscription = mark.meta.get(SUBSCRIPTION_ID_KEY);
        let id = mark.progress_token.as_ref().or(subscription);
        let id = id.or(mark.request_id.as_ref())?;
        id.as_u64().or_else(|| id.as_str()?.parse().ok())
    }
}
