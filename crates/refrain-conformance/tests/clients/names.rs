//! The checks that every client runs, in this order.

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
