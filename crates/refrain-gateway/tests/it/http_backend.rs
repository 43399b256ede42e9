//! A legacy MCP server over HTTP in this process, with a session for each connection.

use parking_lot::Mutex;
use refrain_gateway::BackendTable;
use refrain_testkit::net::fake_server::legacy_greeting;
use refrain_testkit::net::oauth::CannedResponse;
use refrain_testkit::net::{Events, FakeServer, Received, Respond};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The calls that wait for an answer, by the id of their ask.
type Waiting = HashMap<String, (Events, Received)>;

/// Starts the server. Its tools are `session`, which returns the id of the session, `echo` and `ask`.
pub(crate) async fn start() -> FakeServer {
    let waiting = Mutex::new(Waiting::new());
    let sessions = Mutex::new(0);
    FakeServer::start_raw(move |request| {
        if request.method() == "initialize" {
            *sessions.lock() += 1;
            return open_session(request, *sessions.lock());
        }
        if request.method().is_empty() {
            answer(&mut waiting.lock(), request);
        }
        if let Some(response) = legacy_greeting(request, "2025-11-25", "") {
            return response;
        }
        match (request.method(), request.tool()) {
            ("tools/list", _) => Respond::Result(json!({"tools": tools()})),
            (_, "session") => {
                let session = request.header("mcp-session-id").unwrap_or_default();
                Respond::text(session)
            }
            (_, "echo") => Respond::text(argument(request, "text")),
            (_, "ask") => ask(&mut waiting.lock(), request),
            _ => Respond::Result(json!({})),
        }
    })
    .await
}

/// A backend at the URL of a server.
pub(crate) fn at(server: &FakeServer) -> BackendTable {
    BackendTable {
        url: Some(server.url.parse().expect("a URL")),
        ..BackendTable::default()
    }
}

fn tools() -> Value {
    let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
    ["session", "echo", "ask"].map(tool).into()
}

fn argument<'a>(request: &'a Received, name: &str) -> &'a str {
    let value = request["params"]["arguments"][name].as_str();
    value.expect("the argument is a text")
}

fn open_session(request: &Received, number: u32) -> Respond {
    let greeting = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "tested", "version": "1"},
    });
    let answer = CannedResponse::json(200, &request.result(&greeting));
    Respond::With(answer.header("mcp-session-id", format!("session-{number}")))
}

fn ask(waiting: &mut Waiting, request: &Received) -> Respond {
    let id = format!("ask-{}", argument(request, "subject"));
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let form = json!({"message": "Who wants it?", "requestedSchema": schema});
    let (events, response) = Events::new();
    events.ask(&id, "elicitation/create", &form);
    waiting.insert(id, (events, request.clone()));
    response
}

/// Ends the call whose ask is answered.
fn answer(waiting: &mut Waiting, answer: &Received) {
    let id = answer["id"].as_str().unwrap_or_default();
    if let Some((events, call)) = waiting.remove(id) {
        let name = answer["result"]["content"]["name"].as_str();
        let subject = argument(&call, "subject");
        events.message(&call.text(&format!("{subject} for {}", name.unwrap_or("nobody"))));
    }
}
