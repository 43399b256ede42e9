//! Properties of the drafts for random messages.

use refrain_wire::drafts::{Draft, DraftExchange, DraftRequest};
use refrain_wire::ratified::write_error;
use refrain_wire::{Id, Message, Rejection, parse};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

/// Ratified replies of every kind. The id is replaced.
const REPLIES: [&str; 8] = [
    r#"{"jsonrpc":"2.0","id":0,"result":{"resultType":"complete","content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}}"#,
    r#"{"jsonrpc":"2.0","id":0,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}},"requestState":"s"}}"#,
    r#"{"jsonrpc":"2.0","id":0,"result":{"resultType":"task","taskId":"t","status":"working","createdAt":"c","lastUpdatedAt":"c","ttlMs":1,"pollIntervalMs":1}}"#,
    r#"{"jsonrpc":"2.0","id":0,"result":{"resultType":"complete","taskId":"t","status":"input_required","inputRequests":{}}}"#,
    r#"{"jsonrpc":"2.0","id":0,"result":{"resultType":"complete","taskId":"t","status":"completed","result":{"content":[]}}}"#,
    r#"{"jsonrpc":"2.0","id":0,"result":{"resultType":"complete","taskId":"t","status":"failed","error":{"code":-1,"message":"m"}}}"#,
    r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"requestState"}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#,
];

/// Checks that a message is rejected, or translated to a ratified request with the same id that survives a round trip.
/// Its replies must be JSON on one line.
pub fn check_message(draft: Draft, data: &[u8]) {
    match draft.read_request(data) {
        Err(rejection) => check_rejection(&rejection),
        Ok(DraftRequest::Notification) => {
            assert!(matches!(parse(data), Ok(Message::Notification { .. })));
        }
        Ok(DraftRequest::Replied(reply)) => drop(one_line(&reply)),
        Ok(DraftRequest::Request { message, exchange }) => {
            let Ok(Message::Request { id, .. }) = parse(&message) else {
                panic!("not a request: {}", String::from_utf8_lossy(&message));
            };
            let sent: RawId<'_> =
                serde_json::from_slice(data).expect("an accepted message has an id");
            assert_eq!(sent.id.get(), id.as_json());
            check_round_trip(draft, &message);
            check_replies(id, &exchange);
        }
    }
    // The message as a reply from a server.
    if let Ok(text) = std::str::from_utf8(data) {
        for method in [
            "tools/call",
            "server/discover",
            "tasks/get",
            "tasks/result",
            "tasks/update",
        ] {
            let request = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"taskId":"t","inputResponses":{{}}}}}}"#
            );
            if let Ok((_, exchange)) = draft.write_request(&request) {
                let read = exchange.read_reply(text);
                assert_eq!(is_json(read.as_bytes()), is_json(data));
                check_texts(text, &exchange);
            }
        }
        let _ = draft.write_request(text);
    }
}

#[derive(Deserialize)]
struct RawId<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
}

fn check_rejection(rejection: &Rejection) {
    let id = rejection.id.as_deref();
    assert!(id.is_none_or(|id| Id::from_raw(id).is_some()));
    let mut out = Vec::new();
    write_error(&mut out, id.map(RawValue::get), &rejection.error);
    one_line(&out);
}

/// A translated request survives a round trip.
fn check_round_trip(draft: Draft, message: &[u8]) {
    let text = std::str::from_utf8(message).expect("JSON is UTF-8");
    let Ok((written, _)) = draft.write_request(text) else {
        return;
    };
    let reread = match draft.read_request(written.as_bytes()) {
        Ok(DraftRequest::Request { message, .. }) => one_line(&message),
        other => panic!("{written} is read as {other:?}"),
    };
    let (Some(read), Some(reread)) = (one_line(message), reread) else {
        return;
    };
    assert_eq!(reread["method"], read["method"]);
    for name in [
        "name",
        "uri",
        "arguments",
        "inputResponses",
        "requestState",
        "taskId",
    ] {
        assert_eq!(
            reread["params"].get(name),
            read["params"].get(name),
            "{name}"
        );
    }
}

/// Random task statuses and error messages can be translated.
fn check_texts(text: &str, exchange: &DraftExchange) {
    let text = Value::from(text);
    for reply in [
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"resultType":"complete","taskId":"t","status":{text}}}}}"#
        ),
        format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32602,"message":{text}}}}}"#),
    ] {
        if let Some(written) = exchange.write_reply(reply.as_bytes()) {
            one_line(&written);
        }
    }
}

fn check_replies(id: Id<'_>, exchange: &DraftExchange) {
    for reply in REPLIES {
        let reply = reply.replace("\"id\":0", &format!("\"id\":{}", id.as_json()));
        let Some(written) = exchange.write_reply(reply.as_bytes()) else {
            assert!(exchange.is_silent());
            continue;
        };
        one_line(&written);
        let text = std::str::from_utf8(&written).expect("JSON is UTF-8");
        one_line(exchange.read_reply(text).as_bytes());
    }
}

/// Checks that output is JSON on one line. Returns `None` if it is nested too deeply to parse.
fn one_line(bytes: &[u8]) -> Option<Value> {
    assert!(!bytes.iter().any(|byte| matches!(byte, b'\n' | b'\r')));
    assert!(is_json(bytes), "{}", String::from_utf8_lossy(bytes));
    serde_json::from_slice(bytes).ok()
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}
