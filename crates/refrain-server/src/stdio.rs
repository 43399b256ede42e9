//! The stdio transport: one message per line.

use crate::auth::{Caller, Scopes};
use crate::dispatch::{Context, SessionContext};
use crate::endpoint::Endpoint;
use crate::legacy::{CancelParams, Lifetime, RequestId, Session};
use crate::metrics::Refusal;
use crate::response::MessageResponse;
use crate::server::Server;
use crate::tasks::Worker;
use crate::timer::within;
use refrain_core::{Principal, limited_event};
use refrain_wire::ratified::Incoming;
use refrain_wire::{Excerpt, Id, Message, RpcError, check_values, find_request_id};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Maximum number of messages in the writer's queue. While it is full, handlers wait.
const QUEUED_MESSAGES: usize = 64;
/// Maximum number of bytes in messages that the client has not read. At this limit, handlers wait, and no request is read.
const UNREAD_BYTES: u32 = 64 << 20;
/// An overlong line is discarded in chunks of this many bytes.
const DISCARD_CHUNK: u64 = 64 << 10;

/// Serves one client over a pair of streams, until the input ends, the output is closed, or `shutdown` resolves.
///
/// The caller is anonymous and has every scope, because it started the process.
///
/// When the input ends, running requests have `drain_grace` to finish. On shutdown they have `drain_time`, and flows
/// stop at their checkpoints. Subscriptions end with a final message. The client has `drain_time` to read the remaining
/// messages. A closed output is not an error.
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
    serve_lines(&Endpoint::Server(server), input, output, shutdown).await
}

pub(crate) async fn serve_lines<R, W>(
    endpoint: &Endpoint,
    input: R,
    output: W,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let server = endpoint.server();
    let limits = server.limits();
    let (queue, receiver) = mpsc::channel(QUEUED_MESSAGES);
    let sender = MessageSender {
        queue,
        unread: Arc::new(Semaphore::new(UNREAD_BYTES as usize)),
    };
    let writer = tokio::spawn(write_lines(receiver, output));
    let mut timeout = limits.drain_grace;
    let worker = Worker::start(server);
    // Becomes true when reading stops.
    let (close, closed) = watch::channel(false);
    let mut session = StdioSession {
        server,
        endpoint,
        sender,
        closed,
        running: JoinSet::new(),
        by_id: HashMap::new(),
        legacy: None,
        has_notifications: false,
    };
    let sender = session.sender.clone();
    let read = tokio::select! {
        read = session.read_lines(input) => read,
        () = sender.queue.closed() => Ok(()),
        () = shutdown => {
            server.start_draining();
            server.close_live();
            timeout = limits.drain_time;
            Ok(())
        }
    };
    close.send_replace(true);
    let is_live_closed = server.0.live.is_closed();
    let all_ended = async {
        while session.running.join_next().await.is_some() {}
        if is_live_closed {
            server.0.services.limits.live.wait_until_idle().await;
        }
    };
    if within(timeout, all_ended).await.is_none() {
        session.running.shutdown().await;
    }
    if let Some(legacy) = &session.legacy {
        server.0.legacy.forget(legacy);
    }
    drop((sender, session));
    worker.stop();
    worker.stopped(timeout).await;
    read.and(flush(writer, limits.drain_time).await)
}

/// Waits until all queued messages are written. Drops them after the timeout.
async fn flush(mut writer: JoinHandle<io::Result<()>>, timeout: Duration) -> io::Result<()> {
    match within(timeout, &mut writer).await {
        Some(written) => written.map_err(io::Error::other)?,
        None => {
            limited_event!(WARN, "client stopped reading, queued messages dropped");
            writer.abort();
            Ok(())
        }
    }
}

/// The client of the process and its requests in flight.
struct StdioSession<'a> {
    server: &'a Server,
    endpoint: &'a Endpoint,
    sender: MessageSender,
    closed: watch::Receiver<bool>,
    running: JoinSet<()>,
    by_id: HashMap<RequestId, RunningRequest>,
    /// The session of a legacy client.
    legacy: Option<Session>,
    /// Whether the legacy client receives notifications of changes.
    has_notifications: bool,
}

