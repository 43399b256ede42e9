//! Older clients over HTTP: sessions, and streams that can be taken up again.
//!
//! | request | answer |
//! | --- | --- |
//! | POST of `initialize` | the session's id in a header |
//! | POST of a request | one JSON object, or a stream of events as soon as there is more to say or it takes long |
//! | POST of a response or a notification | 202 |
//! | GET | what belongs to no call, or with `Last-Event-ID` the rest of a stream |
//! | DELETE | the session ends |
//!
//! Another instance than the holder of the session relays the request. If the holder is gone, it serves it itself.

mod resume;

use super::body::ReplayedStream;
use super::pulse::Busy;
use super::{Body, HttpService, JSON, accepted, events};
use crate::auth::Caller;
use crate::legacy::{EventId, Listening, Purpose, Reader, RequestId, Session, Stream};
use crate::metrics::{Other, Refusal};
use crate::record;
use crate::relay::RelayRequest;
use crate::response::{MessageKind, Status};
use crate::server::Server;
use crate::subscriptions::SubscribeError;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use refrain_wire::legacy::{self, Agreed, Revision, decode_initialize, is_modern, split_batch};
use refrain_wire::ratified::Incoming;
use refrain_wire::{ErrorCode, Id, Message, Rejection, RpcError, parse};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

pub(crate) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// What to do where the id of a session is missing.
pub(super) const NO_SESSION_ID: &str =
    "there is no Mcp-Session-Id header; open a session with initialize";
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// A call that is done by then is answered with one object; else the client is given a stream that it can come back to.
const PROMPT: Duration = Duration::from_millis(500);

/// Is this message in a POST with these headers one of a legacy client?
pub(super) fn is_legacy(in_session: bool, message: &Result<Incoming<'_>, Box<Rejection>>) -> bool {
    match message {
        Ok(Incoming::Call(..)) => false,
        Ok(Incoming::Message(Message::Request { method, params, .. })) => {
            (in_session || method == "initialize") && !is_modern(*params)
        }
        _ => in_session,
    }
}

/// Is a request with another method than POST one about a session?
pub(super) fn is_about_session(parts: &Parts) -> bool {
    is_for_sessions(&parts.method) && parts.headers.contains_key(SESSION)
}

/// Do older clients use this method, in a session?
pub(super) fn is_for_sessions(method: &Method) -> bool {
    method == Method::GET || method == Method::DELETE
}

type Refused = Box<Response<Body>>;

impl HttpService {
    /// Answers a POST of a legacy client.
    pub(super) async fn respond_legacy(
        &self,
        headers: &HeaderMap,
        message: Result<Incoming<'_>, Box<Rejection>>,
        bytes: &[u8],
        caller: Caller,
        relayed: bool,
        busy: Busy,
    ) -> Response<Body> {
        let message = match message {
            Ok(Incoming::Message(message)) => Ok(message),
            Ok(Incoming::Call(..)) => return self.no_session(),
            Err(rejection) => Err(rejection),
        };
        if !headers.contains_key(SESSION) {
            return self.initialize(&message, &caller);
        }
        let session = match self.find_session(headers, &caller) {
            Ok(session) => session,
            Err(refused) => return *refused,
        };
        let mut busy = Some(busy);
        let request = RelayRequest {
            method: &Method::POST,
            headers,
            body: bytes,
            caller: &caller,
            legacy: true,
        };
        if let Some(batch) = split_batch(bytes) {
            let holder = &session.holder;
            if !relayed
                && self.server.0.relay.reaches(holder)
                && let Some(response) = self.relay_legacy(holder, request, &mut busy).await
            {
                return response;
            }
            let batch: Vec<&[u8]> = batch.iter().map(|raw| raw.get().as_bytes()).collect();
            return self.respond_to_batch(session, &batch, caller, busy).await;
        }
        let server = &self.server;
        let again = message.clone();
        let response = match server.accept_legacy(&session, message, caller.clone(), !relayed) {
            Ok(response) => response,
            Err(holder) => match self.relay_legacy(&holder, request, &mut busy).await {
                Some(response) => return response,
                None => server.handle_legacy(&session, again, caller),
            },
        };
        let busy = busy.unwrap_or_else(|| Busy::new(None));
        match response.is_call() {
            true => self.answer_call(session, response, busy).await,
            false => self.answer(response, busy).await,
        }
    }

