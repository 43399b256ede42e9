//! Messages to a child process: one on each line of its standard input and output.
//!
//! A message is written as a whole. The output of the server is read all the time, so that neither side blocks the other;
//! up to a limit, messages are queued for each request.

mod child;
mod lines;
mod routes;

use super::{Incoming, LinkError, LinkResult, Outgoing, Watch, Wire, read};
use crate::error::ErrorKind;
use crate::legacy::take_stray;
use crate::notifications::Notifications;
use http::HeaderMap;
use parking_lot::Mutex;
use refrain_wire::client::{RpcFailure, split_messages};
use routes::{Recipient, Routes};
use serde_json::Value;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::process::Command;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

/// How much of a line that is no message is shown.
const SHOWN: usize = 200;
const QUEUE_MAX: usize = 1024;

/// A server that runs as a child process. It is told to end when this is dropped.
pub(crate) struct PipeLink {
    /// The command line. It may contain secrets.
    pub(super) address: String,
    command: Mutex<Command>,
    process: Mutex<Process>,
    is_modern: AtomicBool,
    setup: PipeSetup,
}

#[derive(Clone)]
pub(crate) struct PipeSetup {
    pub(crate) watch: Watch,
    pub(crate) notifications: Notifications,
    pub(crate) message_max: usize,
}

struct Process {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Line>,
    /// The server is told to end when this is dropped, even if it does not read what is in the queue.
    is_wanted: oneshot::Sender<()>,
    ending: JoinHandle<()>,
}

/// A line to be written.
struct Line {
    id: Option<u64>,
    text: String,
}

/// The messages that come back to one request.
pub(crate) struct PipeExchange {
    id: u64,
    shared: Arc<Shared>,
    messages: mpsc::Receiver<LinkResult<Incoming>>,
    is_cancellable: bool,
}

/// The state that the link shares with the task of the process.
struct Shared {
    program: String,
    routes: Mutex<Routes>,
    over: Notify,
    stderr: Mutex<Vec<u8>>,
    queue: mpsc::WeakSender<Line>,
    setup: PipeSetup,
}

impl PipeLink {
    pub(crate) fn spawn(mut command: Command, setup: PipeSetup) -> Result<Self, ErrorKind> {
        let process = Process::start(&mut command, setup.clone())?;
        let shown = command.as_std();
        let mut words = vec![shown.get_program().to_string_lossy()];
        words.extend(shown.get_args().map(|word| word.to_string_lossy()));
        Ok(Self {
            address: words.join(" "),
            command: Mutex::new(command),
            process: Mutex::new(process),
            is_modern: AtomicBool::new(false),
            setup,
        })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shared().routes.lock().ended.is_some()
    }

    pub(crate) fn restart(&self) -> Result<(), ErrorKind> {
        let process = Process::start(&mut self.command.lock(), self.setup.clone())?;
        process.shared.routes.lock().is_modern = self.is_modern.load(Ordering::Relaxed);
        *self.process.lock() = process;
        Ok(())
    }

    pub(super) fn set_modern(&self) {
        self.is_modern.store(true, Ordering::Relaxed);
        self.shared().routes.lock().is_modern = true;
    }

    fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.process.lock().shared)
    }

    pub(super) async fn open(&self, message: &Outgoing) -> LinkResult<PipeExchange> {
        let id = message.id.unwrap_or_default();
        let shared = self.shared();
        let messages = shared.routes.lock().open(id, message);
        let mut exchange = PipeExchange {
            id,
            shared,
            messages,
            is_cancellable: false,
        };
        exchange.shared.tell(Some(id), &message.body).await?;
        exchange.is_cancellable = message.is_cancellable && !message.is_silent;
        Ok(exchange)
    }

    pub(super) async fn tell(&self, message: &str) -> LinkResult<()> {
        self.shared().tell(None, message).await
    }

    pub(super) fn settled(&self, ask: &Value) {
        self.shared().routes.lock().settled(ask);
    }

    /// Tells the server to end, and waits until it has.
    pub(super) async fn close(self) {
        let process = self.process.into_inner();
        drop((process.queue, process.is_wanted));
        if process.ending.await.is_err() {
            tracing::warn!("failed to wait for the server process");
        }
    }
}

impl Process {
    fn start(command: &mut Command, setup: PipeSetup) -> Result<Self, ErrorKind> {
        let program = command.as_std().get_program().to_string_lossy();
        let program = program.into_owned();
        let child = child::spawn(command).map_err(|source| ErrorKind::Spawn {
            command: program.clone(),
            source,
        })?;
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let (is_wanted, unwanted) = oneshot::channel();
        let shared = Arc::new(Shared {
            program,
            routes: Mutex::default(),
            over: Notify::new(),
            stderr: Mutex::default(),
            queue: queue.downgrade(),
            setup,
        });
        let running = child::run(child, waiting, unwanted, Arc::clone(&shared));
        Ok(Self {
            shared,
            queue,
            is_wanted,
            ending: tokio::spawn(running),
        })
    }
}

