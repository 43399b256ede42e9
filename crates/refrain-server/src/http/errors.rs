//! HTTP error responses: rejected requests, authentication, missing scopes, overload.

use super::{Body, BoxedResponse, HttpService, json};
use crate::auth::{AuthRejection, Challenge, MissingScopes};
use crate::limits::LimitReached;
use crate::metrics::Refusal;
use crate::response;
use crate::wire_recorder;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use refrain_wire::ratified::write_error;
use refrain_wire::{Id, RpcError, find_request_id};
use std::borrow::Cow;
use std::time::Duration;

/// The value of `Retry-After`: whole seconds, rounded up, at least one.
pub(super) fn retry_after(time: Duration) -> HeaderValue {
    let seconds = time.as_millis().div_ceil(1000).max(1);
    u64::try_from(seconds).unwrap_or(u64::MAX).into()
}

impl HttpService {
    /// Rejects a request before a call starts, and counts it.
    pub(super) fn reject_with(
        &self,
        refusal: Refusal,
        status: StatusCode,
        id: Option<Id<'_>>,
        error: &RpcError,
    ) -> Response<Body> {
        self.server().0.services.metrics.request_refused(refusal);
        self.error(status, id, error)
    }

    /// Rejects a request whose id has not been parsed.
    pub(super) fn reject(
        &self,
        refusal: Refusal,
        status: StatusCode,
        reason: impl Into<Cow<'static, str>>,
    ) -> BoxedResponse {
        let error = RpcError::invalid_request(reason);
        Box::new(self.reject_with(refusal, status, None, &error))
    }

    /// An error response. Does not count a rejection.
    pub(super) fn error(
        &self,
        status: StatusCode,
        id: Option<Id<'_>>,
        error: &RpcError,
    ) -> Response<Body> {
        let mut out = Vec::with_capacity(256);
        write_error(&mut out, id.as_ref().map(Id::as_json), error);
        wire_recorder::record(wire_recorder::NO_METHOD, &out);
        let mut response = json(out.into());
        *response.status_mut() = status;
        response
    }

    /// The response while a limit is reached: 503 with `Retry-After`.
    pub(super) fn busy(&self, id: Option<Id<'_>>, error: &RpcError) -> Response<Body> {
        let mut response = self.error(StatusCode::SERVICE_UNAVAILABLE, id, error);
        let retry_after = retry_after(response::RETRY_AFTER);
        response.headers_mut().insert(RETRY_AFTER, retry_after);
        response
    }

    /// The 503 that replaces a reply: the caller has too many bytes of unread replies.
    pub(super) fn dropped_reply(&self, request: &[u8], reached: LimitReached) -> Response<Body> {
        let metrics = &self.server().0.services.metrics;
        metrics.request_refused(Refusal::Busy);
        let reason = format!("{reached}. The reply was dropped; the effects of the call remain");
        self.busy(find_request_id(request), &RpcError::internal(reason))
    }

    /// Rejects a request whose caller is not authenticated.
    pub(super) fn reject_unauthenticated(
        &self,
        rejection: &AuthRejection,
        id: Option<Id<'_>>,
    ) -> Response<Body> {
        let reason = rejection.to_string();
        let auth = &self.server().0.auth;
        let challenge = |error: Option<&'static str>| {
            let is_proof = matches!(rejection, AuthRejection::InvalidProof(_));
            let challenge = Challenge {
                is_dpop: is_proof || auth.requires_dpop,
                error,
                scope: &auth.challenge_scope,
                metadata: self.metadata_url(),
                description: error.map(|_| reason.as_str()),
            };
            Some((WWW_AUTHENTICATE, challenge.to_header()))
        };
        let (status, header) = match rejection {
            AuthRejection::Missing(_) => (StatusCode::UNAUTHORIZED, challenge(None)),
            AuthRejection::Challenged { challenge, .. } => {
                let challenge = HeaderValue::from_str(challenge).ok();
                let header = challenge.map(|challenge| (WWW_AUTHENTICATE, challenge));
                (StatusCode::UNAUTHORIZED, header)
            }
            AuthRejection::InvalidToken(_) => {
                (StatusCode::UNAUTHORIZED, challenge(Some("invalid_token")))
            }
            AuthRejection::InvalidProof(_) => {
                let header = challenge(Some("invalid_dpop_proof"));
                (StatusCode::UNAUTHORIZED, header)
            }
            AuthRejection::Malformed(_) => {
                (StatusCode::BAD_REQUEST, challenge(Some("invalid_request")))
            }
            AuthRejection::Forbidden(_) => (StatusCode::FORBIDDEN, None),
            AuthRejection::Unavailable {
                retry_after: time, ..
            } => {
                let header = Some((RETRY_AFTER, retry_after(*time)));
                (StatusCode::SERVICE_UNAVAILABLE, header)
            }
        };
        let (refusal, error) = match rejection {
            AuthRejection::Forbidden(_) => (Refusal::Forbidden, RpcError::invalid_request(reason)),
            AuthRejection::Unavailable { .. } => (Refusal::Unavailable, RpcError::internal(reason)),
            _ => (Refusal::Unauthenticated, RpcError::invalid_request(reason)),
        };
        let mut response = self.reject_with(refusal, status, id, &error);
        response.headers_mut().extend(header);
        response
    }

    pub(super) fn reject_missing_scopes(&self, missing: MissingScopes) -> Response<Body> {
        let challenge = self.scope_challenge(&missing.0);
        let (refusal, status) = (Refusal::InsufficientScope, StatusCode::FORBIDDEN);
        let mut response = self.reject_with(refusal, status, None, &missing.into());
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        response
    }

    /// The challenge to a caller whose token lacks these scopes.
    pub(super) fn scope_challenge(&self, scopes: &str) -> HeaderValue {
        let challenge = Challenge {
            is_dpop: self.server().0.auth.requires_dpop,
            error: Some("insufficient_scope"),
            scope: scopes,
            metadata: self.metadata_url(),
            description: Some("the token lacks a required scope"),
        };
        challenge.to_header()
    }

    fn metadata_url(&self) -> Option<&str> {
        let metadata = self.server().0.auth.metadata.as_ref()?;
        Some(&metadata.url)
    }
}
