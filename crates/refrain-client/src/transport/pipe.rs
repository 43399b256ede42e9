//! Messages to a child process: one on each line of its standard input and output.
//!
//! Always: a message is written whole; what the server writes is read without pause, whoever waits for it, so that
//! neither side holds up the other. What a request hears is kept until it asks for it, and no more than so much.

mod child;
mod lines;
mod routes;

use super::{Incoming, LinkError, Outgoing, Watcher, Wire, read};
use crate::error::ErrorKind;
use crate::news::News;
use crate::older::take_stray;
use child::Pipes;
use http::HeaderMap;
use parking_lot::Mutex;
use refrain_wire::client::{RpcFailure, split_messages};
use routes::{Route, Routes, Way};
use serde_json::Value;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::process::Command;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

/// How much of a line that is no message is shown.
const SHOWN: usize = 200;
/// How many messages may wait for the server to read them.
const QUEUED: usize = 1024;

/// A server that runs as a child process. When it is dropped, the server is told to end.
pub(crate) struct PipeLink {
    /// The command as a person would type it. There may be secrets in it.
    address: String,
    command: Mutex<Command>,
    present: Mutex<Process>,
    is_modern: AtomicBool,
    watcher: Watcher,
    news: News,
    message_max: usize,
}

/// The process that runs now.
struct Process {
    shared: Arc<Shared>,
    /// What is written to it.
    queue: mpsc::Sender<Line>,
    /// The server is told to end when this is dropped, even if it does not read what is in the queue.
    is_wanted: oneshot::Sender<()>,
    ending: JoinHandle<()>,
}

/// A message on its way to the process.
struct Line {
    /// The id, if it is a request.
    id: Option<u64>,
    text: String,
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
    program: String,
    routes: Mutex<Routes>,
    /// Tells when the server has ended.
    over: Notify,
    /// The end of what the server wrote to its standard error.
    stderr: Mutex<Vec<u8>>,
    queue: mpsc::WeakSender<Line>,
    watcher: Watcher,
    news: News,
    message_max: usize,
}

impl PipeLink {
    /// Starts the server.
    pub(crate) fn spawn(
        mut command: Command,
        watcher: Watcher,
        news: News,
        message_max: usize,
    ) -> Result<Self, ErrorKind> {
        let present = Process::start(&mut command, watcher.clone(), news.clone(), message_max)?;
        Ok(Self {
            address: shown(&command),
            command: Mutex::new(command),
            present: Mutex::new(present),
            is_modern: AtomicBool::new(false),
            watcher,
            news,
            message_max,
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared().routes.lock().ended.is_some()
    }

    /// Starts the server again, in another process.
    pub(crate) fn start_again(&self) -> Result<(), ErrorKind> {
        let (watcher, news) = (self.watcher.clone(), self.news.clone());
        let process = Process::start(&mut self.command.lock(), watcher, news, self.message_max)?;
        process.shared.routes.lock().is_modern = self.is_modern.load(Ordering::Relaxed);
        *self.present.lock() = process;
        Ok(())
    }

    /// The server speaks the present revision.
    pub(crate) fn is_modern(&self) {
        self.is_modern.store(true, Ordering::Relaxed);
        self.shared().routes.lock().is_modern = true;
    }

    fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.present.lock().shared)
    }

    /// Sends a request.
    pub(super) async fn open(&self, message: &Outgoing) -> Result<PipeExchange, LinkError> {
        let id = message.id.unwrap_or_default();
        let shared = self.shared();
        let heard = Arc::new(Notify::new());
        let route = Route::new(Arc::clone(&heard), message);
        shared.routes.lock().open(id, route);
        let mut exchange = PipeExchange {
            id,
            shared,
            heard,
            is_cancellable: false,
        };
        exchange.shared.tell(Some(id), &message.body).await?;
        exchange.is_cancellable = message.is_cancellable && !message.is_silent;
        Ok(exchange)
    }

