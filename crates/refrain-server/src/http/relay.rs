//! Requests that are relayed to their holder, and those that other instances relay here.

use super::pulse::Busy;
use super::{Body, HttpService, JSON, ROUND};
use crate::legacy::lost_call;
use crate::live::{elsewhere, gone, unreachable};
use crate::metrics::{LiveCount, Refusal};
use crate::record;
use crate::relay::{
    Holder, LastEvent, RelayBody, RelayError, RelayRefusal, RelayRequest, RelayStream, RelayTo,
    Relayed, is_stream,
};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use refrain_wire::legacy;
use refrain_wire::ratified::{write_error, write_reply};
use refrain_wire::{Id, Message, Reply, RpcError, parse};

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
    pub(super) fn relayed(&self, header: &HeaderValue) -> Result<Relayed, Box<Response<Body>>> {
        self.server.0.relay.accept(header).map_err(|refusal| {
            Box::new(match refusal {
                RelayRefusal::OtherInstance => {
                    let error = RpcError::invalid_request(
                        "the Refrain-Relay header was made for another instance",
                    );
                    let status = StatusCode::MISDIRECTED_REQUEST;
                    self.refuse(Refusal::Elsewhere, status, None, &error)
                }
                refusal => {
                    tracing::warn!(reason = %refusal, "relayed request rejected");
                    self.no_relay()
                }
            })
        })
    }

    /// The response to a request with an invalid `Refrain-Relay` header.
    pub(super) fn no_relay(&self) -> Response<Body> {
        let error = RpcError::invalid_request(
            "the Refrain-Relay header was not made for this request by an instance of this server; leave it out. \
             The instances of a server need the same keys, and clocks that agree",
        );
        self.refuse(Refusal::Forbidden, StatusCode::FORBIDDEN, None, &error)
    }

    /// Relays a request to the instance that holds its live call. A relayed request is not relayed again.
    pub(super) async fn hand_on(
        &self,
        id: Id<'_>,
        relay: RelayTo,
        relayed: bool,
        (headers, bytes): (&HeaderMap, &[u8]),
        busy: Busy,
    ) -> Response<Body> {
        let metrics = &self.server.0.metrics;
        if relayed {
            metrics.live(LiveCount::Elsewhere);
            return self.live_error(id, elsewhere());
        }
        let request = RelayRequest {
            method: &Method::POST,
            headers,
            body: bytes,
            caller: &relay.caller,
            legacy: false,
        };
        let sent = match self.server.0.relay.send(&relay.holder, request).await {
            Ok((head, body)) => {
                let (json, holder) = (id.as_json().to_owned(), relay.holder.clone());
                let last: LastEvent = Box::new(move |error| {
                    let mut out = Vec::with_capacity(256);
                    write_error(&mut out, Some(&json), &unreachable(&holder, &error));
                    Box::pin(std::future::ready(Some(out)))
                });
                self.pass_on(head, body, last, busy).await
            }
            Err(error) => Err(error),
        };
        match sent {
            Ok(response) => {
                metrics.live(LiveCount::Relayed);
                response
            }
            Err(RelayError::OtherInstance(StatusCode::MISDIRECTED_REQUEST)) => {
                metrics.live(LiveCount::Gone);
                self.live_error(id, gone())
            }
            Err(error) => {
                metrics.live(LiveCount::RelayFailed);
                self.live_error(id, unreachable(&relay.holder, &error))
            }
        }
    }

    /// Relays a request of a legacy session. `None`: the holder is gone, and the request is served here.
    pub(super) async fn relay_legacy(
        &self,
        holder: &Holder,
        request: RelayRequest<'_>,
        busy: &mut Option<Busy>,
    ) -> Option<Response<Body>> {
        let metrics = &self.server.0.metrics;
        let message = parse(request.body);
        let id = match &message {
            Ok(Message::Request { id, .. }) => Some(*id),
            _ => None,
        };
        let sent = match self.server.0.relay.send(holder, request).await {
            Ok((head, body)) => {
                let last = self.last_of_legacy(holder, id);
                let busy = busy.take().unwrap_or_else(|| Busy::new(None));
                self.pass_on(head, body, last, busy).await
            }
            Err(error) if error.is_gone() => {
                tracing::warn!(%holder, %error, "session taken over: its holder is gone");
                metrics.live(LiveCount::RelayFailed);
                return None;
            }
            Err(error) => Err(error),
        };
        Some(match sent {
            Ok(response) => {
                metrics.live(LiveCount::Relayed);
                response
            }
            Err(error) => {
                metrics.live(LiveCount::RelayFailed);
                let error = unreachable(holder, &error);
                match id {
                    Some(id) => self.live_error(id, error),
                    None => self.busy(None, &error),
                }
            }
        })
    }

    /// The last event of a relayed stream of a legacy session that broke off: that the call is lost, if its holder is gone.
    /// Otherwise the client resumes the stream.
    fn last_of_legacy(&self, holder: &Holder, id: Option<Id<'_>>) -> LastEvent {
        let (server, holder) = (self.server.clone(), holder.clone());
        let id = id.map(|id| id.as_json().to_owned());
        Box::new(move |error| {
            Box::pin(async move {
                tracing::warn!(%holder, %error, "relayed stream broke off");
                let id = id?;
                if !server.0.relay.is_gone(&holder).await {
                    return None;
                }
                let mut out = Vec::with_capacity(256);
                legacy::write_error(&mut out, Some(&id), &lost_call());
                record::sent("", &out);
                Some(out)
            })
        })
    }

    /// The response of a holder.
    async fn pass_on(
        &self,
        head: Response<()>,
        body: RelayBody,
        last: LastEvent,
        busy: Busy,
    ) -> Result<Response<Body>, RelayError> {
        let mut response = if is_stream(head.headers()) {
            Response::new(Body::relayed(RelayStream::new(body, last), busy))
        } else {
            let whole = body.whole().await?;
            Response::new(match whole.is_empty() {
                true => Body::empty(),
                false => Body::full(whole),
            })
        };
        *response.status_mut() = head.status();
        for name in PASSED_ON {
            if let Some(value) = head.headers().get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        Ok(response)
    }

    /// An error of a call, which is a reply like any other.
    fn live_error(&self, id: Id<'_>, error: RpcError) -> Response<Body> {
        let mut out = Vec::with_capacity(512);
        write_reply(
            &mut out,
            Some(id),
            &Reply::Error(error),
            &self.server.0.info,
        );
        let mut response = Response::new(Body::full(out.into()));
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        response
    }
}
