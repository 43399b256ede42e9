//! The same server on standard input and output: one message a line.

use crate::auth::{Caller, Scopes};
use crate::dispatch::{Context, Parsed, Sessions, is_of_session, read};
use crate::legacy::{Cancelled, Lifetime, RequestId, Session};
use crate::metrics::Refusal;
use crate::response::Response;
use crate::server::Server;
use crate::tasks::Worker;
use crate::timer::within;
use refrain_core::Principal;
use refrain_wire::ratified::Incoming;
use refrain_wire::{Message, RpcError};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Messages waiting to be written before handlers are held up.
const QUEUE: usize = 64;
/// Bytes of a line that is too long that are discarded at once.
const DISCARD: u64 = 64 << 10;

/// Serves one client over a pair of streams, until the input ends, the client stops reading, or `shutdown` is done. Every
/// caller is anonymous and has every scope, because the caller has started the process.
///
/// When the client leaves, running requests have the drain grace to finish. On shutdown, flows are handed on at their
/// checkpoints and the others have the drain time. Subscriptions are ended with a message. The client has the drain time to
/// read the rest. A client that has gone is no error.
pub async fn serve_stdio<R, W>(
    server: Server,
    input: R,
    output: W,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    serve_lines(&server, &server, input, output, shutdown).await
}

/// Answers the messages of a client: the server, or a wrapper around it.
pub(crate) trait Endpoint: Sync {
    /// Accepts a message. The session in the context may be another message's.
    fn accept(
        &self,
        bytes: &[u8],
        message: Parsed<'_>,
        context: Context<'_>,
    ) -> impl Future<Output = Response> + Send;
}

impl Endpoint for Server {
    async fn accept(&self, _: &[u8], message: Parsed<'_>, mut context: Context<'_>) -> Response {
        if matches!(context.sessions, Sessions::Open(_)) && !is_of_session(&message) {
            context.sessions = Sessions::None;
        }
        self.handle_message(message, context).await
    }
}

pub(crate) async fn serve_lines<R, W>(
    server: &Server,
    endpoint: &impl Endpoint,
    input: R,
    output: W,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let limits = server.limits();
    let (sender, receiver) = mpsc::channel(QUEUE);
    let writer = tokio::spawn(write_lines(receiver, output));
    let mut patience = limits.drain_grace;
    let worker = Worker::start(server);
    // Set when no more is read.
    let (closing, closed) = watch::channel(false);
    let mut client = Client {
        server,
        endpoint,
        sender,
        closed,
        running: JoinSet::new(),
        by_id: HashMap::new(),
        session: None,
        listens: false,
    };
    let sender = client.sender.clone();
    let read = tokio::select! {
        read = client.read_lines(input) => read,
        () = sender.closed() => Ok(()),
        () = shutdown => {
            server.start_draining();
            server.close_live();
            patience = limits.drain_time;
            Ok(())
        }
    };
    closing.send_replace(true);
    let stopping = server.0.live.is_closed();
    let all = async {
        while client.running.join_next().await.is_some() {}
        if stopping {
            server.0.services.limits.live.wait_until_idle().await;
        }
    };
    if within(patience, all).await.is_none() {
        client.running.shutdown().await;
    }
    if let Some(session) = &client.session {
        server.0.legacy.forget(session);
    }
    drop((sender, client));
    worker.stop();
    worker.stopped(patience).await;
    read.and(flush(writer, limits.drain_time).await)
}

/// Waits until the queued messages are written.
async fn flush(mut writer: JoinHandle<io::Result<()>>, limit: Duration) -> io::Result<()> {
    match within(limit, &mut writer).await {
        Some(written) => written.map_err(io::Error::other)?,
        None => {
            tracing::warn!("client stopped reading: queued messages dropped");
            writer.abort();
            Ok(())
        }
    }
}

