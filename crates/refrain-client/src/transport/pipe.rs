//! Pipes: one stream of messages in each direction. The server is a child process, with one message
//! per line of its standard input and output, or it uses the HTTP+SSE transport of 2024-11-05.
//!
//! The server's output is read continuously, so that neither side blocks the other. Messages are queued per request, up
//! to a limit.

mod child;
mod event_stream;
mod input;
mod lines;
mod routes;

pub(crate) use event_stream::EventStream;

use super::{
    HttpLink, IncomingMessage, LinkError, LinkResult, OutgoingMessage, StderrObserver, WireMessage,
    WireObserver, check_message, read,
};
use crate::error::ErrorKind;
use crate::large_message;
use crate::legacy::handle_stray;
use crate::limits::ClientLimits;
use crate::notifications::Notifications;
use child::ServerProcess;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::HeaderMap;
use input::InputProbe;
use parking_lot::{Mutex, MutexGuard};
use refrain_wire::Root;
use refrain_wire::client::{ReadError, RpcFailure, split_messages};
use refrain_wire::limited_event;
use routes::{QueuedMessage, Recipient, Router};
use serde_json::Value;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::process::Command;
use tokio::sync::{Notify, mpsc, oneshot};

/// The maximum number of characters that an error quotes from an invalid line.
const EXCERPT_MAX: usize = 200;
/// The maximum number of queued messages to the server.
const QUEUE_MAX: usize = 1024;

/// A message and its id, if it has one.
type ParsedMessage = Result<(Option<Value>, IncomingMessage), ReadError>;

/// A server at the other end of a pipe. Dropping the link ends the process or the connection.
pub(crate) struct PipeLink {
    /// The URL, or the command line. It may contain secrets.
    pub(super) address: String,
    peer: PipePeer,
    connection: Mutex<PipeConnection>,
    is_modern: AtomicBool,
    setup: PipeSetup,
}

#[derive(Clone)]
pub(crate) struct PipeSetup {
    pub(crate) watch: WireObserver,
    pub(crate) on_stderr: StderrObserver,
    pub(crate) notifications: Notifications,
    /// The answer to `roots/list` outside of calls.
    pub(crate) roots: Option<Arc<[Root]>>,
    pub(crate) leaves_dropped_asks: bool,
    pub(crate) limits: ClientLimits,
}

/// How to connect to the server again.
enum PipePeer {
    Process(Box<Mutex<Command>>),
    EventStream(Arc<HttpLink>),
}

/// A running process, or an open event stream.
struct PipeConnection {
    shared: Arc<PipeState>,
    queue: mpsc::Sender<QueuedLine>,
    /// Dropping this ends the process, even if it does not read the queued messages.
    keep_running: oneshot::Sender<()>,
    /// Completes when the process or the event stream has ended.
    monitor: Shared<BoxFuture<'static, ()>>,
}

struct QueuedLine {
    id: Option<u64>,
    text: String,
}

pub(crate) struct PipeExchange {
    id: u64,
    shared: Arc<PipeState>,
    messages: mpsc::Receiver<QueuedMessage>,
    is_cancellable: bool,
}

/// The state that the link shares with the task that monitors the process or the event stream.
struct PipeState {
    /// The program, or the URL of an event stream.
    program: String,
    is_process: bool,
    routes: Mutex<Router>,
    exited: Notify,
    stderr: Mutex<Vec<u8>>,
    input: InputProbe,
    queue: mpsc::WeakSender<QueuedLine>,
    setup: PipeSetup,
}

impl PipeLink {
    pub(crate) fn spawn(mut command: Command, setup: PipeSetup) -> Result<Self, ErrorKind> {
        let process = PipeConnection::spawn(&mut command, setup.clone())?;
        let std_command = command.as_std();
        let mut command_line = vec![std_command.get_program().to_string_lossy()];
        command_line.extend(std_command.get_args().map(|arg| arg.to_string_lossy()));
        Ok(Self {
            address: command_line.join(" "),
            peer: PipePeer::Process(Box::new(Mutex::new(command))),
            connection: Mutex::new(process),
            is_modern: AtomicBool::new(false),
            setup,
        })
    }

