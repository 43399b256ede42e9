//! The checks.

use super::mcpdo::{Following, Mcpdo};
use crate::names::{shown_annotations, shown_icon};
use crate::server::PAGE_SIZE;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::pin::Pin;

pub(super) type Check = fn(&Mcpdo) -> Pin<Box<dyn Future<Output = ()> + '_>>;

/// Lists checks by name, each with the function that does it.
macro_rules! checks {
    ($($name:literal: $check:path,)*) => {
        vec![$(($name, (|mcpdo| Box::pin($check(mcpdo))) as Check),)*]
    };
}

pub(super) fn all() -> Vec<(&'static str, Check)> {
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
        "ask: a form": form,
        "ask: a field of every kind": every_field,
        "ask: again, with the reason": again,
        "ask: declined": declined,
        "ask: cancelled": cancelled,
        "ask: a decline ends the call": decline_ends,
        "ask: a URL": url,
        "ask: the roots": roots,
        "ask: one thing after the other": in_turn,
        "ask: a step before it is kept": step,
        "ask: from a prompt": prompt,
        "ask: from a resource": resource,
        "ask: what the client cannot be asked": unsupported,
        "ask: only what the client can be asked": only_supported,
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

const PNG: &[u8] = b"\x89PNG\r\n";
const WAV: &[u8] = b"RIFF";
const ROUND: &str = "test_input_required_result_";

/// Whether text in base64 is that of a file that begins with these bytes.
fn begins(base64: &Value, bytes: &[u8]) -> bool {
    let text = base64.as_str().expect("base64 is text");
    let decoded = STANDARD.decode(text).expect("it is base64");
    decoded.starts_with(bytes)
}

/// What a command says that must end well.
async fn say(mcpdo: &Mcpdo, args: &[&str]) -> Value {
    let said = mcpdo.say(args).await;
    assert_eq!(said.status, Some(0), "{args:?}: {said:?}");
    said.out
}

/// Why a command failed, which must.
async fn refused(mcpdo: &Mcpdo, args: &[&str]) -> String {
    let said = mcpdo.say(args).await;
    assert_ne!(said.status, Some(0), "{args:?}: {said:?}");
    said.error
}

async fn call(mcpdo: &Mcpdo, tool: &str) -> Value {
    say(mcpdo, &["tools/call", tool]).await
}

async fn call_with(mcpdo: &Mcpdo, tool: &str, arguments: &Value) -> Value {
    let arguments = arguments.to_string();
    say(mcpdo, &["tools/call", tool, "--tool-args-json", &arguments]).await
}

/// The one text of a result that is none of an error.
#[track_caller]
fn final_text(result: &Value) -> &str {
    assert_eq!(result["isError"], false, "{result}");
    let [block] = &**result["content"].as_array().expect("there is content") else {
        panic!("{result} has not one block");
    };
    block["text"].as_str().expect("the block is a text")
}

/// A question that was put to the user.
struct Asked(Value);

impl Asked {
    #[track_caller]
    fn new(said: &Value) -> Self {
        let asked = &said["elicitationPending"];
        assert!(asked.is_object(), "{said} asks for nothing");
        Self(asked.clone())
    }

    /// Gives an answer, and what comes of it.
    async fn answer(&self, mcpdo: &Mcpdo, answer: &str) -> Value {
        let id = self.0["elicitationId"].as_str().expect("it has an id");
        say(mcpdo, &["elicitation/respond", id, answer]).await
    }
}

async fn ask(mcpdo: &Mcpdo, tool: &str) -> Asked {
    Asked::new(&call(mcpdo, tool).await)
}

async fn discover(mcpdo: &Mcpdo) {
    let server = say(mcpdo, &["connections/show"]).await;
    assert_eq!(server["protocolVersion"], "2026-07-28");
    assert_eq!(server["serverInfo"]["name"], "refrain-conformance");
    for part in ["tools", "prompts", "resources"] {
        assert!(server["capabilities"][part].is_object(), "{part}: {server}");
    }
}

/// The entries of a list, of which no two have one name.
async fn list(mcpdo: &Mcpdo, method: &str, part: &str, key: &str) -> Vec<Value> {
    let listed = say(mcpdo, &[method]).await;
    let entries = listed[part].as_array().expect("there are entries").clone();
    let names: BTreeSet<_> = entries.iter().map(|entry| entry[key].as_str()).collect();
    assert_eq!(names.len(), entries.len(), "{listed}");
    entries
}

async fn tools(mcpdo: &Mcpdo) -> Vec<Value> {
    list(mcpdo, "tools/list", "tools", "name").await
}

/// The entry of this name.
#[track_caller]
fn find<'a>(entries: &'a [Value], key: &str, name: &str) -> &'a Value {
    let found = entries.iter().find(|entry| entry[key] == name);
    found.unwrap_or_else(|| panic!("{name} is not listed"))
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
    let said = "This is a simple text response for testing.";
    assert_eq!(final_text(&result), said);
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
    let said = mcpdo.say(&["tools/call", "test_error_handling"]).await;
    assert_eq!(said.status, Some(5), "{said:?}");
    assert_eq!(said.out["isError"], true);
    let text = "This tool intentionally returns an error for testing";
    assert_eq!(said.out["content"][0]["text"], text);
}

