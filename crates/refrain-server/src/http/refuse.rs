//! HTTP error responses: authentication, missing scopes, overload.

use super::{Body, HttpService, json};
use crate::auth::{AuthRejection, Challenge, MissingScopes};
use crate::metrics::Refusal;
use crate::record;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use refrain_wire::ratified::write_error;
use refrain_wire::{Id, Message, RpcError, parse};
use std::borrow::Cow;

impl HttpService {
    /// Rejects a request before a call begins.
    pub(super) fn refuse(
        &self,
        refusal: Refusal,
        status: StatusCode,
        id: Option<Id<'_>>,
        error: &RpcError,
    ) -> Response<Body> {
        self.server.0.services.metrics.request_refused(refusal);
        self.error(status, id, error)
    }

    /// Rejects a request whose id is not known.
    pub(super) fn reject(
        &self,
        refusal: Refusal,
        status: StatusCode,
        reason: impl Into<Cow<'static, str>>,
    ) -> Box<Response<Body>> {
        let error = RpcError::invalid_request(reason);
        Box::new(self.refuse(refusal, status, None, &error))
    }

    fn error(&self, status: StatusCode, id: Option<Id<'_>>, error: &RpcError) -> Response<Body> {
        let mut out = Vec::with_capacity(256);
        write_error(&mut out, id.as_ref().map(Id::as_json), error);
        record::sent("", &out);
        let mut response = json(out.into());
        *response.status_mut() = status;
        response
    }

    /// The answer while a limit is reached: the client may try again.
    pub(super) fn busy(&self, id: Option<Id<'_>>, error: &RpcError) -> Response<Body> {
        let mut response = self.error(StatusCode::SERVICE_UNAVAILABLE, id, error);
        let second = HeaderValue::from_static("1");
        response.headers_mut().insert(RETRY_AFTER, second);
        response
    }

    /// The answer to a request with this body whose caller is not authenticated.
    pub(super) fn turn_away(&self, refused: &AuthRejection, body: &[u8]) -> Response<Body> {
        let (status, code) = match refused {
            AuthRejection::Missing(_) | AuthRejection::Challenged { .. } => {
                (StatusCode::UNAUTHORIZED, None)
            }
            AuthRejection::InvalidToken(_) => (StatusCode::UNAUTHORIZED, Some("invalid_token")),
            AuthRejection::Malformed(_) => (StatusCode::BAD_REQUEST, Some("invalid_request")),
            AuthRejection::Forbidden(_) => (StatusCode::FORBIDDEN, None),
            AuthRejection::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, None),
        };
        let refusal = match refused {
            AuthRejection::Forbidden(_) => Refusal::Forbidden,
            AuthRejection::Unavailable { .. } => Refusal::Unavailable,
            _ => Refusal::Unauthenticated,
        };
        let reason = refused.to_string();
        let challenge = match refused {
            AuthRejection::Forbidden(_) | AuthRejection::Unavailable { .. } => None,
            AuthRejection::Challenged { challenge, .. } => HeaderValue::from_str(challenge).ok(),
            AuthRejection::Missing(_)
            | AuthRejection::InvalidToken(_)
            | AuthRejection::Malformed(_) => {
                let access = &self.server.0.auth;
                let challenge = Challenge {
                    error: code,
                    scope: &access.challenge,
                    metadata: self.metadata_url(),
                    description: code.map(|_| reason.as_str()),
                };
                Some(challenge.to_header())
            }
        };
        let error = match refused {
            AuthRejection::Unavailable { .. } => RpcError::internal(reason),
            _ => RpcError::invalid_request(reason),
        };
        let message = parse(body);
        let id = match &message {
            Ok(Message::Request { id, .. }) => Some(*id),
            Ok(Message::Response(response)) => Some(response.id),
            Ok(Message::Notification { .. }) => None,
            Err(rejection) => rejection.id.as_deref().and_then(Id::from_raw),
        };
        let mut response = self.refuse(refusal, status, id, &error);
        let headers = response.headers_mut();
        if let Some(challenge) = challenge {
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
        if let AuthRejection::Unavailable { retry_after, .. } = refused {
            // Whole seconds, and never at once.
            let seconds = retry_after.as_millis().div_ceil(1000).max(1);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    /// The answer to a caller who lacks a scope.
    pub(super) fn forbid(&self, missing: MissingScopes) -> Response<Body> {
        let challenge = self.challenge(&missing.0);
        let (refusal, status) = (Refusal::InsufficientScope, StatusCode::FORBIDDEN);
        let mut response = self.refuse(refusal, status, None, &missing.into());
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        response
    }

    /// The challenge for a caller who lacks one of these scopes.
    pub(super) fn challenge(&self, scopes: &str) -> HeaderValue {
        let challenge = Challenge {
            error: Some("insufficient_scope"),
            scope: scopes,
            metadata: self.metadata_url(),
            description: Some("the token lacks a scope that this needs"),
        };
        challenge.to_header()
    }

    fn metadata_url(&self) -> Option<&str> {
        let metadata = self.server.0.auth.metadata.as_ref()?;
        Some(&metadata.url)
    }
}
