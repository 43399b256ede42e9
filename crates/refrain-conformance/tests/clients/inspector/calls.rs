//! Checks with single-round requests: lists, tools, prompts, resources and logs.

use super::{Check, call, checks, final_text, find, list, read, run, run_failing, tools};
use crate::names::{PNG, WAV, begins};
use refrain_testkit::net::mcpdo::{Mcpdo, RunningCommand};
use serde_json::{Value, json};

pub(super) fn checks() -> Vec<(&'static str, Check)> {
    checks! {
        "discover": discover,
        "tools/list": list_tools,
        "tools/call: text": text,
        "tools/call: image": image,
        "tools/call: audio": audio,
        "tools/call: embedded resource": embedded,
        "tools/call: resource link": link,
        "tools/call: mixed contents": mixed,
        "tools/call: error of the tool": tool_error,
        "tools/call: wrong arguments": wrong_arguments,
        "logs from a level on": logs,
        "prompts/list": list_prompts,
        "prompts/get: text": prompt_text,
        "prompts/get: arguments": prompt_arguments,
        "prompts/get: missing argument": prompt_missing_argument,
        "prompts/get: embedded resource": prompt_embedded,
        "prompts/get: image": prompt_image,
        "prompts/get: unknown prompt": unknown_prompt,
        "resources/list": list_resources,
        "resources/templates/list": list_templates,
        "resources/read: text": read_text,
        "resources/read: blob": read_blob,
        "resources/read: template": read_template,
        "resources/read: unknown resource": read_unknown,
    }
}

async fn discover(mcpdo: &Mcpdo) {
    let server = run(mcpdo, &["connections/show"]).await;
    assert_eq!(server["protocolVersion"], "2026-07-28");
    assert_eq!(server["serverInfo"]["name"], "refrain-conformance");
    for part in ["tools", "prompts", "resources"] {
        assert!(server["capabilities"][part].is_object(), "{part}: {server}");
    }
}

async fn list_tools(mcpdo: &Mcpdo) {
    let tools = tools(mcpdo).await;
    assert_eq!(tools[0]["name"], "test_simple_text");
    assert!(tools.iter().all(|tool| tool["description"].is_string()));
    let waiting = find(&tools, "name", "test_waiting");
    let required = &waiting["inputSchema"]["required"];
    assert_eq!(*required, json!(["key", "fate"]));
}

async fn text(mcpdo: &Mcpdo) {
    let result = call(mcpdo, "test_simple_text").await;
    let expected = "This is a simple text response for testing.";
    assert_eq!(final_text(&result), expected);
}

async fn image(mcpdo: &Mcpdo) {
    let block = &call(mcpdo, "test_image_content").await["content"][0];
    assert_eq!(block["type"], "image");
    assert_eq!(block["mimeType"], "image/png");
    assert!(begins(&block["data"], PNG));
}

async fn audio(mcpdo: &Mcpdo) {
    let block = &call(mcpdo, "test_audio_content").await["content"][0];
    assert_eq!(block["type"], "audio");
    assert_eq!(block["mimeType"], "audio/wav");
    assert!(begins(&block["data"], WAV));
}

async fn embedded(mcpdo: &Mcpdo) {
    let result = call(mcpdo, "test_embedded_resource").await;
    let resource = json!({
        "uri": "test://embedded-resource",
        "mimeType": "text/plain",
        "text": "This is an embedded resource content.",
    });
    let content = json!([{"type": "resource", "resource": resource}]);
    assert_eq!(result["content"], content);
}

async fn link(mcpdo: &Mcpdo) {
    let result = call(mcpdo, "test_resource_link").await;
    let link = json!({
        "type": "resource_link",
        "uri": "test://static-text",
        "name": "static_text",
        "title": "A text",
        "mimeType": "text/plain",
        "size": 48,
    });
    assert_eq!(result["content"], json!([link]));
}

async fn mixed(mcpdo: &Mcpdo) {
    let result = call(mcpdo, "test_multiple_content_types").await;
    let content = result["content"].as_array().expect("there is content");
    let types: Vec<&Value> = content.iter().map(|block| &block["type"]).collect();
    assert_eq!(types, ["text", "image", "resource"]);
}

async fn tool_error(mcpdo: &Mcpdo) {
    let output = mcpdo.run(&["tools/call", "test_error_handling"]).await;
    assert_eq!(output.status, Some(5), "{output:?}");
    assert_eq!(output.out["isError"], true);
    let text = "This tool intentionally returns an error for testing";
    assert_eq!(output.out["content"][0]["text"], text);
}

