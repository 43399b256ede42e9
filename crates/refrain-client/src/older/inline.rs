//! What an older server asks while a call is under way, and the answers.
//!
//! While somebody thinks about an answer, the call goes on: more may be asked, told, or withdrawn.

use super::{Session, answered, refuse_stray, refused};
use crate::ask::{Answer, Ask, Asker, UnknownAsk};
use crate::client::{Inner, LONGEST_WISH, Request, back_off};
use crate::error::{ErrorKind, Unanswered};
use crate::transport::{Exchange, Incoming, LinkError, Outgoing, Response};
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use refrain_wire::{AskKind, CallKind, ErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What is no ask.
pub(crate) const PING: &str = "ping";
/// The error of a person who does not want a model asked.
const REJECTED: i32 = -1;

/// Something the server asks.
struct Asked {
    id: Value,
    key: String,
    method: String,
    params: Option<Box<RawValue>>,
}

impl Inner {
    /// Hears what the server says up to the response to a call, and answers what it asks. Gives what was not answered
    /// too.
    pub(crate) async fn answer_within(
        &self,
        exchange: &mut Exchange,
        request: &Request<'_>,
        session: &Session,
    ) -> Result<(Response, Vec<Unanswered>), LinkError> {
        let asker = self.asker(request);
        let mut answering = FuturesUnordered::new();
        let mut withdrawing: HashMap<String, AbortHandle> = HashMap::new();
        let mut unanswered: Vec<Unanswered> = Vec::new();
        let mut asked = 0;
        let mut beside = self.setup.beside.join();
        loop {
            let message = {
                let mut next = pin!(exchange.next());
                let silence = self.setup.limits.silence;
                let mut silent = pin!(tokio::time::sleep(silence));
                loop {
                    tokio::select! {
                        message = &mut next => break message?,
                        Some(Incoming::Request { id, method, params }) = beside.next() => {
                            let ask = self.accept(&mut asked, answering.len(), id, method, params)?;
                            let (handle, registration) = AbortHandle::new_pair();
                            withdrawing.insert(ask.id.to_string(), handle);
                            let answer = self.answer_one(ask, &asker, session);
                            answering.push(Abortable::new(answer, registration));
                        }
                        Some(answer) = answering.next(), if !answering.is_empty() => {
                            if let Ok((id, without)) = answer {
                                withdrawing.remove(&id);
                                unanswered.extend(without);
                            }
                            silent.as_mut().reset(Instant::now() + silence);
                        }
                        // A server that waits for an answer has nothing to say.
                        () = &mut silent, if answering.is_empty() => {
                            return Err(LinkError::Final(ErrorKind::Late(silence)));
                        }
                    }
                }
            };
            match message {
                Incoming::Response(response) => return Ok((response, unanswered)),
                Incoming::Notification { method, params }
                    if method == "notifications/cancelled" =>
                {
                    if let Some(id) = cancelled(params.as_deref())
                        && let Some(handle) = withdrawing.remove(&id.to_string())
                    {
                        handle.abort();
                        self.link.settled(&id);
                    }
                }
                Incoming::Alive => {}
                Incoming::Notification { method, params } => {
                    self.setup.news.tell(&method, params.as_deref());
                }
                Incoming::Request { id, method, params } => {
                    let ask = self.accept(&mut asked, answering.len(), id, method, params)?;
                    let (handle, registration) = AbortHandle::new_pair();
                    withdrawing.insert(ask.id.to_string(), handle);
                    let answer = self.answer_one(ask, &asker, session);
                    answering.push(Abortable::new(answer, registration));
                }
            }
        }
    }

    /// Takes in one more ask, unless there were too many.
    fn accept(
        &self,
        asked: &mut u64,
        open: usize,
        id: Value,
        method: String,
        params: Option<Box<RawValue>>,
    ) -> Result<Asked, LinkError> {
        *asked += u64::from(method != PING);
        let limit = self.setup.limits.asks;
        if *asked > limit as u64 || open >= limit {
            let asks = limit + 1;
            return Err(LinkError::Final(ErrorKind::TooManyAsks { asks, limit }));
        }
        let key = format!("ask-{asked}");
        Ok(Asked {
            id,
            key,
            method,
            params,
        })
    }

    /// Has one ask answered, and says which: as text, the id of the server's request.
    async fn answer_one(
        &self,
        asked: Asked,
        asker: &Arc<Asker>,
        session: &Session,
    ) -> (String, Option<Unanswered>) {
        let id = asked.id.to_string();
        (id, self.answer_asked(asked, asker, session).await)
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
            Ok(answer) => ask.take(answer),
            Err(none) => Err(none.why),
        };
        let (body, why) = match (answer, ask.kind()) {
            (Ok(answer), kind) => (answered(id, &answer.to_json(kind)), None),
            (Err(why), kind @ Some(AskKind::Form | AskKind::Url)) => {
                (answered(id, &Answer::Cancel.to_json(kind)), Some(why))
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
        refused(id, code, why)
    }

    /// Sends a response of ours, and again if it does not reach the server, or the server cannot take it yet.
    async fn tell(&self, body: String, session: &Session) -> Result<(), LinkError> {
        let outgoing = Outgoing::unanswered(body, session.headers());
        for again in 1..=self.setup.limits.retries {
            let pause = match self.link.tell(&outgoing).await {
                Err(LinkError::NotSent(_)) => back_off(again),
                Err(LinkError::Busy { retry_after, .. }) => {
                    let wish = Duration::from_secs(retry_after.unwrap_or_default());
                    back_off(again).max(wish.min(LONGEST_WISH))
                }
                outcome => return outcome,
            };
            tokio::time::sleep(pause).await;
        }
        self.link.tell(&outgoing).await
    }

    fn asker(&self, request: &Request<'_>) -> Arc<Asker> {
        let kind = CallKind::from_method(request.method).unwrap_or(CallKind::Tool);
        let member = match kind {
            CallKind::Resource => "uri",
            CallKind::Tool | CallKind::Prompt => "name",
        };
        let target = request.params.get(member).and_then(Value::as_str);
        Arc::new(Asker {
            server: self.server.name().map(str::to_owned),
            address: self.link.address().to_owned(),
            kind,
            target: target.unwrap_or_default().to_owned(),
        })
    }
}

impl Asked {
    fn read(&self, asker: &Arc<Asker>) -> Ask {
        #[derive(Serialize)]
        struct Shape<'a> {
            method: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            params: Option<&'a RawValue>,
        }
        let shape = Shape {
            method: &self.method,
            params: self.params.as_deref(),
        };
        match to_raw_value(&shape) {
            Ok(raw) => Ask::read(&self.key, &raw, asker),
            Err(error) => Ask::Unknown(UnknownAsk {
                key: self.key.clone(),
                asker: Arc::clone(asker),
                why: error.to_string(),
                can_decline: false,
            }),
        }
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
    refused(id, code.as_i32(), why)
}

/// Which of its requests the server withdraws.
fn cancelled(params: Option<&RawValue>) -> Option<Value> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Cancelled {
        request_id: Value,
    }
    let cancelled: Cancelled = serde_json::from_str(params?.get()).ok()?;
    Some(cancelled.request_id)
}
