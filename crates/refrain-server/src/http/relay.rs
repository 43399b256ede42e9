//! Relaying over HTTP: sends requests to other instances, and authenticates theirs.

use super::{Body, BoxedResponse, HttpService, ROUND_STATS, json};
use crate::auth::Caller;
use crate::legacy::lost_call;
use crate::live::{call_gone, receiver_unreachable};
use crate::metrics::{LiveCallEvent, Refusal};
use crate::relay::{
    Holder, LastEvent, PendingRelay, RelayAuthError, RelayClaims, RelayDestination, RelayError,
    RelayPurpose, RelayRequest, RelayStream, is_stream,
};
use crate::response::Disposition;
use crate::rounds::state_lost;
use crate::wire_recorder;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use refrain_core::limited_event;
use refrain_wire::legacy;
use refrain_wire::ratified::{write_error, write_reply};
use refrain_wire::{Id, Reply, RpcError};

/// The headers of a holder's response that are forwarded to the client.
const FORWARDED_HEADERS: [HeaderName; 7] = [
    CONTENT_TYPE,
    CACHE_CONTROL,
    RETRY_AFTER,
    WWW_AUTHENTICATE,
    ALLOW,
    HeaderName::from_static("x-accel-buffering"),
    ROUND_STATS,
];

impl HttpService {
    pub(super) fn authenticate_relay(
        &self,
        header: &HeaderValue,
    ) -> Result<RelayClaims, BoxedResponse> {
        let accepted = self.server.0.relay.accept(header);
        accepted.map_err(|error| match error {
            RelayAuthError::OtherInstance => {
                let reason = "Refrain-Relay header is for another instance";
                self.reject(Refusal::Elsewhere, StatusCode::MISDIRECTED_REQUEST, reason)
            }
            error => {
                limited_event!(WARN, %error, "relayed request rejected");
                self.reject_relay()
            }
        })
    }

    pub(super) fn reject_relay(&self) -> BoxedResponse {
        let reason = "invalid Refrain-Relay header: clients must leave it out. If another instance sent it, both need the \
             same keys and synchronized clocks";
        self.reject(Refusal::Forbidden, StatusCode::FORBIDDEN, reason)
    }

    /// Relays a call to the instance that must run it. A relayed request is not relayed again. Returns the caller as an error
    /// if no other instance can run the call, so that this one must.
    pub(crate) async fn relay_call(
        &self,
        id: Option<Id<'_>>,
        relay: Box<PendingRelay>,
        headers: &HeaderMap,
        body: &[u8],
        relayed: bool,
    ) -> Result<Response<Body>, Caller> {
        if relayed {
            let response = Disposition::Relay(id, relay).without_relay(&self.server);
            return Ok(self.respond_with(response, None).await);
        }
        let PendingRelay {
            permit: _permit,
            mut to,
            mut purpose,
            caller,
            span: _span,
        } = *relay;
        let request = RelayRequest {
            method: &Method::POST,
            headers,
            body,
            caller: &caller,
            legacy: false,
        };
        loop {
            let last_event = last_event(id, to.clone());
            let error = match self.relay(&to, &request, last_event).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let metrics = &self.server.0.services.metrics;
            if let RelayPurpose::Caller(next_peers) = &mut purpose
                && error.is_gone()
            {
                limited_event!(WARN, receiver = %to, %error, "peer gone, call relayed to the next");
                metrics.live(LiveCallEvent::RelayFailed);
                if next_peers.is_empty() {
                    return Err(caller);
                }
                to = RelayDestination::Peer(next_peers.remove(0));
                continue;
            }
            if error.is_local() {
                return Ok(self.relay_rejected(id, &error));
            }
            let (event, reply) = relay_failure(&to, &purpose, &error);
            metrics.live(event);
            return Ok(self.json_reply(id, &reply));
        }
    }

    /// Relays a request without an id to the holder of its legacy session. `None` if this instance must serve it.
    pub(super) async fn relay_to_holder(
        &self,
        holder: &Holder,
        request: RelayRequest<'_>,
    ) -> Option<Response<Body>> {
        if !self.server.0.relay.can_reach(holder) {
            return None;
        }
        let holder = holder.clone().into();
        self.relay_session(&holder, None, request).await
    }