async fn wrong_arguments(mcpdo: &Mcpdo) {
    let arguments = ["--tool-args-json", r#"{"key":5}"#];
    let command = ["tools/call", "test_waiting"];
    let said = mcpdo.say(&[command, arguments].concat()).await;
    assert_eq!(said.status, Some(5), "{said:?}");
    assert_eq!(said.out["isError"], true);
}

/// Has a line of each level logged, from this one on.
async fn log_from(mcpdo: &Mcpdo, level: &str) {
    let level = format!("io.modelcontextprotocol/logLevel={level}");
    say(
        mcpdo,
        &["tools/call", "test_log_levels", "--metadata", &level],
    )
    .await;
}

/// Follows the log, once it is known to be followed, which the command does not say.
async fn follow_log(mcpdo: &Mcpdo) -> Following {
    const TRIES: usize = 100;
    let mut log = mcpdo.follow(&["logging/tail"]);
    let mut first = Box::pin(log.next());
    let mut sent = 0;
    loop {
        assert!(sent < TRIES, "nothing was logged");
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
    // Further lines of these tries come before that of another level.
    log_from(mcpdo, "alert").await;
    for _ in 0..=TRIES {
        if data(&log.next().await) == "alert" {
            assert_eq!(data(&log.next().await), "emergency");
            return log;
        }
    }
    panic!("the line of the last try was not logged");
}

#[track_caller]
fn data(line: &Value) -> &str {
    let params = &line["message"]["params"];
    assert_eq!(params["level"], params["data"], "{line}");
    params["data"].as_str().expect("a line of the log")
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
    say(mcpdo, &[&["prompts/get"], args].concat()).await["messages"].take()
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
    let error = refused(mcpdo, &[command, arguments].concat()).await;
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
    let error = refused(mcpdo, &["prompts/get", "no_such_prompt"]).await;
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

async fn read(mcpdo: &Mcpdo, uri: &str) -> Value {
    say(mcpdo, &["resources/read", uri]).await
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
    let text = text.expect("it is a text");
    assert!(text.contains("Data for ID: 123"), "{text}");
}

async fn read_unknown(mcpdo: &Mcpdo) {
    let error = refused(mcpdo, &["resources/read", "test://nowhere"]).await;
    assert!(error.contains("test://nowhere"), "{error}");
}

async fn form(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, &format!("{ROUND}elicitation")).await;
    assert_eq!(asked.0["message"], "What is your name?");
    let schema = &asked.0["requestedSchema"];
    assert_eq!(schema["properties"], json!({"name": {"type": "string"}}));
    let result = asked.answer(mcpdo, r#"{"name":"Alice"}"#).await;
    assert_eq!(final_text(&result), "Hello, Alice!");
}

fn sign_up(age: u8) -> String {
    let answers = json!({
        "address": "alice@example.com",
        "age": age,
        "height": 1.75,
        "public": false,
        "howOften": "daily",
        "topics": ["fixes", "news"],
    });
    answers.to_string()
}

const SIGNED_UP: &str = "alice@example.com, 33, 1.75, false, Daily, [Fixes, News]";

async fn every_field(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, "test_form").await;
    let result = asked.answer(mcpdo, &sign_up(33)).await;
    assert_eq!(final_text(&result), SIGNED_UP);
}

async fn again(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, "test_form").await;
    let asked = Asked::new(&asked.answer(mcpdo, &sign_up(200)).await);
    let message = asked.0["message"].as_str().expect("it has a message");
    assert!(message.contains("not accepted"), "{message}");
    let result = asked.answer(mcpdo, &sign_up(33)).await;
    assert_eq!(final_text(&result), SIGNED_UP);
}

async fn declined(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, "test_outcome").await;
    let result = asked.answer(mcpdo, "--decline").await;
    assert_eq!(final_text(&result), "declined");
}

