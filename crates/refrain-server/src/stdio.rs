//! The same server on standard input and output: one message a line.

mod legacy;

use crate::auth::{Caller, Scopes};
use crate::dispatch::Context;
use crate::legacy::{Cancelled, RequestId};
use crate::metrics::Refusal;
use crate::record;
use crate::response::Response;
use crate::server::Server;
use crate::tasks::Worker;
use refrain_core::Principal;
use refrain_wire::ratified::{Incoming, write_error};
use refrain_wire::{Message, Rejection, RpcError};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

/// Messages waiting to be written before handlers are held up.
pub(crate) const QUEUE: usize = 64;

/// Serves one client over a pair of streams, until the input ends, the client no longer takes what is written, or
/// `shutdown` is done. Every caller is anonymous and has every scope: whoever started the process is the one who calls.
///
/// What still runs when the client leaves is given the drain grace; when told to stop, flows are handed on at their
/// checkpoints and the rest is given the drain time. Subscriptions are told that they end. What is written by then has
/// to be read within the drain time. A client that has gone is no error.
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
    let (sender, receiver) = mpsc::channel(QUEUE);
    let mut writer = tokio::spawn(write_lines(receiver, output));
    let mut patience = server.limits().drain_grace;
    let worker = Worker::start(&server);
    // Says so when no more is read.
    let (closing, closed) = watch::channel(false);
    let mut running = JoinSet::new();
    let read = tokio::select! {
        read = read_lines(&server, input, &sender, &closed, &mut running) => read,
        () = sender.closed() => Ok(()),
        () = shutdown => {
            server.start_draining();
            server.close_live();
            patience = server.limits().drain_time;
            Ok(())
        }
    };
    // Nothing more is read: nobody listens any longer, and what still runs is given a little time and then cancelled.
    closing.send_replace(true);
    let stopping = server.0.live.is_closed();
    let all = async {
        while running.join_next().await.is_some() {}
        if stopping {
            server.0.limits.live.wait_until_idle().await;
        }
    };
    if tokio::time::timeout(patience, all).await.is_err() {
        running.shutdown().await;
    }
    drop(sender);
    worker.stop();
    worker.stopped(patience).await;
    let written = tokio::time::timeout(server.limits().drain_time, &mut writer).await;
    let written = written.unwrap_or_else(|_| {
        tracing::warn!("the client did not read in time: what was left for it is dropped");
        writer.abort();
        Ok(Ok(()))
    });
    read.and(written.map_err(io::Error::other)?)
}

/// Reads until the input ends. Requests are answered side by side.
async fn read_lines(
    server: &Server,
    input: impl AsyncBufRead + Unpin,
    sender: &Sender,
    closed: &watch::Receiver<bool>,
    running: &mut JoinSet<()>,
) -> io::Result<()> {
    let mut lines = Lines {
        input,
        limit: server.limits().body,
    };
    let mut client = Client {
        server,
        sender,
        closed,
        running,
        by_id: HashMap::new(),
        opened: legacy::Opened::default(),
    };
    while let Some(line) = lines.next().await? {
        client.forget_finished();
        match line {
            Line::TooLong => Out::new(sender).send(too_long(server)).await,
            Line::Text(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
            Line::Text(bytes) => {
                for message in client.take(&bytes).await {
                    client.take(&message).await;
                }
            }
        }
    }
    Ok(())
}

/// The client of the process, and its requests that are being answered.
struct Client<'a> {
    server: &'a Server,
    sender: &'a Sender,
    closed: &'a watch::Receiver<bool>,
    running: &'a mut JoinSet<()>,
    by_id: HashMap<RequestId, Running>,
    opened: legacy::Opened,
}

impl Client<'_> {
    fn forget_finished(&mut self) {
        let by_id = &mut self.by_id;
        by_id.retain(|_, request| !request.handle.is_finished());
        while self.running.try_join_next().is_some() {}
    }

    /// Takes a message. The messages of a batch are given back.
    async fn take(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let out = Out::new(self.sender);
        let message = self.opened.read(bytes);
        let session = match self.opened.take(self.server, &message, bytes, &out).await {
            legacy::Line::Done => return Vec::new(),
            legacy::Line::Batch(batch) => return batch,
            legacy::Line::Ready(session) => {
                let (server, closed) = (self.server.clone(), self.closed.clone());
                self.running
                    .spawn(legacy::tell(server, session, out, closed));
                return Vec::new();
            }
            legacy::Line::Message(session) => Some(session),
            legacy::Line::Other => None,
        };
        if let Ok(Incoming::Message(Message::Notification { method, params })) = &message {
            if method == "notifications/cancelled" {
                cancel(&mut self.by_id, *params);
            }
            return Vec::new();
        }
        let id = request_id(&message);
        let mut context = Context::from(everything());
        context.session = session.as_ref();
        let response = self.server.handle_message(message, context).await;
        let silent = out.silent.clone();
        let sending = send_all(out.answer(response), out, self.closed.clone());
        match id {
            Some(id) => {
                let handle = self.running.spawn(sending);
                self.by_id.insert(id, Running { handle, silent });
            }
            None => sending.await,
        }
        Vec::new()
    }
}

