//! Legacy clients over HTTP: sessions, and streams that can be resumed.
//!
//! | request | answer |
//! | --- | --- |
//! | POST of `initialize` | the session's id in a header |
//! | POST of a request | one JSON object, or a stream of events as soon as there is more to say or it takes long |
//! | POST of a response or a notification | 202 |
//! | GET | notifications outside of calls, or with `Last-Event-ID` the rest of a stream |
//! | DELETE | the session ends |
//!
//! An instance that does not hold the session relays the request. If the holder is gone, it serves the request itself.

use super::body::Source;
use super::{Body, HttpService, accepted, events, json};
use crate::auth::Caller;
use crate::dispatch::{Context, Parsed, Sessions};
use crate::legacy::{EventId, Purpose, Reader, ResumeError, Session};
use crate::metrics::Refusal;
use crate::relay::RelayRequest;
use crate::response::{Handled, MessageKind, Status};
use crate::timer::within;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use refrain_wire::legacy::{Revision, is_modern};
use refrain_wire::ratified::Incoming;
use refrain_wire::{ErrorCode, Id, Message, RpcError, parse};
use serde_json::value::RawValue;
use std::time::Duration;

pub(crate) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(super) const NO_SESSION_ID: &str =
    "there is no Mcp-Session-Id header; open a session with initialize";
pub(crate) const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// A call that is done by then is answered with one object; otherwise the client gets a stream that it can resume.
const PROMPT: Duration = Duration::from_millis(500);

/// Is a request with another method than POST one about a session?
pub(super) fn is_about_session(parts: &Parts) -> bool {
    is_for_sessions(&parts.method) && parts.headers.contains_key(SESSION)
}

/// Do legacy clients use this method, in a session?
pub(super) fn is_for_sessions(method: &Method) -> bool {
    method == Method::GET || method == Method::DELETE
}

type Refused = Box<Response<Body>>;

impl HttpService {
    /// Answers a POST in a session.
    pub(crate) async fn respond_in_session(
        &self,
        headers: &HeaderMap,
        message: Parsed<'_>,
        bytes: &[u8],
        caller: Caller,
        relayed: bool,
    ) -> Response<Body> {
        let session = match self.find_session(headers, &caller) {
            Ok(session) => session,
            Err(refused) => return *refused,
        };
        let (server, legacy) = (&self.server, &self.server.0.legacy);
        let request = RelayRequest {
            method: &Method::POST,
            headers,
            body: bytes,
            caller: &caller,
            legacy: true,
        };
        match legacy.split_batch(&session, bytes) {
            Ok(None) => {}
            Ok(Some(batch)) => {
                if !relayed && let Some(response) = self.relay_to_holder(&session, request).await {
                    return response;
                }
                return self.respond_to_batch(&session, &batch, caller).await;
            }
            Err(error) => {
                let status = StatusCode::BAD_REQUEST;
                return self.refuse(Refusal::InvalidRequest, status, None, &error);
            }
        }
        let context = |relays| Context::new(caller.clone(), Sessions::Open(&session), relays);
        let response = match server.accept(message.clone(), context(!relayed)).await {
            Handled::Response(response) => response,
            Handled::Relay(id, to) => match self.relay_session(&to.holder, id, request).await {
                Some(response) => return response,
                None => server.handle_message(message, context(false)).await,
            },
        };
        match response.is_call() {
            true => self.answer_call(&session, response).await,
            false => self.answer(response).await,
        }
    }

    /// The session of a request.
    pub(crate) fn find_session(
        &self,
        headers: &HeaderMap,
        caller: &Caller,
    ) -> Result<Session, Refused> {
        let legacy = &self.server.0.legacy;
        let mut ids = headers.get_all(SESSION).iter();
        let id = ids.next().and_then(|id| id.to_str().ok());
        let id = id.filter(|_| ids.next().is_none());
        let session = match id.map(|id| legacy.find(id, &caller.principal)) {
            Some(Ok(session)) => session,
            Some(Err(reason)) => {
                tracing::debug!(%reason, "session id rejected");
                return Err(self.no_session());
            }
            None => return Err(self.no_session()),
        };
        let version = headers.get(VERSION).map(HeaderValue::to_str);
        let revision = session.revision.as_str();
        if version.is_some_and(|version| version.ok() != Some(revision)) {
            let reason =
                format!("the MCP-Protocol-Version header must be that of the session, {revision}");
            let status = StatusCode::BAD_REQUEST;
            return Err(self.reject(Refusal::UnsupportedVersion, status, reason));
        }
        match legacy.has_ended(&session) {
            true => Err(self.no_session()),
            false => Ok(session),
        }
    }

    fn no_session(&self) -> Refused {
        let reason = "this is no session, or its time is over; open another with initialize";
        self.reject(Refusal::Session, StatusCode::NOT_FOUND, reason)
    }

