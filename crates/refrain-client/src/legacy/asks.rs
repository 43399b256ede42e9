//! Answers asks of a legacy server during a call.
//!
//! While handlers run, the server may send more asks, notifications and cancellations.

use super::active_calls::CallRegistration;
use super::{LegacySession, PING, respond_to_stray};
use crate::ask::{AskAnswer, Asker, IncomingAsk};
use crate::client::ClientInner;
use crate::error::{ErrorKind, UnansweredAsk};
use crate::limits::count_values;
use crate::retry::RetryState;
use crate::transport::{
    IncomingMessage, LinkError, LinkExchange, LinkResponse, LinkResult, OutgoingMessage,
};
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use refrain_wire::client::{Request, cancelled_request, write_error, write_result};
use refrain_wire::limited_event;
use refrain_wire::{AskKind, CallKind, ErrorCode};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::Instant;

/// The error code for sampling that the person rejected.
const USER_REJECTED: i32 = -1;

/// The id of the server's request, and the ask if it stays unanswered.
type AskCompletion = (String, Option<UnansweredAsk>);

/// The asks of one call.
struct CallAsks<'a> {
    inner: &'a ClientInner,
    asker: Arc<Asker>,
    session: &'a LegacySession,
    answering: FuturesUnordered<Abortable<BoxFuture<'a, AskCompletion>>>,
    handles: HashMap<String, AbortHandle>,
    unanswered: Vec<UnansweredAsk>,
    count: usize,
    /// The number of JSON values in all asks.
    values: usize,
}

impl CallAsks<'_> {
    fn add(&mut self, id: Value, method: String, params: Option<&RawValue>) -> LinkResult<()> {
        self.count += usize::from(method != PING);
        let limits = &self.inner.setup.limits;
        let limit = limits.asks;
        // Pings are not counted, but their answers must not pile up.
        if self.count > limit || self.answering.len() >= limit {
            let asks = limit + 1;
            return Err(LinkError::Final(ErrorKind::TooManyAsks { asks, limit }));
        }
        let bytes = params.map_or(0, |params| params.get().len());
        limits.check_ask_bytes(bytes).map_err(LinkError::Final)?;
        let (handle, registration) = AbortHandle::new_pair();
        self.handles.insert(id.to_string(), handle);
        let mut request = json!({"method": method});
        if let Some(params) = params {
            request["params"] = serde_json::from_str(params.get()).unwrap_or_default();
        }
        self.values += count_values(&request);
        let checked = limits.check_ask_values(self.values);
        checked.map_err(LinkError::Final)?;
        let ask = IncomingAsk::read(&format!("ask-{}", self.count), &request, &self.asker);
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
            self.inner.connection.link.close_ask(id);
        }
    }

    /// The next message of the server. Handlers run meanwhile.
    async fn next(
        &mut self,
        exchange: &mut LinkExchange,
        registration: &mut CallRegistration,
    ) -> LinkResult<IncomingMessage> {
        let mut next = pin!(exchange.next());
        let silence = self.inner.setup.limits.silence;
        let mut silent = pin!(tokio::time::sleep(silence));
        loop {
            tokio::select! {
                message = &mut next => return message,
                Some(IncomingMessage::Request { id, method, params }) = registration.asks.recv() => {
                    self.add(id, method, params.as_deref())?;
                }
                Some(answer) = self.answering.next(), if !self.answering.is_empty() => {
                    if let Ok((id, unanswered)) = answer {
                        self.handles.remove(&id);
                        self.unanswered.extend(unanswered);
                    }
                    silent.as_mut().reset(Instant::now() + silence);
                }
                // A server may be silent while it waits for an answer.
                () = &mut silent, if self.answering.is_empty() => {
                    return Err(LinkError::Final(ErrorKind::Timeout(silence)));
                }
            }
        }
    }
}

impl ClientInner {
    /// Reads the replies to a call up to its response, and answers the server's asks. Also returns the unanswered asks.
    pub(crate) async fn read_response_and_answer(
        &self,
        exchange: &mut LinkExchange,
        request: &Request,
        session: &LegacySession,
        mut registration: CallRegistration,
    ) -> LinkResult<(LinkResponse, Vec<UnansweredAsk>)> {
        let asker = Arc::new(Asker {
            server: self.connection.server().name().map(str::to_owned),
            address: self.connection.link.address().to_owned(),
            kind: request.call_kind().unwrap_or(CallKind::Tool),
            target: request.subject().unwrap_or_default().to_owned(),
        });
        let mut asks = CallAsks {
            inner: self,
            asker,
            session,
            answering: FuturesUnordered::new(),
            handles: HashMap::new(),
            unanswered: Vec::new(),
            count: 0,
            values: 0,
        };
        loop {
            match asks.next(exchange, &mut registration).await? {
                IncomingMessage::Response(response) => return Ok((response, asks.unanswered)),
                IncomingMessage::KeepAlive => {}
                IncomingMessage::Request { id, method, params } => {
                    asks.add(id, method, params.as_deref())?;
                }
                IncomingMessage::Notification { method, params } => {
                    if method != "notifications/cancelled" {
                        self.setup.notifications.handle(&method, params.as_deref());
                    } else if let Some(id) = cancelled_request(params.as_deref()) {
                        asks.withdraw(&id);
                    }
                }
            }
        }
    }