impl PipeExchange {
    pub(super) async fn next(&mut self) -> LinkResult<Incoming> {
        match self.messages.recv().await {
            Some(message) => {
                self.is_cancellable &= !is_response(&message);
                message
            }
            None => Err(LinkError::Final(self.shared.ended().unwrap_or_else(deaf))),
        }
    }

    /// The error response to the request, if it has come.
    pub(crate) fn refusal(&mut self) -> Option<RpcFailure> {
        let mut received = std::iter::from_fn(|| self.messages.try_recv().ok());
        received.find_map(|message| match message {
            Ok(Incoming::Response(response)) => response.outcome.err(),
            _ => None,
        })
    }
}

impl Drop for PipeExchange {
    fn drop(&mut self) {
        let open_asks = self.shared.routes.lock().close(self.id);
        let mut received = std::iter::from_fn(|| self.messages.try_recv().ok());
        if self.is_cancellable && !received.any(|message| is_response(&message)) {
            let cancelled = Outgoing::cancelled(self.id, HeaderMap::new());
            self.shared.try_tell(&cancelled.body);
        }
        // An open ask may belong to another call; without one it is refused.
        for ask in open_asks {
            self.shared.route(None, ask);
        }
    }
}

impl Shared {
    async fn tell(&self, id: Option<u64>, message: &str) -> LinkResult<()> {
        if let Some(kind) = self.ended() {
            return Err(LinkError::NotSent(kind));
        }
        let Some(queue) = self.queue.upgrade() else {
            return Err(LinkError::Final(deaf()));
        };
        match queue.reserve().await {
            Ok(place) => {
                self.queue_line(place, id, message);
                Ok(())
            }
            Err(_) => Err(self.not_written().await),
        }
    }

    /// Queues a message that is no request, if there is room.
    fn try_tell(&self, message: &str) {
        let Some(queue) = self.queue.upgrade() else {
            return;
        };
        match queue.try_reserve() {
            Ok(place) => self.queue_line(place, None, message),
            Err(error) => tracing::warn!(%error, "message to the server dropped"),
        }
    }

    fn queue_line(&self, place: mpsc::Permit<'_, Line>, id: Option<u64>, message: &str) {
        (self.setup.watch)(Wire::Sent { message });
        let text = format!("{message}\n");
        place.send(Line { id, text });
    }

    /// Why nothing is written any more. The end of a process is noticed a moment later.
    async fn not_written(&self) -> LinkError {
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

    /// Fails the requests that were not written because the server has closed its input.
    fn fail_unwritten(&self, lines: impl Iterator<Item = Line>) {
        let mut routes = self.routes.lock();
        routes.is_deaf = true;
        for id in lines.filter_map(|line| line.id) {
            routes.fail(id, deaf());
        }
    }

    /// The error of a process that has ended.
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

    fn end(&self, status: String) {
        self.routes.lock().end(status);
        self.over.notify_waiters();
    }

    /// A line was too long. Its request is unknown.
    fn fail_too_long(&self) {
        self.routes.lock().fail_all(|| ErrorKind::TooLarge {
            what: "a message",
            limit: self.setup.message_max,
        });
    }

    fn receive(&self, line: String) {
        if !line.trim().is_empty() {
            for message in split_messages(line) {
                self.receive_message(&message);
            }
        }
    }

    fn receive_message(&self, line: &str) {
        (self.setup.watch)(Wire::Received {
            message: line,
            status: None,
        });
        let translate = self.routes.lock().translation_of(line);
        match read(line, None, translate.as_ref()) {
            Ok((id, message)) => self.route(id.as_ref(), message),
            Err(error) => {
                let mut routes = self.routes.lock();
                // Some servers print a banner. Only the response to a request must be valid.
                if let Err(error) = routes.fail_answered(line, error) {
                    tracing::warn!(program = self.program, %error, "line is no message");
                    let noise = || line.chars().take(SHOWN).collect();
                    routes.noise.get_or_insert_with(noise);
                }
            }
        }
    }

    /// Hands a message to the request it belongs to.
    fn route(&self, id: Option<&Value>, message: Incoming) {
        let mut routes = self.routes.lock();
        routes.has_spoken = true;
        match routes.recipient(id, &message) {
            Recipient::Request(id) => routes.push(id, message),
            Recipient::AllCalls => routes.push_to_calls(&message),
            Recipient::Nobody => {}
            Recipient::UnknownRequest => routes.fail_misaddressed(),
            Recipient::Client => {
                drop(routes);
                if let Some(answer) = take_stray(message, &self.setup.notifications) {
                    self.try_tell(&answer);
                }
            }
            Recipient::Echo => routes.fail_all(|| ErrorKind::NotMcp {
                address: self.program.clone(),
                why: "it sends back what it is sent".to_owned(),
            }),
        }
    }
}

fn is_response(message: &LinkResult<Incoming>) -> bool {
    matches!(message, Ok(Incoming::Response(_)))
}

/// The error of a server that runs, but has closed its input.
fn deaf() -> ErrorKind {
    ErrorKind::Broken("the server has closed its standard input, and hears nothing".into())
}