    pub(crate) fn over_http(stream: EventStream, setup: PipeSetup) -> Self {
        let http = Arc::clone(stream.http());
        Self {
            address: http.address().to_owned(),
            peer: PipePeer::EventStream(http),
            connection: Mutex::new(PipeConnection::over_http(stream, setup.clone())),
            is_modern: AtomicBool::new(false),
            setup,
        }
    }

    /// The HTTP connection of an event stream.
    pub(super) fn http(&self) -> Option<&HttpLink> {
        match &self.peer {
            PipePeer::Process(_) => None,
            PipePeer::EventStream(http) => Some(http),
        }
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.shared().routes.lock().exit_status.is_some()
    }

    /// Whether the process has read nothing that was sent to it.
    pub(crate) fn has_read_no_input(&self) -> bool {
        self.shared().input.is_unread()
    }

    /// Whether the process has read everything that was sent to it.
    pub(crate) fn has_read_all_input(&self) -> bool {
        self.shared().input.is_read()
    }

    /// Restarts the process after it has ended, or reopens the event stream.
    pub(crate) async fn restart(&self) -> LinkResult<()> {
        let former = self.connection.lock().monitor.clone();
        former.await;
        let setup = self.setup.clone();
        let connection = match &self.peer {
            PipePeer::Process(command) => {
                PipeConnection::spawn(&mut command.lock(), setup).map_err(LinkError::Final)?
            }
            PipePeer::EventStream(http) => {
                let stream = EventStream::open(http).await;
                let stream = stream.map_err(LinkError::NotSent)?;
                let closed = || ErrorKind::NotMcp {
                    address: self.address.clone(),
                    why: "it no longer has an event stream".to_owned(),
                };
                let stream = stream.ok_or_else(|| LinkError::NotSent(closed()))?;
                PipeConnection::over_http(stream, setup)
            }
        };
        connection.shared.routes.lock().is_modern = self.is_modern.load(Ordering::Relaxed);
        *self.connection.lock() = connection;
        Ok(())
    }

    pub(super) fn set_modern(&self) {
        self.is_modern.store(true, Ordering::Relaxed);
        self.shared().routes.lock().is_modern = true;
    }

    fn shared(&self) -> Arc<PipeState> {
        Arc::clone(&self.connection.lock().shared)
    }

    pub(super) async fn open(&self, message: &OutgoingMessage) -> LinkResult<PipeExchange> {
        let id = message.id.unwrap_or_default();
        let shared = self.shared();
        let messages = shared.routes.lock().open(id, message);
        let mut exchange = PipeExchange {
            id,
            shared,
            messages,
            is_cancellable: false,
        };
        exchange.shared.send(Some(id), &message.body).await?;
        exchange.is_cancellable = message.is_cancellable && !message.is_silent;
        Ok(exchange)
    }

    pub(super) async fn send(&self, message: &str) -> LinkResult<()> {
        self.shared().send(None, message).await
    }

    pub(super) fn close_ask(&self, ask: &Value) {
        self.shared().routes.lock().close_ask(ask);
    }

    pub(super) async fn close(self) {
        let connection = self.connection.into_inner();
        drop((connection.queue, connection.keep_running));
        connection.monitor.await;
    }
}

impl PipeConnection {
    fn spawn(command: &mut Command, setup: PipeSetup) -> Result<Self, ErrorKind> {
        let program = command.as_std().get_program().to_string_lossy();
        let program = program.into_owned();
        let process = ServerProcess::spawn(command).map_err(|source| ErrorKind::Spawn {
            command: program.clone(),
            source,
        })?;
        Ok(Self::start(
            program,
            true,
            setup,
            |lines, shutdown, shared| child::run(process, lines, shutdown, shared).boxed(),
        ))
    }

    fn over_http(stream: EventStream, setup: PipeSetup) -> Self {
        let address = stream.http().address().to_owned();
        Self::start(address, false, setup, |lines, shutdown, shared| {
            event_stream::run(stream, lines, shutdown, shared).boxed()
        })
    }

