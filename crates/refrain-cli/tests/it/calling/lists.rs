//! Lists, prompts and resources.

use super::{assert_says, json};
use crate::support::{FakeServer, Respond, Serve, run, serve_forever};
use refrain::prelude::*;
use refrain::server::{Prompt, Resource, ResourceTemplate};
use serde_json::{Value, json};

#[derive(Deserialize, Elicit)]
struct Name {
    /// What to call you
    name: String,
}

#[derive(Deserialize, JsonSchema)]
struct Greet {
    /// How to greet
    tone: String,
}

async fn greet(cx: Cx, args: Greet) -> Result<String> {
    let Name { name } = cx.elicit("name", "Who is it?").await?;
    Ok(format!("Greet {name}, {}.", args.tone))
}

async fn notes(cx: Cx) -> Result<String> {
    let Name { name } = cx.elicit("name", "Whose notes?").await?;
    Ok(format!("Notes of {name}"))
}

async fn talk(cx: Cx) -> Result<String> {
    cx.log(LogLevel::Info, "all is well");
    cx.log(LogLevel::Warning, json!({"disk": "full"}));
    Ok("done".to_owned())
}

async fn hostile(_: Cx) -> Result<String> {
    Ok("before\u{1b}[2Jafter".to_owned())
}

/// Starts a server with tools, prompts and resources.
pub(super) async fn start_server_with_lists() -> String {
    let builder = Server::builder("offered", "2")
        .tool(Tool::new("talk", talk))
        .tool(Tool::new("hostile", hostile).describe("Clears\u{1b}[2J the screen."))
        .prompt(Prompt::new("greet", greet).describe("Greets somebody."))
        .resource(Resource::new("notes://mine", "notes", notes).describe("What I wrote."))
        .resource_template(ResourceTemplate::new("notes://{of}", "all", notes));
    serve_forever(builder).await
}

#[tokio::test]
async fn tools_are_listed_with_their_arguments() {
    let instance = Serve::new().start().await;
    let output = run(["tools", &instance.url()]).await;
    assert_eq!((output.code, &*output.err), (0, ""), "{output:?}");
    let weather = "get_weather\n    Returns the weather, after asking for a GitHub username.\n    \
                   location  string  required  The city.\n";
    assert!(output.out.contains(weather), "{}", output.out);
    assert!(
        !output.out.contains('\u{1b}'),
        "colours where there is no terminal"
    );
    let output = run(["tools", &instance.url(), "--json"]).await;
    let tools = json(&output);
    let tools = tools.as_array().expect("a list");
    let weather = tools.iter().find(|tool| tool["name"] == "get_weather");
    let weather = weather.expect("it is listed");
    assert_eq!(weather["inputSchema"]["required"], json!(["location"]));

    let url = start_server_with_lists().await;
    let output = run(["tools", &url]).await;
    assert!(output.out.contains("Clears␛[2J the screen."), "{output:?}");
}

/// A server whose lists have unknown members and an unusual order.
async fn decorated() -> (FakeServer, Value) {
    let icon = json!({"x-icon": 1, "src": "https://example.com/i.png", "sizes": "any"});
    let lists = json!({
        "tools": [{
            "x-cost": {"b": 1, "a": 2.50}, "annotations": {"readOnlyHint": true, "x-hint": "y"}, "name": "look",
            "inputSchema": {"type": "object"}, "icons": [{"x-icon": 1, "src": "https://example.com/i.png"}],
        }, {"name": "odd", "inputSchema": {"type": "object"}, "icons": [icon]}],
        "prompts": [{"x-new": null, "name": "greet", "arguments": []}],
        "resources": [{"name": "a", "uri": "file:///a", "annotations": {"audience": ["user"], "priority": 0.5, "x": 1}}],
        "resourceTemplates": [{"uriTemplate": "file:///{b}", "name": "b", "x-new": [1]}],
    });
    let sent = lists.clone();
    let server = FakeServer::start(move |request| {
        let member = match request.method() {
            "tools/list" => "tools",
            "prompts/list" => "prompts",
            "resources/list" => "resources",
            _ => "resourceTemplates",
        };
        let mut result = json!({"resultType": "complete"});
        result[member] = sent[member].clone();
        Respond::Result(result)
    })
    .await;
    (server, lists)
}

#[tokio::test]
async fn lists_are_printed_as_sent() {
    let (server, lists) = decorated().await;
    for list in ["tools", "prompts"] {
        let output = run([list, &server.url(), "--json"]).await;
        assert_eq!(output.out, format!("{}\n", lists[list]), "{output:?}");
    }
    let output = run(["resources", &server.url(), "--json"]).await;
    let all =
        json!({"resources": lists["resources"], "resourceTemplates": lists["resourceTemplates"]});
    assert_eq!(output.out, format!("{all}\n"), "{output:?}");
    let output = run(["tools", &server.url()]).await;
    assert_eq!(
        output.out, "look\n    read-only, 1 icon\n\nodd\n",
        "{output:?}"
    );
    let output = run(["resources", &server.url()]).await;
    assert!(
        output.out.contains("    for the user, priority 0.5\n"),
        "{output:?}"
    );
}

