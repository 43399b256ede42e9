//! A client that speaks a draft.

use super::legacy::known;
use super::{Out, RequestId, Running, cancel, everything};
use crate::legacy::Session;
use crate::server::Server;
use refrain_wire::{Draft, Message, parse};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::collections::HashMap;
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
    let outgoing = server.receive_draft_of(draft, agreed, &bytes, everything());
    let Some(outgoing) = outgoing else { return };
    let mut answer = out.answer(outgoing);
    while let Some(message) = answer.outgoing.next().await {
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
