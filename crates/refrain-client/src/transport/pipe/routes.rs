//! Routing of the server's messages to the requests in flight.
//!
//! A legacy server does not say which call an ask belongs to. The ask goes to the newest call if all calls in flight belong
//! to one [scoped](crate::Client::scoped) client. Otherwise it is handled like an ask outside of
//! calls.

use crate::error::ErrorKind;
use crate::notifications::related_request;
use crate::transport::{
    IncomingMessage, LinkError, LinkResponse, LinkResult, OutgoingMessage, ReplyTranslator,
};
use refrain_wire::client::{DISCOVER, ReadError};
use refrain_wire::limited_event;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The maximum number of notifications and asks that are queued for one request of the client.
const QUEUE_MAX: usize = 1024;
/// The maximum size of the notifications and asks that are queued for one request of the client, in bytes. A larger message
/// needs an empty queue.
const QUEUE_SIZE_MAX: usize = 4 * 1024 * 1024;
/// Queue slots reserved for responses and errors, which are never dropped.
const RESERVED: usize = 64;
const UNKNOWN_IDS_LOGGED: u32 = 10;

#[derive(Clone, Copy)]
pub(super) enum Recipient {
    Request(u64),
    AllCalls,
    /// The client itself, because the message belongs to no request.
    Client,
    /// The message is ignored.
    None,
    /// A request that was never sent.
    UnknownRequest,
    /// The server echoes a message of the client.
    Echo,
}

#[derive(Default)]
pub(super) struct Router {
    /// By id, so the newest is the last.
    by_id: BTreeMap<u64, PendingRequest>,
    /// The highest id so far. A response with a higher id belongs to no request.
    newest: u64,
    unknown_ids: u32,
    /// Whether the server uses 2026-07-28, and must not send requests.
    pub(super) is_modern: bool,
    pub(super) has_sent_message: bool,
    /// An excerpt of the first line that was not a message.
    pub(super) invalid_line: Option<String>,
    pub(super) is_stdin_closed: bool,
    pub(super) exit_status: Option<String>,
}

pub(super) struct QueuedMessage {
    pub(super) message: LinkResult<IncomingMessage>,
    _size: Option<OwnedSemaphorePermit>,
}

pub(super) struct PendingRequest {
    pub(super) scope: u64,
    queue: mpsc::Sender<QueuedMessage>,
    free_bytes: Arc<Semaphore>,
    /// Whether the server has responded, maybe with an invalid message.
    pub(super) has_response: bool,
    pub(super) open_asks: Vec<IncomingMessage>,
    is_call: bool,
    /// Whether the server responds only to report an error.
    is_silent: bool,
    translate: Option<ReplyTranslator>,
}

impl Router {
    /// The recipient of a message. `id` is the request that a response names.
    pub(super) fn recipient(&self, id: Option<&Value>, message: &IncomingMessage) -> Recipient {
        match message {
            IncomingMessage::Response(response) => self.request_of(id, response),
            IncomingMessage::KeepAlive => Recipient::None,
            IncomingMessage::Notification { method, params } => match method.as_str() {
                // A legacy server cancels an ask. A modern server ends a subscription, which it names.
                "notifications/cancelled" if !self.is_modern => Recipient::AllCalls,
                // Log messages do not name their call.
                "notifications/message" => self.newest_call(),
                _ => match related_request(params.as_deref()) {
                    Some(id) if !self.by_id.contains_key(&id) => Recipient::None,
                    Some(id) => Recipient::Request(id),
                    None => Recipient::Client,
                },
            },
            IncomingMessage::Request { method, .. } => match method.as_str() {
                DISCOVER | "initialize" => Recipient::Echo,
                _ if self.is_modern => {
                    limited_event!(WARN, method, "request from a modern server ignored");
                    Recipient::None
                }
                "ping" => Recipient::Client,
                _ => self.newest_call(),
            },
        }
    }

