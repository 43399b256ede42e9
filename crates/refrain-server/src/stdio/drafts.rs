//! A client that speaks a draft.

use super::legacy::known;
use super::{Out, RequestId, Running, cancel, everything};
use crate::dispatch::Context;
use crate::legacy::Session;
use crate::response::Response;
use crate::server::Server;
use refrain_wire::{Draft, DraftRequest, Id, Message, parse};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Takes one message. A request is answered beside the others; answers that have no method are taken in before the next
/// message is read, since nothing tells the client that they were.
pub(super) async fn take(
    server: Server,
    spoken: (Draft, Option<Session>),
    bytes: Vec<u8>,
    out: Out,
    by_id: &mut HashMap<RequestId, Running>,
    running: &mut JoinSet<()>,
) {
    if let Ok(Message::Notification { method, params }) = parse(&bytes) {
        if method == "notifications/cancelled" {
            cancel(by_id, params);
        }
        return;
    }
    let (request, silent) = (request_id(&bytes), out.silent.clone());
    let answering = answer(server, spoken, bytes, out);
    match request {
        Some(id) => {
            let handle = running.spawn(answering);
            by_id.insert(id, Running { handle, silent });
        }
        None => answering.await,
    }
}

async fn answer(
    server: Server,
    (draft, session): (Draft, Option<Session>),
    bytes: Vec<u8>,
    out: Out,
) {
    let agreed = match &session {
        Some(session) => Some(session.agreed(known(&server, session).await.level)),
        None => None,
    };
    let response = match draft.read_request_of(agreed, &bytes) {
        Ok(DraftRequest::Request { message, exchange }) => {
            let mut context = Context::from(everything());
            context.exchange = Some(&exchange);
            let mut response = server.handle(&message, context).await;
            response.translate(Some(Arc::new(exchange)));
            response
        }
        Ok(DraftRequest::Notification) => return,
        Ok(DraftRequest::Known(reply)) => return out.send(reply).await,
        Err(rejection) => {
            let id = rejection.id.as_deref().and_then(Id::from_raw);
            Response::refused(&server, id, rejection.error)
        }
    };
    let mut answer = out.answer(response);
    while let Some(message) = answer.response.next().await {
        out.send(message).await;
    }
}

/// The id of a request, whatever else of it is a draft's own.
fn request_id(bytes: &[u8]) -> Option<RequestId> {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
        #[serde(rename = "method")]
        _method: IgnoredAny,
    }
    let request: Request<'_> = serde_json::from_slice(bytes).ok()?;
    Some(RequestId::read(request.id.get()))
}