/// The client of the process, and its requests that are being answered.
struct Client<'a, E> {
    server: &'a Server,
    endpoint: &'a E,
    sender: Sender,
    closed: watch::Receiver<bool>,
    running: JoinSet<()>,
    by_id: HashMap<RequestId, Running>,
    /// The session of a legacy client.
    session: Option<Session>,
    /// Is that client notified of changes?
    listens: bool,
}

/// A request that is being answered.
struct Running {
    handle: AbortHandle,
    silent: Arc<AtomicBool>,
}

impl<E: Endpoint> Client<'_, E> {
    /// Reads until the input ends. Requests are answered side by side.
    async fn read_lines(&mut self, input: impl AsyncBufRead + Unpin) -> io::Result<()> {
        let limit = self.server.limits().body;
        let mut lines = Lines { input, limit };
        while let Some(line) = lines.next().await? {
            self.by_id
                .retain(|_, request| !request.handle.is_finished());
            while self.running.try_join_next().is_some() {}
            match line {
                Line::TooLong => {
                    let metrics = &self.server.0.services.metrics;
                    metrics.request_refused(Refusal::TooLarge);
                    let error = format!("the message is longer than the limit of {limit} bytes");
                    self.reject(RpcError::invalid_request(error)).await;
                }
                Line::Text(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
                Line::Text(bytes) => self.take_line(&bytes).await,
            }
        }
        Ok(())
    }

    /// Takes a message, or a batch of messages in a session.
    async fn take_line(&mut self, bytes: &[u8]) {
        let legacy = &self.server.0.legacy;
        let session = self.session.as_ref();
        let batch = session.map(|session| legacy.split_batch(session, bytes));
        match batch.transpose() {
            Ok(None | Some(None)) => self.take(bytes).await,
            Ok(Some(Some(batch))) => {
                for message in batch {
                    if message.get().starts_with('[') {
                        let nested = "a batch has messages in it, and no other batches";
                        self.reject(RpcError::invalid_request(nested)).await;
                    } else {
                        self.take(message.get().as_bytes()).await;
                    }
                }
            }
            Err(error) => {
                let metrics = &self.server.0.services.metrics;
                metrics.request_refused(Refusal::InvalidRequest);
                self.reject(error).await;
            }
        }
    }

    /// Sends the error for a message without an id.
    async fn reject(&self, error: RpcError) {
        let sending = Sending::new(Response::failed(self.server, error), &self.sender);
        sending.run(self.closed.clone()).await;
    }

    async fn take(&mut self, bytes: &[u8]) {
        let message = read(bytes, self.session.is_some());
        if let Ok(Incoming::Message(Message::Notification { method, params })) = &message {
            match (method.as_ref(), &self.session) {
                ("notifications/cancelled", _) => self.cancel(*params),
                ("notifications/initialized", Some(session)) if !self.listens => {
                    let (server, session) = (self.server.clone(), session.clone());
                    let (sender, closed) = (self.sender.clone(), self.closed.clone());
                    self.running.spawn(notify(server, session, sender, closed));
                    self.listens = true;
                }
                _ => {}
            }
            return;
        }
        let id = match &message {
            Ok(Incoming::Call(id, _) | Incoming::Message(Message::Request { id, .. })) => {
                Some(RequestId::read(id.as_json()))
            }
            _ => None,
        };
        let sessions = match &self.session {
            Some(session) => Sessions::Open(session),
            None => Sessions::Closed(Lifetime::Process),
        };
        let context = Context::new(everything(), sessions, false);
        let response = self.endpoint.accept(bytes, message, context).await;
        let opened = response.opened_session().cloned();
        let is_opened = opened.is_some();
        self.session = opened.or(self.session.take());
        let sending = Sending::new(response, &self.sender);
        let silent = sending.silent.clone();
        let sending = sending.run(self.closed.clone());
        match id.filter(|_| !is_opened) {
            Some(id) => {
                let handle = self.running.spawn(sending);
                self.by_id.insert(id, Running { handle, silent });
            }
            // Done before the next line is read.
            None => sending.await,
        }
    }

    /// Ends a request that the client no longer wants.
    fn cancel(&mut self, params: Option<&RawValue>) {
        if let Some(cancelled) = params.and_then(Cancelled::read)
            && let Some(request) = self
                .by_id
                .remove(&RequestId::read(cancelled.request_id.get()))
        {
            let reason = cancelled.reason.as_deref().unwrap_or("none given");
            tracing::debug!(id = cancelled.request_id.get(), reason, "cancelled");
            request.silent.store(true, Ordering::Release);
            request.handle.abort();
        }
    }
}

