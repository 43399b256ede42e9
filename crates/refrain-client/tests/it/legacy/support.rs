//! Helpers of the legacy tests: a Python server over a pipe, and calls to it.

pub(crate) use refrain_testkit::net::fake_server::legacy_greeting;
pub(crate) use refrain_testkit::net::{Events, FakeServer, Received, Respond, until, within};

use refrain_client::{Client, ClientBuilder, Error};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// The command of the Python server.
pub(crate) fn python(args: &[&str]) -> Command {
    python_of("server.py", args)
}

/// The command of another Python script.
pub(crate) fn python_of(script: &str, args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/legacy");
    let script = scripts.join(script);
    command.arg(script).args(args);
    command
}

/// Starts the Python server.
pub(crate) async fn spawn(builder: ClientBuilder, args: &[&str]) -> Result<Client, Error> {
    within("the server", builder.spawn(python(args))).await
}

/// Calls a tool without arguments, and returns the text of its result as JSON.
pub(crate) async fn called(client: &Client, tool: &str) -> Result<Value, Error> {
    let result = within(tool, client.call_tool(tool, json!({}))).await?;
    let result = json!(result);
    let text = result["content"][0]["text"].as_str().expect("a text");
    Ok(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}

/// A client whose form handler must not run.
pub(crate) fn without_asks() -> ClientBuilder {
    Client::builder().on_form(|ask| async move { panic!("unexpected ask {:?}", ask.message) })
}

/// Whether this is a tool call.
pub(crate) fn is_call(request: &Received) -> bool {
    request.method() == "tools/call"
}

/// A form with one text field.
pub(crate) fn form(message: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"b": {"type": "string"}}});
    json!({"message": message, "requestedSchema": schema})
}