async fn cancelled(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, "test_outcome").await;
    let result = asked.answer(mcpdo, "--cancel").await;
    assert_eq!(final_text(&result), "cancelled");
}

async fn decline_ends(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, &format!("{ROUND}elicitation")).await;
    let id = asked.0["elicitationId"].as_str().expect("it has an id");
    let said = mcpdo.say(&["elicitation/respond", id, "--decline"]).await;
    assert_eq!(said.status, Some(5), "{said:?}");
    assert_eq!(said.out["isError"], true);
}

async fn url(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, "test_url").await;
    assert_eq!(asked.0["mode"], "url");
    assert_eq!(asked.0["url"], "https://example.com/consent");
    let result = asked.answer(mcpdo, "--done").await;
    assert_eq!(final_text(&result), "The page was opened.");
}

const ROOTS: &str = r#"[{"uri":"file:///srv/one"},{"uri":"file:///srv/two"}]"#;

async fn roots(mcpdo: &Mcpdo) {
    say(mcpdo, &["roots/set", "--roots-json", ROOTS]).await;
    let result = call(mcpdo, &format!("{ROUND}list_roots")).await;
    let text = "Your roots: file:///srv/one, file:///srv/two";
    assert_eq!(final_text(&result), text);
}

async fn in_turn(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, &format!("{ROUND}multi_round")).await;
    assert_eq!(asked.0["message"], "Step 1: What is your name?");
    let asked = Asked::new(&asked.answer(mcpdo, r#"{"name":"Alice"}"#).await);
    let message = "Step 2: What is your favorite color?";
    assert_eq!(asked.0["message"], message);
    let result = asked.answer(mcpdo, r#"{"color":"blue"}"#).await;
    assert_eq!(final_text(&result), "Alice likes blue.");
}

async fn step(mcpdo: &Mcpdo) {
    let asked = ask(mcpdo, &format!("{ROUND}request_state")).await;
    let result = asked.answer(mcpdo, r#"{"ok":true}"#).await;
    assert_eq!(final_text(&result), "state-ok, confirmed: true");
}

async fn prompt(mcpdo: &Mcpdo) {
    let said = say(mcpdo, &["prompts/get", &format!("{ROUND}prompt")]).await;
    let answer = r#"{"context":"a rainy day"}"#;
    let result = Asked::new(&said).answer(mcpdo, answer).await;
    let text = "Use this context: a rainy day";
    assert_eq!(result["messages"][0]["content"]["text"], text);
}

async fn resource(mcpdo: &Mcpdo) {
    let said = read(mcpdo, "test://asking").await;
    let result = Asked::new(&said).answer(mcpdo, r#"{"name":"Alice"}"#).await;
    let text = "This was written for Alice.";
    assert_eq!(result["contents"][0]["text"], text);
}

async fn unsupported(mcpdo: &Mcpdo) {
    let error = refused(mcpdo, &["tools/call", "test_missing_capability"]).await;
    assert!(error.contains("sampling"), "{error}");
}

async fn only_supported(mcpdo: &Mcpdo) {
    say(mcpdo, &["roots/set", "--roots-json", ROOTS]).await;
    let asked = ask(mcpdo, &format!("{ROUND}capabilities")).await;
    let result = asked.answer(mcpdo, r#"{"name":"Alice"}"#).await;
    let text = "name: Alice; roots: file:///srv/one, file:///srv/two";
    assert_eq!(final_text(&result), text);
}

#[track_caller]
fn is_icon(icons: &Value) {
    let source = icons[0]["src"].as_str().expect("there is an icon");
    assert!(source.starts_with("data:image/svg+xml;base64,"), "{source}");
}

async fn shown(mcpdo: &Mcpdo) {
    let server = say(mcpdo, &["connections/show"]).await;
    let info = &server["serverInfo"];
    assert_eq!(info["title"], "Refrain's conformance server");
    let description = "Everything that the protocol's conformance suite calls.";
    assert_eq!(info["description"], description);
    is_icon(&info["icons"]);
    assert_eq!(server["instructions"], "Call what the scenario names.");
    let extensions = json!({"com.example/sample": {"verbose": true}});
    assert_eq!(server["capabilities"]["extensions"], extensions);
}

/// The Inspector fetches all pages and puts them together.
async fn pages(mcpdo: &Mcpdo) {
    for (method, part, key, last) in [
        ("tools/list", "tools", "name", "test_annotated_content"),
        ("prompts/list", "prompts", "name", "test_prompt_with_image"),
        ("resources/list", "resources", "uri", "test://static-binary"),
    ] {
        let entries = list(mcpdo, method, part, key).await;
        assert!(entries.len() > PAGE_SIZE);
        assert_eq!(entries.last().expect("there are entries")[key], last);
    }
}

/// What is suggested for an argument of a prompt or a variable of a template.
async fn complete(mcpdo: &Mcpdo, [kind, reference, name, value]: [&str; 4]) -> Value {
    let reference = ["--complete-ref-type", kind, "--complete-ref", reference];
    let argument = ["--complete-arg-name", name, "--complete-arg-value", value];
    let command = [&["prompts/complete"], &reference[..], &argument].concat();
    say(mcpdo, &command).await
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
    is_icon(&tool["icons"]);
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
        assert_eq!(entry["icons"], json!([shown_icon()]), "{title}");
        assert_eq!(entry["_meta"], json!({"com.example/group": group}));
        if part != "prompts" {
            assert_eq!(entry["annotations"], shown_annotations());
        }
    }
}

async fn annotated(mcpdo: &Mcpdo) {
    let content = call(mcpdo, "test_annotated_content").await["content"].take();
    assert_eq!(content[0]["annotations"], shown_annotations());
    assert_eq!(content[1]["annotations"], shown_annotations());
    let meta = json!({"com.example/group": "links"});
    assert_eq!(content[1]["_meta"], meta);
}

/// The Inspector shows those of a resource only.
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
    let mut news = mcpdo.follow(&["resources/subscribe", uri]);
    let subscribed = json!({"type": "subscribed", "uri": uri});
    assert_eq!(news.next().await, subscribed);
    // Of another resource nothing is told.
    for updated in ["test://static-binary", uri] {
        let updated = json!({"uri": updated});
        call_with(mcpdo, "test_trigger_resource_update", &updated).await;
    }
    let updated = json!({"type": "resources/updated", "uri": uri});
    assert_eq!(news.next().await, updated);
}
