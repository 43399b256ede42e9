//! What an older server asks while a call is under way, and the answers.
//!
//! While somebody thinks about an answer, the call goes on: more may be asked, told, or withdrawn.

use super::beside::Joined;
use super::{PING, Session, refuse_stray};
use crate::ask::{Answer, Ask, Asker};
use crate::client::Inner;
use crate::error::{ErrorKind, Unanswered};
use crate::retry::Retry;
use crate::transport::{Exchange, Incoming, LinkError, Outgoing, Response};
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use refrain_wire::client::{Request, cancelled_request, write_refusal, write_result};
use refrain_wire::{AskKind, CallKind, ErrorCode};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::Instant;

/// The error of a person who does not want a model asked.
const REJECTED: i32 = -1;

/// Something the server asks.
struct Asked {
    id: Value,
    key: String,
    method: String,
    params: Option<Box<RawValue>>,
}

/// The asks of one call that are being answered.
/// An ask that is being answered: the id of the server's request, and why it was not answered.
type Answering<'a> = BoxFuture<'a, (String, Option<Unanswered>)>;

struct OpenAsks<'a> {
    inner: &'a Inner,
    asker: Arc<Asker>,
    session: &'a Session,
    answering: FuturesUnordered<Abortable<Answering<'a>>>,
    /// How to withdraw each, by the id of the server's request.
    withdrawing: HashMap<String, AbortHandle>,
    unanswered: Vec<Unanswered>,
    asked: usize,
}

impl<'a> OpenAsks<'a> {
    /// Has one more ask answered, unless there were too many.
    fn add(
        &mut self,
        id: Value,
        method: String,
        params: Option<Box<RawValue>>,
    ) -> Result<(), LinkError> {
        self.asked += usize::from(method != PING);
        let limit = self.inner.setup.limits.asks;
        if self.asked > limit || self.answering.len() >= limit {
            let asks = limit + 1;
            return Err(LinkError::Final(ErrorKind::TooManyAsks { asks, limit }));
        }
        let key = format!("ask-{}", self.asked);
        let (handle, registration) = AbortHandle::new_pair();
        self.withdrawing.insert(id.to_string(), handle);
        let asked = Asked {
            id,
            key,
            method,
            params,
        };
        let (inner, asker, session) = (self.inner, Arc::clone(&self.asker), self.session);
        let answer = async move {
            let id = asked.id.to_string();
            (id, inner.answer_asked(asked, &asker, session).await)
        };
        let answer = Abortable::new(answer.boxed(), registration);
        self.answering.push(answer);
        Ok(())
    }

    /// The server wants no answer any more.
    fn withdraw(&mut self, id: &Value) {
        if let Some(handle) = self.withdrawing.remove(&id.to_string()) {
            handle.abort();
            self.inner.link.settled(id);
        }
    }

    /// The next message of the server's, while asks are answered.
    async fn next(
        &mut self,
        exchange: &mut Exchange,
        beside: &mut Joined,
    ) -> Result<Incoming, LinkError> {
        let mut next = pin!(exchange.next());
        let silence = self.inner.setup.limits.silence;
        let mut silent = pin!(tokio::time::sleep(silence));
        loop {
            tokio::select! {
                message = &mut next => return message,
                Some(Incoming::Request { id, method, params }) = beside.next() => {
                    self.add(id, method, params)?;
                }
                Some(answer) = self.answering.next(), if !self.answering.is_empty() => {
                    if let Ok((id, unanswered)) = answer {
                        self.withdrawing.remove(&id);
                        self.unanswered.extend(unanswered);
                    }
                    silent.as_mut().reset(Instant::now() + silence);
                }
                // A server that waits for an answer has nothing to say.
                () = &mut silent, if self.answering.is_empty() => {
                    return Err(LinkError::Final(ErrorKind::Late(silence)));
                }
            }
        }
    }
}

