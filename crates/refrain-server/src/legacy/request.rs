//! A message of a session read, and answered or begun.

use super::state::StateError;
use super::{LegacyExchange, RequestId, Session};
use crate::auth::Caller;
use crate::catalog::Listing;
use crate::dispatch::Begin;
use crate::metrics::{Label, Other, Refusal};
use crate::relay::Holder;
use crate::response::{Handled, Response, Status};
use crate::rounds::{CallRequest, Home, Token};
use crate::server::Server;
use refrain_wire::legacy::{self, decode_set_level, decode_uri};
use refrain_wire::{CallKind, Empty, ErrorCode, Id, Message, Rejection, Reply, RpcError};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Bytes of the longest URI that a session may subscribe to.
const LONGEST_URI: usize = 1024;

/// What a client no longer wants.
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

impl Server {
    /// Takes one message of a session. `Err`: it has to be relayed to this holder, which happens only if the transport
    /// `relays`.
    pub(crate) fn accept_legacy(
        &self,
        session: &Session,
        message: Result<Message<'_>, Box<Rejection>>,
        caller: Caller,
        relays: bool,
    ) -> Result<Response, Holder> {
        if let Ok(Message::Request { id, method, params }) = message {
            if relays && self.0.relay.reaches(&session.holder) {
                return Err(session.holder.clone());
            }
            return Ok(self.begin_legacy(session, id, &method, params, caller));
        }
        // A caller that may not call has nothing to say about calls either.
        if let Err(missing) = self.0.auth.allow(&caller, &[]) {
            let exchange = LegacyExchange::new(self, session);
            return Ok(Response::forbidden(self, missing).in_session(exchange));
        }
        match message {
            Ok(Message::Notification { method, params }) if method == "notifications/cancelled" => {
                self.take_cancelled(session, params, relays)
            }
            Ok(Message::Response(response)) => self.take_answer(session, response, relays),
            Ok(_) => Ok(Response::accepted(self)),
            Err(rejection) => Ok(self.refuse_legacy(session, rejection.error)),
        }
    }

    /// Takes one message of a session that cannot be relayed.
    pub(crate) fn handle_legacy(
        &self,
        session: &Session,
        message: Result<Message<'_>, Box<Rejection>>,
        caller: Caller,
    ) -> Response {
        let accepted = self.accept_legacy(session, message, caller, false);
        accepted.unwrap_or_else(|_| self.refuse_legacy(session, lost_call()))
    }

    /// The response to a message without a usable id that is refused.
    fn refuse_legacy(&self, session: &Session, error: RpcError) -> Response {
        self.refuse_as(session, Refusal::error(error.code), error)
    }

    /// The same, counted as this refusal. Whatever the code, the client's message was at fault.
    fn refuse_as(&self, session: &Session, refusal: Refusal, error: RpcError) -> Response {
        let status = Status::Refused(ErrorCode::InvalidRequest);
        let refused = Response::refused_as(self, refusal, None, error).with_status(status);
        refused.in_session(LegacyExchange::new(self, session))
    }

    /// May a batch have so many messages?
    pub(crate) fn check_batch(&self, messages: usize) -> Result<(), RpcError> {
        let most = self.0.limits.batch;
        if messages == 0 {
            let empty = "the batch is empty; send at least one message";
            return Err(RpcError::invalid_request(empty));
        }
        if messages > most {
            let many = format!("a batch may have at most {most} messages");
            return Err(RpcError::invalid_request(many));
        }
        Ok(())
    }

