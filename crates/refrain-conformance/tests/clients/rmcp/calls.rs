//! Lists, calls in one round, progress, logs and cancellation.

// This revision deprecates logging but still has it.
#![allow(deprecated)]

use super::user::User;
use super::{Check, Client, Target, call, checks, final_text, none, refused, text, tool, wire};
use crate::names::{PNG, WAV, begins};
use ::rmcp::model::{
    CallToolRequest, ClientRequest, ErrorCode, GetPromptRequestParams, LoggingLevel,
    ReadResourceRequestParams, RequestMetaObject,
};
use ::rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) fn checks() -> Vec<(&'static str, Check)> {
    checks! {
        "discover": discover,
        "tools/list": list_tools,
        "tools/call: text": simple_text,
        "tools/call: image": image,
        "tools/call: audio": audio,
        "tools/call: embedded resource": embedded,
        "tools/call: resource link": link,
        "tools/call: mixed contents": mixed,
        "tools/call: error of the tool": tool_error,
        "tools/call: unknown tool": unknown_tool,
        "tools/call: wrong arguments": wrong_arguments,
        "tools/call: many at once": at_once,
        "progress and logs while the call runs": streaming,
        "logs from a level on": logs,
        "logs: none without a level": no_logs,
        "cancel a call that has sent something": cancel_streaming,
        "cancel a call that has sent nothing": cancel_silent,
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

async fn connect(target: &Target) -> Client {
    target.connect(User::silent()).await
}

async fn discover(target: &Target) {
    let client = connect(target).await;
    let server = client.peer_info().expect("the server was discovered");
    let server = wire(&*server);
    assert_eq!(server["protocolVersion"], "2026-07-28");
    assert_eq!(server["serverInfo"]["name"], "refrain-conformance");
    for part in ["tools", "prompts", "resources"] {
        assert!(server["capabilities"][part].is_object(), "{part}: {server}");
    }
}

async fn list_tools(target: &Target) {
    let client = connect(target).await;
    let tools = client.list_all_tools().await.expect("the list succeeds");
    let again = client.list_all_tools().await.expect("the list succeeds");
    assert_eq!(tools, again);
    assert_eq!(tools[0].name, "test_simple_text");
    assert!(tools.iter().all(|tool| tool.description.is_some()));
    let by_name: BTreeMap<_, _> = tools.iter().map(|tool| (&*tool.name, tool)).collect();
    assert_eq!(by_name.len(), tools.len());
    let schema = wire(&by_name["test_waiting"].input_schema);
    assert_eq!(schema["required"], json!(["key", "fate"]));
}

async fn simple_text(target: &Target) {
    let client = connect(target).await;
    let result = call(&client, "test_simple_text", none()).await;
    assert_eq!(
        final_text(result),
        "This is a simple text response for testing."
    );
}

async fn image(target: &Target) {
    let client = connect(target).await;
    let content = wire(call(&client, "test_image_content", none()).await.content);
    assert_eq!(content[0]["type"], "image");
    assert_eq!(content[0]["mimeType"], "image/png");
    assert!(begins(&content[0]["data"], PNG));
}

async fn audio(target: &Target) {
    let client = connect(target).await;
    let content = wire(call(&client, "test_audio_content", none()).await.content);
    assert_eq!(content[0]["type"], "audio");
    assert_eq!(content[0]["mimeType"], "audio/wav");
    assert!(begins(&content[0]["data"], WAV));
}

async fn embedded(target: &Target) {
    let client = connect(target).await;
    let content = wire(
        call(&client, "test_embedded_resource", none())
            .await
            .content,
    );
    let resource = json!({
        "uri": "test://embedded-resource",
        "mimeType": "text/plain",
        "text": "This is an embedded resource content.",
    });
    assert_eq!(content, json!([{"type": "resource", "resource": resource}]));
}

async fn link(target: &Target) {
    let client = connect(target).await;
    let content = wire(call(&client, "test_resource_link", none()).await.content);
    let link = json!({
        "type": "resource_link",
        "uri": "test://static-text",
        "name": "static_text",
        "title": "A text",
        "mimeType": "text/plain",
        "size": 48,
    });
    assert_eq!(content, json!([link]));
}

async fn mixed(target: &Target) {
    let client = connect(target).await;
    let result = call(&client, "test_multiple_content_types", none()).await;
    let content = wire(result.content);
    let types: Vec<&Value> = (0..3).map(|index| &content[index]["type"]).collect();
    assert_eq!(types, ["text", "image", "resource"]);
}

async fn tool_error(target: &Target) {
    let client = connect(target).await;
    let result = call(&client, "test_error_handling", none()).await;
    assert_eq!(result.is_error, Some(true));
    let expected = "This tool intentionally returns an error for testing";
    assert_eq!(text(result), expected);
}

async fn unknown_tool(target: &Target) {
    let client = connect(target).await;
    let result = client.call_tool(tool("no_such_tool", &none())).await;
    refused(result, ErrorCode::INVALID_PARAMS);
}

async fn wrong_arguments(target: &Target) {
    let client = connect(target).await;
    let result = call(&client, "test_waiting", json!({"key": 5})).await;
    assert_eq!(result.is_error, Some(true));
}

async fn at_once(target: &Target) {
    let client = connect(target).await;
    let calls = (0..20).map(|number| {
        let contact = json!({
            "name": format!("caller {number}"),
            "contactMethod": "phone",
            "phone": number.to_string(),
        });
        call(&client, "json_schema_2020_12_tool", contact)
    });
    let results = futures_util::future::join_all(calls).await;
    for (number, result) in results.into_iter().enumerate() {
        assert_eq!(final_text(result), format!("caller {number}: {number}"));
    }
}

fn meta_with(level: LoggingLevel) -> RequestMetaObject {
    let mut meta = RequestMetaObject::new();
    meta.set_log_level(level);
    meta
}

async fn streaming(target: &Target) {
    let user = User::silent();
    let client = target.connect(user.clone()).await;
    let key = json!({"key": "rmcp, streaming"});
    let mut params = tool("test_stream", &key);
    params.meta = Some(meta_with(LoggingLevel::Info));
    let release = async {
        user.notes_until(|notes| notes.progress.len() == 5 && notes.logs.len() == 5)
            .await;
        call(&client, "test_release", key.clone()).await
    };
    let (result, _) = tokio::join!(client.call_tool(params), release);
    assert_eq!(final_text(result.expect("it was released")), "Released.");
    let notes = user.notes();
    for (index, step) in (1..=5).enumerate() {
        let name = format!("step {step}");
        assert_eq!(notes.logs[index], (json!("info"), json!(name)));
        let progress = (f64::from(step), Some(5.0), Some(name));
        assert_eq!(notes.progress[index], progress);
    }
}

const LEVELS: [(LoggingLevel, &str); 8] = [
    (LoggingLevel::Debug, "debug"),
    (LoggingLevel::Info, "info"),
    (LoggingLevel::Notice, "notice"),
    (LoggingLevel::Warning, "warning"),
    (LoggingLevel::Error, "error"),
    (LoggingLevel::Critical, "critical"),
    (LoggingLevel::Alert, "alert"),
    (LoggingLevel::Emergency, "emergency"),
];

async fn logs(target: &Target) {
    for (first, (level, _)) in LEVELS.into_iter().enumerate() {
        let user = User::silent();
        let client = target.connect(user.clone()).await;
        let mut params = tool("test_log_levels", &none());
        params.meta = Some(meta_with(level));
        client.call_tool(params).await.expect("it only logs");
        let wanted = LEVELS[first..].iter();
        let wanted: Vec<_> = wanted.map(|(_, name)| (json!(name), json!(name))).collect();
        // The SDK delivers notifications in separate tasks.
        user.notes_until(|notes| notes.logs.len() >= wanted.len())
            .await;
        assert_eq!(user.notes().logs, wanted);
    }
}

async fn no_logs(target: &Target) {
    let user = User::silent();
    let client = target.connect(user.clone()).await;
    call(&client, "test_log_levels", none()).await;
    // Its progress arrives after all earlier log messages.
    call(&client, "test_tool_with_progress", none()).await;
    user.notes_until(|notes| notes.progress.len() == 3).await;
    assert_eq!(user.notes().logs, []);
}

async fn cancel(target: &Target, key: &str, quiet: bool) {
    let user = User::silent();
    let client = target.connect(user.clone()).await;
    let wait_for_state = async |state: &str| {
        let arguments = json!({"key": key, "fate": state});
        final_text(call(&client, "test_waiting", arguments).await)
    };
    let params = tool("test_wait", &json!({"key": key}));
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let options = PeerRequestOptions::no_options();
    let waiting = client.send_cancellable_request(request, options).await;
    let waiting = waiting.expect("the request is sent");
    assert_eq!(wait_for_state("running").await, "Running");
    if !quiet {
        user.notes_until(|notes| !notes.progress.is_empty()).await;
    }
    let reason = Some("not needed any more".to_owned());
    waiting.cancel(reason).await.expect("it can be cancelled");
    assert_eq!(wait_for_state("dropped").await, "Dropped");
}

async fn cancel_streaming(target: &Target) {
    cancel(target, "rmcp, cancelled while streaming", false).await;
}

async fn cancel_silent(target: &Target) {
    cancel(target, "rmcp, cancelled while silent", true).await;
}

async fn list_prompts(target: &Target) {
    let client = connect(target).await;
    let prompts = client.list_all_prompts().await.expect("the list succeeds");
    assert!(prompts.iter().all(|prompt| prompt.description.is_some()));
    let found = prompts
        .iter()
        .find(|prompt| prompt.name == "test_prompt_with_arguments");
    let arguments = json!([
        {"name": "arg1", "description": "First test argument.", "required": true},
        {"name": "arg2", "description": "Second test argument.", "required": true},
    ]);
    assert_eq!(wire(found)["arguments"], arguments);
}

/// The messages of a prompt.
async fn prompt(target: &Target, name: &str, arguments: Value) -> Value {
    let client = connect(target).await;
    let result = client.get_prompt(prompt_params(name, &arguments)).await;
    wire(result.expect("there are messages").messages)
}

fn prompt_params(name: &str, arguments: &Value) -> GetPromptRequestParams {
    let arguments = arguments.as_object().expect("arguments are an object");
    GetPromptRequestParams::new(name).with_arguments(arguments.clone())
}

async fn prompt_text(target: &Target) {
    let content = json!({"type": "text", "text": "This is a simple prompt for testing."});
    let messages = prompt(target, "test_simple_prompt", none()).await;
    assert_eq!(messages, json!([{"role": "user", "content": content}]));
}

async fn prompt_arguments(target: &Target) {
    let arguments = json!({"arg1": "one", "arg2": "two"});
    let messages = prompt(target, "test_prompt_with_arguments", arguments).await;
    let text = "Prompt with arguments: arg1='one', arg2='two'";
    assert_eq!(messages[0]["content"]["text"], text);
}

async fn prompt_missing_argument(target: &Target) {
    let client = connect(target).await;
    let params = prompt_params("test_prompt_with_arguments", &json!({"arg1": "one"}));
    refused(client.get_prompt(params).await, ErrorCode::INVALID_PARAMS);
}

async fn prompt_embedded(target: &Target) {
    let arguments = json!({"resourceUri": "test://any"});
    let messages = prompt(target, "test_prompt_with_embedded_resource", arguments).await;
    assert_eq!(messages[0]["content"]["resource"]["uri"], "test://any");
    let text = "Please process the embedded resource above.";
    assert_eq!(messages[1]["content"]["text"], text);
}

async fn prompt_image(target: &Target) {
    let messages = prompt(target, "test_prompt_with_image", none()).await;
    assert_eq!(messages[0]["content"]["type"], "image");
    assert!(begins(&messages[0]["content"]["data"], PNG));
    let text = "Please analyze the image above.";
    assert_eq!(messages[1]["content"]["text"], text);
}

async fn unknown_prompt(target: &Target) {
    let client = connect(target).await;
    let params = GetPromptRequestParams::new("no_such_prompt");
    refused(client.get_prompt(params).await, ErrorCode::INVALID_PARAMS);
}

async fn list_resources(target: &Target) {
    let client = connect(target).await;
    let resources = client
        .list_all_resources()
        .await
        .expect("the list succeeds");
    let types: BTreeMap<_, _> = resources
        .iter()
        .map(|resource| (resource.uri.as_str(), resource.mime_type.as_deref()))
        .collect();
    assert_eq!(types["test://static-text"], Some("text/plain"));
    assert_eq!(types["test://static-binary"], Some("image/png"));
}

async fn list_templates(target: &Target) {
    let client = connect(target).await;
    let templates = client.list_all_resource_templates().await;
    let templates = templates.expect("the list succeeds");
    let mut uris = templates.iter().map(|template| &*template.uri_template);
    assert!(uris.any(|uri| uri == "test://template/{id}/data"));
}

/// The contents of a resource.
async fn read(target: &Target, uri: &str) -> Value {
    let client = connect(target).await;
    let result = client
        .read_resource(ReadResourceRequestParams::new(uri))
        .await;
    wire(result.expect("there are contents").contents)
}

async fn read_text(target: &Target) {
    let contents = json!({
        "uri": "test://static-text",
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    });
    assert_eq!(read(target, "test://static-text").await, json!([contents]));
}

async fn read_blob(target: &Target) {
    let contents = read(target, "test://static-binary").await;
    assert_eq!(contents[0]["mimeType"], "image/png");
    assert!(begins(&contents[0]["blob"], PNG));
}

async fn read_template(target: &Target) {
    let contents = read(target, "test://template/123/data").await;
    let text = contents[0]["text"].as_str().expect("a text");
    assert!(text.contains("Data for ID: 123"), "{text}");
}

async fn read_unknown(target: &Target) {
    let client = connect(target).await;
    let params = ReadResourceRequestParams::new("test://nowhere");
    let data = refused(
        client.read_resource(params).await,
        ErrorCode::INVALID_PARAMS,
    );
    assert_eq!(data, json!({"uri": "test://nowhere"}));
}