async fn wrong_arguments(mcpdo: &Mcpdo) {
    let arguments = ["--tool-args-json", r#"{"key":5}"#];
    let command = ["tools/call", "test_waiting"];
    let output = mcpdo.run(&[command, arguments].concat()).await;
    assert_eq!(output.status, Some(5), "{output:?}");
    assert_eq!(output.out["isError"], true);
}

/// Calls a tool that logs one message per level, and requests this level and higher ones.
async fn log_from(mcpdo: &Mcpdo, level: &str) {
    let level = format!("io.modelcontextprotocol/logLevel={level}");
    run(
        mcpdo,
        &["tools/call", "test_log_levels", "--metadata", &level],
    )
    .await;
}

/// Follows the log. Retries until a message arrives, because the command does not report when it is ready.
async fn follow_log(mcpdo: &Mcpdo) -> RunningCommand {
    const TRIES: usize = 100;
    let mut log = mcpdo.follow(&["logging/tail"]);
    let mut first = Box::pin(log.next());
    let mut sent = 0;
    loop {
        assert!(sent < TRIES, "no message was logged");
        tokio::select! {
            biased;
            () = log_from(mcpdo, "emergency") => sent += 1,
            line = &mut first => {
                assert_eq!(data(&line), "emergency");
                break;
            }
        }
    }
    drop(first);
    // Later attempts may have logged more `emergency` lines. Skip them: they precede the `alert` line logged next.
    log_from(mcpdo, "alert").await;
    for _ in 0..=TRIES {
        if data(&log.next().await) == "alert" {
            assert_eq!(data(&log.next().await), "emergency");
            return log;
        }
    }
    panic!("the alert message was not logged");
}

#[track_caller]
fn data(line: &Value) -> &str {
    let params = &line["message"]["params"];
    assert_eq!(params["level"], params["data"], "{line}");
    params["data"].as_str().expect("a log message")
}

async fn logs(mcpdo: &Mcpdo) {
    let mut log = follow_log(mcpdo).await;
    log_from(mcpdo, "notice").await;
    for level in [
        "notice",
        "warning",
        "error",
        "critical",
        "alert",
        "emergency",
    ] {
        assert_eq!(data(&log.next().await), level);
    }
}

async fn list_prompts(mcpdo: &Mcpdo) {
    let prompts = list(mcpdo, "prompts/list", "prompts", "name").await;
    let found = find(&prompts, "name", "test_prompt_with_arguments");
    let arguments = json!([
        {"name": "arg1", "description": "First test argument.", "required": true},
        {"name": "arg2", "description": "Second test argument.", "required": true},
    ]);
    assert_eq!(found["arguments"], arguments);
}

/// The messages of a prompt.
async fn messages(mcpdo: &Mcpdo, args: &[&str]) -> Value {
    run(mcpdo, &[&["prompts/get"], args].concat()).await["messages"].take()
}

async fn prompt_text(mcpdo: &Mcpdo) {
    let content = json!({"type": "text", "text": "This is a simple prompt for testing."});
    let messages = messages(mcpdo, &["test_simple_prompt"]).await;
    assert_eq!(messages, json!([{"role": "user", "content": content}]));
}

async fn prompt_arguments(mcpdo: &Mcpdo) {
    let arguments = ["--prompt-args", "arg1=one", "arg2=two"];
    let command = [&["test_prompt_with_arguments"], &arguments[..]].concat();
    let messages = messages(mcpdo, &command).await;
    let text = "Prompt with arguments: arg1='one', arg2='two'";
    assert_eq!(messages[0]["content"]["text"], text);
}

async fn prompt_missing_argument(mcpdo: &Mcpdo) {
    let arguments = ["--prompt-args", "arg1=one"];
    let command = ["prompts/get", "test_prompt_with_arguments"];
    let error = run_failing(mcpdo, &[command, arguments].concat()).await;
    assert!(error.contains("arg2"), "{error}");
}

async fn prompt_embedded(mcpdo: &Mcpdo) {
    let name = "test_prompt_with_embedded_resource";
    let messages = messages(mcpdo, &[name, "--prompt-args", "resourceUri=test://any"]).await;
    assert_eq!(messages[0]["content"]["resource"]["uri"], "test://any");
    let text = "Please process the embedded resource above.";
    assert_eq!(messages[1]["content"]["text"], text);
}

async fn prompt_image(mcpdo: &Mcpdo) {
    let messages = messages(mcpdo, &["test_prompt_with_image"]).await;
    assert!(begins(&messages[0]["content"]["data"], PNG));
    let text = "Please analyze the image above.";
    assert_eq!(messages[1]["content"]["text"], text);
}

async fn unknown_prompt(mcpdo: &Mcpdo) {
    let error = run_failing(mcpdo, &["prompts/get", "no_such_prompt"]).await;
    assert!(error.contains("no_such_prompt"), "{error}");
}

async fn list_resources(mcpdo: &Mcpdo) {
    let resources = list(mcpdo, "resources/list", "resources", "uri").await;
    let media_type = |uri| &find(&resources, "uri", uri)["mimeType"];
    assert_eq!(media_type("test://static-text"), "text/plain");
    assert_eq!(media_type("test://static-binary"), "image/png");
}

async fn list_templates(mcpdo: &Mcpdo) {
    let (method, key) = ("resources/templates/list", "uriTemplate");
    let templates = list(mcpdo, method, "resourceTemplates", key).await;
    find(&templates, key, "test://template/{id}/data");
}

async fn read_text(mcpdo: &Mcpdo) {
    let contents = json!({
        "uri": "test://static-text",
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    });
    let result = read(mcpdo, "test://static-text").await;
    assert_eq!(result["contents"], json!([contents]));
}

async fn read_blob(mcpdo: &Mcpdo) {
    let result = read(mcpdo, "test://static-binary").await;
    assert!(begins(&result["contents"][0]["blob"], PNG));
}

async fn read_template(mcpdo: &Mcpdo) {
    let result = read(mcpdo, "test://template/123/data").await;
    let text = result["contents"][0]["text"].as_str();
    let text = text.expect("a text");
    assert!(text.contains("Data for ID: 123"), "{text}");
}

async fn read_unknown(mcpdo: &Mcpdo) {
    let error = run_failing(mcpdo, &["resources/read", "test://nowhere"]).await;
    assert!(error.contains("test://nowhere"), "{error}");
}
