//! The same server on standard input and output: one message a line.

use crate::dispatch::Request;
use crate::http::write_note;
use crate::round::{Begin, RoundEvent};
use crate::server::Server;
use refrain_core::Principal;
use refrain_wire::{Id, Message, Reply, RpcError, parse, write_error, write_reply};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// Messages waiting to be written before handlers are held up.
const QUEUE: usize = 64;

/// Serves one client over a pair of streams, until the input ends. Every caller is anonymous: whoever started the
/// process is the one who calls.
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
                Err(rejection) => {
                    let mut out = Vec::new();
                    let id = rejection.id.as_deref().map(RawValue::get);
                    write_error(&mut out, id, &rejection.error);
                    send(&sender, out).await;
                }
            },
        }
    }
    // The client is gone: what still runs is cancelled.
    running.shutdown().await;
    drop(sender);
    writer.await.map_err(io::Error::other)?
}

async fn answer(server: Server, bytes: Vec<u8>, sender: mpsc::Sender<Vec<u8>>) {
    let Ok(Message::Request { id, method, params }) = parse(&bytes) else {
        return;
    };
    let begun = Request::decode(&method, params)
        .and_then(|request| request.check_version().map(|()| request))
        .map(|request| server.answer(request, Principal::anonymous()));
    let reply = match begun {
        Err(error) => Reply::Error(error),
        Ok(Begin::Listed(reply) | Begin::Reply(reply)) => reply,
        Ok(Begin::Busy) => Reply::Error(RpcError::internal(format!(
            "this server already runs its limit of {} calls; try again",
            server.limits().concurrent_calls
        ))),
        Ok(Begin::Round(mut round)) => loop {
            match round.next().await {
                RoundEvent::Notes(notes) => {
                    for note in notes {
                        let mut out = Vec::new();
                        write_note(&mut out, round.progress_token(), &note);
                        send(&sender, out).await;
                    }
                }
                RoundEvent::Reply(reply) => break reply,
                RoundEvent::Crashed => return,
            }
        },
    };
    let mut out = Vec::with_capacity(512);
    write_reply(&mut out, Some(id), &reply, &server.0.info);
    send(&sender, out).await;
}

/// Queues one message. If the writer is gone the client is too, and nobody is left to tell.
async fn send(sender: &mpsc::Sender<Vec<u8>>, message: Vec<u8>) {
    if !message.is_empty() {
        let _ = sender.send(message).await;
    }
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
                return Ok((!line.is_empty()).then_some(Line::Text(line)));
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