/// The error for a line that is too long.
pub(crate) fn too_long(server: &Server) -> Vec<u8> {
    server.0.metrics.request_refused(Refusal::TooLarge);
    let error = RpcError::invalid_request(format!(
        "the message is longer than the limit of {} bytes",
        server.limits().body
    ));
    let mut out = Vec::new();
    write_error(&mut out, None, &error);
    record::sent("", &out);
    out
}

/// The id of a message that is a request.
fn request_id(message: &Result<Incoming<'_>, Box<Rejection>>) -> Option<RequestId> {
    match message {
        Ok(Incoming::Call(id, _) | Incoming::Message(Message::Request { id, .. })) => {
            Some(RequestId::read(id.as_json()))
        }
        _ => None,
    }
}

/// Ends a request that the client no longer wants.
pub(crate) fn cancel(by_id: &mut HashMap<RequestId, Running>, params: Option<&RawValue>) {
    if let Some(cancelled) = params.and_then(Cancelled::read)
        && let Some(request) = by_id.remove(&RequestId::read(cancelled.request_id.get()))
    {
        let reason = cancelled.reason.as_deref().unwrap_or("none given");
        tracing::debug!(id = cancelled.request_id.get(), reason, "cancelled");
        request.silent.store(true, Ordering::Release);
        request.handle.abort();
    }
}

/// Whoever started the process.
pub(crate) fn everything() -> Caller {
    Caller {
        principal: Principal::anonymous(),
        scopes: Scopes::everything(),
        expires: None,
    }
}

/// Sends a response. A subscription ends when no more is read.
async fn send_all(mut answer: Answer, out: Out, mut closed: watch::Receiver<bool>) {
    let mut open = true;
    loop {
        let message = tokio::select! {
            message = answer.response.next() => message,
            _ = closed.wait_for(|closed| *closed), if open => {
                open = false;
                answer.response.end_subscription();
                continue;
            }
        };
        match message {
            Some(message) => out.send(message).await,
            None => return,
        }
    }
}

/// A request that is being answered.
pub(crate) struct Running {
    pub(crate) handle: AbortHandle,
    pub(crate) silent: Arc<AtomicBool>,
}

/// Messages for the writer, and whether they may still be sent.
pub(crate) type Sender = mpsc::Sender<(Vec<u8>, Arc<AtomicBool>)>;

/// Where the messages of one request go.
pub(crate) struct Out {
    sender: Sender,
    /// The request was cancelled: nothing more may be said, not even what is queued.
    pub(crate) silent: Arc<AtomicBool>,
}

impl Out {
    pub(crate) fn new(sender: &Sender) -> Self {
        Self {
            sender: sender.clone(),
            silent: Arc::default(),
        }
    }

    /// The response to the request.
    pub(crate) fn answer(&self, response: Response) -> Answer {
        Answer {
            response,
            cancelled: self.silent.clone(),
        }
    }

    /// Queues one message. If the writer is gone the client is too, and nobody is left to tell.
    pub(crate) async fn send(&self, message: Vec<u8>) {
        let _ = self.sender.send((message, self.silent.clone())).await;
    }
}

/// The response to a request. If the client cancelled the request, the call ends with it.
pub(crate) struct Answer {
    pub(crate) response: Response,
    cancelled: Arc<AtomicBool>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.cancelled.load(Ordering::Acquire) {
            self.response.cancel();
        }
    }
}

/// Writes until there is no more to come, or nobody who takes it: that is how a client ends that does not wait.
pub(crate) async fn write_lines(
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

pub(crate) struct Lines<R> {
    pub(crate) input: R,
    pub(crate) limit: usize,
}

pub(crate) enum Line {
    Text(Vec<u8>),
    TooLong,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// The next line, or `None` at the end. What is beyond the limit is read and thrown away.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Vec::new();
        let mut too_long = false;
        loop {
            let piece = self.input.fill_buf().await?;
            if piece.is_empty() {
                return Ok(match (too_long, line.is_empty()) {
                    (true, _) => Some(Line::TooLong),
                    (false, false) => Some(Line::Text(line)),
                    (false, true) => None,
                });
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(piece.len());
            too_long |= line.len() + taken > self.limit;
            if !too_long {
                line.extend_from_slice(&piece[..taken]);
            }
            self.input.consume(end.map_or(taken, |end| end + 1));
            if end.is_some() {
                return Ok(Some(if too_long {
                    Line::TooLong
                } else {
                    Line::Text(line)
                }));
            }
        }
    }
}
