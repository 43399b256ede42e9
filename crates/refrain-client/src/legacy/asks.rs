//! Asks of a legacy server during a call.
//!
//! The call goes on while an ask is answered: more asks, notifications and cancellations may come.

use super::unassociated::Joined;
use super::{PING, Session, refuse_stray};
use crate::ask::{Answer, Ask, Asker};
use crate::client::Inner;
use crate::error::{ErrorKind, Unanswered};
use crate::retry::Retry;
use crate::transport::{Exchange, Incoming, LinkError, LinkResult, Outgoing, Response};
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use refrain_wire::client::{Request, cancelled_request, write_error, write_result};
use refrain_wire::{AskKind, CallKind, ErrorCode};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::Instant;

/// The error code for sampling that the person declined.
const REJECTED: i32 = -1;

/// The key of an ask that is done, and why it was not answered.
type Answered = (String, Option<Unanswered>);

struct OpenAsks<'a> {
    inner: &'a Inner,
    asker: Arc<Asker>,
    session: &'a Session,
    answering: FuturesUnordered<Abortable<BoxFuture<'a, Answered>>>,
    /// By the id of the server's request.
    handles: HashMap<String, AbortHandle>,
    unanswered: Vec<Unanswered>,
    asked: usize,
}

impl OpenAsks<'_> {
    fn add(&mut self, id: Value, method: String, params: Option<&RawValue>) -> LinkResult<()> {
        self.asked += usize::from(method != PING);
        let limit = self.inner.setup.limits.asks;
        if self.asked > limit || self.answering.len() >= limit {
            let asks = limit + 1;
            return Err(LinkError::Final(ErrorKind::TooManyAsks { asks, limit }));
        }
        let (handle, registration) = AbortHandle::new_pair();
        self.handles.insert(id.to_string(), handle);
        let mut request = json!({"method": method});
        if let Some(params) = params {
            request["params"] = serde_json::from_str(params.get()).unwrap_or_default();
        }
        let ask = Ask::read(&format!("ask-{}", self.asked), &request, &self.asker);
        let (inner, session) = (self.inner, self.session);
        let answer = async move {
            let unanswered = inner.answer_ask(&id, &method, &ask, session).await;
            (id.to_string(), unanswered)
        };
        let answer = Abortable::new(answer.boxed(), registration);
        self.answering.push(answer);
        Ok(())
    }

    fn withdraw(&mut self, id: &Value) {
        if let Some(handle) = self.handles.remove(&id.to_string()) {
            handle.abort();
            self.inner.link.settled(id);
        }
    }

    /// The next message of the server, while asks are answered.
    async fn next(
        &mut self,
        exchange: &mut Exchange,
        unassociated: &mut Joined,
    ) -> LinkResult<Incoming> {
        let mut next = pin!(exchange.next());
        let silence = self.inner.setup.limits.silence;
        let mut silent = pin!(tokio::time::sleep(silence));
        loop {
            tokio::select! {
                message = &mut next => return message,
                Some(Incoming::Request { id, method, params }) = unassociated.asks.recv() => {
                    self.add(id, method, params.as_deref())?;
                }
                Some(answer) = self.answering.next(), if !self.answering.is_empty() => {
                    if let Ok((id, unanswered)) = answer {
                        self.handles.remove(&id);
                        self.unanswered.extend(unanswered);
                    }
                    silent.as_mut().reset(Instant::now() + silence);
                }
                // A server that waits for an answer may be silent.
                () = &mut silent, if self.answering.is_empty() => {
                    return Err(LinkError::Final(ErrorKind::Late(silence)));
                }
            }
        }
    }
}

