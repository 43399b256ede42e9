//! The same server on standard input and output: one message a line.

use crate::auth::{Caller, Scopes};
use crate::server::Server;
use refrain_core::Principal;
use refrain_wire::{Id, Message, RpcError, parse, write_error};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// Messages waiting to be written before handlers are held up.
const QUEUE: usize = 64;

/// Serves one client over a pair of streams, until the input ends. Every caller is anonymous and has every scope:
/// whoever started the process is the one who calls.
pub async fn serve_stdio<R, W>(server: Server, input: R, output: W) -> io::Result<()>
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
    let mut running = JoinSet::new();
    let mut by_id: HashMap<String, AbortHandle> = HashMap::new();
    while let Some(line) = lines.next().await? {
        by_id.retain(|_, handle| !handle.is_finished());
        while running.try_join_next().is_some() {}
        match line {
            Line::TooLong => {
                let error = RpcError::invalid_request(format!(
                    "the message is longer than the limit of {} bytes",
                    server.limits().body
                ));
                let mut out = Vec::new();
                write_error(&mut out, None, &error);
                send(&sender, out).await;
            }
            Line::Text(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
            Line::Text(bytes) => match parse(&bytes) {
                Ok(Message::Notification { method, params }) => {
                    if method == "notifications/cancelled"
                        && let Some(id) = params.and_then(cancelled_id)
                        && let Some(handle) = by_id.remove(&id)
                    {
                        handle.abort();
                    }
                }
                Ok(Message::Request { id, .. }) => {
                    let id = id.as_json().to_owned();
                    let handle = running.spawn(answer(server.clone(), bytes, sender.clone()));
                    by_id.insert(id, handle);
                }
                Err(_) => answer(server.clone(), bytes, sender.clone()).await,
            },
        }
    }
    // The client will send nothing more: what still runs is given a little time, and then cancelled.
    let all = async { while running.join_next().await.is_some() {} };
    let grace = server.limits().drain_grace;
    if tokio::time::timeout(grace, all).await.is_err() {
        running.shutdown().await;
    }
    drop(sender);
    writer.await.map_err(io::Error::other)?
}

async fn answer(server: Server, bytes: Vec<u8>, sender: mpsc::Sender<Vec<u8>>) {
    let caller = Caller {
        principal: Principal::anonymous(),
        scopes: Scopes::everything(),
    };
    let Some(mut outgoing) = server.receive(&bytes, caller) else {
        return;
    };
    while let Some(message) = outgoing.next().await {
        send(&sender, message).await;
    }
}

/// Queues one message. If the writer is gone the client is too, and nobody is left to tell.
async fn send(sender: &mpsc::Sender<Vec<u8>>, message: Vec<u8>) {
    let _ = sender.send(message).await;
}

fn cancelled_id(params: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Cancelled<'a> {
        #[serde(rename = "requestId", borrow)]
        request_id: &'a RawValue,
    }
    let params: Cancelled<'_> = serde_json::from_str(params.get()).ok()?;
    Id::from_raw(params.request_id).map(|id| id.as_json().to_owned())
}

async fn write_lines<W>(mut lines: mpsc::Receiver<Vec<u8>>, mut output: W) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    while let Some(mut line) = lines.recv().await {
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