    /// Opens a session.
    fn initialize(
        &self,
        message: &Result<Message<'_>, Box<Rejection>>,
        caller: &Caller,
    ) -> Response<Body> {
        let Ok(Message::Request { id, params, .. }) = message else {
            return self.no_session();
        };
        let (id, params) = (*id, *params);
        let server = &self.server;
        if let Err(missing) = server.0.auth.allow(caller, &[]) {
            return self.forbid(id, missing);
        }
        let initialize = match decode_initialize(params) {
            Ok(initialize) => initialize,
            Err(error) => {
                let refusal = Refusal::error(error.code);
                return self.refuse(refusal, StatusCode::BAD_REQUEST, Some(id), &error);
            }
        };
        server.0.metrics.other(Other::Initialize);
        let (session, session_id) = server.0.legacy.open(&initialize, &caller.principal);
        let mut out = Vec::with_capacity(512);
        legacy::write_reply(
            &mut out,
            id,
            &server.greet(session.revision),
            session.revision,
        );
        record::sent_older(session.revision, "initialize", &out);
        let mut response = json(out.into());
        if let Ok(value) = HeaderValue::try_from(session_id) {
            response.headers_mut().insert(SESSION, value);
        }
        response
    }

    /// The session that a request is about.
    fn find_session(&self, headers: &HeaderMap, caller: &Caller) -> Result<Session, Refused> {
        let legacy = &self.server.0.legacy;
        let mut ids = headers.get_all(SESSION).iter();
        let id = ids.next().and_then(|id| id.to_str().ok());
        let id = id.filter(|_| ids.next().is_none());
        let opened = id.map(|id| legacy.find(id, &caller.principal));
        let session = match opened {
            Some(Ok(session)) => session,
            Some(Err(reason)) => {
                tracing::debug!(%reason, "session id rejected");
                return Err(Box::new(self.no_session()));
            }
            None => return Err(Box::new(self.no_session())),
        };
        let version = headers.get(VERSION).map(HeaderValue::to_str);
        if let Some(version) = version
            && version.ok() != Some(session.revision.as_str())
        {
            let error = RpcError::invalid_request(format!(
                "the MCP-Protocol-Version header must be that of the session, {}",
                session.revision.as_str()
            ));
            let status = StatusCode::BAD_REQUEST;
            let refused = self.refuse(Refusal::UnsupportedVersion, status, None, &error);
            return Err(Box::new(refused));
        }
        match legacy.has_ended(&session) {
            true => Err(Box::new(self.no_session())),
            false => Ok(session),
        }
    }

    /// What was agreed on in the session that a request is about.
    pub(crate) fn agreed(&self, headers: &HeaderMap, caller: &Caller) -> Result<Agreed, Refused> {
        let session = self.find_session(headers, caller)?;
        Ok(self.server.0.legacy.agreed(&session))
    }

    /// The refusal of a message whose headers are those of a session, but for its id.
    pub(super) fn refuse_without_session(
        &self,
        headers: &HeaderMap,
        message: &Result<Incoming<'_>, Box<Rejection>>,
    ) -> Option<Response<Body>> {
        let id = match message {
            Ok(Incoming::Message(Message::Request { id, params, .. })) if !is_modern(*params) => {
                Some(*id)
            }
            Ok(Incoming::Message(Message::Response(response))) => Some(response.id),
            Err(rejection) if rejection.error.code == ErrorCode::InvalidRequest => {
                rejection.id.as_deref().and_then(Id::from_raw)
            }
            _ => return None,
        };
        let version = headers.get(VERSION).and_then(|value| value.to_str().ok());
        let is_older = version.and_then(Revision::parse).is_some();
        let lacks_session = is_older && !headers.contains_key(SESSION);
        lacks_session.then(|| self.no_session_id(id))
    }

    /// The answer to a POST without the id of its session.
    fn no_session_id(&self, id: Option<Id<'_>>) -> Response<Body> {
        let error = RpcError::invalid_request(NO_SESSION_ID);
        self.refuse(Refusal::Session, StatusCode::BAD_REQUEST, id, &error)
    }