    /// Answers one ask, and sends the answer. Returns the ask, with the reason, if that fails.
    async fn answer_ask(
        &self,
        id: &Value,
        method: &str,
        ask: &IncomingAsk,
        session: &LegacySession,
    ) -> Option<UnansweredAsk> {
        if method == PING {
            let pong = respond_to_stray(id, method, None);
            if let Err(error) = self.send_response(pong, session).await {
                tracing::debug!(?error, "failed to answer ping");
            }
            return None;
        }
        let answered = match (ask, &self.connection.roots) {
            (IncomingAsk::Roots(_), Some(roots)) if !self.setup.handlers.has(AskKind::Roots) => {
                Ok(AskAnswer::Roots(roots.to_vec()))
            }
            _ => self.setup.handlers.answer(ask.clone()).await,
        };
        let answer = match answered {
            Ok(answer) => ask.check(answer).map_err(|error| error.to_string()),
            Err(failure) => Err(failure.why),
        };
        let (body, why) = match (answer, ask.kind()) {
            (Ok(answer), kind) => (write_result(id, &answer.to_json(kind)), None),
            (Err(why), kind @ Some(AskKind::Form | AskKind::Url)) => (
                write_result(id, &AskAnswer::Cancel.to_json(kind)),
                Some(why),
            ),
            (Err(why), _) => (
                write_error(id, self.error_code(ask, method), &why),
                Some(why),
            ),
        };
        let sent = self.send_response(body, session).await;
        self.connection.link.close_ask(id);
        let unsent = sent.err().map(|error| ErrorKind::from(error).to_string());
        let why = why.or_else(|| Some(format!("the answer could not be sent: {}", unsent?)))?;
        let key = ask.key().to_owned();
        limited_event!(WARN, key, why, "ask not answered");
        Some(UnansweredAsk { key, why })
    }

    fn error_code(&self, ask: &IncomingAsk, method: &str) -> i32 {
        let methods = ["elicitation/create", "sampling/createMessage", "roots/list"];
        let handlers = &self.setup.handlers;
        match (ask, ask.kind()) {
            (_, None) if methods.contains(&method) => ErrorCode::InvalidParams.as_i32(),
            (_, None) => ErrorCode::MethodNotFound.as_i32(),
            (_, Some(kind)) if !handlers.has(kind) => ErrorCode::MethodNotFound.as_i32(),
            (IncomingAsk::Sampling(ask), _) if handlers.allows(ask) => USER_REJECTED,
            (IncomingAsk::Sampling(_), _) => ErrorCode::InvalidParams.as_i32(),
            _ => ErrorCode::Internal.as_i32(),
        }
    }

    /// Sends a response, and retries while it may not have reached the server, which ignores a
    /// repeated response.
    async fn send_response(&self, body: String, session: &LegacySession) -> LinkResult<()> {
        let outgoing = OutgoingMessage::without_response(body, session.headers());
        let mut retry = RetryState::new(self.setup.limits.retries);
        loop {
            match self.connection.link.send(&outgoing).await {
                Err(
                    error @ (LinkError::NotSent(_) | LinkError::Lost(_) | LinkError::Busy { .. }),
                ) => {
                    let (pause, _) = retry.next(error)?;
                    tokio::time::sleep(pause).await;
                }
                outcome => return outcome,
            }
        }
    }
}

/// Returns the response to a call, or an error about the unanswered asks if there are any and the call failed.
pub(crate) fn or_unanswered_error(
    response: LinkResponse,
    mut unanswered: Vec<UnansweredAsk>,
) -> LinkResult<LinkResponse> {
    if let (Err(failure), Some(last)) = (&response.outcome, unanswered.last_mut()) {
        last.why = format!("{}; the call then failed: {failure}", last.why);
        return Err(LinkError::Final(ErrorKind::Unanswered(unanswered)));
    }
    Ok(response)
}
