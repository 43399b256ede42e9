//! A draft over standard input and output: a filter of lines around the ratified loop.
//!
//! Requests in a shape of the draft's own are answered here; all other lines go to [`serve_stdio`](crate::serve_stdio) and
//! come back through a pipe.

use super::Drafted;
use crate::legacy::{DEFAULT_LEVEL, RequestId};
use crate::server::Server;
use crate::stdio::{
    Line, Lines, Out, QUEUE, Running, Sender, cancel, everything, too_long, write_lines,
};
use refrain_wire::drafts::Draft;
use refrain_wire::legacy::{Agreed, decode_set_level};
use refrain_wire::{Message, parse};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, duplex, split,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Bytes on their way to or from the ratified loop.
const PIPE: usize = 64 << 10;

/// Like [`serve_stdio`](crate::serve_stdio), for a client that speaks a draft.
pub async fn serve_stdio<R, W>(
    draft: Draft,
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
    let (outer, inner) = duplex(PIPE);
    let (inner_input, inner_output) = split(inner);
    let (from_inner, to_inner) = split(outer);
    let drafted = Drafted::new(draft, server.clone());
    let mut filter = Filter {
        drafted: drafted.clone(),
        agreed: None,
        sender: sender.clone(),
        by_id: HashMap::new(),
        running: JoinSet::new(),
    };
    let inner_input = BufReader::new(inner_input);
    let serving = crate::serve_stdio(server.clone(), inner_input, inner_output, shutdown);
    let filtering = async {
        let mut forwarding = std::pin::pin!(forward(drafted, from_inner, sender.clone()));
        tokio::select! {
            read = filter.read(input, to_inner) => read?,
            () = sender.closed() => return Ok(()),
            forwarded = &mut forwarding => return forwarded,
        }
        forwarding.await
    };
    let (served, filtered) = tokio::join!(serving, filtering);
    let limits = server.limits();
    let patience = match server.is_draining() {
        true => limits.drain_time,
        false => limits.drain_grace,
    };
    let mut running = filter.running;
    let all = async { while running.join_next().await.is_some() {} };
    if tokio::time::timeout(patience, all).await.is_err() {
        running.shutdown().await;
    }
    drop((sender, filter.sender));
    let abort = writer.abort_handle();
    let written = tokio::time::timeout(limits.drain_time, writer).await;
    let written = written.unwrap_or_else(|_| {
        tracing::warn!("client stopped reading: queued messages dropped");
        abort.abort();
        Ok(Ok(()))
    });
    served.and(filtered).and(written.map_err(io::Error::other)?)
}

/// Sends the lines of the ratified loop on to the client.
async fn forward(
    drafted: Drafted,
    from_inner: impl AsyncRead + Unpin,
    sender: Sender,
) -> io::Result<()> {
    let mut lines = BufReader::new(from_inner).split(b'\n');
    while let Some(line) = lines.next_segment().await? {
        let line = drafted.write_initialized(&line).unwrap_or(line);
        Out::new(&sender).send(line).await;
    }
    Ok(())
}

/// The lines of the client.
struct Filter {
    drafted: Drafted,
    /// What was agreed on when the session was opened.
    agreed: Option<Agreed>,
    sender: Sender,
    by_id: HashMap<RequestId, Running>,
    running: JoinSet<()>,
}

impl Filter {
    /// Reads until the input ends.
    async fn read(
        &mut self,
        input: impl AsyncBufRead + Unpin,
        mut to_inner: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut lines = Lines {
            input,
            limit: self.drafted.server.limits().body,
        };
        while let Some(line) = lines.next().await? {
            self.by_id
                .retain(|_, request| !request.handle.is_finished());
            while self.running.try_join_next().is_some() {}
            match line {
                Line::TooLong => {
                    let error = too_long(&self.drafted.server);
                    Out::new(&self.sender).send(error).await;
                }
                Line::Text(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
                Line::Text(bytes) => {
                    if let Some(mut line) = self.take(bytes).await {
                        line.push(b'\n');
                        to_inner.write_all(&line).await?;
                    }
                }
            }
        }
        to_inner.shutdown().await
    }

    /// Takes a line. One that is not translated is given back for the ratified loop.
    async fn take(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        if let Some(initialize) = self.drafted.read_initialize(&bytes) {
            self.agree(&bytes);
            return Some(initialize);
        }
        match parse(&bytes) {
            Ok(Message::Notification { method, params }) => {
                if method == "notifications/cancelled" {
                    cancel(&mut self.by_id, params);
                }
                return Some(bytes);
            }
            Ok(Message::Request { method, params, .. }) if method == "logging/setLevel" => {
                if let (Some(agreed), Ok(level)) = (&mut self.agreed, decode_set_level(params)) {
                    agreed.log_level = Some(level);
                }
            }
            _ => {}
        }
        if self.agreed.is_some() && !self.drafted.claims(&bytes) {
            return Some(bytes);
        }
        self.answer(bytes).await;
        None
    }

    /// Remembers what a client says of itself when it opens the session.
    fn agree(&mut self, initialize: &[u8]) {
        if let Ok(Message::Request { params, .. }) = parse(initialize)
            && let Ok(initialize) = self.drafted.draft.decode_initialize(params)
            && self.agreed.is_none()
        {
            self.agreed = Some(Agreed {
                revision: initialize.revision,
                capabilities: initialize.capabilities,
                log_level: Some(DEFAULT_LEVEL),
            });
        }
    }

    /// Answers a request beside the others. Answers that have no method are taken in before the next line is read, since no
    /// reply tells the client that they were.
    async fn answer(&mut self, bytes: Vec<u8>) {
        let out = Out::new(&self.sender);
        let (id, silent) = (request_id(&bytes), out.silent.clone());
        let (drafted, agreed) = (self.drafted.clone(), self.agreed);
        let answering = async move {
            let response = drafted.handle(&bytes, agreed, everything()).await;
            let mut answer = out.answer(response);
            while let Some(message) = answer.response.next().await {
                out.send(message).await;
            }
        };
        match id {
            Some(id) => {
                let handle = self.running.spawn(answering);
                self.by_id.insert(id, Running { handle, silent });
            }
            None => answering.await,
        }
    }
}

/// The id of a request that has a method.
fn request_id(bytes: &[u8]) -> Option<RequestId> {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
        #[serde(rename = "method")]
        _method: IgnoredAny,
    }
    let request: Request<'_> = serde_json::from_slice(bytes).ok()?;
    Some(RequestId::read(request.id.get()))
}
