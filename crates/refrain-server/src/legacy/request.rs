//! A message of a session read, and answered or begun.

use super::{Known, RequestId, Session, Talk};
use crate::auth::{Caller, MissingScopes};
use crate::catalog::Listing;
use crate::catalog::complete::{Later, complete};
use crate::dispatch::Begin;
use crate::metrics::{Label, Other, Refusal};
use crate::rounds::{Home, Token, begin};
use crate::server::Server;
use refrain_store::StoreError;
use refrain_wire::{
    CallKind, Empty, Id, Message, Reply, Response, RpcError, decode_older_call,
    decode_older_complete, decode_older_list, decode_set_level, decode_uri, is_modern, parse,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::future::Future;

/// Bytes of the longest URI that a session may subscribe to: it is part of the name of a note.
const LONGEST_URI: usize = 1024;

/// What comes of a message of a session.
pub(crate) enum Received<'a> {
    /// It wants no response.
    Accepted,
    /// This goes out in response.
    Talk(Box<Talk>),
    /// It is no message, or one that cannot be taken.
    Refused(RpcError),
    /// It is an answer for an instance that cannot be reached from here.
    Elsewhere(RpcError),
    /// The caller lacks a scope.
    Forbidden(Option<Id<'a>>, MissingScopes),
    /// All places are taken, or the store is not there.
    Busy(Option<Id<'a>>, RpcError),
}

impl<'a> Received<'a> {
    /// What a client is told whose message was not taken.
    pub(crate) fn refusal(self) -> Option<(Option<Id<'a>>, RpcError)> {
        match self {
            Self::Accepted | Self::Talk(_) => None,
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
    /// Takes one message of a session.
    pub(crate) async fn receive_older<'a>(
        &self,
        session: &Session,
        known: &Known,
        bytes: &'a [u8],
        caller: Caller,
    ) -> Received<'a> {
        let message = parse(bytes);
        if let Ok(Message::Request { id, method, params }) = message {
            return self.begin_older(session, known, id, &method, params, caller);
        }
        // Whoever may not call has nothing to say about calls either.
        if let Err(missing) = self.0.access.allow(&caller, &[]) {
            return Received::Forbidden(None, missing);
        }
        match message {
            Ok(Message::Notification { method, params }) if method == "notifications/cancelled" => {
                self.cancelled_older(session, params).await
            }
            Ok(Message::Response(response)) => self.answered_older(session, response).await,
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

    /// Takes in an answer, or has it carried to where it belongs.
    async fn answered_older(&self, session: &Session, response: Response<'_>) -> Received<'static> {
        let RequestId::Text(ask) = RequestId::read(response.id.as_json()) else {
            return Received::Refused(nothing_asked());
        };
        let answer = match response.outcome {
            Ok(result) => Ok(result.get().to_owned()),
            Err(message) => Err(message.into_owned()),
        };
        let legacy = &self.0.legacy;
        let Err(answer) = legacy.desk.answer(&session.key, &ask, answer) else {
            return Received::Accepted;
        };
        let Some(instance) = self.asked_by(session, &ask) else {
            return Received::Refused(nothing_asked());
        };
        if instance == legacy.instance {
            // It has an answer already, or is no longer needed.
            return Received::Accepted;
        }
        if !legacy.notes.shared {
            if legacy.presence.logs_refusal() {
                tracing::warn!(
                    "an answer for another instance came here: a fleet that serves older clients needs a shared store"
                );
            }
            return Received::Elsewhere(RpcError::invalid_request(
                "this was asked by another instance, and they share no store that would carry the answer there",
            ));
        }
        match self.is_here(instance).await {
            Ok(true) => {}
            Ok(false) => {
                if legacy.presence.logs_refusal() {
                    tracing::warn!(
                        instance,
                        "an answer came here for an instance that is not in this store: it has ended, or it has the same \
                         keys and another store; others like it are counted, and not logged for a minute"
                    );
                }
                return Received::Elsewhere(not_here());
            }
            Err(error) => return Received::Busy(None, store_failed(&error)),
        }
        match self.carry_answer(session, (instance, &ask), &answer).await {
            Ok(true) => Received::Accepted,
            Ok(false) => {
                let limit = self.0.limits.carried_bytes;
                Received::Busy(
                    None,
                    RpcError::internal(format!(
                        "too many answers of this session wait to be taken in, or more than {limit} bytes of them; try again"
                    )),
                )
            }
            Err(error) => Received::Busy(None, store_failed(&error)),
        }
    }

    async fn cancelled_older(
        &self,
        session: &Session,
        params: Option<&RawValue>,
    ) -> Received<'static> {
        let cancelled = params.and_then(Cancelled::read);
        let id = cancelled.and_then(|cancelled| RequestId::parse(cancelled.request_id.get()));
        let Some(id) = id else {
            return Received::Accepted;
        };
        let legacy = &self.0.legacy;
        if !legacy.desk.cancel(&session.key, &id) && legacy.notes.shared {
            // That a call is no longer wanted is a wish: where it cannot be carried, the call goes on to its end.
            match self.carry_cancel(session, &id).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!("no more calls are cancelled for this session elsewhere");
                }
                Err(error) => {
                    tracing::warn!(%error, "another instance was not told that a call is cancelled");
                }
            }
        }
        Received::Accepted
    }

    fn begin_older<'a>(
        &self,
        session: &Session,
        known: &Known,
        id: Id<'a>,
        method: &str,
        params: Option<&RawValue>,
        caller: Caller,
    ) -> Received<'a> {
        let (name, begun) = self.answer_older(session, known, method, params, caller);
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
        known: &Known,
        method: &str,
        params: Option<&RawValue>,
        caller: Caller,
    ) -> (&'static str, Begin) {
        let agreed = session.agreed(known.level);
        if let Some(kind) = CallKind::from_method(method) {
            let begun = match decode_older_call(kind, params, agreed) {
                Ok(call) => begin(
                    self,
                    &call,
                    Token::Sent,
                    Home::Memory(&session.key),
                    caller,
                    None,
                ),
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
                match complete(self, params, caller) {
                    Ok(later) => Begin::Later(later),
                    Err(refused) => refused,
                }
            }),
            _ => match self.0.access.allow(&caller, &[]) {
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
        if let Err(missing) = self.0.access.allow(caller, &[]) {
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
        let (server, session) = (self.clone(), session.clone());
        Ok(match what {
            Other::Ping => Begin::Reply(Reply::complete(Empty {})),
            Other::SetLevel => {
                let level = decode_set_level(params)?;
                noted(async move {
                    let noted = server.note_level(&session, level).await;
                    noted.map(|noted| noted.then_some(()).ok_or_else(no_room))
                })
            }
            Other::Subscribe => {
                let uri = decode_uri(params)?.into_owned();
                let catalog = self.catalog().clone();
                if catalog.resource(&uri).is_none() && catalog.template_of(&uri).is_none() {
                    return Err(RpcError::resource_not_found(&uri));
                }
                // Whoever may not read a resource is not told of its changes either.
                let needed = catalog.scopes_of_resource(&uri);
                if let Err(missing) = self.0.access.allow(caller, needed) {
                    return Ok(Begin::Forbidden(missing));
                }
                if uri.len() > LONGEST_URI {
                    return Err(RpcError::invalid_params(format!(
                        "uri: at most {LONGEST_URI} bytes can be subscribed to"
                    )));
                }
                let full = self.no_more_uris();
                noted(async move {
                    let noted = server.note_uri(&session, &uri).await;
                    noted.map(|noted| noted.then_some(()).ok_or(full))
                })
            }
            Other::Unsubscribe => {
                let uri = decode_uri(params)?.into_owned();
                noted(async move { server.forget_uri(&session, &uri).await.map(Ok) })
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
        })
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

/// A reply that waits until something is noted of the session.
fn noted(
    noting: impl Future<Output = Result<Result<(), RpcError>, StoreError>> + Send + 'static,
) -> Begin {
    let later: Later = Box::pin(async move {
        Ok(match noting.await {
            Ok(Ok(())) => Reply::complete(Empty {}),
            Ok(Err(full)) => Reply::Error(full),
            Err(error) => Reply::Error(store_failed(&error)),
        })
    });
    Begin::Later(later)
}

/// What a client is told when the store has no room for what it wants noted.
pub(crate) fn no_room() -> RpcError {
    RpcError::internal("there is no room to note this of the session at present; try again later")
}

/// What a client is told when the store of sessions fails.
pub(crate) fn store_failed(error: &StoreError) -> RpcError {
    tracing::error!(%error, "the store of sessions failed");
    RpcError::internal("the session cannot be looked up at present; try again")
}

/// What a client is told whose answer nobody would find.
fn not_here() -> RpcError {
    RpcError::invalid_request(
        "the answer was not taken: the store of this instance does not know the one that asked, which has ended, has waited \
         for no answer of late, or has another store; send the answer again to the one that asked, or, if it has ended, call again",
    )
}

fn nothing_asked() -> RpcError {
    RpcError::invalid_request("nothing was asked under the id of this response")
}
