//! Legacy clients over HTTP: sessions and resumable streams.
//!
//! | request | response |
//! | --- | --- |
//! | POST of `initialize` | the session id in a header |
//! | POST of a request | one JSON object if it completes within `MAX_JSON_DELAY`, otherwise a stream of events |
//! | POST of a response or a notification | 202 |
//! | GET | notifications outside of calls; with `Last-Event-ID`, the rest of a stream |
//! | DELETE | 204, and the session ends |
//!
//! An instance that does not hold the session relays the request to the holder. If the holder is gone, the instance serves
//! the request itself.

use super::body::EventSource;
use super::errors::retry_after;
use super::{Body, BoxedResponse, HttpService, empty, event_stream, json};
use crate::auth::Caller;
use crate::dispatch::{Context, ParsedMessage, SessionContext};
use crate::legacy::{EventId, Purpose, Session, StreamReader, StreamResumeError};
use crate::limits::LimitKey;
use crate::metrics::Refusal;
use crate::relay::RelayRequest;
use crate::response::{Disposition, MessageKind, Status};
use crate::timer::within;
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use refrain_wire::legacy::{Revision, is_modern};
use refrain_wire::ratified::Incoming;
use refrain_wire::{ErrorCode, Id, Message, RpcError, parse};
use serde_json::value::RawValue;
use std::time::Duration;

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const MISSING_SESSION_ID: &str = "missing Mcp-Session-Id header: open a session with initialize";
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The response to a call that takes longer is a resumable stream instead of one JSON object.
const MAX_JSON_DELAY: Duration = Duration::from_millis(500);

pub(super) fn is_session_request(parts: &Parts) -> bool {
    is_session_method(&parts.method) && parts.headers.contains_key(SESSION_ID)
}

pub(super) fn is_session_method(method: &Method) -> bool {
    method == Method::GET || method == Method::DELETE
}

impl HttpService {
    pub(super) async fn respond_in_session(
        &self,
        headers: &HeaderMap,
        message: ParsedMessage<'_>,
        bytes: &[u8],
        caller: Caller,
        relayed: bool,
    ) -> Response<Body> {
        let session = match self.find_session(headers, &caller) {
            Ok(session) => session,
            Err(response) => return *response,
        };
        let server = self.server();
        let request = RelayRequest {
            method: &Method::POST,
            headers,
            body: bytes,
            caller: &caller,
            legacy: true,
        };
        match server.0.legacy.split_batch(&session, bytes) {
            Ok(None) => {}
            Ok(Some(batch)) => {
                if !relayed
                    && let Some(response) = self.relay_to_holder(&session.holder, request).await
                {
                    return response;
                }
                return self.respond_to_batch(&session, &batch, caller).await;
            }
            Err(error) => {
                let status = StatusCode::BAD_REQUEST;
                return self.reject_with(Refusal::InvalidRequest, status, None, &error);
            }
        }
        let context = |can_relay| Context {
            http: Some(headers),
            ..Context::new(caller.clone(), SessionContext::Open(&session), can_relay)
        };
        let response = match server.accept(message.clone(), context(!relayed)).await {
            Disposition::Response(response) => response,
            Disposition::Relay(id, relay) => match self.relay_session(&relay.to, id, request).await
            {
                Some(response) => return response,
                None => server.handle_message(message, context(false)).await,
            },
        };
        if !response.is_call() {
            return self.respond_with(response, None).await;
        }
        self.respond_to_call(&session, caller.limit_key(), response)
            .await
    }

    /// The session that the headers name, which must belong to this caller.
    pub(super) fn find_session(
        &self,
        headers: &HeaderMap,
        caller: &Caller,
    ) -> Result<Session, BoxedResponse> {
        let legacy = &self.server().0.legacy;
        let mut ids = headers.get_all(SESSION_ID).iter();
        let id = ids.next().and_then(|id| id.to_str().ok());
        let id = id.filter(|_| ids.next().is_none());
        let Some(id) = id else {
            return Err(self.session_not_found());
        };
        let session = legacy.find(id, &caller.principal).map_err(|reason| {
            tracing::debug!(%reason, "session id rejected");
            self.session_not_found()
        })?;
        let version = headers.get(VERSION_HEADER).map(HeaderValue::to_str);
        let revision = session.revision.as_str();
        if version.is_some_and(|version| version.ok() != Some(revision)) {
            let reason = format!(
                "MCP-Protocol-Version header does not match the session's revision {revision}"
            );
            let status = StatusCode::BAD_REQUEST;
            return Err(self.reject(Refusal::UnsupportedVersion, status, reason));
        }
        match legacy.has_ended(&session) {
            true => Err(self.session_not_found()),
            false => Ok(session),
        }
    }

    fn session_not_found(&self) -> BoxedResponse {
        let reason = "unknown or expired session in Mcp-Session-Id: open another with initialize";
        self.reject(Refusal::Session, StatusCode::NOT_FOUND, reason)
    }

    /// Rejects a legacy message without a session id. `None` if the message needs no session.
    pub(super) fn reject_without_session(
        &self,
        headers: &HeaderMap,
        message: &ParsedMessage<'_>,
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
        let version = headers
            .get(VERSION_HEADER)
            .and_then(|value| value.to_str().ok());
        version.and_then(Revision::parse)?;
        let error = RpcError::invalid_request(MISSING_SESSION_ID);
        Some(self.reject_with(Refusal::Session, StatusCode::BAD_REQUEST, id, &error))
    }