/// A request whose response is being sent, and which the client can cancel.
struct RunningRequest {
    handle: AbortHandle,
    cancelled: Arc<AtomicBool>,
}

impl StdioSession<'_> {
    /// Reads and handles lines until the input ends. Lines that still wait for the client then
    /// have `drain_grace` to be handled.
    async fn read_lines(&mut self, input: impl AsyncBufRead + Unpin) -> io::Result<()> {
        let limits = self.server.limits();
        let (limit, grace) = (limits.body, limits.drain_grace);
        let (queue, lines) = mpsc::channel(1);
        let mut handling = pin!(self.handle_lines(lines));
        let read = tokio::select! {
            read = LineReader { input, limit }.read_all(queue) => read,
            // Ends only after all lines of the input are handled.
            () = &mut handling => return Ok(()),
        };
        within(grace, handling).await;
        read
    }

    /// Handles the lines. The requests in them run concurrently.
    async fn handle_lines(&mut self, mut lines: mpsc::Receiver<InputLine>) {
        let limit = self.server.limits().body;
        let mut next = None;
        loop {
            let line = match next.take() {
                None => lines.recv().await,
                read => read,
            };
            let Some(line) = line else { return };
            self.by_id
                .retain(|_, request| !request.handle.is_finished());
            next = self.wait_for_client(&mut lines).await;
            while self.running.try_join_next().is_some() {}
            match line {
                InputLine::TooLong => {
                    let metrics = &self.server.0.services.metrics;
                    metrics.request_refused(Refusal::TooLarge);
                    let error =
                        format!("message exceeds the limit of {limit} bytes (`body_bytes`)");
                    self.reject(None, RpcError::invalid_request(error)).await;
                }
                InputLine::Text(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
                InputLine::Text(bytes) => self.handle_line(&bytes).await,
            }
        }
    }

    /// Waits until the client has read enough for all earlier messages to be queued. Meanwhile,
    /// lines that cancel a running request are handled. Returns the first line that does not.
    async fn wait_for_client(
        &mut self,
        lines: &mut mpsc::Receiver<InputLine>,
    ) -> Option<InputLine> {
        let sender = self.sender.clone();
        let mut waiting = pin!(sender.wait_for_client());
        loop {
            let line = tokio::select! {
                biased;
                () = &mut waiting => return None,
                Some(line) = lines.recv() => line,
            };
            let is_done = match &line {
                InputLine::Text(bytes) => self.cancel_running(bytes),
                InputLine::TooLong => false,
            };
            if !is_done {
                waiting.await;
                return Some(line);
            }
        }
    }

    /// Returns whether the line cancels a running request.
    fn cancel_running(&mut self, bytes: &[u8]) -> bool {
        if check_values(bytes, self.server.limits().json_values).is_err() {
            return false;
        }
        match self.endpoint.read(bytes, self.legacy.is_some()) {
            Ok(Incoming::Message(Message::Notification { method, params })) => {
                method == "notifications/cancelled" && self.cancel(params)
            }
            _ => false,
        }
    }

    async fn handle_line(&mut self, bytes: &[u8]) {
        if let Err(error) = self.server.check_values(bytes) {
            return self.reject(find_request_id(bytes), error).await;
        }
        let legacy = &self.server.0.legacy;
        let session = self.legacy.as_ref();
        let batch = session.map(|session| legacy.split_batch(session, bytes));
        match batch.transpose() {
            Ok(None | Some(None)) => self.handle_message(bytes).await,
            Ok(Some(Some(batch))) => {
                for message in batch {
                    if message.get().starts_with('[') {
                        let nested = "nested batch: a batch must contain only messages";
                        self.reject(None, RpcError::invalid_request(nested)).await;
                    } else {
                        self.handle_message(message.get().as_bytes()).await;
                    }
                }
            }
            Err(error) => {
                let metrics = &self.server.0.services.metrics;
                metrics.request_refused(Refusal::InvalidRequest);
                self.reject(None, error).await;
            }
        }
    }

    /// Sends the error for a rejected message.
    async fn reject(&self, id: Option<Id<'_>>, error: RpcError) {
        let response = MessageResponse::error(self.server, id, error);
        let response = ResponseSender::new(response, &self.sender);
        response.send(self.closed.clone()).await;
    }

    async fn handle_message(&mut self, bytes: &[u8]) {
        let message = self.endpoint.read(bytes, self.legacy.is_some());
        if let Ok(Incoming::Message(Message::Notification { method, params })) = &message {
            match (method.as_ref(), &self.legacy) {
                ("notifications/cancelled", _) => {
                    self.cancel(*params);
                }
                ("notifications/initialized", Some(session)) if !self.has_notifications => {
                    let (server, session) = (self.server.clone(), session.clone());
                    let (sender, closed) = (self.sender.clone(), self.closed.clone());
                    self.running
                        .spawn(send_notifications(server, session, sender, closed));
                    self.has_notifications = true;
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
        let sessions = match &self.legacy {
            Some(session) => SessionContext::Open(session),
            None => SessionContext::NotOpen(Lifetime::Process),
        };
        let context = Context::new(local_caller(), sessions, false);
        let accepted = self.endpoint.accept(bytes, message, context).await;
        let response = accepted.without_relay(self.server);
        let new_session = response.opened_session().cloned();
        let is_initialize = new_session.is_some();
        self.legacy = new_session.or(self.legacy.take());
        let response = ResponseSender::new(response, &self.sender);
        let cancelled = response.cancelled.clone();
        let sent = response.send(self.closed.clone());
        match id.filter(|_| !is_initialize) {
            Some(id) => {
                let handle = self.running.spawn(sent);
                self.by_id.insert(id, RunningRequest { handle, cancelled });
            }
            // Sent before the next line is read.
            None => sent.await,
        }
    }

    /// Returns whether the request was found.
    fn cancel(&mut self, params: Option<&RawValue>) -> bool {
        if let Some(cancel) = params.and_then(CancelParams::read)
            && let Some(request) = self.by_id.remove(&RequestId::read(cancel.request_id.get()))
        {
            let id = Excerpt(cancel.request_id.get());
            let reason = Excerpt(cancel.reason.as_deref().unwrap_or_default());
            tracing::debug!(%id, %reason, "request cancelled");
            request.cancelled.store(true, Ordering::Release);
            request.handle.abort();
            return true;
        }
        false
    }
}

/// The caller of all requests: the process that started this one.
fn local_caller() -> Caller {
    Caller {
        scopes: Scopes::everything(),
        ..Principal::anonymous().into()
    }
}

/// Sends a legacy client the notifications that belong to no request, until reading stops.
async fn send_notifications(
    server: Server,
    session: Session,
    sender: MessageSender,
    mut closed: watch::Receiver<bool>,
) {
    let mut notifications = match server.0.legacy.listen(&session, local_caller()) {
        Ok(notifications) => notifications,
        Err(error) => {
            limited_event!(WARN, %error, "failed to subscribe client to changes");
            return;
        }
    };
    loop {
        let message = tokio::select! {
            message = notifications.next() => message,
            _ = closed.wait_for(|closed| *closed) => None,
        };
        let Some(message) = message else { return };
        sender.send(message, Arc::default()).await;
    }
}

/// A message for the writer.
struct QueuedMessage {
    text: Vec<u8>,
    /// Set if its request is cancelled.
    cancelled: Arc<AtomicBool>,
    /// A permit for each of its bytes, until it is written.
    _unread: Option<OwnedSemaphorePermit>,
}

/// Queues messages for the writer.
#[derive(Clone)]
struct MessageSender {
    queue: mpsc::Sender<QueuedMessage>,
    /// Permits for the bytes that may still be queued. Waiting senders get them in the order of their requests.
    unread: Arc<Semaphore>,
}

impl MessageSender {
    async fn send(&self, text: Vec<u8>, cancelled: Arc<AtomicBool>) {
        let bytes = u32::try_from(text.len()).unwrap_or(UNREAD_BYTES);
        let unread = self
            .unread
            .clone()
            .acquire_many_owned(bytes.min(UNREAD_BYTES));
        let message = QueuedMessage {
            text,
            cancelled,
            _unread: unread.await.ok(),
        };
        // Fails only if the client is gone.
        let _ = self.queue.send(message).await;
    }

    /// Waits until the client has read enough for all earlier messages to be queued.
    async fn wait_for_client(&self) {
        drop(self.unread.acquire().await);
    }
}

/// Sends the response to a request. If the client has cancelled the request, dropping this cancels
/// the call.
struct ResponseSender {
    response: MessageResponse,
    sender: MessageSender,
    /// Set when the request is cancelled. From then on no message of it is sent, not even a queued
    /// one.
    cancelled: Arc<AtomicBool>,
}

impl ResponseSender {
    fn new(response: MessageResponse, sender: &MessageSender) -> Self {
        Self {
            response,
            sender: sender.clone(),
            cancelled: Arc::default(),
        }
    }

    /// Sends all messages. Ends a subscription when reading stops.
    async fn send(mut self, mut closed: watch::Receiver<bool>) {
        let mut is_reading = true;
        loop {
            let message = tokio::select! {
                message = self.response.next() => message,
                _ = closed.wait_for(|closed| *closed), if is_reading => {
                    is_reading = false;
                    self.response.end_subscription();
                    continue;
                }
            };
            let Some(message) = message else { return };
            self.sender.send(message, self.cancelled.clone()).await;
        }
    }
}

impl Drop for ResponseSender {
    fn drop(&mut self) {
        if self.cancelled.load(Ordering::Acquire) {
            self.response.cancel();
        }
    }
}

/// Writes messages until the queue is closed or the client closes the pipe.
async fn write_lines(
    mut messages: mpsc::Receiver<QueuedMessage>,
    mut output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some(mut message) = messages.recv().await {
        if message.cancelled.load(Ordering::Acquire) {
            continue;
        }
        message.text.push(b'\n');
        let written = async {
            output.write_all(&message.text).await?;
            output.flush().await
        };
        match written.await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                tracing::debug!("client closed the pipe");
                return Ok(());
            }
            written => written?,
        }
    }
    Ok(())
}

/// Reads lines of at most `limit` bytes.
struct LineReader<R> {
    input: R,
    limit: usize,
}

enum InputLine {
    Text(Vec<u8>),
    TooLong,
}

impl<R: AsyncBufRead + Unpin> LineReader<R> {
    /// Queues all lines. Reads one at a time while the queue is full.
    async fn read_all(mut self, queue: mpsc::Sender<InputLine>) -> io::Result<()> {
        while let Ok(place) = queue.reserve().await
            && let Some(line) = self.next().await?
        {
            place.send(line);
        }
        Ok(())
    }

    /// Reads the next line. Returns `None` at the end of the input. Discards an overlong line.
    async fn next(&mut self) -> io::Result<Option<InputLine>> {
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
                input.set_limit(DISCARD_CHUNK);
                if input.read_until(b'\n', &mut line).await? == 0 {
                    break;
                }
            }
            return Ok(Some(InputLine::TooLong));
        }
        Ok(Some(InputLine::Text(line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;

    #[tokio::test]
    async fn reading_waits_until_unread_replies_are_written() {
        let (queue, mut messages) = mpsc::channel(QUEUED_MESSAGES);
        let unread = Arc::new(Semaphore::new(UNREAD_BYTES as usize));
        let sender = MessageSender { queue, unread };
        let reply = || sender.send(vec![0; 40 << 20], Arc::default());
        reply().await;
        sender.wait_for_client().await;
        let (mut second, mut reading) = (pin!(reply()), pin!(sender.wait_for_client()));
        assert!(poll!(&mut second).is_pending());
        assert!(poll!(&mut reading).is_pending());
        drop(messages.recv().await);
        second.await;
        reading.await;
    }
}
