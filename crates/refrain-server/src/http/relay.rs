//! Requests that are relayed to their holder, and those that other instances relay here.

use super::{Body, HttpService, ROUND, json};
use crate::legacy::{Session, lost_call};
use crate::live::{call_gone, holder_unreachable};
use crate::metrics::{LiveCallEvent, Refusal};
use crate::record;
use crate::relay::{
    Holder, LastEvent, RelayClaims, RelayError, RelayRefusal, RelayRequest, RelayStream, RelayTo,
    is_stream,
};
use crate::response::Handled;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use refrain_wire::legacy;
use refrain_wire::ratified::{write_error, write_reply};
use refrain_wire::{Id, Reply, RpcError};

/// The headers of a holder's response that are passed on.
const PASSED_ON: [HeaderName; 7] = [
    CONTENT_TYPE,
    CACHE_CONTROL,
    RETRY_AFTER,
    WWW_AUTHENTICATE,
    ALLOW,
    HeaderName::from_static("x-accel-buffering"),
    ROUND,
];

impl HttpService {
    /// Authenticates a request that another instance relayed here.
    pub(super) fn relayed(&self, header: &HeaderValue) -> Result<RelayClaims, Box<Response<Body>>> {
        let accepted = self.server.0.relay.accept(header);
        accepted.map_err(|refusal| match refusal {
            RelayRefusal::OtherInstance => {
                let reason = "the Refrain-Relay header was made for another instance";
                self.reject(Refusal::Elsewhere, StatusCode::MISDIRECTED_REQUEST, reason)
            }
            refusal => {
                tracing::warn!(reason = %refusal, "relayed request rejected");
                self.no_relay()
            }
        })
    }

    /// The response to a request with an invalid `Refrain-Relay` header.
    pub(super) fn no_relay(&self) -> Box<Response<Body>> {
        let reason = "the Refrain-Relay header was not made for this request by an instance of this server; leave it out. \
             The instances of a server need the same keys, and clocks that agree";
        self.reject(Refusal::Forbidden, StatusCode::FORBIDDEN, reason)
    }

    /// Relays a request to the instance that holds its live call. A relayed request is not relayed again.
    pub(crate) async fn relay_call(
        &self,
        id: Option<Id<'_>>,
        relay: Box<RelayTo>,
        headers: &HeaderMap,
        body: &[u8],
        relayed: bool,
    ) -> Response<Body> {
        if relayed {
            let response = Handled::Relay(id, relay).here(&self.server);
            return self.answer(response).await;
        }
        let RelayTo { holder, caller, .. } = *relay;
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

    /// Relays a request without an id of its own to the holder of its session. `None`: it is served here.
    pub(super) async fn relay_to_holder(
        &self,
        session: &Session,
        request: RelayRequest<'_>,
    ) -> Option<Response<Body>> {
        match self.server.0.relay.reaches(&session.holder) {
            true => self.relay_session(&session.holder, None, request).await,
            false => None,
        }
    }

    /// Relays a request of a legacy session. `None`: the holder is gone, and the request is served here.
    pub(super) async fn relay_session(
        &self,
        holder: &Holder,
        id: Option<Id<'_>>,
        request: RelayRequest<'_>,
    ) -> Option<Response<Body>> {
        let last = self.last_of_legacy(holder, id);
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
            tracing::warn!(%holder, %error, "session taken over: its holder is gone");
            return None;
        }
        let error = holder_unreachable(holder, &error);
        Some(match id {
            Some(_) => self.live_error(id, error),
            None => self.busy(None, &error),
        })
    }

    /// The last event of a relayed stream of a legacy session that broke off: that the call is lost, if its holder is gone.
    /// Otherwise the client resumes the stream.
    fn last_of_legacy(&self, holder: &Holder, id: Option<Id<'_>>) -> LastEvent {
        let (relay, holder) = (self.server.0.relay.clone(), holder.clone());
        let id = id.map(|id| id.as_json().to_owned());
        Box::new(move |error| {
            Box::pin(async move {
                tracing::warn!(%holder, %error, "relayed stream broke off");
                let id = id?;
                if !relay.is_gone(&holder).await {
                    return None;
                }
                let mut out = Vec::with_capacity(256);
                legacy::write_error(&mut out, Some(&id), &lost_call());
                record::sent("", &out);
                Some(out)
            })
        })
    }

    /// Sends a request to its holder, and passes the response on.
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
            let whole = body.whole().await?;
            match whole.is_empty() {
                true => Body::empty(),
                false => Body::full(whole),
            }
        });
        *response.status_mut() = head.status();
        for name in PASSED_ON {
            if let Some(value) = head.headers().get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        self.server.0.services.metrics.live(LiveCallEvent::Relayed);
        Ok(response)
    }

    /// An error of a call, which is a reply like any other.
    fn live_error(&self, id: Option<Id<'_>>, error: RpcError) -> Response<Body> {
        let mut out = Vec::with_capacity(512);
        let info = &self.server.0.services.info;
        write_reply(&mut out, id, &Reply::Error(error), info);
        json(out.into())
    }
}
