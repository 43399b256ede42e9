//! Requests for calls that another instance holds, and those that other instances hand on.

use super::pulse::Busy;
use super::{Body, HttpService, JSON, ROUND};
use crate::live::{Relay, RelayError, RelayStream, Relayed, elsewhere, is_stream, unreachable};
use crate::metrics::{LiveCount, Refusal};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use refrain_wire::{Id, Reply, RpcError, write_reply};
use serde::Deserialize;

/// What of a peer's answer is handed on, beside its body.
const HANDED_ON: [HeaderName; 5] = [
    CONTENT_TYPE,
    CACHE_CONTROL,
    RETRY_AFTER,
    HeaderName::from_static("x-accel-buffering"),
    ROUND,
];

/// What an instance answers a call with. Anything else comes from somebody in between, or is meant for a peer.
const ANSWERS: [StatusCode; 3] = [
    StatusCode::OK,
    StatusCode::BAD_REQUEST,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// Is this a message, and not a page that somebody in between made?
fn is_message(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message<'a> {
        jsonrpc: &'a str,
    }
    serde_json::from_slice(bytes).is_ok_and(|Message { jsonrpc }| jsonrpc == "2.0")
}

impl HttpService {
    /// Reads what a peer says that has handed a request on.
    pub(super) fn relayed(&self, header: &HeaderValue) -> Result<Relayed, Box<Response<Body>>> {
        let relayed = self.server.read_relay(header);
        relayed.ok_or_else(|| Box::new(self.no_relay()))
    }

    /// The answer to a request that says it was handed on by a peer, and was not.
    pub(super) fn no_relay(&self) -> Response<Body> {
        let error = RpcError::invalid_request(
            "the Refrain-Relay header is not one that a peer of this instance made for this request; leave it out. \
             Instances that are peers share their keys, name each other alike and have clocks that agree",
        );
        self.refuse(Refusal::Forbidden, StatusCode::FORBIDDEN, None, &error)
    }

    /// Hands a request to the instance that holds its call. One that was handed on before is not handed on again.
    pub(super) async fn hand_on(
        &self,
        id: Id<'_>,
        relay: Relay,
        relayed: bool,
        (headers, bytes): (&HeaderMap, &[u8]),
        busy: Busy,
    ) -> Response<Body> {
        let metrics = &self.server.0.metrics;
        if relayed {
            metrics.live(LiveCount::Elsewhere);
            return self.live_error(id, elsewhere());
        }
        match self.try_hand_on(id, &relay, headers, bytes, busy).await {
            Ok(response) => {
                metrics.live(LiveCount::Relayed);
                response
            }
            Err(error) => {
                metrics.live(LiveCount::RelayFailed);
                self.live_error(id, unreachable(&relay.holder, &error))
            }
        }
    }

    async fn try_hand_on(
        &self,
        id: Id<'_>,
        relay: &Relay,
        headers: &HeaderMap,
        bytes: &[u8],
        busy: Busy,
    ) -> Result<Response<Body>, RelayError> {
        let (head, body) = self.server.relay(relay, headers, bytes).await?;
        let status = head.status();
        if !ANSWERS.contains(&status) {
            return Err(RelayError::Odd(status));
        }
        let mut response = if status == StatusCode::OK && is_stream(head.headers()) {
            let stream = RelayStream::new(body, relay.holder.clone(), id);
            Response::new(Body::relayed(stream, busy))
        } else {
            let whole = body.whole().await?;
            if !is_message(&whole) {
                return Err(RelayError::Odd(status));
            }
            Response::new(Body::full(whole))
        };
        *response.status_mut() = status;
        for name in HANDED_ON {
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