    /// Starts the task that reads and writes messages.
    fn start(
        program: String,
        is_process: bool,
        setup: PipeSetup,
        run: impl FnOnce(
            mpsc::Receiver<QueuedLine>,
            oneshot::Receiver<()>,
            Arc<PipeState>,
        ) -> BoxFuture<'static, ()>,
    ) -> Self {
        let (queue, lines) = mpsc::channel(QUEUE_MAX);
        let (keep_running, shutdown) = oneshot::channel();
        let shared = Arc::new(PipeState {
            program,
            is_process,
            routes: Mutex::default(),
            exited: Notify::new(),
            stderr: Mutex::default(),
            input: InputProbe::default(),
            queue: queue.downgrade(),
            setup,
        });
        let running = tokio::spawn(run(lines, shutdown, Arc::clone(&shared)));
        let monitor = running.map(|ended| {
            if ended.is_err() {
                limited_event!(WARN, "task of the server connection panicked");
            }
        });
        Self {
            shared,
            queue,
            keep_running,
            monitor: monitor.boxed().shared(),
        }
    }
}

impl PipeExchange {
    pub(super) async fn next(&mut self) -> LinkResult<IncomingMessage> {
        match self.messages.recv().await {
            Some(queued) => queued.message,
            None => {
                let error = self.shared.exit_error().unwrap_or_else(stdin_closed);
                Err(match self.shared.is_process {
                    true => LinkError::Final(error),
                    false => LinkError::Lost(error),
                })
            }
        }
    }

    pub(crate) fn failure(&mut self) -> Option<RpcFailure> {
        let mut received = std::iter::from_fn(|| self.messages.try_recv().ok());
        received.find_map(|queued| match queued.message {
            Ok(IncomingMessage::Response(response)) => response.outcome.err(),
            _ => None,
        })
    }
}

impl Drop for PipeExchange {
    fn drop(&mut self) {
        let Some(request) = self.shared.routes.lock().close(self.id) else {
            return;
        };
        if self.is_cancellable && !request.has_response {
            let cancelled = OutgoingMessage::cancelled(self.id, HeaderMap::new());
            self.shared.try_send(&cancelled.body);
        }
        if self.shared.setup.leaves_dropped_asks && !request.has_response {
            return;
        }
        // An open ask may belong to another call of the same client. Without another call, the ask is rejected.
        for ask in request.open_asks {
            let routes = self.shared.routes.lock();
            let recipient = routes.newest_call_of(request.scope);
            self.shared.deliver(routes, recipient, ask);
        }
    }
}

impl PipeState {
    async fn send(&self, id: Option<u64>, message: &str) -> LinkResult<()> {
        if let Some(kind) = self.exit_error() {
            return Err(LinkError::NotSent(kind));
        }
        let Some(queue) = self.queue.upgrade() else {
            return Err(LinkError::Final(stdin_closed()));
        };
        match queue.reserve().await {
            Ok(permit) => {
                self.queue_line(permit, id, message);
                Ok(())
            }
            Err(_) => Err(self.write_error().await),
        }
    }

    /// Queues a notification or a response, if the queue has room.
    fn try_send(&self, message: &str) {
        let Some(queue) = self.queue.upgrade() else {
            return;
        };
        match queue.try_reserve() {
            Ok(permit) => self.queue_line(permit, None, message),
            Err(error) => limited_event!(WARN, %error, "outgoing message dropped"),
        }
    }

    fn queue_line(&self, permit: mpsc::Permit<'_, QueuedLine>, id: Option<u64>, message: &str) {
        (self.setup.watch)(WireMessage::Sent { message });
        let text = format!("{message}\n");
        permit.send(QueuedLine { id, text });
    }

    /// The error for a closed queue. Usually the process has just exited; waits until that is detected.
    async fn write_error(&self) -> LinkError {
        let mut exited = pin!(self.exited.notified());
        exited.as_mut().enable();
        if self.exit_error().is_none() {
            if self.routes.lock().is_stdin_closed {
                return LinkError::Final(stdin_closed());
            }
            exited.await;
        }
        LinkError::NotSent(self.exit_error().unwrap_or_else(stdin_closed))
    }

    /// Fails the requests that were not written because the server has closed its standard input.
    fn fail_unwritten(&self, lines: impl Iterator<Item = QueuedLine>) {
        let mut routes = self.routes.lock();
        routes.is_stdin_closed = true;
        for id in lines.filter_map(|line| line.id) {
            routes.fail(id, LinkError::Final(stdin_closed()));
        }
    }

