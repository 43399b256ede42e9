//! A message of a session read, and answered or begun.

use super::desk::Whose;
use super::{Known, RequestId, Session, Talk};
use crate::auth::{Caller, MissingScopes};
use crate::catalog::Listing;
use crate::complete::{Later, complete};
use crate::dispatch::Begin;
use crate::metrics::{Label, Other, Refusal};
use crate::round::{Home, Token, begin};
use crate::server::Server;
use refrain_store::StoreError;
use refrain_wire::{
    CallKind, Empty, Id, Message, Reply, Response, RpcError, decode_older_call,
    decode_older_complete, decode_older_list, decode_set_level, decode_uri, is_modern, parse,
    parse_response,
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
    /// The caller lacks a scope.
    Forbidden(Id<'a>, MissingScopes),
    /// All places are taken, or the store is not there.
    Busy(Option<Id<'a>>, RpcError),
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
        match parse(bytes) {
            Ok(Message::Request { id, method, params }) => {
                self.begin_older(session, known, id, &method, params, caller)
            }
            Ok(Message::Notification { method, params }) => {
                if method == "notifications/cancelled" {
                    return self.cancelled_older(session, known, params).await;
                }
                Received::Accepted
            }
            Err(rejection) => match parse_response(bytes) {
                Some(response) => self.answered_older(session, known, response).await,
                None => Received::Refused(rejection.error),
            },
        }
    }

    /// Takes in an answer, or has it carried to where it belongs.
    async fn answered_older(
        &self,
        session: &Session,
        known: &Known,
        response: Response<'_>,
    ) -> Received<'static> {
        let RequestId::Text(ask) = RequestId::read(response.id.as_json()) else {
            return Received::Refused(nothing_asked());
        };
        let answer = match response.outcome {
            Ok(result) => Ok(result.get().to_owned()),
            Err(message) => Err(message.into_owned()),
        };
        let older = &self.0.older;
        match older.desk.answer(session, &ask, answer.clone()) {
            Whose::Taken | Whose::Over => Received::Accepted,
            Whose::Nobody => Received::Refused(nothing_asked()),
            Whose::Elsewhere if !older.notes.shared => {
                tracing::warn!(
                    "an answer for another instance came here: a fleet that serves older clients needs a shared store"
                );
                Received::Refused(RpcError::invalid_request(
                    "this was asked by another instance, and they share no store that would carry the answer there",
                ))
            }
            Whose::Elsewhere if !known.has_room() => Received::Refused(RpcError::invalid_request(
                "too many answers of this session wait to be taken in",
            )),
            Whose::Elsewhere => match self.carry_answer(session, &ask, &answer).await {
                Ok(()) => Received::Accepted,
                Err(error) => Received::Busy(None, store_failed(&error)),
            },
        }
    }

    async fn cancelled_older(
        &self,
        session: &Session,
        known: &Known,
        params: Option<&RawValue>,
    ) -> Received<'static> {
        #[derive(Deserialize)]
        struct Cancelled<'a> {
            #[serde(rename = "requestId", borrow)]
            id: &'a RawValue,
        }
        let cancelled =
            params.and_then(|raw| serde_json::from_str::<Cancelled<'_>>(raw.get()).ok());
        let Some(Cancelled { id }) = cancelled else {
            return Received::Accepted;
        };
        let id = RequestId::read(id.get());
        let older = &self.0.older;
        if !older.desk.cancel(session, &id) && older.notes.shared && known.has_room() {
            // That a call is no longer wanted is a wish: where it cannot be carried, the call goes on to its end.
            if let Err(error) = self.carry_cancel(session, &id).await {
                tracing::warn!(%error, "another instance was not told that a call is cancelled");
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
            Begin::Forbidden(missing) => return Received::Forbidden(id, missing),
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
                Ok(()) => self.change_session(session, known, what, params, &caller),
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
        let reply = self.catalog().list(listing, cursor, &self.0.rules)?;
        Ok(Begin::Reply(reply))
    }

    /// What is about the session itself.
    fn change_session(
        &self,
        session: &Session,
        known: &Known,
        what: Other,
        params: Option<&RawValue>,
        caller: &Caller,
    ) -> Result<Begin, RpcError> {
        let (server, session) = (self.clone(), session.clone());
        Ok(match what {
            Other::Ping => Begin::Reply(Reply::complete(Empty {})),
            Other::SetLevel => {
                let level = decode_set_level(params)?;
                noted(async move { server.note_level(&session, level).await })
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
                self.check_room(known, &uri)?;
                noted(async move { server.note_uri(&session, &uri).await })
            }
            Other::Unsubscribe => {
                let uri = decode_uri(params)?.into_owned();
                noted(async move { server.forget_uri(&session, &uri).await })
            }
            _ => {
                return Err(RpcError::invalid_request(
                    "the session is open already; leave out the Mcp-Session-Id header to open another",
                ));
            }
        })
    }

    /// May a session subscribe to one more resource?
    fn check_room(&self, known: &Known, uri: &str) -> Result<(), RpcError> {
        let limits = &self.0.limits;
        if uri.len() > LONGEST_URI {
            return Err(RpcError::invalid_params(format!(
                "uri: at most {LONGEST_URI} bytes can be subscribed to"
            )));
        }
        if !known.uris.iter().any(|known| known == uri)
            && known.uris.len() >= limits.subscribed_resources
        {
            return Err(RpcError::invalid_params(format!(
                "uri: this session is subscribed to its limit of {} resources; unsubscribe from one first",
                limits.subscribed_resources
            )));
        }
        Ok(())
    }
}

/// A reply that waits until something is noted of the session.
fn noted(noting: impl Future<Output = Result<(), StoreError>> + Send + 'static) -> Begin {
    let later: Later = Box::pin(async move {
        Ok(match noting.await {
            Ok(()) => Reply::complete(Empty {}),
            Err(error) => Reply::Error(store_failed(&error)),
        })
    });
    Begin::Later(later)
}

/// What a client is told when the store of sessions fails.
pub(crate) fn store_failed(error: &StoreError) -> RpcError {
    tracing::error!(%error, "the store of sessions failed");
    RpcError::internal("the session cannot be looked up at present; try again")
}

fn nothing_asked() -> RpcError {
    RpcError::invalid_request("nothing was asked under the id of this response")
}
