//! A message of a session read, and answered or begun.

use super::state::StateError;
use super::{RequestId, Session, Talk};
use crate::auth::{Caller, MissingScopes};
use crate::catalog::Listing;
use crate::dispatch::Begin;
use crate::metrics::{Label, Other, Refusal};
use crate::relay::Holder;
use crate::rounds::{CallRequest, Home, Token};
use crate::server::Server;
use refrain_wire::{
    CallKind, Empty, Id, Message, Reply, Response, RpcError, decode_older_call,
    decode_older_complete, decode_older_list, decode_set_level, decode_uri, is_modern, parse,
};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Bytes of the longest URI that a session may subscribe to.
const LONGEST_URI: usize = 1024;

/// What comes of a message of a session.
pub(crate) enum Received<'a> {
    /// It wants no response.
    Accepted,
    /// This goes out in response.
    Talk(Box<Talk>),
    /// It is no message, or one that cannot be taken.
    Refused(RpcError),
    /// It has to be relayed to this instance.
    Relay(Holder),
    /// It is for an instance that cannot be reached from here, or for a call that was lost with its instance.
    Elsewhere(RpcError),
    /// The caller lacks a scope.
    Forbidden(Option<Id<'a>>, MissingScopes),
    /// All places are taken.
    Busy(Option<Id<'a>>, RpcError),
}

impl<'a> Received<'a> {
    /// What a client is told whose message was not taken.
    pub(crate) fn refusal(self) -> Option<(Option<Id<'a>>, RpcError)> {
        match self {
            Self::Accepted | Self::Talk(_) | Self::Relay(_) => None,
            Self::Refused(error) | Self::Elsewhere(error) => Some((None, error)),
            Self::Forbidden(id, missing) => Some((id, missing.into())),
            Self::Busy(id, error) => Some((id, error)),
        }
    }
}

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

/// The id and the params of a message that opens a session. `None`: it is another, or one of 2026-07-28.
pub(crate) fn opens_session(bytes: &[u8]) -> Option<(Id<'_>, Option<&RawValue>)> {
    match parse(bytes) {
        Ok(Message::Request { id, method, params })
            if method == "initialize" && !is_modern(params) =>
        {
            Some((id, params))
        }
        _ => None,
    }
}

impl Server {
    /// Takes one message of a session. One that was relayed, or could not be, is served here.
    pub(crate) fn receive_older<'a>(
        &self,
        session: &Session,
        bytes: &'a [u8],
        caller: Caller,
        relays: bool,
    ) -> Received<'a> {
        let message = parse(bytes);
        if let Ok(Message::Request { id, method, params }) = message {
            if relays && self.0.relay.reaches(&session.holder) {
                return Received::Relay(session.holder.clone());
            }
            return self.begin_older(session, id, &method, params, caller);
        }
        // Whoever may not call has nothing to say about calls either.
        if let Err(missing) = self.0.auth.allow(&caller, &[]) {
            return Received::Forbidden(None, missing);
        }
        match message {
            Ok(Message::Notification { method, params }) if method == "notifications/cancelled" => {
                self.cancelled_older(session, params, relays)
            }
            Ok(Message::Response(response)) => self.answered_older(session, response, relays),
            Ok(_) => Received::Accepted,
            Err(rejection) => Received::Refused(rejection.error),
        }
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
    fn answered_older(
        &self,
        session: &Session,
        response: Response<'_>,
        relays: bool,
    ) -> Received<'static> {
        let RequestId::Text(ask) = RequestId::read(response.id.as_json()) else {
            return Received::Refused(nothing_asked());
        };
        let answer = match response.outcome {
            Ok(result) => Ok(result.get().to_owned()),
            Err(message) => Err(message.into_owned()),
        };
        let legacy = &self.0.legacy;
        if legacy.desk.answer(&session.key, &ask, answer).is_ok() {
            return Received::Accepted;
        }
        match legacy.asked_by(session, &ask) {
            None => Received::Refused(nothing_asked()),
            // It was answered before, or is no longer needed.
            Some(holder) if self.0.relay.is_own(&holder) => Received::Accepted,
            Some(holder) => self.needs_holder(holder, relays),
        }
    }

    fn cancelled_older(
        &self,
        session: &Session,
        params: Option<&RawValue>,
        relays: bool,
    ) -> Received<'static> {
        let cancelled = params.and_then(Cancelled::read);
        let id = cancelled.and_then(|cancelled| RequestId::parse(cancelled.request_id.get()));
        let Some(id) = id else {
            return Received::Accepted;
        };
        let cancelled = self.0.legacy.desk.cancel(&session.key, &id);
        if cancelled || self.0.relay.is_own(&session.holder) {
            return Received::Accepted;
        }
        self.needs_holder(session.holder.clone(), relays)
    }

    /// A message that only this holder can take.
    fn needs_holder(&self, holder: Holder, relays: bool) -> Received<'static> {
        if holder.url.is_none() {
            let error = RpcError::invalid_request(HELD_ELSEWHERE);
            return Received::Elsewhere(error);
        }
        match relays && self.0.relay.reaches(&holder) {
            true => Received::Relay(holder),
            false => Received::Elsewhere(lost_call()),
        }
    }

    fn begin_older<'a>(
        &self,
        session: &Session,
        id: Id<'a>,
        method: &str,
        params: Option<&RawValue>,
        caller: Caller,
    ) -> Received<'a> {
        let (name, begun) = self.answer_older(session, method, params, caller);
        let talk = match begun {
            Begin::Round(round) => Talk::of_round(self, session, id, round),
            Begin::Later(later) => Talk::of_later(self, session, id, name, later),
            Begin::Reply(reply) => Talk::of_reply(self, session, id, name, &reply),
            Begin::Refused(error) => {
                self.0.metrics.request_refused(Refusal::error(error.code));
                Talk::of_reply(self, session, id, name, &Reply::Error(error))
            }
            Begin::Forbidden(missing) => return Received::Forbidden(Some(id), missing),
            Begin::Busy(error) => return Received::Busy(Some(id), error),
            Begin::Listen(_) | Begin::Relay(_) => {
                let unknown = Reply::Error(RpcError::method_not_found(method));
                Talk::of_reply(self, session, id, name, &unknown)
            }
        };
        Received::Talk(Box::new(talk))
    }

    /// Answers a request of a session, or begins what will.
    fn answer_older(
        &self,
        session: &Session,
        method: &str,
        params: Option<&RawValue>,
        caller: Caller,
    ) -> (&'static str, Begin) {
        let agreed = self.0.legacy.agreed(session);
        if let Some(kind) = CallKind::from_method(method) {
            let begun = match decode_older_call(kind, params, agreed) {
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
            Other::List(listing) => decode_older_list(params, agreed)
                .and_then(|params| self.list_older(listing, params.cursor.as_deref(), &caller)),
            Other::Complete => decode_older_complete(params, agreed).map(|params| {
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

    fn list_older(
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
