//! Metadata, pages, completion, caching and resource updates.

use super::{Check, call, call_with, checks, final_text, find, list, read, run, tools};
use crate::names::{assert_server_metadata, assert_svg_icon, sample_annotations, sample_icon};
use crate::server::PAGE_SIZE;
use refrain_testkit::net::mcpdo::Mcpdo;
use serde_json::{Value, json};

pub(super) fn checks() -> Vec<(&'static str, Check)> {
    checks! {
        "discover: what is shown of the server": shown,
        "pages: every entry once, in order": pages,
        "completion: a prompt's argument": complete_prompt,
        "completion: a template's variable": complete_template,
        "structured content": structured,
        "title, icon, annotations and _meta": details,
        "all that is shown of a prompt, a resource and a template": everything_shown,
        "annotations of content": annotated,
        "caching hints": caching,
        "x-mcp-header": headers,
        "subscriptions: updates of a resource": updates,
    }
}

async fn shown(mcpdo: &Mcpdo) {
    assert_server_metadata(&run(mcpdo, &["connections/show"]).await);
}

/// The Inspector joins all pages.
async fn pages(mcpdo: &Mcpdo) {
    for (method, part, key, last) in [
        ("tools/list", "tools", "name", "test_annotated_content"),
        ("prompts/list", "prompts", "name", "test_shown_prompt"),
        ("resources/list", "resources", "uri", "test://shown"),
    ] {
        let entries = list(mcpdo, method, part, key).await;
        assert!(entries.len() > PAGE_SIZE);
        assert_eq!(entries.last().expect("there are entries")[key], last);
    }
}

/// The suggestions for an argument of a prompt or a variable of a template.
async fn complete(mcpdo: &Mcpdo, [kind, reference, name, value]: [&str; 4]) -> Value {
    let reference = ["--complete-ref-type", kind, "--complete-ref", reference];
    let argument = ["--complete-arg-name", name, "--complete-arg-value", value];
    let command = [&["prompts/complete"], &reference[..], &argument].concat();
    run(mcpdo, &command).await
}

async fn complete_prompt(mcpdo: &Mcpdo) {
    let prompt = "test_prompt_with_arguments";
    let found = complete(mcpdo, ["ref/prompt", prompt, "arg1", "par"]).await;
    let suggested = json!({"values": ["paris", "park", "party"], "total": 3, "hasMore": false});
    assert_eq!(found, suggested);
}

async fn complete_template(mcpdo: &Mcpdo) {
    let template = "test://template/{id}/data";
    let found = complete(mcpdo, ["ref/resource", template, "id", "12"]).await;
    assert_eq!(found["values"], json!(["123", "124"]));
}

async fn structured(mcpdo: &Mcpdo) {
    let town = json!({"town": "Ulm"});
    let result = call_with(mcpdo, "test_structured_content", &town).await;
    let wanted = json!({"town": "Ulm", "temperature": 21.5, "conditions": ["sunny", "dry"]});
    assert_eq!(result["structuredContent"], wanted);
    let text: Value = serde_json::from_str(final_text(&result)).expect("the text is JSON");
    assert_eq!(text, wanted);
}

async fn details(mcpdo: &Mcpdo) {
    let tools = tools(mcpdo).await;
    let tool = find(&tools, "name", "test_structured_content");
    assert_eq!(tool["title"], "Structured content");
    assert_svg_icon(&tool["icons"]);
    assert_eq!(tool["annotations"], json!({"readOnlyHint": true}));
    assert_eq!(tool["_meta"], json!({"com.example/group": "samples"}));
}

async fn everything_shown(mcpdo: &Mcpdo) {
    for (method, part, [key, name], title, group) in [
        (
            "prompts/list",
            "prompts",
            ["name", "test_shown_prompt"],
            "A prompt",
            "prompts",
        ),
        (
            "resources/list",
            "resources",
            ["uri", "test://shown"],
            "A resource",
            "resources",
        ),
        (
            "resources/templates/list",
            "resourceTemplates",
            ["uriTemplate", "test://shown/{name}"],
            "A template",
            "templates",
        ),
    ] {
        let entries = list(mcpdo, method, part, key).await;
        let entry = find(&entries, key, name);
        assert_eq!(entry["title"], title);
        assert_eq!(entry["icons"], json!([sample_icon()]), "{title}");
        assert_eq!(entry["_meta"], json!({"com.example/group": group}));
        if part != "prompts" {
            assert_eq!(entry["annotations"], sample_annotations());
        }
    }
}

async fn annotated(mcpdo: &Mcpdo) {
    let content = call(mcpdo, "test_annotated_content").await["content"].take();
    assert_eq!(content[0]["annotations"], sample_annotations());
    assert_eq!(content[1]["annotations"], sample_annotations());
    let meta = json!({"com.example/group": "links"});
    assert_eq!(content[1]["_meta"], meta);
}

/// The Inspector shows only the cache hints of resources.
async fn caching(mcpdo: &Mcpdo) {
    let text = read(mcpdo, "test://static-text").await;
    assert_eq!(text["cacheScope"], "public");
    assert_eq!(text["ttlMs"], 60_000);
    let blob = read(mcpdo, "test://static-binary").await;
    assert_eq!(blob["cacheScope"], "private");
    assert_eq!(blob["ttlMs"], 0);
}

async fn headers(mcpdo: &Mcpdo) {
    for region in ["eu-west-1", "Zürich, 1. Stock"] {
        let query = json!({"region": region, "limit": 42});
        let result = call_with(mcpdo, "test_x_mcp_header", &query).await;
        let text = format!("42 rows from {region}");
        assert_eq!(final_text(&result), text);
    }
}

async fn updates(mcpdo: &Mcpdo) {
    let uri = "test://static-text";
    let mut events = mcpdo.follow(&["resources/subscribe", uri]);
    let subscribed = json!({"type": "subscribed", "uri": uri});
    assert_eq!(events.next().await, subscribed);
    // Updates of other resources are not sent.
    for updated in ["test://static-binary", uri] {
        let updated = json!({"uri": updated});
        call_with(mcpdo, "test_trigger_resource_update", &updated).await;
    }
    let updated = json!({"type": "resources/updated", "uri": uri});
    assert_eq!(events.next().await, updated);
}