    /// Takes an answer. Its id names the instance that asked.
    fn take_answer(
        &self,
        session: &Session,
        response: refrain_wire::Response<'_>,
        relays: bool,
    ) -> Result<Response, Holder> {
        let RequestId::Text(ask) = RequestId::read(response.id.as_json()) else {
            return Ok(self.refuse_legacy(session, nothing_asked()));
        };
        let answer = match response.outcome {
            Ok(result) => Ok(result.get().to_owned()),
            Err(message) => Err(message.into_owned()),
        };
        let legacy = &self.0.legacy;
        if legacy.desk.answer(&session.key, &ask, answer).is_ok() {
            return Ok(Response::accepted(self));
        }
        match legacy.asked_by(session, &ask) {
            None => Ok(self.refuse_legacy(session, nothing_asked())),
            // It was answered before, or is no longer needed.
            Some(holder) if self.0.relay.is_own(&holder) => Ok(Response::accepted(self)),
            Some(holder) => self.need_holder(session, holder, relays),
        }
    }

    fn take_cancelled(
        &self,
        session: &Session,
        params: Option<&RawValue>,
        relays: bool,
    ) -> Result<Response, Holder> {
        let cancelled = params.and_then(Cancelled::read);
        let id = cancelled.and_then(|cancelled| RequestId::parse(cancelled.request_id.get()));
        let Some(id) = id else {
            return Ok(Response::accepted(self));
        };
        let cancelled = self.0.legacy.desk.cancel(&session.key, &id);
        if cancelled || self.0.relay.is_own(&session.holder) {
            return Ok(Response::accepted(self));
        }
        self.need_holder(session, session.holder.clone(), relays)
    }

    /// The response to a message that only this holder can take.
    fn need_holder(
        &self,
        session: &Session,
        holder: Holder,
        relays: bool,
    ) -> Result<Response, Holder> {
        let error = match holder.url {
            None => RpcError::invalid_request(HELD_ELSEWHERE),
            Some(_) if relays && self.0.relay.reaches(&holder) => return Err(holder),
            Some(_) => lost_call(),
        };
        Ok(self.refuse_as(session, Refusal::Elsewhere, error))
    }

    fn begin_legacy(
        &self,
        session: &Session,
        id: Id<'_>,
        method: &str,
        params: Option<&RawValue>,
        caller: Caller,
    ) -> Response {
        let (name, begun) = self.answer_legacy(session, method, params, caller);
        let begun = match begun {
            // An error of a request is a reply like any other in these revisions.
            Begin::Refused(error) => {
                self.0.metrics.request_refused(Refusal::error(error.code));
                Begin::Reply(Reply::Error(error))
            }
            begun => begun,
        };
        let exchange = LegacyExchange::new(self, session);
        match Response::begun(self, id, name, begun, Some(exchange)) {
            Handled::Response(response) => response,
            Handled::Relay(id, _) => Response::reply(self, id, name, Reply::Error(lost_call()))
                .in_session(LegacyExchange::new(self, session)),
        }
    }

    /// Answers a request of a session, or begins what will.
    fn answer_legacy(
        &self,
        session: &Session,
        method: &str,
        params: Option<&RawValue>,
        caller: Caller,
    ) -> (&'static str, Begin) {
        let agreed = self.0.legacy.agreed(session);
        if let Some(kind) = CallKind::from_method(method) {
            let begun = match legacy::decode_call(kind, params, agreed) {
                Ok(call) => self.0.rounds.begin(CallRequest {
                    call: &call,
                    token: Token::Sent,
                    home: Home::Session(&session.key),
                    caller,
                    headers: None,
                }),
                Err(error) => Begin::Refused(error),
            };
            return (kind.method(), begun);
        }
        let Some(what) = Other::of_older(method) else {
            let unknown = RpcError::method_not_found(method);
            return ("", Begin::Refused(unknown));
        };
        let begun = match what {
            Other::List(listing) => legacy::decode_list(params, agreed)
                .and_then(|params| self.list_legacy(listing, params.cursor.as_deref(), &caller)),
            Other::Complete => legacy::decode_complete(params, agreed).map(|params| {
                let (auth, limits) = (&self.0.auth, &self.0.limits);
                match self.0.catalog.complete(params, caller, auth, limits) {
                    Ok(later) => Begin::Later(later),
                    Err(refused) => refused,
                }
            }),
            _ => match self.0.auth.allow(&caller, &[]) {
                Err(missing) => Ok(Begin::Forbidden(missing)),
                Ok(()) => self.change_session(session, what, params, &caller),
            },
        };
        if begun.is_ok() {
            self.0.metrics.other(what);
        }
        (what.name(), begun.unwrap_or_else(Begin::Refused))
    }