    async fn respond_to_call(
        &self,
        session: &Session,
        caller: LimitKey,
        response: crate::MessageResponse,
    ) -> Response<Body> {
        let legacy = &self.server().0.legacy;
        let id = response.id();
        let purpose = id.map(|id| legacy.purpose_of_call(session, id.as_json()));
        let reader = legacy.stream_responses(session, caller, vec![response], purpose.as_ref());
        let first = within(MAX_JSON_DELAY, reader.peek()).await;
        if let Some(Some((MessageKind::Reply, reply))) = first {
            legacy.forget_stream(&reader);
            let mut response = json(reply);
            if let Some(time) = reader.retry_after() {
                let headers = response.headers_mut();
                headers.insert(RETRY_AFTER, retry_after(time));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            return response;
        }
        self.resumable_stream(session, reader)
    }

    /// Handles all messages of a batch. The responses share a stream.
    async fn respond_to_batch(
        &self,
        session: &Session,
        batch: &[&RawValue],
        caller: Caller,
    ) -> Response<Body> {
        let mut responses = Vec::with_capacity(batch.len());
        for message in batch {
            let message = parse(message.get().as_bytes()).map(Incoming::Message);
            let context = Context::new(caller.clone(), SessionContext::Open(session), false);
            let response = self.server().handle_message(message, context).await;
            if !response.is_call() {
                // Messages other than calls need no permit, so a long batch must not block other connections.
                tokio::task::yield_now().await;
            }
            responses.push(response);
        }
        let any_processed = responses
            .iter()
            .any(|response| matches!(response.status(), Status::Accepted | Status::Replied));
        let retryable = responses.iter().position(|response| {
            matches!(response.status(), Status::Forbidden(_) | Status::Busy(_))
        });
        if !any_processed && let Some(retryable) = retryable {
            // The client can send the whole batch again, so the HTTP status reports the failure.
            let response = responses.swap_remove(retryable);
            return self.respond_with(response, None).await;
        }
        responses.retain(|response| *response.status() != Status::Accepted);
        if responses.is_empty() {
            return empty(StatusCode::ACCEPTED);
        }
        let (legacy, caller) = (&self.server().0.legacy, caller.limit_key());
        let reader = legacy.stream_responses(session, caller, responses, None);
        self.resumable_stream(session, reader)
    }

    fn resumable_stream(&self, session: &Session, reader: StreamReader) -> Response<Body> {
        let keep_alive = self.server().0.services.limits.keep_alive;
        // Clients of earlier revisions treat every event as a message.
        let starts_with_id = session.revision >= Revision::V2025_11_25;
        let source = EventSource::Resumable {
            reader,
            starts_with_id,
        };
        event_stream(source, keep_alive)
    }

    /// Handles a GET or DELETE request of a session.
    pub(super) async fn handle_session_request(
        &self,
        parts: &Parts,
        caller: Caller,
        relayed: bool,
    ) -> Response<Body> {
        if let Err(missing) = self.server().0.auth.allow(&caller, &[]) {
            return self.reject_missing_scopes(missing);
        }
        let session = match self.find_session(&parts.headers, &caller) {
            Ok(session) => session,
            Err(response) => return *response,
        };
        let legacy = &self.server().0.legacy;
        let last = parts.headers.get(LAST_EVENT_ID).map(|last| {
            let last = last.to_str().ok().and_then(EventId::parse);
            last.ok_or(StreamResumeError::Malformed)
        });
        let own = self.server().0.relay.own.id();
        let is_own = matches!(&last, Some(Ok(last)) if last.instance == own);
        if !relayed && !is_own {
            let request = RelayRequest {
                method: &parts.method,
                headers: &parts.headers,
                body: b"",
                caller: &caller,
                legacy: true,
            };
            let purpose = match &last {
                Some(Ok(last)) => last.purpose(),
                _ => None,
            };
            let holder = match purpose {
                Some(Purpose::Call(call)) => legacy.holder_of_stream(&session, &call),
                _ => session.holder.clone(),
            };
            if let Some(response) = self.relay_to_holder(&holder, request).await {
                if parts.method == Method::DELETE && response.status().is_success() {
                    legacy.end(&session, caller.limit_key());
                }
                return response;
            }
        }
        if parts.method == Method::DELETE {
            legacy.end(&session, caller.limit_key());
            return empty(StatusCode::NO_CONTENT);
        }
        let reader = match last {
            None => legacy
                .stream_notifications(&session, caller)
                .map_err(Into::into),
            Some(last) => last.and_then(|last| legacy.resume(&session, &last, caller)),
        };
        match reader {
            Ok(reader) => self.resumable_stream(&session, reader),
            Err(error) => self.reject_resume(error),
        }
    }

    fn reject_resume(&self, error: StreamResumeError) -> Response<Body> {
        let refusal = match error {
            StreamResumeError::Subscribe(_) => Refusal::Busy,
            StreamResumeError::Elsewhere => Refusal::Elsewhere,
            StreamResumeError::Malformed
            | StreamResumeError::Replaced
            | StreamResumeError::Gone => {
                let (refusal, status) = (Refusal::InvalidRequest, StatusCode::BAD_REQUEST);
                return *self.reject(refusal, status, error.to_string());
            }
        };
        let metrics = &self.server().0.services.metrics;
        metrics.request_refused(refusal);
        self.busy(None, &RpcError::internal(error.to_string()))
    }
}
