//! Messages to a child process: one on each line of its standard input and output.
//!
//! Always: a message is written whole; what the server writes is read without pause, whoever waits for it, so that
//! neither side holds up the other. What a request hears is kept until it asks for it, and no more than so much.

mod child;
mod lines;

use super::{Incoming, LinkError, Outgoing, Watcher, Wire, messages_in, read_message};
use crate::client::lock;
use crate::error::ErrorKind;
use crate::news::News;
use crate::older::take_stray;
use child::Pipes;
use http::HeaderMap;
use refrain_wire::SUBSCRIPTION_ID_KEY;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use tokio::process::Command;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// How many messages are kept for a request that does not ask for them.
const KEPT: usize = 1024;
/// How much of a line that is no message is shown.
const SHOWN: usize = 200;

/// A server that runs as a child process. When it is dropped, the server is told to end.
pub(crate) struct PipeLink {
    shared: Arc<Shared>,
    /// What is written to the server.
    queue: mpsc::UnboundedSender<String>,
    command: String,
    ending: JoinHandle<()>,
}

/// What comes back to one request.
pub(crate) struct PipeExchange {
    id: u64,
    shared: Arc<Shared>,
    heard: Arc<Notify>,
    /// Whether the server is to be told when nobody waits any longer.
    is_cancellable: bool,
}

/// What the link and the task that tends the process both know.
struct Shared {
    command: String,
    routes: Mutex<Routes>,
    /// The end of what the server wrote to its standard error.
    stderr: Mutex<Vec<u8>>,
    queue: mpsc::WeakUnboundedSender<String>,
    watcher: Watcher,
    news: News,
    message_max: usize,
}

#[derive(Default)]
struct Routes {
    /// The requests under way, by id: the newest is the last.
    by_id: BTreeMap<u64, Route>,
    /// Whether the server is known to be modern, and must not send requests.
    is_modern: bool,
    /// Whether the server has ever sent a message.
    has_spoken: bool,
    /// The first line that was no message.
    noise: Option<String>,
    /// How the server ended.
    ended: Option<String>,
}

/// Where the messages for one request go.
struct Route {
    ready: VecDeque<Result<Incoming, LinkError>>,
    heard: Arc<Notify>,
    is_call: bool,
}

impl PipeLink {
    /// Starts the server.
    pub(crate) fn spawn(
        command: Command,
        watcher: Watcher,
        news: News,
        message_max: usize,
    ) -> Result<Self, ErrorKind> {
        let shown = shown(&command);
        let (child, pipes) = Pipes::open(command)?;
        let (queue, waiting) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            command: shown.clone(),
            routes: Mutex::default(),
            stderr: Mutex::default(),
            queue: queue.downgrade(),
            watcher,
            news,
            message_max,
        });
        let ending = tokio::spawn(child::tend(child, pipes, waiting, Arc::clone(&shared)));
        Ok(Self {
            shared,
            queue,
            command: shown,
            ending,
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.command
    }

    /// The server speaks the present revision.
    pub(crate) fn is_modern(&self) {
        lock(&self.shared.routes).is_modern = true;
    }

    /// Sends a request.
    pub(super) fn open(&self, message: &Outgoing) -> Result<PipeExchange, LinkError> {
        let id = message.id.unwrap_or_default();
        let heard = Arc::new(Notify::new());
        let route = Route {
            ready: VecDeque::new(),
            heard: Arc::clone(&heard),
            is_call: message.is_call,
        };
        lock(&self.shared.routes).by_id.insert(id, route);
        let exchange = PipeExchange {
            id,
            shared: Arc::clone(&self.shared),
            heard,
            is_cancellable: message.is_cancellable,
        };
        self.send(&message.body).map_err(LinkError::Final)?;
        Ok(exchange)
    }

    /// Sends something that is not answered.
    pub(crate) fn send(&self, message: &str) -> Result<(), ErrorKind> {
        if let Some(kind) = self.shared.ended() {
            return Err(kind);
        }
        self.shared.send(message);
        Ok(())
    }

    /// Tells the server to end, and waits until it has.
    pub(super) async fn close(self) {
        drop(self.queue);
        if self.ending.await.is_err() {
            tracing::warn!(command = self.command, "the server was not seen to end");
        }
    }
}

impl PipeExchange {
    /// The next message that belongs to the request.
    pub(super) async fn next(&mut self) -> Result<Incoming, LinkError> {
        loop {
            let ready = lock(&self.shared.routes)
                .by_id
                .get_mut(&self.id)
                .and_then(|route| route.ready.pop_front());
            if let Some(message) = ready {
                self.is_cancellable &= !matches!(message, Ok(Incoming::Response(_)));
                return message;
            }
            if let Some(kind) = self.shared.ended() {
                return Err(LinkError::Final(kind));
            }
            self.heard.notified().await;
        }
    }
}

impl Drop for PipeExchange {
    fn drop(&mut self) {
        let mut routes = lock(&self.shared.routes);
        let route = routes.by_id.remove(&self.id);
        drop(routes);
        let is_answered = route.is_some_and(|route| route.is_answered());
        if self.is_cancellable && !is_answered {
            let cancelled = Outgoing::cancelled(self.id, HeaderMap::new());
            self.shared.send(&cancelled.body);
        }
    }
}