    fn no_session(&self) -> Response<Body> {
        let error = RpcError::invalid_request(
            "this is no session, or its time is over; open another with initialize",
        );
        self.refuse(Refusal::Session, StatusCode::NOT_FOUND, None, &error)
    }

    /// Answers a call: with one object if it is done at once, else on a stream.
    async fn answer_call(
        &self,
        session: Session,
        response: crate::Response,
        busy: Busy,
    ) -> Response<Body> {
        let revision = session.revision;
        let purpose = response
            .id()
            .map(|id| Purpose::Call(id.as_json().to_owned()));
        let stream = self.begin_stream(&session, purpose.as_ref());
        let reader = stream.read();
        let driving = drive_all(self.server.clone(), session, vec![response], stream.clone());
        tokio::spawn(driving);
        match tokio::time::timeout(PROMPT, reader.peek()).await {
            Ok(Some((MessageKind::Reply, reply))) => {
                self.server.0.legacy.streams.forget(&stream);
                json(reply)
            }
            _ => self.stream_older(reader, revision, Some(busy)),
        }
    }

    /// Answers all messages of a batch: on a stream, if one of them is a request.
    async fn respond_to_batch(
        &self,
        session: Session,
        batch: &[&[u8]],
        caller: Caller,
        busy: Option<Busy>,
    ) -> Response<Body> {
        let taken = match session.revision {
            Revision::V2025_03_26 => self.server.check_batch(batch.len()),
            _ => Err(RpcError::invalid_request(
                "batches are not supported in this session; send one message at a time",
            )),
        };
        if let Err(error) = taken {
            let status = StatusCode::BAD_REQUEST;
            return self.refuse(Refusal::InvalidRequest, status, None, &error);
        }
        let responses = batch.iter().map(|message| {
            let message = parse(message);
            let server = &self.server;
            server.handle_legacy(&session, message, caller.clone())
        });
        let mut responses: Vec<crate::Response> = responses.collect();
        let is_done = |response: &crate::Response| {
            matches!(response.status(), Status::Accepted | Status::Replied)
        };
        let retry = |response: &crate::Response| {
            matches!(response.status(), Status::Forbidden(_) | Status::Busy)
        };
        let any_done = responses.iter().any(is_done);
        let first = responses.iter().position(retry).filter(|_| !any_done);
        if let Some(first) = first {
            // The status tells the client what to do, since none of the batch was done.
            let busy = busy.unwrap_or_else(|| Busy::new(None));
            return self.answer(responses.swap_remove(first), busy).await;
        }
        let replies = responses.into_iter();
        let replies = replies.filter(|response| *response.status() != Status::Accepted);
        let replies: Vec<crate::Response> = replies.collect();
        if replies.is_empty() {
            return accepted();
        }
        let (stream, revision) = (self.begin_stream(&session, None), session.revision);
        let reader = stream.read();
        tokio::spawn(drive_all(self.server.clone(), session, replies, stream));
        self.stream_older(reader, revision, busy)
    }

    fn begin_stream(&self, session: &Session, purpose: Option<&Purpose>) -> Arc<Stream> {
        let room = self.server.0.limits.resume_bytes;
        self.server.0.legacy.streams.begin(session, room, purpose)
    }

    /// A stream of events that can be taken up again.
    fn stream_older(
        &self,
        reader: Reader,
        revision: Revision,
        busy: Option<Busy>,
    ) -> Response<Body> {
        let busy = busy.unwrap_or_else(|| Busy::new(None));
        let keep_alive = self.server.0.limits.keep_alive;
        // Clients of before take every event for a message.
        let greets = revision >= Revision::V2025_11_25;
        let stream = ReplayedStream::new(reader, greets, keep_alive, busy);
        events(Body::replayed(stream))
    }