    fn exit_error(&self) -> Option<ErrorKind> {
        let routes = self.routes.lock();
        let status = routes.exit_status.clone()?;
        if !self.is_process {
            return Some(ErrorKind::ConnectionLost(status.into()));
        }
        if let (false, Some(line)) = (routes.has_sent_message, &routes.invalid_line) {
            return Some(ErrorKind::NotMcp {
                address: self.program.clone(),
                why: format!("it wrote {line:?} to its standard output and exited ({status})"),
            });
        }
        let stderr = String::from_utf8_lossy(&self.stderr.lock()).into_owned();
        Some(ErrorKind::Exited {
            program: self.program.clone(),
            status,
            stderr,
        })
    }

    fn set_exited(&self, status: String) {
        self.routes.lock().set_exited(status);
        self.setup.notifications.changes.end_all();
        self.exited.notify_waiters();
    }

    /// Fails all requests after a line that was too long: it could be the response to any of them.
    fn fail_too_long(&self) {
        let limits = &self.setup.limits;
        self.routes.lock().fail_all(|| limits.message_too_large());
    }

    /// Returns whether the line contains a response that a request waits for.
    async fn receive(self: &Arc<Self>, line: String) -> bool {
        if line.trim().is_empty() {
            return false;
        }
        let shared = Arc::clone(self);
        let (line, parsed) =
            large_message::parse(line.len(), move || shared.parse_line(line)).await;
        match parsed {
            Ok(messages) => messages
                .into_iter()
                .fold(false, |has_response, (text, parsed)| {
                    self.receive_message(&text, parsed) | has_response
                }),
            Err(error) => {
                self.receive_invalid(&line, error);
                false
            }
        }
    }

    /// Parses the messages of a line: one, or a batch. Returns the line too if it is invalid.
    fn parse_line(
        &self,
        line: String,
    ) -> (String, Result<Vec<(String, ParsedMessage)>, ErrorKind>) {
        if let Err(error) = check_message(&line, &self.setup.limits) {
            return (line, Err(error));
        }
        let messages = split_messages(line).into_iter().map(|message| {
            let translate = self.routes.lock().translation_of(&message);
            let parsed = read(&message, None, translate.as_ref());
            (message, parsed)
        });
        (String::new(), Ok(messages.collect()))
    }

    fn receive_message(&self, text: &str, parsed: ParsedMessage) -> bool {
        (self.setup.watch)(WireMessage::Received {
            message: text,
            status: None,
        });
        match parsed {
            Ok((id, message)) => self.route(id.as_ref(), message),
            Err(error) => {
                self.receive_invalid(text, error.into());
                false
            }
        }
    }

    fn receive_invalid(&self, line: &str, error: ErrorKind) {
        let mut routes = self.routes.lock();
        // Some servers print a banner, so only an invalid response fails a request.
        if let Err(error) = routes.fail_request_of(line, error) {
            limited_event!(
                WARN,
                program = self.program,
                %error,
                "line ignored: not an MCP message; servers must log to standard error"
            );
            let excerpt = || line.chars().take(EXCERPT_MAX).collect();
            routes.invalid_line.get_or_insert_with(excerpt);
        }
    }

    fn route(&self, id: Option<&Value>, message: IncomingMessage) -> bool {
        let mut routes = self.routes.lock();
        routes.has_sent_message = true;
        let recipient = routes.recipient(id, &message);
        let is_response = matches!(message, IncomingMessage::Response(_));
        let is_awaited = is_response && matches!(recipient, Recipient::Request(_));
        self.deliver(routes, recipient, message);
        is_awaited
    }

    fn deliver(
        &self,
        mut routes: MutexGuard<'_, Router>,
        recipient: Recipient,
        message: IncomingMessage,
    ) {
        match recipient {
            Recipient::Request(id) => routes.push(id, message),
            Recipient::AllCalls => routes.push_to_calls(&message),
            Recipient::None => {}
            Recipient::UnknownRequest => routes.fail_unknown_id(),
            Recipient::Client => {
                drop(routes);
                let (notifications, roots) = (&self.setup.notifications, &self.setup.roots);
                if let Some(reply) = handle_stray(message, notifications, roots.as_deref()) {
                    self.try_send(&reply);
                }
            }
            Recipient::Echo => routes.fail_all(|| ErrorKind::NotMcp {
                address: self.program.clone(),
                why: "it echoes the messages of the client".to_owned(),
            }),
        }
    }
}

fn stdin_closed() -> ErrorKind {
    ErrorKind::ConnectionLost("the server has closed its standard input".into())
}
