//! One message in, and what goes out in response, without a transport.

use crate::auth::Caller;
use crate::dispatch::Request;
use crate::http::write_note;
use crate::round::{Begin, Round, RoundEvent};
use crate::server::Server;
use refrain_wire::{Id, Message, Reply, RpcError, parse, write_error, write_reply};
use serde_json::value::RawValue;
use std::collections::VecDeque;

/// What goes out in response to one message: notifications, and last the reply. Dropping it cancels the handler.
#[derive(Debug)]
pub struct Outgoing {
    server: Server,
    id: Option<Box<RawValue>>,
    ready: VecDeque<Vec<u8>>,
    round: Option<Box<Round>>,
    over: bool,
}

impl Server {
    /// Takes one JSON-RPC message from this caller, as any transport would. A notification wants no response. A
    /// [`Principal`](refrain_core::Principal) by itself is a caller without scopes.
    ///
    /// ```
    /// # use refrain_core::Principal;
    /// # use refrain_server::Server;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let server = Server::builder("docs", "1.0").build()?;
    /// let mut out = server.receive(b"not JSON", Principal::anonymous()).expect("a response");
    /// let reply = String::from_utf8(out.next().await.expect("a reply")).expect("text");
    /// assert!(reply.contains("-32700"));
    /// assert_eq!(out.next().await, None);
    /// # Ok::<(), refrain_server::BuildError>(())
    /// # }).unwrap();
    /// ```
    pub fn receive(&self, message: &[u8], caller: impl Into<Caller>) -> Option<Outgoing> {
        let mut outgoing = Outgoing {
            server: self.clone(),
            id: None,
            ready: VecDeque::new(),
            round: None,
            over: false,
        };
        let (id, method, params) = match parse(message) {
            Ok(Message::Request { id, method, params }) => (id, method, params),
            Ok(Message::Notification { .. }) => return None,
            Err(rejection) => {
                let mut out = Vec::with_capacity(256);
                let id = rejection.id.as_deref().map(RawValue::get);
                write_error(&mut out, id, &rejection.error);
                outgoing.finish(out);
                return Some(outgoing);
            }
        };
        outgoing.id = RawValue::from_string(id.as_json().to_owned()).ok();
        let begun = Request::decode(&method, params)
            .and_then(|request| request.check_version().map(|()| request))
            .map(|request| self.answer(request, caller.into()));
        let reply = match begun {
            Ok(Begin::Round(round)) => {
                outgoing.round = Some(round);
                return Some(outgoing);
            }
            Ok(Begin::Reply(reply)) => reply,
            Ok(Begin::Forbidden(missing)) => Reply::Error(missing.into()),
            Ok(Begin::Busy) => Reply::Error(RpcError::internal(format!(
                "this server already runs its limit of {} calls; try again",
                self.limits().concurrent_calls
            ))),
            Err(error) => Reply::Error(error),
        };
        outgoing.reply(&reply);
        Some(outgoing)
    }
}

impl Outgoing {
    /// The next message to send. `None` after the reply, or when the round was made to crash.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let round = self.round.as_mut().filter(|_| !self.over)?;
            match round.next().await {
                RoundEvent::Notes(notes) => {
                    for note in notes {
                        let mut out = Vec::new();
                        write_note(&mut out, round.progress_token(), &note);
                        if !out.is_empty() {
                            self.ready.push_back(out);
                        }
                    }
                }
                RoundEvent::Reply(reply) => self.reply(&reply),
                RoundEvent::Crashed => self.over = true,
            }
        }
    }

    /// The round that is at work, where a handler is needed to reply.
    pub fn round(&mut self) -> Option<&mut Round> {
        self.round.as_deref_mut()
    }

    fn reply(&mut self, reply: &Reply) {
        let mut out = Vec::with_capacity(512);
        let id = self.id.as_deref().and_then(Id::from_raw);
        write_reply(&mut out, id, reply, &self.server.0.info);
        self.finish(out);
    }

    fn finish(&mut self, message: Vec<u8>) {
        self.ready.push_back(message);
        self.over = true;
    }
}
