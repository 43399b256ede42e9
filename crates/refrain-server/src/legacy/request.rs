//! Handles the messages of a session.

use super::state::StateError;
use super::{LegacySessions, Lifetime, RequestId, Session};
use crate::auth::Caller;
use crate::dispatch::{Context, Dispatch};
use crate::limits::LimitReached;
use crate::metrics::{Label, NonCall, Refusal};
use crate::relay::{Holder, PendingRelay};
use crate::request_span::trace_from_headers;
use crate::rounds::{CallRequest, Home, TokenSource};
use http::HeaderMap;
use refrain_wire::legacy::{self, Revision, decode_set_level, decode_uri, split_batch};
use refrain_wire::{CallKind, Empty, Message, Rejection, Reply, RpcError};
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::Span;

/// The longest URI, in bytes, that a session may subscribe to.
const MAX_URI: usize = 1024;

/// The longest request id, in bytes. A call keeps several copies of it.
const MAX_REQUEST_ID: usize = 1024;

/// The parameters of `notifications/cancelled`.
#[derive(Deserialize)]
pub(crate) struct CancelParams<'a> {
    #[serde(rename = "requestId", borrow)]
    pub(crate) request_id: &'a RawValue,
    pub(crate) reason: Option<String>,
}

impl<'a> CancelParams<'a> {
    pub(crate) fn read(params: &'a RawValue) -> Option<Self> {
        serde_json::from_str(params.get()).ok()
    }
}