    /// Relays a request of a legacy session. `None` if the holder is gone, so that this instance must serve it.
    pub(super) async fn relay_session(
        &self,
        holder: &RelayDestination,
        id: Option<Id<'_>>,
        request: RelayRequest<'_>,
    ) -> Option<Response<Body>> {
        let last_event = self.legacy_last_event(holder, id);
        let error = match self.relay(holder, &request, last_event).await {
            Ok(response) => return Some(response),
            Err(error) => error,
        };
        if error.is_local() {
            return Some(self.relay_rejected(id, &error));
        }
        let metrics = &self.server.0.services.metrics;
        metrics.live(LiveCallEvent::RelayFailed);
        if error.is_gone() {
            limited_event!(WARN, %holder, %error, "holder gone, session taken over");
            return None;
        }
        let error = receiver_unreachable(holder, &error);
        Some(match id {
            Some(_) => self.json_reply(id, &Reply::Error(error)),
            None => self.busy(None, &error),
        })
    }

    /// The last event of an interrupted stream of a legacy session: a "call lost" error if the holder is gone. Otherwise
    /// the client can resume the stream.
    fn legacy_last_event(&self, holder: &RelayDestination, id: Option<Id<'_>>) -> LastEvent {
        let (relay, holder) = (self.server.0.relay.clone(), holder.clone());
        let id = id.map(|id| id.as_json().to_owned());
        Box::new(move |error| {
            Box::pin(async move {
                limited_event!(WARN, %holder, %error, "relayed stream interrupted");
                let id = id?;
                if !relay.is_gone(&holder).await {
                    return None;
                }
                let mut out = Vec::with_capacity(256);
                legacy::write_error(&mut out, Some(&id), &lost_call());
                wire_recorder::record(wire_recorder::NO_METHOD, &out);
                Some(out)
            })
        })
    }

    async fn relay(
        &self,
        to: &RelayDestination,
        request: &RelayRequest<'_>,
        last_event: LastEvent,
    ) -> Result<Response<Body>, RelayError> {
        let (head, body) = self.server.0.relay.send(to, request).await?;
        let mut response = Response::new(if is_stream(head.headers()) {
            Body::relayed(RelayStream::new(body, last_event))
        } else {
            let bytes = body.collect().await?;
            match bytes.is_empty() {
                true => Body::empty(),
                false => Body::full(bytes),
            }
        });
        *response.status_mut() = head.status();
        for name in FORWARDED_HEADERS {
            if let Some(value) = head.headers().get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        self.server.0.services.metrics.live(LiveCallEvent::Relayed);
        Ok(response)
    }

    /// The 503 for a request that this instance has no resources to relay.
    fn relay_rejected(&self, id: Option<Id<'_>>, error: &RelayError) -> Response<Body> {
        let metrics = &self.server.0.services.metrics;
        metrics.request_refused(Refusal::Busy);
        limited_event!(WARN, %error, "request not relayed");
        let reason = "this instance cannot relay this request now; try again later";
        self.busy(id, &RpcError::internal(reason))
    }

    /// A reply to a call that could not be relayed, with HTTP status 200.
    fn json_reply(&self, id: Option<Id<'_>>, reply: &Reply) -> Response<Body> {
        let mut out = Vec::with_capacity(512);
        write_reply(&mut out, id, reply, &self.server.0.services.info);
        json(out.into())
    }
}

/// The metrics label and the reply for a call that could not be relayed.
fn relay_failure(
    to: &RelayDestination,
    purpose: &RelayPurpose,
    error: &RelayError,
) -> (LiveCallEvent, Reply) {
    match (purpose, error) {
        (RelayPurpose::Handle, error) if error.is_gone() => {
            limited_event!(WARN, receiver = %to, %error, "holder of a handle gone");
            (LiveCallEvent::Gone, state_lost())
        }
        (RelayPurpose::Held, RelayError::OtherInstance(StatusCode::MISDIRECTED_REQUEST)) => {
            (LiveCallEvent::Gone, Reply::Error(call_gone()))
        }
        _ => {
            let error = receiver_unreachable(to, error);
            (LiveCallEvent::RelayFailed, Reply::Error(error))
        }
    }
}

/// The last event of an interrupted stream of a call: an error.
fn last_event(id: Option<Id<'_>>, receiver: RelayDestination) -> LastEvent {
    let id = id.map(|id| id.as_json().to_owned());
    Box::new(move |error| {
        let error = receiver_unreachable(&receiver, &error);
        let mut out = Vec::with_capacity(256);
        write_error(&mut out, id.as_deref(), &error);
        Box::pin(std::future::ready(Some(out)))
    })
}