    fn list_legacy(
        &self,
        listing: Listing,
        cursor: Option<&str>,
        caller: &Caller,
    ) -> Result<Begin, RpcError> {
        if let Err(missing) = self.0.auth.allow(caller, &[]) {
            return Ok(Begin::Forbidden(missing));
        }
        let reply = self.0.catalog.list(listing, cursor)?;
        Ok(Begin::Reply(reply))
    }

    /// What is about the session itself.
    fn change_session(
        &self,
        session: &Session,
        what: Other,
        params: Option<&RawValue>,
        caller: &Caller,
    ) -> Result<Begin, RpcError> {
        let legacy = &self.0.legacy;
        let changed = match what {
            Other::Ping => Ok(()),
            Other::SetLevel => legacy.set_level(session, decode_set_level(params)?),
            Other::Subscribe => {
                let uri = decode_uri(params)?.into_owned();
                let catalog = self.catalog().clone();
                if catalog.resource(&uri).is_none() && catalog.template_of(&uri).is_none() {
                    return Err(RpcError::resource_not_found(&uri));
                }
                // A caller that may not read a resource is not notified of its changes either.
                let needed = catalog.scopes_of_resource(&uri);
                if let Err(missing) = self.0.auth.allow(caller, needed) {
                    return Ok(Begin::Forbidden(missing));
                }
                if uri.len() > LONGEST_URI {
                    return Err(RpcError::invalid_params(format!(
                        "uri: at most {LONGEST_URI} bytes can be subscribed to"
                    )));
                }
                legacy.subscribe(session, &uri)
            }
            Other::Unsubscribe => {
                legacy.unsubscribe(session, &decode_uri(params)?);
                Ok(())
            }
            _ => {
                return Err(RpcError::invalid_request(match &session.own {
                    Some(_) => {
                        "the session of this process is open already; start another to open one more"
                    }
                    None => {
                        "the session is open already; leave out the Mcp-Session-Id header to open another"
                    }
                }));
            }
        };
        match changed {
            Ok(()) => Ok(Begin::Reply(Reply::complete(Empty {}))),
            Err(StateError::Session) => Err(self.no_more_uris()),
            Err(StateError::Instance) => Err(no_room()),
        }
    }

    /// What a session is told that cannot subscribe to one more resource.
    fn no_more_uris(&self) -> RpcError {
        let limits = &self.0.limits;
        RpcError::invalid_params(format!(
            "uri: this session is subscribed to its limit of {} resources, or of {} bytes of URIs; unsubscribe from one \
             first",
            limits.subscribed_resources, limits.subscribed_bytes
        ))
    }
}

/// The error when this instance holds the state of as many sessions as it can.
fn no_room() -> RpcError {
    RpcError::internal("this instance holds the state of too many sessions; try again later")
}

/// The message for an answer, a cancellation or a stream of an instance that cannot be reached from here.
pub(crate) const HELD_ELSEWHERE: &str = "the call is held by another instance, or was lost when this one was restarted, and \
     cannot be reached from here; try again, and call again if that does not help. The operator of the server: start every \
     instance with --advertise URL (ServerBuilder::advertise), or have the load balancer send each session to one instance";

/// The error for an answer, a cancellation or a stream of a call that was lost with its instance.
pub(crate) fn lost_call() -> RpcError {
    RpcError::call_over(
        "the call was lost with the instance that held it, which has ended or cannot be reached. What it did so far is done; \
         the session goes on; call again",
    )
}

fn nothing_asked() -> RpcError {
    RpcError::invalid_request("nothing was asked under the id of this response")
}