#[tokio::test]
async fn server_info_is_printed_as_sent() {
    let info = json!({"x-team": "a", "version": "1", "name": "fake", "icons": [{"src": "https://example.com/i.png", "x": 1}]});
    let result = json!({
        "supportedVersions": ["2026-07-28"], "capabilities": {"z": {}, "tools": {"x": 1}}, "x-new": true,
        "_meta": {"io.modelcontextprotocol/serverInfo": info}, "resultType": "complete",
    });
    let sent = result.clone();
    let server = FakeServer::start_raw(move |_| Respond::Result(sent.clone())).await;
    let output = run(["discover", &server.url(), "--json"]).await;
    let printed = json(&output);
    assert_eq!(printed["serverInfo"].to_string(), info.to_string());
    assert_eq!(printed["result"].to_string(), result.to_string());
    let output = run(["discover", &server.url()]).await;
    assert!(output.out.contains("icons         1 icon\n"), "{output:?}");
}

#[tokio::test]
async fn discover_prints_all_reported_revisions() {
    let sent = json!({"supportedVersions": ["2026-07-28", "2025-11-25", "2025-06-18"], "capabilities": {}, "resultType": "complete"});
    let server = FakeServer::start_raw(move |_| Respond::Result(sent.clone())).await;
    let output = run(["discover", &server.url()]).await;
    let line = "supports      2026-07-28, 2025-11-25, 2025-06-18\n";
    assert!(output.out.contains(line), "{output:?}");
    // A server that supports legacy revisions, but does not report them.
    let instance = Serve::new().start().await;
    let output = run(["discover", &instance.url()]).await;
    let line = "supports      2026-07-28 (legacy revisions are usually not reported; --dialect 2025-11-25 tests one)\n";
    assert!(output.out.contains(line), "{output:?}");
    let tested = run(["discover", &instance.url(), "--dialect", "2025-11-25"]).await;
    assert!(
        tested.out.contains("revision      2025-11-25\n"),
        "{tested:?}"
    );
}

#[tokio::test]
async fn server_without_prompts_lists_none() {
    let instance = Serve::new().start().await;
    for what in ["prompts", "resources"] {
        let output = run([what, &instance.url()]).await;
        let none = format!("the server has no {what}\n");
        assert_eq!((output.code, &*output.out, &*output.err), (0, "", &*none));
    }
    let output = run(["prompts", &instance.url(), "--json"]).await;
    assert_eq!(json(&output), json!([]));
}

#[tokio::test]
async fn prompts_are_listed_and_returned() {
    let url = start_server_with_lists().await;
    let output = run(["prompts", &url]).await;
    let list = "greet\n    Greets somebody.\n    tone  required  How to greet\n";
    assert_eq!(output.out, list, "{output:?}");
    let output = run(["prompts", &url, "--json"]).await;
    assert_eq!(json(&output)[0]["arguments"][0]["name"], "tone");

    let prompt = ["prompt", &url, "greet", "tone=warmly"];
    let output = run(prompt).await;
    assert_says(
        &output,
        3,
        &[
            r#"prompt greet of server "offered""#,
            "name  form",
            "Who is it?",
        ],
    );
    let answer = ["--answer", r#"name={"name": "Ada"}"#];
    let output = run([&prompt[..], &answer].concat()).await;
    assert_eq!(output.out, "user:\nGreet Ada, warmly.\n", "{output:?}");
    let output = run([&prompt[..], &answer, &["--json"]].concat()).await;
    assert_eq!(json(&output)["messages"][0]["role"], "user");
}

#[tokio::test]
async fn resources_are_listed_with_templates_and_read() {
    let url = start_server_with_lists().await;
    let output = run(["resources", &url]).await;
    for part in [
        "notes://mine  notes\n    What I wrote.",
        "notes://{of}  all",
        "template",
    ] {
        assert!(output.out.contains(part), "{output:?}");
    }
    let output = run(["resources", &url, "--json"]).await;
    assert_eq!(json(&output)["resources"][0]["uri"], "notes://mine");
    assert_eq!(
        json(&output)["resourceTemplates"][0]["uriTemplate"],
        "notes://{of}"
    );

    let output = run(["read", &url, "notes://mine"]).await;
    assert_says(&output, 3, &["Whose notes?"]);
    let answer = ["--answer", r#"name={"name": "Ada"}"#];
    let output = run([&["read", &url, "notes://mine"][..], &answer].concat()).await;
    assert_eq!(output.out, "Notes of Ada\n", "{output:?}");
    let output = run([&["read", &url, "notes://mine", "--json"][..], &answer].concat()).await;
    assert_eq!(json(&output)["contents"][0]["text"], "Notes of Ada");
    let output = run(["read", &url, "other://thing"]).await;
    assert_says(&output, 1, &["unknown resource"]);
    assert!(!output.err.contains("did you mean"), "{output:?}");
    // The command compares the name with the server's list.
    let output = run(["read", &url, "notes:/mine"]).await;
    assert_says(&output, 1, &["hint: did you mean \"notes://mine\"?"]);
}

#[tokio::test]
async fn discover_prints_the_server_info() {
    let url = start_server_with_lists().await;
    let output = run(["discover", &url]).await;
    assert_eq!(output.code, 0, "{output:?}");
    for part in ["offered 2", &url, "2026-07-28", "\"prompts\""] {
        assert!(output.out.contains(part), "{output:?}");
    }
    let output = run(["discover", &url, "--json"]).await;
    assert_eq!(json(&output)["serverInfo"]["name"], "offered");
    assert_eq!(json(&output)["version"], "2026-07-28");
}
