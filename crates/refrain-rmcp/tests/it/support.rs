//! Requests of a client, handled by a server without a transport.

use refrain::auth::Principal;
use refrain::server::{Server, ServerBuilder};
use serde_json::{Map, Value, json};

/// One instance, with keys of its own.
pub(crate) fn instance(builder: ServerBuilder) -> Server {
    builder.build().expect("a server")
}

/// A request of a client that answers everything.
pub(crate) fn request(method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {},
        },
        "io.modelcontextprotocol/logLevel": "debug",
        "progressToken": "p",
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

/// Sends a message. Returns the response, and the notifications before it.
pub(crate) async fn send(server: &Server, caller: &str, message: &Value) -> (Value, Vec<Value>) {
    let principal = match caller {
        "" => Principal::anonymous(),
        caller => Principal::new(caller),
    };
    let message = message.to_string();
    let mut response = server.handle(message.as_bytes(), principal).await;
    let mut notifications = Vec::new();
    while let Some(sent) = response.next().await {
        let sent: Value = serde_json::from_slice(&sent).expect("JSON");
        if sent.get("method").is_none() {
            return (sent, notifications);
        }
        notifications.push(sent);
    }
    panic!("no response to {message}");
}

/// The requests of a round, with their keys.
pub(crate) fn asks(response: &Value) -> Map<String, Value> {
    let result = &response["result"];
    assert_eq!(result["resultType"], "input_required", "{response}");
    result["inputRequests"].as_object().cloned().expect("asks")
}

/// The request of the next round.
pub(crate) fn next(request: &Value, response: &Value, answers: Value) -> Value {
    let mut next = request.clone();
    next["params"]["inputResponses"] = answers;
    next["params"]["requestState"] = response["result"]["requestState"].clone();
    next
}

/// The first text of a result.
pub(crate) fn text(response: &Value) -> &str {
    let text = response["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {response}"))
}

pub(crate) fn accept(content: &Value) -> Value {
    json!({"action": "accept", "content": content})
}