    /// Sends something that is not answered.
    pub(super) async fn tell(&self, message: &str) -> Result<(), LinkError> {
        self.shared().tell(None, message).await
    }

    /// Something that the server asked has its answer.
    pub(super) fn settled(&self, ask: &Value) {
        self.shared().routes.lock().settled(ask);
    }

    /// Tells the server to end, and waits until it has.
    pub(super) async fn close(self) {
        let process = self.present.into_inner();
        drop((process.queue, process.is_wanted));
        if process.ending.await.is_err() {
            tracing::warn!("the server was not seen to end");
        }
    }
}

impl Process {
    fn start(
        command: &mut Command,
        watcher: Watcher,
        news: News,
        message_max: usize,
    ) -> Result<Self, ErrorKind> {
        let (child, pipes) = Pipes::open(command)?;
        let (queue, waiting) = mpsc::channel(QUEUED);
        let (is_wanted, unwanted) = oneshot::channel();
        let program = command.as_std().get_program().to_string_lossy();
        let shared = Arc::new(Shared {
            program: program.into_owned(),
            routes: Mutex::default(),
            over: Notify::new(),
            stderr: Mutex::default(),
            queue: queue.downgrade(),
            watcher,
            news,
            message_max,
        });
        let ending = tokio::spawn(child::tend(
            child,
            pipes,
            waiting,
            unwanted,
            Arc::clone(&shared),
        ));
        Ok(Self {
            shared,
            queue,
            is_wanted,
            ending,
        })
    }
}