    /// The request of a response. An error without an id responds to an invalid request. A result without an id is not a
    /// response, but other output in JSON.
    fn request_of(&self, id: Option<&Value>, response: &LinkResponse) -> Recipient {
        match id.filter(|id| !id.is_null()) {
            None if response.outcome.is_ok() => Recipient::None,
            None => self
                .only_waiting()
                .map_or(Recipient::None, Recipient::Request),
            Some(id) => match id.as_u64() {
                Some(id) if id <= self.newest => Recipient::Request(id),
                _ => Recipient::UnknownRequest,
            },
        }
    }

    /// The request that waits for a response, if there is exactly one.
    fn only_waiting(&self) -> Option<u64> {
        let mut waiting = self.by_id.iter().filter(|(_, route)| !route.is_silent);
        match (waiting.next(), waiting.next()) {
            (Some((only, _)), None) => Some(*only),
            _ => None,
        }
    }

    /// The newest call, if all calls in flight belong to one scoped client.
    fn newest_call(&self) -> Recipient {
        let mut calls = self.by_id.values().filter(|route| route.is_call);
        match calls.next() {
            Some(first) if calls.all(|call| call.scope == first.scope) => {
                self.newest_call_of(first.scope)
            }
            _ => Recipient::Client,
        }
    }

    /// The newest call of a scoped client.
    pub(super) fn newest_call_of(&self, scope: u64) -> Recipient {
        let mut newest_first = self.by_id.iter().rev();
        let newest = newest_first.find(|(_, route)| route.is_call && route.scope == scope);
        newest.map_or(Recipient::Client, |(id, _)| Recipient::Request(*id))
    }

    /// Adds a request. The receiver yields its messages.
    pub(super) fn open(
        &mut self,
        id: u64,
        message: &OutgoingMessage,
    ) -> mpsc::Receiver<QueuedMessage> {
        let (queue, messages) = mpsc::channel(QUEUE_MAX + RESERVED);
        let route = PendingRequest {
            scope: message.scope,
            queue,
            free_bytes: Arc::new(Semaphore::new(QUEUE_SIZE_MAX)),
            has_response: false,
            open_asks: Vec::new(),
            is_call: message.is_call,
            is_silent: message.is_silent,
            translate: message.translate.clone(),
        };
        self.newest = self.newest.max(id);
        self.by_id.insert(id, route);
        messages
    }

    /// Removes a request.
    pub(super) fn close(&mut self, id: u64) -> Option<PendingRequest> {
        self.by_id.remove(&id)
    }

    /// Records the exit of the process, and closes all requests.
    pub(super) fn set_exited(&mut self, status: String) {
        self.exit_status.get_or_insert(status);
        self.by_id.clear();
    }

    /// Handles a response with an unknown id. If exactly one request waits, it fails.
    pub(super) fn fail_unknown_id(&mut self) {
        if self.by_id.is_empty() {
            return;
        }
        self.unknown_ids = self.unknown_ids.saturating_add(1);
        if self.unknown_ids <= UNKNOWN_IDS_LOGGED {
            limited_event!(WARN, "response with unknown id");
        }
        if let Some(id) = self.only_waiting() {
            self.fail(id, ReadError::OtherRequest.into());
        }
    }

    pub(super) fn translation_of(&self, line: &str) -> Option<ReplyTranslator> {
        let mut routes = self.by_id.values();
        routes.find(|route| route.translate.is_some())?;
        self.by_id.get(&response_id(line)?)?.translate.clone()
    }

    pub(super) fn fail_all(&mut self, why: impl Fn() -> ErrorKind) {
        for route in self.by_id.values_mut() {
            route.fail(why());
        }
    }

    pub(super) fn fail(&mut self, id: u64, error: LinkError) {
        if let Some(route) = self.by_id.get_mut(&id) {
            route.send(Err(error), None);
        }
    }

    /// Fails the request that an invalid line responds to. Returns the error if there is no such request.
    pub(super) fn fail_request_of(
        &mut self,
        line: &str,
        error: ErrorKind,
    ) -> Result<(), ErrorKind> {
        match response_id(line).and_then(|id| self.by_id.get_mut(&id)) {
            Some(route) => {
                route.has_response = true;
                route.fail(error);
                Ok(())
            }
            None => Err(error),
        }
    }

