//! Messages of a session: answered, begun as a call, or relayed.

use super::state::StateError;
use super::{LegacySessions, Lifetime, RequestId, Session};
use crate::auth::Caller;
use crate::dispatch::Begin;
use crate::metrics::{Label, Other, Refusal};
use crate::relay::{Holder, RelayTo};
use crate::rounds::{CallRequest, Home, TokenSource};
use refrain_wire::legacy::{self, Revision, decode_set_level, decode_uri, split_batch};
use refrain_wire::{CallKind, Empty, Message, Rejection, Reply, RpcError};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Bytes of the longest URI that a session may subscribe to.
const LONGEST_URI: usize = 1024;

/// The params of `notifications/cancelled`.
#[derive(Deserialize)]
pub(crate) struct Cancelled<'a> {
    #[serde(rename = "requestId", borrow)]
    pub(crate) request_id: &'a RawValue,
    pub(crate) reason: Option<String>,
}

impl<'a> Cancelled<'a> {
    pub(crate) fn read(params: &'a RawValue) -> Option<Self> {
        serde_json::from_str(params.get()).ok()
    }
}

impl LegacySessions {
    /// The messages of a batch. `None`: the message is not a batch.
    pub(crate) fn split_batch<'a>(
        &self,
        session: &Session,
        bytes: &'a [u8],
    ) -> Result<Option<Vec<&'a RawValue>>, RpcError> {
        let Some(batch) = split_batch(bytes) else {
            return Ok(None);
        };
        let limit = self.services.limits.batch;
        Err(RpcError::invalid_request(
            if session.revision != Revision::V2025_03_26 {
                "batches are not supported in this session; send one message at a time".to_owned()
            } else if batch.is_empty() {
                "the batch is empty; send at least one message".to_owned()
            } else if batch.len() > limit {
                format!("a batch may have at most {limit} messages")
            } else {
                return Ok(Some(batch));
            },
        ))
    }

    /// Accepts one message of a session. The text is the name of its method. A message that has to be relayed is processed
    /// here instead if the transport does not relay.
    pub(crate) fn accept(
        &self,
        session: &Session,
        message: Result<Message<'_>, Box<Rejection>>,
        caller: Caller,
        relays: bool,
    ) -> (&'static str, Begin) {
        if let Ok(Message::Request { method, params, .. }) = &message {
            if relays && self.relay.reaches(&session.holder) {
                return ("", RelayTo::begin(session.holder.clone(), caller));
            }
            return self.begin(session, method, *params, caller);
        }
        // A caller that may not call has nothing to say about calls either.
        if let Err(missing) = self.auth.allow(&caller, &[]) {
            return ("", Begin::Forbidden(missing));
        }
        let needed = match message {
            Ok(Message::Notification { method, params }) if method == "notifications/cancelled" => {
                Ok(self.cancel(session, params))
            }
            Ok(Message::Response(response)) => self.answer(session, &response),
            Ok(_) => Ok(None),
            Err(rejection) => Err(rejection.error),
        };
        let begin = match needed {
            Ok(None) => Begin::Accepted,
            Ok(Some(holder)) if relays && self.relay.reaches(&holder) => {
                RelayTo::begin(holder, caller)
            }
            Ok(Some(Holder { url: None, .. })) => Begin::Rejected(
                Refusal::Elsewhere,
                RpcError::invalid_request(HELD_ELSEWHERE),
            ),
            Ok(Some(_)) => Begin::Rejected(Refusal::Elsewhere, lost_call()),
            Err(error) => Begin::Rejected(Refusal::error(error.code), error),
        };
        ("", begin)
    }

    /// Receives an answer. Its id names the instance that asked, which is returned if it is another one.
    fn answer(
        &self,
        session: &Session,
        response: &refrain_wire::Response<'_>,
    ) -> Result<Option<Holder>, RpcError> {
        if let RequestId::Text(ask) = RequestId::read(response.id.as_json()) {
            if self.answer_ask(session, &ask, response) {
                return Ok(None);
            }
            if let Some(holder) = self.asked_by(session, &ask) {
                // An ask of this instance was answered before, or is no longer needed.
                return Ok(Some(holder).filter(|holder| !self.relay.is_own(holder)));
            }
        }
        let error = "nothing was asked under the id of this response";
        Err(RpcError::invalid_request(error))
    }

    /// Cancels a call. Returns the holder of the session if the call may run there.
    fn cancel(&self, session: &Session, params: Option<&RawValue>) -> Option<Holder> {
        let cancelled = Cancelled::read(params?)?;
        let id = RequestId::parse(cancelled.request_id.get())?;
        let is_here = self.cancel_call(session, id) || self.relay.is_own(&session.holder);
        (!is_here).then(|| session.holder.clone())
    }

    /// Answers a request of a session, or begins the call. The text is the name of its method.
    fn begin(
        &self,
        session: &Session,
        method: &str,
        params: Option<&RawValue>,
        caller: Caller,
    ) -> (&'static str, Begin) {
        let agreed = self.agreed(session);
        if let Some(kind) = CallKind::from_method(method) {
            let begun = legacy::decode_call(kind, params, agreed).map(|call| {
                self.rounds.begin(CallRequest {
                    call: &call,
                    token: TokenSource::Request,
                    home: Home::Session(&session.key),
                    caller,
                    headers: None,
                })
            });
            return (kind.method(), begun.unwrap_or_else(Begin::Refused));
        }
        let Some(what) = Other::of_legacy(method) else {
            let unknown = RpcError::method_not_found(method);
            return ("", Begin::Refused(unknown));
        };
        let begun = match (what, self.auth.allow(&caller, &[])) {
            (Other::Complete, _) => legacy::decode_complete(params, agreed).map(|params| {
                let (auth, limits) = (&self.auth, &self.services.limits);
                let later = self.catalog.complete(params, caller, auth, limits);
                later.map_or_else(|refused| refused, Begin::Later)
            }),
            (Other::List(listing), allowed) => {
                legacy::decode_list(params, agreed).and_then(|params| match allowed {
                    Err(missing) => Ok(Begin::Forbidden(missing)),
                    Ok(()) => {
                        let list = self.catalog.list(listing, params.cursor.as_deref());
                        list.map(Begin::Reply)
                    }
                })
            }
            (_, Err(missing)) => Ok(Begin::Forbidden(missing)),
            (_, Ok(())) => self.change_session(session, what, params, &caller),
        };
        if begun.is_ok() {
            self.services.metrics.other(what);
        }
        (what.name(), begun.unwrap_or_else(Begin::Refused))
    }

    /// Answers a request about the session itself.
    fn change_session(
        &self,
        session: &Session,
        what: Other,
        params: Option<&RawValue>,
        caller: &Caller,
    ) -> Result<Begin, RpcError> {
        let changed = match what {
            Other::Ping => Ok(()),
            Other::SetLevel => self.set_level(session, decode_set_level(params)?),
            Other::Subscribe => {
                let uri = decode_uri(params)?.into_owned();
                let catalog = self.catalog.entries().clone();
                if catalog.resource(&uri).is_none() && catalog.template_of(&uri).is_none() {
                    return Err(RpcError::resource_not_found(&uri));
                }
                // A caller that may not read a resource is not notified of its changes either.
                let needed = catalog.scopes_of_resource(&uri);
                if let Err(missing) = self.auth.allow(caller, needed) {
                    return Ok(Begin::Forbidden(missing));
                }
                if uri.len() > LONGEST_URI {
                    return Err(RpcError::invalid_params(format!(
                        "uri: at most {LONGEST_URI} bytes can be subscribed to"
                    )));
                }
                self.subscribe(session, &uri)
            }
            Other::Unsubscribe => {
                self.unsubscribe(session, &decode_uri(params)?);
                Ok(())
            }
            _ => {
                return Err(RpcError::invalid_request(match session.lifetime() {
                    Lifetime::Process => {
                        "the session of this process is open already; start another to open one more"
                    }
                    Lifetime::Limited => {
                        "the session is open already; leave out the Mcp-Session-Id header to open another"
                    }
                }));
            }
        };
        match changed {
            Ok(()) => Ok(Begin::Reply(Reply::complete(Empty {}))),
            Err(StateError::Session) => {
                let limits = &self.services.limits;
                Err(RpcError::invalid_params(format!(
                    "uri: this session is subscribed to its limit of {} resources, or of {} bytes of URIs; unsubscribe \
                     from one first",
                    limits.subscribed_resources, limits.subscribed_bytes
                )))
            }
            Err(StateError::Instance) => Err(RpcError::internal(
                "this instance holds the state of too many sessions; try again later",
            )),
        }
    }
}

/// The message for an answer, a cancellation or a stream of an instance that cannot be reached from here.
pub(super) const HELD_ELSEWHERE: &str = "the call is held by another instance, or was lost when this one was restarted, and \
     cannot be reached from here; try again, and call again if that does not help. The operator of the server: start every \
     instance with --advertise URL (ServerBuilder::advertise), or have the load balancer send each session to one instance";

/// The error for an answer, a cancellation or a stream of a call that was lost with its instance.
pub(crate) fn lost_call() -> RpcError {
    RpcError::call_over(
        "the call was lost with the instance that held it, which has ended or cannot be reached. What it did so far is done; \
         the session goes on; call again",
    )
}