impl PipeExchange {
    /// The next message that belongs to the request.
    pub(super) async fn next(&mut self) -> Result<Incoming, LinkError> {
        loop {
            let ready = self.shared.routes.lock().get(self.id).and_then(Route::pop);
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

    /// The refusal of the request, if it has come.
    pub(crate) fn refusal(&mut self) -> Option<RpcFailure> {
        let mut routes = self.shared.routes.lock();
        let route = routes.get(self.id)?;
        std::iter::from_fn(|| route.pop()).find_map(|message| match message {
            Ok(Incoming::Response(response)) => response.outcome.err(),
            _ => None,
        })
    }
}

impl Drop for PipeExchange {
    fn drop(&mut self) {
        let mut routes = self.shared.routes.lock();
        let route = routes.close(self.id);
        drop(routes);
        let is_answered = route.as_ref().is_some_and(Route::is_answered);
        if self.is_cancellable && !is_answered {
            let cancelled = Outgoing::cancelled(self.id, HeaderMap::new());
            self.shared.send(&cancelled.body);
        }
        // What was asked may belong to another call; if there is none, the server must not wait for an answer.
        for ask in route.into_iter().flat_map(Route::into_open) {
            self.shared.route(None, ask);
        }
    }
}

impl Shared {
    /// Sends something, or says why that cannot be.
    async fn tell(&self, id: Option<u64>, message: &str) -> Result<(), LinkError> {
        if let Some(kind) = self.ended() {
            return Err(LinkError::NotSent(kind));
        }
        let Some(queue) = self.queue.upgrade() else {
            return Err(LinkError::Final(deaf()));
        };
        match queue.reserve().await {
            Ok(place) => {
                self.watcher.see(Wire::Sent { message });
                place.send(Line::new(id, message));
                Ok(())
            }
            Err(_) => Err(self.unheard().await),
        }
    }

    /// Why nothing is written any more. A server that has ended is seen to have a moment later.
    async fn unheard(&self) -> LinkError {
        let mut over = pin!(self.over.notified());
        over.as_mut().enable();
        if self.ended().is_none() {
            if self.routes.lock().is_deaf {
                return LinkError::Final(deaf());
            }
            over.await;
        }
        LinkError::NotSent(self.ended().unwrap_or_else(deaf))
    }

    /// Sends something that is no request, if there is somebody left to send it to.
    fn send(&self, message: &str) {
        let Some(queue) = self.queue.upgrade() else {
            return;
        };
        match queue.try_reserve() {
            Ok(place) => {
                self.watcher.see(Wire::Sent { message });
                place.send(Line::new(None, message));
            }
            Err(error) => tracing::warn!(%error, "the server was not told"),
        }
    }

    /// The server has closed its input: these were not written.
    fn unwritten(&self, lines: impl Iterator<Item = Line>) {
        let mut routes = self.routes.lock();
        routes.is_deaf = true;
        for id in lines.filter_map(|line| line.id) {
            routes.fail(id, deaf());
        }
    }

    /// Why nothing can be sent or heard any more.
    fn ended(&self) -> Option<ErrorKind> {
        let routes = self.routes.lock();
        let status = routes.ended.clone()?;
        if let (false, Some(noise)) = (routes.has_spoken, &routes.noise) {
            return Some(ErrorKind::NotMcp {
                address: self.program.clone(),
                why: format!("it wrote {noise:?} to its standard output, and ended ({status})"),
            });
        }
        let stderr = String::from_utf8_lossy(&self.stderr.lock()).into_owned();
        Some(ErrorKind::Exited { status, stderr })
    }

    /// The server has ended: whoever waits hears of it.
    fn end(&self, status: String) {
        let mut routes = self.routes.lock();
        routes.ended.get_or_insert(status);
        routes.wake_all();
        self.over.notify_waiters();
    }

    /// A line was longer than it may be. Nobody can tell for whom it was.
    fn too_long(&self) {
        self.routes.lock().fail_all(|| ErrorKind::TooLarge {
            what: "a message",
            limit: self.message_max,
        });
    }

    /// Takes a line that the server wrote.
    fn take(&self, line: String) {
        if !line.trim().is_empty() {
            for message in split_messages(line) {
                self.take_message(&message);
            }
        }
    }

    fn take_message(&self, line: &str) {
        self.watcher.see(Wire::Received {
            message: line,
            status: None,
        });
        let translate = self.routes.lock().translation_of(line);
        match read(line, None, translate.as_ref()) {
            Ok((id, message)) => self.route(id.as_ref(), message),
            // Servers greet, or are started by tools that do. What matters is that their messages are whole.
            Err(error) => {
                let Err(error) = self.routes.lock().fail_answered(line, error) else {
                    return;
                };
                let noise: String = line.chars().take(SHOWN).collect();
                tracing::warn!(program = self.program, %error, "the server wrote no message");
                self.routes.lock().noise.get_or_insert(noise);
            }
        }
    }

    /// Hands a message to the request it belongs to.
    fn route(&self, id: Option<&Value>, message: Incoming) {
        let mut routes = self.routes.lock();
        routes.has_spoken = true;
        match routes.way(id, &message) {
            Way::To(id) => routes.push(id, message),
            Way::All => routes.push_to_calls(&message),
            Way::Nobody => {}
            Way::Unasked => routes.unasked(),
            Way::Stray => {
                drop(routes);
                self.stray(message);
            }
            Way::Back => routes.fail_all(|| ErrorKind::NotMcp {
                address: self.program.clone(),
                why: "it sends back what it is sent".to_owned(),
            }),
        }
    }

    /// Takes a message that belongs to no request.
    fn stray(&self, message: Incoming) {
        if let Some(answer) = take_stray(message, &self.news) {
            self.send(&answer);
        }
    }
}

impl Line {
    fn new(id: Option<u64>, message: &str) -> Self {
        let text = format!("{message}\n");
        Self { id, text }
    }
}

/// Why nothing can be sent to a server that still runs.
fn deaf() -> ErrorKind {
    ErrorKind::Broken("the server has closed its standard input, and hears nothing".into())
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
            .field("program", &self.shared().program)
            .finish_non_exhaustive()
    }
}