    /// Rejects a message with the headers of a session except for its id.
    pub(super) fn refuse_without_session(
        &self,
        headers: &HeaderMap,
        message: &Parsed<'_>,
    ) -> Option<Response<Body>> {
        let id = match message {
            Ok(Incoming::Message(Message::Request { id, method, params }))
                if method != "initialize" && !is_modern(*params) =>
            {
                Some(*id)
            }
            Ok(Incoming::Message(Message::Response(response))) => Some(response.id),
            Err(rejection) if rejection.error.code == ErrorCode::InvalidRequest => {
                rejection.id.as_deref().and_then(Id::from_raw)
            }
            _ => return None,
        };
        let version = headers.get(VERSION).and_then(|value| value.to_str().ok());
        version.and_then(Revision::parse)?;
        let error = RpcError::invalid_request(NO_SESSION_ID);
        Some(self.refuse(Refusal::Session, StatusCode::BAD_REQUEST, id, &error))
    }

    /// Answers a call: with one object if it is done at once, otherwise on a stream.
    async fn answer_call(&self, session: &Session, response: crate::Response) -> Response<Body> {
        let legacy = &self.server.0.legacy;
        let id = response.id().map(|id| id.as_json().to_owned());
        let purpose = id.map(Purpose::Call);
        let reader = legacy.stream(session, vec![response], purpose.as_ref());
        if let Some(Some((MessageKind::Reply, reply))) = within(PROMPT, reader.peek()).await {
            legacy.forget_stream(&reader);
            return json(reply);
        }
        self.replay(session, reader)
    }

    /// Answers all messages of a batch: on a stream, if one of them is a request.
    async fn respond_to_batch(
        &self,
        session: &Session,
        batch: &[&RawValue],
        caller: Caller,
    ) -> Response<Body> {
        let mut responses = Vec::with_capacity(batch.len());
        for message in batch {
            let message = parse(message.get().as_bytes()).map(Incoming::Message);
            let context = Context::new(caller.clone(), Sessions::Open(session), false);
            responses.push(self.server.handle_message(message, context).await);
        }
        let is_retryable = |response: &crate::Response| {
            matches!(response.status(), Status::Forbidden(_) | Status::Busy)
        };
        let is_done = |response: &crate::Response| {
            matches!(response.status(), Status::Accepted | Status::Replied)
        };
        let any_done = responses.iter().any(is_done);
        let first = responses.iter().position(is_retryable);
        if let Some(first) = first.filter(|_| !any_done) {
            // Nothing of the batch was done: the status says so.
            return self.answer(responses.swap_remove(first)).await;
        }
        responses.retain(|response| *response.status() != Status::Accepted);
        if responses.is_empty() {
            return accepted();
        }
        let reader = self.server.0.legacy.stream(session, responses, None);
        self.replay(session, reader)
    }

    /// A stream of events that can be resumed.
    fn replay(&self, session: &Session, reader: Reader) -> Response<Body> {
        let keep_alive = self.server.0.services.limits.keep_alive;
        // Clients of earlier revisions take every event for a message.
        let greets = session.revision >= Revision::V2025_11_25;
        events(Source::Replayed { reader, greets }, keep_alive)
    }

    /// Answers a GET or a DELETE about a session.
    pub(super) async fn about_session(
        &self,
        parts: &Parts,
        caller: Caller,
        relayed: bool,
    ) -> Response<Body> {
        if let Err(missing) = self.server.0.auth.allow(&caller, &[]) {
            return self.forbid(missing);
        }
        let session = match self.find_session(&parts.headers, &caller) {
            Ok(session) => session,
            Err(refused) => return *refused,
        };
        let legacy = &self.server.0.legacy;
        let last = parts.headers.get(LAST_EVENT);
        let after = last.map(|last| last.to_str().ok().and_then(EventId::parse));
        let own = self.server.0.relay.own.id();
        let is_here = matches!(&after, Some(Some(after)) if after.instance == own);
        if !relayed && !is_here {
            let request = RelayRequest {
                method: &parts.method,
                headers: &parts.headers,
                body: b"",
                caller: &caller,
                legacy: true,
            };
            if let Some(response) = self.relay_to_holder(&session, request).await {
                if parts.method == Method::DELETE && response.status().is_success() {
                    legacy.end(&session);
                }
                return response;
            }
        }
        if parts.method == Method::DELETE {
            legacy.end(&session);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return response;
        }
        let reader = match after {
            None => legacy.stream_changes(&session, caller).map_err(Into::into),
            Some(None) => Err(ResumeError::Malformed),
            Some(Some(after)) => legacy.resume(&session, &after, caller),
        };
        match reader {
            Ok(reader) => self.replay(&session, reader),
            Err(error) => self.refuse_stream(error),
        }
    }

    fn refuse_stream(&self, error: ResumeError) -> Response<Body> {
        let refusal = match error {
            ResumeError::Subscribe(_) => Refusal::Busy,
            ResumeError::Elsewhere => Refusal::Elsewhere,
            ResumeError::Malformed | ResumeError::Replaced | ResumeError::Gone => {
                let (refusal, status) = (Refusal::InvalidRequest, StatusCode::BAD_REQUEST);
                return *self.reject(refusal, status, error.to_string());
            }
        };
        let metrics = &self.server.0.services.metrics;
        metrics.request_refused(refusal);
        self.busy(None, &RpcError::internal(error.to_string()))
    }
}
