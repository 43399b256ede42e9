//! What a client is told that is not let in, or not to what it wants.

use super::{Body, HttpService};
use crate::auth::{Challenge, MissingScopes, Refused};
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use refrain_wire::{Id, RpcError};

impl HttpService {
    /// It could not be found out who is calling.
    pub(super) fn refuse(&self, refused: &Refused) -> Response<Body> {
        let (status, code) = match refused {
            Refused::Missing(_) | Refused::Challenged { .. } => (StatusCode::UNAUTHORIZED, None),
            Refused::InvalidToken(_) => (StatusCode::UNAUTHORIZED, Some("invalid_token")),
            Refused::Malformed(_) => (StatusCode::BAD_REQUEST, Some("invalid_request")),
            Refused::Forbidden(_) => (StatusCode::FORBIDDEN, None),
            Refused::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, None),
        };
        let reason = refused.to_string();
        let challenge = match refused {
            Refused::Forbidden(_) | Refused::Unavailable { .. } => None,
            Refused::Challenged { challenge, .. } => HeaderValue::from_str(challenge).ok(),
            Refused::Missing(_) | Refused::InvalidToken(_) | Refused::Malformed(_) => {
                let access = &self.server.0.access;
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
            Refused::Unavailable { .. } => RpcError::internal(reason),
            _ => RpcError::invalid_request(reason),
        };
        let mut response = self.error(status, None, &error);
        let headers = response.headers_mut();
        if let Some(challenge) = challenge {
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
        if let Refused::Unavailable { retry_after, .. } = refused {
            // Whole seconds, and never at once.
            let seconds = retry_after.as_millis().div_ceil(1000).max(1);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    /// It is known who is calling, and they may not.
    pub(super) fn forbid(&self, id: Id<'_>, missing: MissingScopes) -> Response<Body> {
        let challenge = Challenge {
            error: Some("insufficient_scope"),
            scope: &missing.0,
            metadata: self.metadata_url(),
            description: Some("the token lacks a scope that this needs"),
        }
        .to_header();
        let mut response = self.error(StatusCode::FORBIDDEN, Some(id), &missing.into());
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        response
    }

    fn metadata_url(&self) -> Option<&str> {
        let metadata = self.server.0.access.metadata.as_ref()?;
        Some(&metadata.url)
    }
}