    /// Answers a GET or a DELETE about a session.
    pub(super) async fn about_session(
        &self,
        parts: &Parts,
        caller: Caller,
        relayed: bool,
        busy: Busy,
    ) -> Response<Body> {
        if let Err(missing) = self.server.0.auth.allow(&caller, &[]) {
            return self.forbid_session(missing);
        }
        let session = match self.find_session(&parts.headers, &caller) {
            Ok(session) => session,
            Err(refused) => return *refused,
        };
        let relay = &self.server.0.relay;
        let last = parts.headers.get(LAST_EVENT);
        let after = last.map(|last| last.to_str().ok().and_then(EventId::parse));
        let is_here = matches!(&after, Some(Some(after)) if after.instance == relay.own().id());
        let mut busy = Some(busy);
        if !relayed && !is_here && relay.reaches(&session.holder) {
            let request = RelayRequest {
                method: &parts.method,
                headers: &parts.headers,
                body: b"",
                caller: &caller,
                legacy: true,
            };
            let relayed = self.relay_legacy(&session.holder, request, &mut busy);
            if let Some(response) = relayed.await {
                if parts.method == Method::DELETE && response.status().is_success() {
                    self.server.0.legacy.end(&session);
                }
                return response;
            }
        }
        if parts.method == Method::DELETE {
            self.server.0.legacy.end(&session);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return response;
        }
        match after {
            Some(after) => self.resume(&session, after, caller, busy),
            None => self.listen_older(&session, caller, busy),
        }
    }

    /// A stream of notifications outside of calls.
    fn listen_older(
        &self,
        session: &Session,
        caller: Caller,
        busy: Option<Busy>,
    ) -> Response<Body> {
        let listening = match Listening::new(&self.server, session, caller) {
            Ok(listening) => listening,
            Err(none) => {
                self.server.0.metrics.request_refused(Refusal::Busy);
                return self.busy(None, &no_place(none));
            }
        };
        let stream = self.begin_stream(session, Some(&Purpose::Listening));
        self.server.0.legacy.streams.listen_on(&stream);
        let reader = stream.read();
        tokio::spawn(tell(self.server.clone(), listening, stream));
        self.stream_older(reader, session.revision, busy)
    }
}

fn no_place(none: SubscribeError) -> RpcError {
    RpcError::internal(match none {
        SubscribeError::Closed => "this instance is stopping; listen to another one",
        SubscribeError::Limit(_) => "this instance already has its limit of streams; try again",
    })
}

/// Tells a session what belongs to no call, for as long as it may come back to hear it.
async fn tell(server: Server, mut listening: Listening, stream: Arc<Stream>) {
    let streams = &server.0.legacy.streams;
    let telling = async {
        while let Some(message) = listening.next().await {
            streams.push(&stream, MessageKind::Ask, message);
            // What a slow client was not told yet is noted only once.
            stream.drained().await;
        }
    };
    let resume_time = server.0.limits.resume_time;
    let told = tokio::select! {
        () = telling => true,
        () = stream.abandoned(resume_time) => false,
    };
    // Its place among those who listen is another's from now on.
    drop(listening);
    match told {
        true => server.end_stream(&stream).await,
        false => streams.forget(&stream),
    }
}

/// Sends responses on the stream that they share, whether a client reads it or not.
async fn drive_all(
    server: Server,
    session: Session,
    responses: Vec<crate::Response>,
    stream: Arc<Stream>,
) {
    let mut calls = JoinSet::new();
    for response in responses {
        calls.spawn(drive(
            server.clone(),
            session.clone(),
            response,
            stream.clone(),
        ));
    }
    while calls.join_next().await.is_some() {}
    server.end_stream(&stream).await;
}

async fn drive(
    server: Server,
    session: Session,
    mut response: crate::Response,
    stream: Arc<Stream>,
) {
    let legacy = &server.0.legacy;
    let id = response.id().map(|id| RequestId::read(id.as_json()));
    let call = id.map(|id| legacy.begin_call(&session, id));
    let sending = async {
        while let Some((kind, message)) = response.next_message().await {
            legacy.streams.push(&stream, kind, message);
            // A handler that reports progress all the time holds up no other.
            if kind == MessageKind::Notification {
                tokio::task::yield_now().await;
            }
        }
    };
    let cancelled = async {
        match &call {
            Some(call) => call.cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = sending => {}
        () = cancelled => {}
    }
}

fn json(bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::full(bytes));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