impl LegacySessions {
    /// The messages of a batch. `None` if the message is not a batch.
    pub(crate) fn split_batch<'a>(
        &self,
        session: &Session,
        bytes: &'a [u8],
    ) -> Result<Option<Vec<&'a RawValue>>, RpcError> {
        let Some(batch) = split_batch(bytes) else {
            return Ok(None);
        };
        let (length, limit) = (batch.len(), self.services.limits.batch);
        let reason = if session.revision != Revision::V2025_03_26 {
            "batches are not supported by the revision of this session: send one message at a time"
                .to_owned()
        } else if length == 0 {
            "empty batch: send at least one message".to_owned()
        } else if length > limit {
            format!("a batch may have at most {limit} messages (`batch`), not {length}")
        } else {
            return Ok(Some(batch));
        };
        Err(RpcError::invalid_request(reason))
    }

    /// Handles one message of a session. Returns its method, or "" if that is not needed, and the result. If the transport
    /// cannot relay, this instance handles messages for other instances, too.
    pub(crate) fn accept(
        &self,
        session: &Session,
        message: Result<Message<'_>, Box<Rejection>>,
        context: Context<'_>,
        span: &Span,
    ) -> (&'static str, Dispatch) {
        let Context {
            caller, can_relay, ..
        } = context;
        if let Ok(Message::Request { id, method, params }) = &message {
            if id.as_json().len() > MAX_REQUEST_ID {
                let reason = format!("id: longer than {MAX_REQUEST_ID} bytes");
                return ("", Dispatch::Invalid(RpcError::invalid_request(reason)));
            }
            if can_relay && self.relay.can_reach(&session.holder) {
                return ("", PendingRelay::dispatch(session.holder.clone(), caller));
            }
            let request = (&**method, *params, context.http);
            return self.handle_request(session, request, caller, span);
        }
        // Answers and cancellations need the same scopes as calls.
        if let Err(missing) = self.auth.allow(&caller, &[]) {
            return ("", Dispatch::Forbidden(missing));
        }
        let holder = match message {
            Ok(Message::Notification { method, params }) if method == "notifications/cancelled" => {
                Ok(self.cancel(session, params))
            }
            Ok(Message::Response(response)) => self.answer(session, &response),
            Ok(_) => Ok(None),
            Err(rejection) => Err(reject(rejection.error)),
        };
        let dispatch = match holder {
            Ok(None) => Dispatch::Accepted,
            Ok(Some(holder)) if can_relay && self.relay.can_reach(&holder) => {
                PendingRelay::dispatch(holder, caller)
            }
            Ok(Some(Holder { url: None, .. })) => Dispatch::Rejected(
                Refusal::Elsewhere,
                RpcError::invalid_request(CALL_HELD_ELSEWHERE),
            ),
            Ok(Some(_)) => Dispatch::Rejected(Refusal::Elsewhere, lost_call()),
            Err(dispatch) => dispatch,
        };
        ("", dispatch)
    }

    /// Delivers an answer. Returns the holder of the ask if that is another instance.
    fn answer(
        &self,
        session: &Session,
        response: &refrain_wire::Response<'_>,
    ) -> Result<Option<Holder>, Dispatch> {
        if let RequestId::Text(ask) = RequestId::read(response.id.as_json()) {
            match self.answer_ask(session, &ask, response) {
                Ok(true) => return Ok(None),
                Ok(false) => {}
                Err(reached) => return Err(self.busy(reached)),
            }
            if let Some(holder) = self.holder_of_ask(session, &ask) {
                // If this instance is the holder, the ask is already answered or withdrawn.
                return Ok(Some(holder).filter(|holder| !self.relay.is_own(holder)));
            }
        }
        let error = "unknown id: this response does not match a request of the server";
        Err(reject(RpcError::invalid_request(error)))
    }

    /// Rejects a request over a limit.
    fn busy(&self, reached: LimitReached) -> Dispatch {
        self.count_busy(Dispatch::Busy(reached.into()))
    }

    /// Counts the rejection of a request over a limit.
    fn count_busy(&self, dispatch: Dispatch) -> Dispatch {
        if let Dispatch::Busy(_) = dispatch {
            self.services.metrics.request_refused(Refusal::Busy);
        }
        dispatch
    }

    /// Cancels a call. Returns the holder of the session if the call may run there.
    fn cancel(&self, session: &Session, params: Option<&RawValue>) -> Option<Holder> {
        let cancel = CancelParams::read(params?)?;
        let id = RequestId::parse(cancel.request_id.get())?;
        let is_handled = self.cancel_call(session, id) || self.relay.is_own(&session.holder);
        (!is_handled).then(|| session.holder.clone())
    }

    /// Handles a request of a session. Returns its method and the result.
    fn handle_request(
        &self,
        session: &Session,
        (method, params, http): (&str, Option<&RawValue>, Option<&HeaderMap>),
        caller: Caller,
        span: &Span,
    ) -> (&'static str, Dispatch) {
        let settings = self.settings(session);
        if let Some(kind) = CallKind::from_method(method) {
            let dispatch = legacy::decode_call(kind, params, settings).map(|mut call| {
                let trace = call.meta.trace.take();
                call.meta.trace = trace.or_else(|| trace_from_headers(http?));
                self.rounds.begin(CallRequest {
                    call: &call,
                    token: TokenSource::Request,
                    home: Home::Session,
                    can_relay: false,
                    caller: &caller,
                    headers: None,
                    span,
                })
            });
            return (kind.method(), dispatch.unwrap_or_else(Dispatch::Invalid));
        }
        let Some(request) = NonCall::of_legacy(method) else {
            let unknown = RpcError::method_not_found(method);
            return ("", Dispatch::Invalid(unknown));
        };
        // A completion holds a permit while it runs. The other requests need none, because they never wait.
        if request != NonCall::Complete
            && let Err(reached) = self.services.limits.calls.check(&caller.limit_key())
        {
            return (request.name(), self.busy(reached));
        }
        let dispatch = match (request, self.auth.allow(&caller, &[])) {
            (NonCall::Complete, _) => legacy::decode_complete(params, settings).map(|params| {
                let (auth, limits) = (&self.auth, &self.services.limits);
                let pending = self.catalog.complete(params, caller, auth, limits);
                pending.map_or_else(|dispatch| self.count_busy(dispatch), Dispatch::Pending)
            }),
            (NonCall::List(listing), allowed) => {
                legacy::decode_list(params, settings).and_then(|params| match allowed {
                    Err(missing) => Ok(Dispatch::Forbidden(missing)),
                    Ok(()) => {
                        let list = self.catalog.list(listing, params.cursor.as_deref());
                        list.map(Dispatch::Reply)
                    }
                })
            }
            (_, Err(missing)) => Ok(Dispatch::Forbidden(missing)),
            (_, Ok(())) => self.change_session(session, request, params, &caller),
        };
        if let Ok(Dispatch::Reply(_) | Dispatch::Pending(_)) = dispatch {
            self.services.metrics.non_call(request);
        }
        (request.name(), dispatch.unwrap_or_else(Dispatch::Invalid))
    }

    /// Handles a request that changes the state of the session, or `ping`.
    fn change_session(
        &self,
        session: &Session,
        request: NonCall,
        params: Option<&RawValue>,
        caller: &Caller,
    ) -> Result<Dispatch, RpcError> {
        let result = match request {
            NonCall::Ping => Ok(()),
            NonCall::SetLevel => {
                self.set_level(session, caller.limit_key(), decode_set_level(params)?)
            }
            NonCall::Subscribe => {
                let uri = decode_uri(params)?.into_owned();
                let catalog = self.catalog.entries().clone();
                if catalog.resource(&uri).is_none() && catalog.template_of(&uri).is_none() {
                    return Err(RpcError::resource_not_found(&uri));
                }
                // Notifications of a resource need the same scopes as reading it.
                let scopes = catalog.scopes_of_resource(&uri);
                if let Err(missing) = self.auth.allow(caller, scopes) {
                    return Ok(Dispatch::Forbidden(missing));
                }
                if uri.len() > MAX_URI {
                    return Err(RpcError::invalid_params(format!(
                        "uri: longer than {MAX_URI} bytes"
                    )));
                }
                self.subscribe(session, caller.limit_key(), &uri)
            }
            NonCall::Unsubscribe => {
                self.unsubscribe(session, caller.limit_key(), &decode_uri(params)?);
                Ok(())
            }
            _ => {
                return Err(RpcError::invalid_request(match session.lifetime() {
                    Lifetime::Process => {
                        "session already initialized: start another process for another session"
                    }
                    Lifetime::Limited => {
                        "session already initialized: omit the Mcp-Session-Id header to open another"
                    }
                }));
            }
        };
        match result {
            Ok(()) => Ok(Dispatch::Reply(Reply::complete(Empty {}))),
            Err(StateError::PerSession) => {
                let limits = &self.services.limits;
                Err(RpcError::invalid_params(format!(
                    "uri: subscription limit of this session reached: {} resources or {} bytes of URIs; unsubscribe from \
                     another resource first",
                    limits.subscribed_resources, limits.subscribed_bytes
                )))
            }
            Err(StateError::Limit(reached)) => Ok(self.busy(reached)),
        }
    }
}

fn reject(error: RpcError) -> Dispatch {
    Dispatch::Rejected(Refusal::error(error.code), error)
}

/// The error text for an answer, a cancellation or a stream whose holder advertises no URL.
pub(super) const CALL_HELD_ELSEWHERE: &str = "another instance holds the call and cannot be reached from here, or the call was lost in \
     a restart. Retry the request; if it fails again, call again. Server operators: start every instance with \
     --advertise URL (ServerBuilder::advertise), or route each session to one instance";

/// The error for an answer, a cancellation or a stream of a call whose holder is gone.
pub(crate) fn lost_call() -> RpcError {
    RpcError::call_over(
        "the call was lost: the instance that held it has stopped or is unreachable. Completed work is not undone. The \
         session remains valid; call again",
    )
}
