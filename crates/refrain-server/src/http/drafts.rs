//! The endpoint of a draft: its requests translated on their way in, and the replies on their way out.

use super::headers::Headers;
use super::legacy::SESSION;
use super::pulse::Busy;
use super::{AllowedHosts, Body, HttpService, JSON, accepted, status};
use crate::auth::Caller;
use crate::legacy::opens_session;
use crate::metrics::Refusal;
use crate::server::Server;
use http::Response;
use http::header::CONTENT_TYPE;
use refrain_wire::{Draft, DraftRequest, Id, Initialize, RpcError, decode_initialize};
use serde_json::value::RawValue;
use std::sync::Arc;

impl HttpService {
    /// The endpoint of a server that is spoken to in a draft, for requests to these hosts. Mount it at [`Draft::path`].
    pub fn of_draft(draft: Draft, server: Server, hosts: AllowedHosts) -> Self {
        Self {
            draft: Some(draft),
            ..Self::new(server, hosts)
        }
    }

    /// Is this the path of the draft that is spoken here?
    pub(super) fn is_at(&self, path: &str) -> bool {
        self.draft.is_some_and(|draft| draft.path() == path)
    }

    /// Reads the params of `initialize`, as they are meant here.
    pub(super) fn read_initialize(
        &self,
        params: Option<&RawValue>,
    ) -> Result<Initialize, RpcError> {
        match self.draft {
            Some(draft) => draft.decode_initialize(params),
            None => decode_initialize(params),
        }
    }

    /// Answers a message of a draft.
    pub(super) async fn respond_in(
        &self,
        draft: Draft,
        headers: &Headers<'_>,
        bytes: &[u8],
        caller: Caller,
        busy: Busy,
    ) -> Response<Body> {
        // What has no shape of the draft's own is as it was in the revision whose handshake it has.
        let in_session = headers.all().contains_key(SESSION);
        if opens_session(bytes).is_some() || in_session && !draft.has_own_shape(bytes) {
            return self.respond_older(headers.all(), bytes, caller, busy).await;
        }
        let agreed = if in_session {
            match self.find_session(headers.all(), &caller).await {
                Ok((session, known)) => Some(session.agreed(known.level)),
                Err(refused) => return *refused,
            }
        } else {
            None
        };
        let (message, exchange) = match draft.read_request_of(agreed, bytes) {
            Ok(DraftRequest::Request { message, exchange }) => (message, exchange),
            Ok(DraftRequest::Notification) => return accepted(),
            Ok(DraftRequest::Known(reply)) => {
                let mut response = Response::new(Body::full(reply.into()));
                response.headers_mut().insert(CONTENT_TYPE, JSON);
                return response;
            }
            Err(rejection) => {
                let id = rejection.id.as_deref().and_then(Id::from_raw);
                let error = &rejection.error;
                let refusal = Refusal::error(error.code);
                return self.refuse(refusal, status(error.code), id, error);
            }
        };
        let translating = Self {
            exchange: Some(Arc::new(exchange)),
            ..self.clone()
        };
        // As one that a peer has handed on: the peers of a draft's server speak no draft, so it is not handed on again.
        translating
            .respond(headers, &message, caller, true, busy)
            .await
    }
}