impl Inner {
    /// Reads the messages of a call up to its response, and answers what the server asks. Returns what was not answered
    /// too.
    pub(crate) async fn answer_within(
        &self,
        exchange: &mut Exchange,
        request: &Request,
        session: &Session,
    ) -> Result<(Response, Vec<Unanswered>), LinkError> {
        let mut asks = OpenAsks {
            inner: self,
            asker: self.asker(request),
            session,
            answering: FuturesUnordered::new(),
            withdrawing: HashMap::new(),
            unanswered: Vec::new(),
            asked: 0,
        };
        let mut beside = self.setup.beside.join();
        loop {
            match asks.next(exchange, &mut beside).await? {
                Incoming::Response(response) => return Ok((response, asks.unanswered)),
                Incoming::Alive => {}
                Incoming::Request { id, method, params } => asks.add(id, method, params)?,
                Incoming::Notification { method, params } => {
                    if method != "notifications/cancelled" {
                        self.setup.news.tell(&method, params.as_deref());
                    } else if let Some(id) = cancelled_request(params.as_deref()) {
                        asks.withdraw(&id);
                    }
                }
            }
        }
    }

    /// Has one ask answered, and sends the answer. Says so, if there is none.
    async fn answer_asked(
        &self,
        asked: Asked,
        asker: &Arc<Asker>,
        session: &Session,
    ) -> Option<Unanswered> {
        let Asked {
            id, key, method, ..
        } = &asked;
        if method == PING {
            if let Err(error) = self.tell(refuse_stray(id, method), session).await {
                tracing::debug!(?error, "a ping is not answered");
            }
            return None;
        }
        let ask = asked.read(asker);
        let answer = match self.setup.handlers.answer(&ask).await {
            Ok(answer) => ask.take(answer).map_err(|error| error.to_string()),
            Err(none) => Err(none.why),
        };
        let (body, why) = match (answer, ask.kind()) {
            (Ok(answer), kind) => (write_result(id, &answer.to_json(kind)), None),
            (Err(why), kind @ Some(AskKind::Form | AskKind::Url)) => {
                (write_result(id, &Answer::Cancel.to_json(kind)), Some(why))
            }
            (Err(why), Some(kind)) => (self.without(id, kind, &why), Some(why)),
            (Err(why), None) => (unknown(id, method, &why), Some(why)),
        };
        let sent = self.tell(body, session).await;
        self.link.settled(id);
        let unsent = sent.err().map(|error| error.into_kind().to_string());
        let why = why.or_else(|| Some(format!("the answer was not sent: {}", unsent?)))?;
        tracing::warn!(key, why, "an ask is not answered");
        Some(Unanswered {
            key: key.clone(),
            why,
        })
    }

    /// The error instead of an answer of a model, or of the roots.
    fn without(&self, id: &Value, kind: AskKind, why: &str) -> String {
        let code = match kind {
            _ if !self.setup.handlers.has(kind) => ErrorCode::MethodNotFound.as_i32(),
            AskKind::Sampling => REJECTED,
            _ => ErrorCode::Internal.as_i32(),
        };
        write_refusal(id, code, why)
    }

    /// Sends a response of ours, and again if it does not reach the server, or the server cannot take it yet.
    async fn tell(&self, body: String, session: &Session) -> Result<(), LinkError> {
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

    fn asker(&self, request: &Request) -> Arc<Asker> {
        Arc::new(Asker {
            server: self.server.name().map(str::to_owned),
            address: self.link.address().to_owned(),
            kind: request.call_kind().unwrap_or(CallKind::Tool),
            target: request.subject().unwrap_or_default().to_owned(),
        })
    }
}

impl Asked {
    fn read(&self, asker: &Arc<Asker>) -> Ask {
        let mut ask = json!({"method": self.method});
        if let Some(params) = &self.params {
            ask["params"] = serde_json::from_str(params.get()).unwrap_or_default();
        }
        Ask::read(&self.key, &ask, asker)
    }
}

/// The response to a call, or, where it was refused, what was asked in it and not answered.
pub(crate) fn said_why(
    response: Response,
    mut unanswered: Vec<Unanswered>,
) -> Result<Response, LinkError> {
    if let (Err(refusal), Some(last)) = (&response.outcome, unanswered.last_mut()) {
        last.why = format!("{}; the server then refused: {refusal}", last.why);
        return Err(LinkError::Final(ErrorKind::Unanswered(unanswered)));
    }
    Ok(response)
}

fn unknown(id: &Value, method: &str, why: &str) -> String {
    let is_known = matches!(
        method,
        "elicitation/create" | "sampling/createMessage" | "roots/list"
    );
    let code = if is_known {
        ErrorCode::InvalidParams
    } else {
        ErrorCode::MethodNotFound
    };
    write_refusal(id, code.as_i32(), why)
}