impl Shared {
    /// Sends something, if there is somebody left to send it to.
    fn send(&self, message: &str) {
        if let Some(queue) = self.queue.upgrade() {
            self.watcher.see(Wire::Sent { message });
            let _ = queue.send(format!("{message}\n"));
        }
    }

    /// Why nothing can be sent or heard any more.
    fn ended(&self) -> Option<ErrorKind> {
        let routes = lock(&self.routes);
        let status = routes.ended.clone()?;
        if let (false, Some(noise)) = (routes.has_spoken, &routes.noise) {
            return Some(ErrorKind::NotMcp {
                address: self.command.clone(),
                why: format!("it wrote {noise:?} to its standard output, and ended ({status})"),
            });
        }
        let stderr = String::from_utf8_lossy(&lock(&self.stderr)).into_owned();
        Some(ErrorKind::Exited { status, stderr })
    }

    /// The server has ended: whoever waits hears of it.
    fn end(&self, status: String) {
        let mut routes = lock(&self.routes);
        routes.ended.get_or_insert(status);
        for route in routes.by_id.values() {
            route.heard.notify_one();
        }
    }

    /// A line was longer than it may be. Nobody can tell for whom it was.
    fn too_long(&self) {
        for route in lock(&self.routes).by_id.values_mut() {
            let kind = ErrorKind::TooLarge {
                what: "a message",
                limit: self.message_max,
            };
            route.ready.push_back(Err(LinkError::Final(kind)));
            route.heard.notify_one();
        }
    }

    /// Takes a line that the server wrote.
    fn take(&self, line: String) {
        if !line.trim().is_empty() {
            for message in messages_in(line) {
                self.take_message(&message);
            }
        }
    }

    fn take_message(&self, line: &str) {
        self.watcher.see(Wire::Received {
            message: line,
            status: None,
        });
        match read_message(line, None) {
            Ok((id, message)) => self.route(id.as_ref(), message),
            // Servers greet, or are started by tools that do. What matters is that their messages are whole.
            Err(why) => {
                let noise: String = line.chars().take(SHOWN).collect();
                tracing::warn!(command = self.command, why, "the server wrote no message");
                lock(&self.routes).noise.get_or_insert(noise);
            }
        }
    }

    /// Hands a message to the request it belongs to.
    fn route(&self, id: Option<&Value>, message: Incoming) {
        let mut routes = lock(&self.routes);
        routes.has_spoken = true;
        let to = match &message {
            Incoming::Response(_) => routes.answered(id),
            Incoming::Notification { method, params } => match method.as_str() {
                // An ask is withdrawn: the call that has it knows. Newer servers end subscriptions by it, and name them.
                "notifications/cancelled" if !routes.is_modern => {
                    routes.tell_calls(method, params.as_deref());
                    return;
                }
                // It does not say to which call it belongs.
                "notifications/message" => routes.newest_call(),
                _ => match Mark::read(params.as_deref()) {
                    Some(id) if !routes.by_id.contains_key(&id) => return,
                    mark => mark,
                },
            },
            Incoming::Request { .. } if routes.is_modern => {
                tracing::warn!("the server must not send requests; one is passed over");
                return;
            }
            Incoming::Request { method, .. } if method == "ping" => None,
            Incoming::Request { .. } => routes.newest_call(),
        };
        match to.and_then(|id| routes.by_id.get_mut(&id)) {
            Some(route) => route.push(message),
            None => {
                drop(routes);
                self.stray(message);
            }
        }
    }

    /// Takes a message that belongs to no request.
    fn stray(&self, message: Incoming) {
        if let Some(answer) = take_stray(message, &self.news) {
            self.send(&answer);
        }
    }
}

impl Routes {
    /// Which request a response answers. One that could not be read has no id in its response.
    fn answered(&self, id: Option<&Value>) -> Option<u64> {
        match id {
            Some(Value::Null) | None if self.by_id.len() == 1 => self.by_id.keys().next().copied(),
            id => id.and_then(Value::as_u64),
        }
    }

    /// Tells all calls.
    fn tell_calls(&mut self, method: &str, params: Option<&RawValue>) {
        for route in self.by_id.values_mut().filter(|route| route.is_call) {
            route.push(Incoming::Notification {
                method: method.to_owned(),
                params: params.map(RawValue::to_owned),
            });
        }
    }

    fn newest_call(&self) -> Option<u64> {
        let mut newest_first = self.by_id.iter().rev();
        newest_first
            .find(|(_, route)| route.is_call)
            .map(|(id, _)| *id)
    }
}

impl Route {
    fn push(&mut self, message: Incoming) {
        if self.ready.len() >= KEPT && !matches!(message, Incoming::Response(_)) {
            tracing::warn!("nobody hears what the server says; some of it is dropped");
            return;
        }
        self.ready.push_back(Ok(message));
        self.heard.notify_one();
    }

    fn is_answered(&self) -> bool {
        let is_response = |message: &_| matches!(message, Ok(Incoming::Response(_)));
        self.ready.iter().any(is_response)
    }
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

/// A command as a person would type it.
fn shown(command: &Command) -> String {
    let command = command.as_std();
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.join(" ")
}

impl fmt::Debug for PipeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeLink")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}
