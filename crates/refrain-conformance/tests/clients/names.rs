//! The checks that every client runs, in this order, and the expected values of several clients.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// The checks of a client that supports all features. The scripts in `tests/clients` print the same names.
pub(crate) const CHECKS: [&str; 70] = [
    "discover",
    "tools/list",
    "tools/call: text",
    "tools/call: image",
    "tools/call: audio",
    "tools/call: embedded resource",
    "tools/call: resource link",
    "tools/call: mixed contents",
    "tools/call: error of the tool",
    "tools/call: unknown tool",
    "tools/call: wrong arguments",
    "tools/call: many at once",
    "progress and logs while the call runs",
    "progress: none without a token",
    "logs from a level on",
    "logs: none without a level",
    "cancel a call that has sent something",
    "cancel a call that has sent nothing",
    "prompts/list",
    "prompts/get: text",
    "prompts/get: arguments",
    "prompts/get: missing argument",
    "prompts/get: embedded resource",
    "prompts/get: image",
    "prompts/get: unknown prompt",
    "resources/list",
    "resources/templates/list",
    "resources/read: text",
    "resources/read: blob",
    "resources/read: template",
    "resources/read: unknown resource",
    "ask: a form",
    "ask: a field of every kind",
    "ask: again, with the reason",
    "ask: declined",
    "ask: cancelled",
    "ask: a decline ends the call",
    "ask: a URL",
    "ask: the model",
    "ask: the roots",
    "ask: three things in one round",
    "ask: one thing after the other",
    "ask: a step before it is kept",
    "ask: after progress",
    "ask: from a prompt",
    "ask: from a resource",
    "ask: what the client cannot be asked",
    "ask: only what the client can be asked",
    "rounds by hand",
    "a changed state is refused",
    "discover: what is shown of the server",
    "pages: every entry once, in order",
    "pages: a wrong cursor is refused",
    "completion: a prompt's argument",
    "completion: a template's variable",
    "structured content",
    "title, icon, annotations and _meta",
    "all that is shown of a prompt, a resource and a template",
    "annotations of content",
    "caching hints",
    "x-mcp-header",
    "x-mcp-header: of a tool that was not listed",
    "subscriptions: tools",
    "subscriptions: prompts",
    "subscriptions: resources",
    "subscriptions: updates of a resource",
    "subscriptions: only what was asked for",
    "subscriptions: two at once",
    "subscriptions: ended by the client",
    "subscriptions: ended by the server",
];

/// Checks that a client runs all checks but the unsupported ones.
#[track_caller]
pub(crate) fn assert_complete(names: &[&str], unsupported: &[(&str, &str)]) {
    let is_supported = |name: &&str| unsupported.iter().all(|(other, _)| other != name);
    let expected: Vec<&str> = CHECKS.into_iter().filter(is_supported).collect();
    assert_eq!(names, expected);
}

pub(crate) const PNG: &[u8] = b"\x89PNG\r\n";
pub(crate) const WAV: &[u8] = b"RIFF";

/// Whether a file in base64 begins with these bytes.
pub(crate) fn begins(base64: &Value, bytes: &[u8]) -> bool {
    let text = base64.as_str().expect("a string");
    let decoded = STANDARD.decode(text).expect("valid base64");
    decoded.starts_with(bytes)
}

/// Checks the metadata of the server.
#[track_caller]
pub(crate) fn assert_server_metadata(server: &Value) {
    let info = &server["serverInfo"];
    assert_eq!(info["title"], "Refrain's conformance server");
    let description = "Everything that the protocol's conformance suite calls.";
    assert_eq!(info["description"], description);
    assert_svg_icon(&info["icons"]);
    assert_eq!(
        server["instructions"],
        "Call the tools that the scenario names."
    );
    let extensions = json!({
        "com.example/sample": {"verbose": true},
        "io.modelcontextprotocol/tasks": {},
        "refrain/callId": {},
    });
    assert_eq!(server["capabilities"]["extensions"], extensions);
}

#[track_caller]
pub(crate) fn assert_svg_icon(icons: &Value) {
    let source = icons[0]["src"].as_str().expect("there is an icon");
    assert!(source.starts_with("data:image/svg+xml;base64,"), "{source}");
}

/// The icon of entries with all metadata.
pub(crate) fn sample_icon() -> Value {
    json!({
        "src": "https://example.com/icon.png",
        "mimeType": "image/png",
        "sizes": ["48x48", "96x96"],
        "theme": "dark",
    })
}

/// The annotations of entries with all metadata.
pub(crate) fn sample_annotations() -> Value {
    json!({
        "audience": ["user", "assistant"],
        "priority": 0.5,
        "lastModified": "2026-07-28T12:00:00Z",
    })
}