impl Inner {
    /// Reads the messages of a call up to its response, and answers the asks of the server. Returns the asks without an
    /// answer too.
    pub(crate) async fn answer_within(
        &self,
        exchange: &mut Exchange,
        request: &Request,
        session: &Session,
    ) -> LinkResult<(Response, Vec<Unanswered>)> {
        let asker = Arc::new(Asker {
            server: self.server.name().map(str::to_owned),
            address: self.link.address().to_owned(),
            kind: request.call_kind().unwrap_or(CallKind::Tool),
            target: request.subject().unwrap_or_default().to_owned(),
        });
        let mut asks = OpenAsks {
            inner: self,
            asker,
            session,
            answering: FuturesUnordered::new(),
            handles: HashMap::new(),
            unanswered: Vec::new(),
            asked: 0,
        };
        let mut unassociated = self.setup.unassociated.join();
        loop {
            match asks.next(exchange, &mut unassociated).await? {
                Incoming::Response(response) => return Ok((response, asks.unanswered)),
                Incoming::Alive => {}
                Incoming::Request { id, method, params } => {
                    asks.add(id, method, params.as_deref())?;
                }
                Incoming::Notification { method, params } => {
                    if method != "notifications/cancelled" {
                        self.setup.notifications.handle(&method, params.as_deref());
                    } else if let Some(id) = cancelled_request(params.as_deref()) {
                        asks.withdraw(&id);
                    }
                }
            }
        }
    }

    /// Answers one ask, and sends the answer. Returns why there is none.
    async fn answer_ask(
        &self,
        id: &Value,
        method: &str,
        ask: &Ask,
        session: &Session,
    ) -> Option<Unanswered> {
        if method == PING {
            if let Err(error) = self.tell(refuse_stray(id, method), session).await {
                tracing::debug!(?error, "ping not answered");
            }
            return None;
        }
        let answer = match self.setup.handlers.answer(ask).await {
            Ok(answer) => ask.check(answer).map_err(|error| error.to_string()),
            Err(none) => Err(none.why),
        };
        let (body, why) = match (answer, ask.kind()) {
            (Ok(answer), kind) => (write_result(id, &answer.to_json(kind)), None),
            (Err(why), kind @ Some(AskKind::Form | AskKind::Url)) => {
                (write_result(id, &Answer::Cancel.to_json(kind)), Some(why))
            }
            (Err(why), kind) => (write_error(id, self.code(kind, method), &why), Some(why)),
        };
        let sent = self.tell(body, session).await;
        self.link.settled(id);
        let unsent = sent.err().map(|error| ErrorKind::from(error).to_string());
        let why = why.or_else(|| Some(format!("the answer was not sent: {}", unsent?)))?;
        let key = ask.key().to_owned();
        tracing::warn!(key, why, "ask not answered");
        Some(Unanswered { key, why })
    }

    fn code(&self, kind: Option<AskKind>, method: &str) -> i32 {
        let known = ["elicitation/create", "sampling/createMessage", "roots/list"];
        match kind {
            None if known.contains(&method) => ErrorCode::InvalidParams.as_i32(),
            None => ErrorCode::MethodNotFound.as_i32(),
            Some(kind) if !self.setup.handlers.has(kind) => ErrorCode::MethodNotFound.as_i32(),
            Some(AskKind::Sampling) => REJECTED,
            Some(_) => ErrorCode::Internal.as_i32(),
        }
    }

    /// Sends a response, and again if it did not reach the server.
    async fn tell(&self, body: String, session: &Session) -> LinkResult<()> {
        let outgoing = Outgoing::unanswered(body, session.headers());
        let mut retry = Retry::new(self.setup.limits.retries);
        loop {
            match self.link.tell(&outgoing).await {
                Err(error @ (LinkError::NotSent(_) | LinkError::Busy { .. })) => {
                    retry.wait(error).await?;
                }
                outcome => return outcome,
            }
        }
    }
}

/// The response to a call. If it is an error, the asks without an answer are the reason.
pub(crate) fn join_unanswered(
    response: Response,
    mut unanswered: Vec<Unanswered>,
) -> LinkResult<Response> {
    if let (Err(refusal), Some(last)) = (&response.outcome, unanswered.last_mut()) {
        last.why = format!("{}; the server then refused: {refusal}", last.why);
        return Err(LinkError::Final(ErrorKind::Unanswered(unanswered)));
    }
    Ok(response)
}