    pub(super) fn close_ask(&mut self, ask_id: &Value) {
        for route in self.by_id.values_mut() {
            let is_ask =
                |open: &_| matches!(open, IncomingMessage::Request { id, .. } if id == ask_id);
            route.open_asks.retain(|open| !is_ask(open));
        }
    }

    pub(super) fn push_to_calls(&mut self, message: &IncomingMessage) {
        for route in self.by_id.values_mut().filter(|route| route.is_call) {
            route.push(message.clone());
        }
    }

    pub(super) fn push(&mut self, id: u64, message: IncomingMessage) {
        if let Some(route) = self.by_id.get_mut(&id) {
            route.push(message);
        }
    }
}

impl PendingRequest {
    fn push(&mut self, message: IncomingMessage) {
        if self.has_response {
            tracing::debug!("message after the response ignored");
            return;
        }
        let size = match &message {
            IncomingMessage::Response(_) => {
                self.has_response = true;
                None
            }
            IncomingMessage::KeepAlive => None,
            IncomingMessage::Notification { params, .. }
            | IncomingMessage::Request { params, .. } => {
                let size = params.as_ref().map_or(0, |params| params.get().len());
                let Some(size) = self.reserve(size) else {
                    limited_event!(
                        WARN,
                        "queue of a request is full; notification or ask dropped"
                    );
                    return;
                };
                Some(size)
            }
        };
        if let IncomingMessage::Request { .. } = message {
            self.open_asks.push(message.clone());
        }
        self.send(Ok(message), size);
    }

    /// Reserves room in the queue for a message that may be dropped.
    fn reserve(&self, size: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(size.min(QUEUE_SIZE_MAX)).ok()?;
        let has_slot = self.queue.capacity() > RESERVED;
        let free = Arc::clone(&self.free_bytes);
        free.try_acquire_many_owned(bytes).ok().filter(|_| has_slot)
    }

    fn fail(&mut self, why: ErrorKind) {
        self.send(Err(LinkError::Final(why)), None);
    }

    fn send(&self, message: LinkResult<IncomingMessage>, size: Option<OwnedSemaphorePermit>) {
        let _ = self.queue.try_send(QueuedMessage {
            message,
            _size: size,
        });
    }
}

/// The id in a response line, even if the rest is invalid. `None` for a log line in JSON, which may have an id too.
fn response_id(line: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct ResponseHead {
        id: u64,
        jsonrpc: Option<IgnoredAny>,
        method: Option<IgnoredAny>,
        result: Option<IgnoredAny>,
        error: Option<IgnoredAny>,
    }
    let head: ResponseHead = serde_json::from_str(line).ok()?;
    let is_response = head.jsonrpc.or(head.result).or(head.error).is_some();
    (is_response && head.method.is_none()).then_some(head.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::to_raw_value;

    fn notification(size: usize) -> IncomingMessage {
        IncomingMessage::Notification {
            method: "notifications/progress".to_owned(),
            params: to_raw_value(&"x".repeat(size)).ok(),
        }
    }

    fn response() -> IncomingMessage {
        IncomingMessage::Response(LinkResponse {
            outcome: to_raw_value(&()).map_err(|_| unreachable!()),
            status: None,
            has_request_id: true,
        })
    }

    #[test]
    fn queued_messages_are_limited_by_size() {
        let mut router = Router::default();
        let mut queue = router.open(1, &OutgoingMessage::default());
        for _ in 0..10 {
            router.push(1, notification(QUEUE_SIZE_MAX / 3));
        }
        router.push(1, response());
        router.push(1, response());
        assert_eq!(queue.len(), 3, "two notifications and one response");
        while queue.try_recv().is_ok() {}
        let mut queue = router.open(2, &OutgoingMessage::default());
        router.push(2, notification(2 * QUEUE_SIZE_MAX));
        router.push(2, notification(1));
        assert_eq!(queue.len(), 1);
        queue.try_recv().expect("the large message");
        router.push(2, notification(1));
        assert_eq!(queue.len(), 1);
    }
}
