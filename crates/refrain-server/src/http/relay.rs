//! Relayed requests over HTTP, in both directions.

use super::{Body, BoxedResponse, HttpService, ROUND, json};
use crate::legacy::{Session, lost_call};
use crate::live::{call_gone, holder_unreachable};
use crate::metrics::{LiveCallEvent, Refusal};
use crate::relay::{
    Holder, LastEvent, PendingRelay, RelayAuthError, RelayClaims, RelayError, RelayRequest,
    RelayStream, is_stream,
};
use crate::response::Disposition;
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
    ROUND,
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

    /// Relays a request to the holder of its live call. A relayed request is not relayed again.
    pub(crate) async fn relay_call(
        &self,
        id: Option<Id<'_>>,
        relay: Box<PendingRelay>,
        headers: &HeaderMap,
        body: &[u8],
        relayed: bool,
    ) -> Response<Body> {
        if relayed {
            let response = Disposition::Relay(id, relay).without_relay(&self.server);
            return self.respond_with(response, None).await;
        }
        let PendingRelay { holder, caller, .. } = *relay;
        let request = RelayRequest {
            method: &Method::POST,
            headers,
            body,
            caller: &caller,
            legacy: false,
        };
        let (json, at) = (id.map(|id| id.as_json().to_owned()), holder.clone());
        let last: LastEvent = Box::new(move |error| {
            let mut out = Vec::with_capacity(256);
            write_error(&mut out, json.as_deref(), &holder_unreachable(&at, &error));
            Box::pin(std::future::ready(Some(out)))
        });
        let (count, error) = match self.relay(&holder, request, last).await {
            Ok(response) => return response,
            Err(RelayError::OtherInstance(StatusCode::MISDIRECTED_REQUEST)) => {
                (LiveCallEvent::Gone, call_gone())
            }
            Err(error) => (
                LiveCallEvent::RelayFailed,
                holder_unreachable(&holder, &error),
            ),
        };
        self.server.0.services.metrics.live(count);
        self.live_error(id, error)
    }

    /// Relays a request without an id to the holder of its session. Returns `None` if it must be served here.
    pub(super) async fn relay_to_holder(
        &self,
        session: &Session,
        request: RelayRequest<'_>,
    ) -> Option<Response<Body>> {
        match self.server.0.relay.can_reach(&session.holder) {
            true => self.relay_session(&session.holder, None, request).await,
            false => None,
        }
    }

    /// Relays a request of a legacy session. Returns `None` if the holder is gone and it must be served here.
    pub(super) async fn relay_session(
        &self,
        holder: &Holder,
        id: Option<Id<'_>>,
        request: RelayRequest<'_>,
    ) -> Option<Response<Body>> {
        let last = self.legacy_last_event(holder, id);
        let error = match self.relay(holder, request, last).await {
            Ok(response) => return Some(response),
            Err(error) => error,
        };
        self.server
            .0
            .services
            .metrics
            .live(LiveCallEvent::RelayFailed);
        if error.is_gone() {
            limited_event!(WARN, %holder, %error, "holder gone, session taken over");
            return None;
        }
        let error = holder_unreachable(holder, &error);
        Some(match id {
            Some(_) => self.live_error(id, error),
            None => self.busy(None, &error),
        })
    }

    /// The last event of an interrupted stream of a legacy session: a "call lost" error if the holder is gone. Otherwise
    /// the client can resume the stream.
    fn legacy_last_event(&self, holder: &Holder, id: Option<Id<'_>>) -> LastEvent {
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
                wire_recorder::record("", &out);
                Some(out)
            })
        })
    }

    async fn relay(
        &self,
        holder: &Holder,
        request: RelayRequest<'_>,
        last: LastEvent,
    ) -> Result<Response<Body>, RelayError> {
        let (head, body) = self.server.0.relay.send(holder, request).await?;
        let mut response = Response::new(if is_stream(head.headers()) {
            Body::relayed(RelayStream::new(body, last))
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

    /// The error of a live call, sent as a reply with HTTP status 200.
    fn live_error(&self, id: Option<Id<'_>>, error: RpcError) -> Response<Body> {
        let mut out = Vec::with_capacity(512);
        let info = &self.server.0.services.info;
        write_reply(&mut out, id, &Reply::Error(error), info);
        json(out.into())
    }
}
