//! An older client on standard input and output: its session is that of the process.

use super::{Out, everything};
use crate::legacy::{Listening, Session};
use crate::metrics::Other;
use crate::record;
use crate::server::Server;
use refrain_wire::legacy::{self, Revision, decode_initialize, is_modern, split_batch};
use refrain_wire::ratified::{Incoming, read_message};
use refrain_wire::{Empty, Message, Rejection, Reply, RpcError, parse};
use serde_json::value::RawValue;
use tokio::sync::watch;

/// What became of a line.
pub(super) enum Line {
    /// It was dealt with.
    Done,
    /// It is a message of this session.
    Message(Session),
    /// It is a batch of these messages.
    Batch(Vec<Vec<u8>>),
    /// The client is ready to be told what belongs to no call.
    Ready(Session),
    /// It is one of 2026-07-28.
    Other,
}

/// The session of a process, once there is one.
#[derive(Default)]
pub(super) struct Opened {
    session: Option<Session>,
    /// Is the client told what belongs to no call?
    told: bool,
}

impl Opened {
    /// Reads a line. The calls of a session cannot be read in one pass.
    pub(super) fn read<'a>(&self, bytes: &'a [u8]) -> Result<Incoming<'a>, Box<Rejection>> {
        match self.session {
            Some(_) => parse(bytes).map(Incoming::Message),
            None => read_message(bytes),
        }
    }

    /// Takes a line, if it is a legacy client's.
    pub(super) async fn take(
        &mut self,
        server: &Server,
        message: &Result<Incoming<'_>, Box<Rejection>>,
        bytes: &[u8],
        out: &Out,
    ) -> Line {
        let Some(session) = self.session.clone() else {
            return self.open(server, message, out).await;
        };
        let message = match message {
            Ok(Incoming::Call(..)) => return Line::Other,
            Ok(Incoming::Message(message)) => Some(message),
            Err(_) => None,
        };
        match message {
            Some(Message::Request { params, .. }) if is_modern(*params) => Line::Other,
            Some(Message::Request { .. }) => Line::Message(session),
            Some(Message::Notification { method, .. }) => match method.as_ref() {
                "notifications/initialized" if !self.told => {
                    self.told = true;
                    Line::Ready(session)
                }
                "notifications/cancelled" => Line::Other,
                _ => Line::Done,
            },
            Some(Message::Response(_)) | None => {
                Self::take_batch(server, session, bytes, out).await
            }
        }
    }

    /// Takes a line before there is a session: it may open one.
    async fn open(
        &mut self,
        server: &Server,
        message: &Result<Incoming<'_>, Box<Rejection>>,
        out: &Out,
    ) -> Line {
        let Ok(Incoming::Message(Message::Request { id, method, params })) = message else {
            return Line::Other;
        };
        let (id, params) = (*id, *params);
        let reply = match method.as_ref() {
            "initialize" | "ping" if is_modern(params) => return Line::Other,
            "initialize" => decode_initialize(params).map(|initialize| {
                server.0.metrics.other(Other::Initialize);
                let session = server.0.legacy.open_process(&initialize);
                let reply = server.greet(session.revision);
                self.session = Some(session);
                reply
            }),
            // The one request that may come before.
            "ping" => Ok(Reply::complete(Empty {})),
            _ => return Line::Other,
        };
        let reply = reply.unwrap_or_else(Reply::Error);
        let revision = self
            .session
            .as_ref()
            .map_or(Revision::LATEST, |s| s.revision);
        let mut message = Vec::with_capacity(512);
        legacy::write_reply(&mut message, id, &reply, revision);
        record::sent_older(revision, method, &message);
        out.send(message).await;
        Line::Done
    }

    /// Takes a batch apart, where the session has them. Other messages without a method are left to the server.
    async fn take_batch(server: &Server, session: Session, bytes: &[u8], out: &Out) -> Line {
        let batch = split_batch(bytes).filter(|_| session.revision == Revision::V2025_03_26);
        let Some(batch) = batch else {
            return Line::Message(session);
        };
        match server.check_batch(batch.len()) {
            Ok(()) => take_apart(&session, &batch, out).await,
            Err(error) => {
                refuse(&session, &error, out).await;
                Line::Done
            }
        }
    }
}

/// Takes a batch apart. What is itself one is refused, and spoils no other.
async fn take_apart(session: &Session, batch: &[&RawValue], out: &Out) -> Line {
    let mut messages = Vec::with_capacity(batch.len());
    for message in batch {
        if message.get().starts_with('[') {
            let nested = "a batch has messages in it, and no other batches";
            refuse(session, &RpcError::invalid_request(nested), out).await;
        } else {
            messages.push(message.get().as_bytes().to_vec());
        }
    }
    Line::Batch(messages)
}

/// Says what is wrong with a message that has no id to name it by.
async fn refuse(session: &Session, error: &RpcError, out: &Out) {
    let mut message = Vec::new();
    legacy::write_error(&mut message, None, error);
    record::sent_older(session.revision, "", &message);
    out.send(message).await;
}

/// Tells a session what belongs to no call, until no more is read.
pub(super) async fn tell(
    server: Server,
    session: Session,
    out: Out,
    mut closed: watch::Receiver<bool>,
) {
    let listening = Listening::new(&server, &session, everything());
    let Ok(mut listening) = listening else {
        tracing::warn!("there is no place for one more client that listens");
        return;
    };
    loop {
        let message = tokio::select! {
            message = listening.next() => message,
            _ = closed.wait_for(|closed| *closed) => None,
        };
        match message {
            Some(message) => out.send(message).await,
            None => return,
        }
    }
}
