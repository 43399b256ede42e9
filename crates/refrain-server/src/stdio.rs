//! The same server on standard input and output: one message a line.

use crate::auth::{Caller, Scopes};
use crate::metrics::Refusal;
use crate::record;
use crate::server::Server;
use refrain_core::Principal;
use refrain_wire::{Message, RpcError, parse, write_error};
use serde::Deserialize;
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
const QUEUE: usize = 64;

/// Serves one client over a pair of streams, until the input ends or `shutdown` is done. Every caller is anonymous and
/// has every scope: whoever started the process is the one who calls.
///
/// What still runs when the input ends is given the drain grace; when told to stop, flows are handed on at their
/// checkpoints and the rest is given the drain time. Subscriptions are told that they end.
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
    let writer = tokio::spawn(write_lines(receiver, output));
    let mut lines = Lines {
        input,
        limit: server.limits().body,
    };
    let mut shutdown = std::pin::pin!(shutdown);
    let mut patience = server.limits().drain_grace;
    // Says so when no more is read.
    let (closing, closed) = watch::channel(false);
    let mut running = JoinSet::new();
    let mut by_id: HashMap<String, Running> = HashMap::new();
    loop {
        let line = tokio::select! {
            line = lines.next() => line?,
            () = &mut shutdown => {
                server.start_draining();
                patience = server.limits().drain_time;
                None
            }
        };
        let Some(line) = line else { break };
        by_id.retain(|_, request| !request.handle.is_finished());
        while running.try_join_next().is_some() {}
        match line {
            Line::TooLong => {
                server.0.metrics.request_refused(Refusal::TooLarge);
                let error = RpcError::invalid_request(format!(
                    "the message is longer than the limit of {} bytes",
                    server.limits().body
                ));
                let mut out = Vec::new();
                write_error(&mut out, None, &error);
                record::sent("", &out);
                Out::new(&sender).send(out).await;
            }
            Line::Text(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
            Line::Text(bytes) => match parse(&bytes) {
                Ok(Message::Notification { method, params }) => {
                    if method == "notifications/cancelled"
                        && let Some(cancelled) = params.and_then(Cancelled::read)
                        && let Some(request) = by_id.remove(cancelled.request_id.get())
                    {
                        let reason = cancelled.reason.as_deref().unwrap_or("none given");
                        tracing::debug!(id = cancelled.request_id.get(), reason, "cancelled");
                        request.silent.store(true, Ordering::Release);
                        request.handle.abort();
                    }
                }
                Ok(Message::Request { id, .. }) => {
                    let id = id.as_json().to_owned();
                    let out = Out::new(&sender);
                    let silent = out.silent.clone();
                    let handle = running.spawn(answer(server.clone(), bytes, out, closed.clone()));
                    by_id.insert(id, Running { handle, silent });
                }
                Err(_) => {
                    answer(server.clone(), bytes, Out::new(&sender), closed.clone()).await;
                }
            },
        }
    }
    // Nothing more is read: nobody listens any longer, and what still runs is given a little time and then cancelled.
    closing.send_replace(true);
    let all = async { while running.join_next().await.is_some() {} };
    if tokio::time::timeout(patience, all).await.is_err() {
        running.shutdown().await;
    }
    drop(sender);
    writer.await.map_err(io::Error::other)?
}

async fn answer(server: Server, bytes: Vec<u8>, out: Out, mut closed: watch::Receiver<bool>) {
    let caller = Caller {
        principal: Principal::anonymous(),
        scopes: Scopes::everything(),
        expires: None,
    };
    let Some(mut outgoing) = server.receive(&bytes, caller) else {
        return;
    };
    let mut open = true;
    loop {
        let message = tokio::select! {
            message = outgoing.next() => message,
            _ = closed.wait_for(|closed| *closed), if open => {
                open = false;
                outgoing.end_listening();
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
struct Running {
    handle: AbortHandle,
    silent: Arc<AtomicBool>,
}

/// Where the messages of one request go.
struct Out {
    sender: mpsc::Sender<(Vec<u8>, Arc<AtomicBool>)>,
    /// The request was cancelled: nothing more may be said, not even what is queued.
    silent: Arc<AtomicBool>,
}

impl Out {
    fn new(sender: &mpsc::Sender<(Vec<u8>, Arc<AtomicBool>)>) -> Self {
        Self {
            sender: sender.clone(),
            silent: Arc::default(),
        }
    }

    /// Queues one message. If the writer is gone the client is too, and nobody is left to tell.
    async fn send(&self, message: Vec<u8>) {
        let _ = self.sender.send((message, self.silent.clone())).await;
    }
}

/// What a client no longer wants.
#[derive(Deserialize)]
struct Cancelled<'a> {
    #[serde(rename = "requestId", borrow)]
    request_id: &'a RawValue,
    reason: Option<String>,
}

impl<'a> Cancelled<'a> {
    fn read(params: &'a RawValue) -> Option<Self> {
        serde_json::from_str(params.get()).ok()
    }
}

async fn write_lines<W>(
    mut lines: mpsc::Receiver<(Vec<u8>, Arc<AtomicBool>)>,
    mut output: W,
) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    while let Some((mut line, silent)) = lines.recv().await {
        if silent.load(Ordering::Acquire) {
            continue;
        }
        line.push(b'\n');
        output.write_all(&line).await?;
        output.flush().await?;
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
    /// The next line, or `None` at the end. What is beyond the limit is read and thrown away.
    async fn next(&mut self) -> io::Result<Option<Line>> {
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