/// The caller: the process that started this one.
fn everything() -> Caller {
    Caller {
        principal: Principal::anonymous(),
        scopes: Scopes::everything(),
        expires: None,
    }
}

/// Sends the notifications of a session outside of calls, until no more is read.
async fn notify(
    server: Server,
    session: Session,
    sender: Sender,
    mut closed: watch::Receiver<bool>,
) {
    let mut listening = match server.0.legacy.listen(&session, everything()) {
        Ok(listening) => listening,
        Err(error) => {
            tracing::warn!(%error, "client is not notified of changes");
            return;
        }
    };
    loop {
        let message = tokio::select! {
            message = listening.next() => message,
            _ = closed.wait_for(|closed| *closed) => None,
        };
        let Some(message) = message else { return };
        // An error means that the client is gone.
        let _ = sender.send((message, Arc::default())).await;
    }
}

/// Messages for the writer, and whether their request was cancelled.
type Sender = mpsc::Sender<(Vec<u8>, Arc<AtomicBool>)>;

/// Sends the response to a request. If the client cancelled the request, the call ends when this is dropped.
struct Sending {
    response: Response,
    sender: Sender,
    /// The request was cancelled: nothing more may be sent, not even queued messages.
    silent: Arc<AtomicBool>,
}

impl Sending {
    fn new(response: Response, sender: &Sender) -> Self {
        Self {
            response,
            sender: sender.clone(),
            silent: Arc::default(),
        }
    }

    /// Sends all messages. A subscription ends when no more is read.
    async fn run(mut self, mut closed: watch::Receiver<bool>) {
        let mut open = true;
        loop {
            let message = tokio::select! {
                message = self.response.next() => message,
                _ = closed.wait_for(|closed| *closed), if open => {
                    open = false;
                    self.response.end_subscription();
                    continue;
                }
            };
            let Some(message) = message else { return };
            // An error means that the client is gone.
            let _ = self.sender.send((message, self.silent.clone())).await;
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if self.silent.load(Ordering::Acquire) {
            self.response.cancel();
        }
    }
}

/// Writes until no message follows, or the client has closed the pipe.
async fn write_lines(
    mut lines: mpsc::Receiver<(Vec<u8>, Arc<AtomicBool>)>,
    mut output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some((mut line, silent)) = lines.recv().await {
        if silent.load(Ordering::Acquire) {
            continue;
        }
        line.push(b'\n');
        let written = async {
            output.write_all(&line).await?;
            output.flush().await
        };
        match written.await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                tracing::debug!("the client is gone");
                return Ok(());
            }
            written => written?,
        }
    }
    Ok(())
}

struct Lines<R> {
    input: R,
    limit: usize,
}

enum Line {
    Text(Vec<u8>),
    TooLong,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// The next line, or `None` at the end. The rest of a line beyond the limit is discarded.
    async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Vec::new();
        let mut input = (&mut self.input).take(self.limit as u64 + 1);
        if input.read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        if line.ends_with(b"\n") {
            line.pop();
        } else if line.len() > self.limit {
            while !line.ends_with(b"\n") {
                line.clear();
                input.set_limit(DISCARD);
                if input.read_until(b'\n', &mut line).await? == 0 {
                    break;
                }
            }
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Text(line)))
    }
}
