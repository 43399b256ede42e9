//! Lists: pages, cache hints, displayed fields, and changes at run time.

use crate::support::{
    CAPABILITIES_KEY, Instance, Request, assert_contains, echo, handle, login, result, start, text,
    token,
};
use refrain_core::{Cx, Principal, Result};
use refrain_server::{
    BuildError, Caller, Changes, Listing, Prompt, Resource, ResourceTemplate, Scopes, Server,
    ServerLimits, State, Tool,
};
use refrain_wire::{Annotations, Cache, CacheScope, Icon, Role, Theme, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

async fn word(_: Cx) -> Result<&'static str> {
    Ok("word")
}

/// Returns the settings of an extension that the client declared.
async fn extension(cx: Cx) -> Result<String> {
    let settings = cx.extension("com.example/thing");
    Ok(settings.map_or("not declared".into(), |settings| settings.to_string()))
}

/// Adds a tool to the server it runs on.
async fn grow(_: Cx, server: State<Server>) -> Result<&'static str> {
    server.change(Changes::new().tool(Tool::new("grown", word)))?;
    Ok("grown")
}

fn paged(size: usize) -> ServerLimits {
    ServerLimits {
        page_size: size,
        ..ServerLimits::default()
    }
}

async fn page(instance: &Instance, method: &str, cursor: Option<&str>) -> Value {
    let params = cursor.map_or(json!({}), |cursor| json!({"cursor": cursor}));
    let reply = instance.send(&Request::rpc(method, params)).await.reply();
    result(&reply).clone()
}

fn listed(page: &Value, member: &str, key: &str) -> Vec<String> {
    let items = page[member].as_array().expect("the member is a list");
    items
        .iter()
        .map(|item| item[key].as_str().expect("the key is a string").to_owned())
        .collect()
}

#[tokio::test]
async fn every_list_has_pages_in_registration_order() {
    let mut builder = Server::builder("pages", "1").limits(paged(2));
    for name in ["e", "b", "d", "a", "c"] {
        let uri = format!("x://{name}");
        let form = format!("x://{name}/{{id}}");
        builder = builder
            .tool(Tool::new(name, word))
            .prompt(Prompt::new(name, word))
            .resource(Resource::new(uri, name, word))
            .resource_template(ResourceTemplate::new(form, name, word));
    }
    let instance = start(builder).await;
    for (method, member) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        let mut seen = Vec::new();
        let mut cursor = None;
        for count in [2, 2, 1] {
            let page = page(&instance, method, cursor.as_deref()).await;
            let found = listed(&page, member, "name");
            assert_eq!(found.len(), count, "{method}");
            seen.extend(found);
            cursor = page["nextCursor"].as_str().map(str::to_owned);
        }
        assert_eq!(cursor, None, "{method}");
        assert_eq!(seen, ["e", "b", "d", "a", "c"], "{method}");
    }
}

#[tokio::test]
async fn cursor_stays_valid_while_the_list_changes() {
    let mut builder = Server::builder("pages", "1").limits(paged(2));
    for name in ["a", "b", "c", "d"] {
        builder = builder.tool(Tool::new(name, word));
    }
    let instance = start(builder).await;
    let first = page(&instance, "tools/list", None).await;
    let cursor = first["nextCursor"].as_str().expect("there is a next page");
    // The last listed entry is removed and another is added.
    let changes = Changes::new()
        .remove_tool("b")
        .tool(Tool::new("late", word));
    instance.server.change(changes).expect("valid change");
    let second = page(&instance, "tools/list", Some(cursor)).await;
    assert_eq!(listed(&second, "tools", "name"), ["c", "d"]);
    let cursor = second["nextCursor"].as_str().expect("there is a next page");
    let third = page(&instance, "tools/list", Some(cursor)).await;
    assert_eq!(listed(&third, "tools", "name"), ["late"]);
    assert_eq!(third.get("nextCursor"), None);
}

#[tokio::test]
async fn malformed_cursor_or_cursor_of_another_list_is_rejected() {
    let mut builder = Server::builder("pages", "1").limits(paged(1));
    for name in ["a", "b"] {
        builder = builder
            .tool(Tool::new(name, word))
            .prompt(Prompt::new(name, word));
    }
    let instance = start(builder).await;
    let tools = page(&instance, "tools/list", None).await;
    let of_tools = tools["nextCursor"].as_str().expect("there is a next page");
    for bad in ["", "x", "MC4", "MC4wMQ", &format!("{of_tools}="), "\u{e9}"] {
        let request = Request::rpc("tools/list", json!({"cursor": bad}));
        let message = instance.send(&request).await.error(400, -32602);
        assert_contains(&message, &["cursor"]);
    }
    // The cursor of one list is invalid for another.
    let request = Request::rpc("prompts/list", json!({"cursor": of_tools}));
    instance.send(&request).await.error(400, -32602);
    let past = page(&instance, "tools/list", Some(of_tools)).await;
    assert_eq!(listed(&past, "tools", "name"), ["b"]);
}

#[tokio::test]
async fn each_list_and_resource_has_its_own_cache_hints() {
    let minute = Duration::from_secs(60);
    let builder = Server::builder("cache", "1")
        .limits(paged(1))
        .cache_discover(Cache::public(minute))
        .cache(Listing::Tools, Cache::public(minute * 2))
        .cache(Listing::Resources, Cache::private(minute * 3))
        .tool(Tool::new("a", word))
        .tool(Tool::new("b", word))
        .resource(Resource::new("x://r", "r", word).cache(Cache::public(minute * 4)))
        .resource(Resource::new("x://plain", "plain", word))
        .resource_template(
            ResourceTemplate::new("x://t/{id}", "t", word).cache(Cache::private(minute * 5)),
        );
    let instance = start(builder).await;
    let hints = async |request: Request| {
        let reply = instance.send(&request).await.reply();
        let result = result(&reply);
        (result["ttlMs"].clone(), result["cacheScope"].clone())
    };
    let list = |method: &str| Request::rpc(method, json!({}));
    for (request, ttl, scope) in [
        (list("server/discover"), 60_000, "public"),
        (list("tools/list"), 120_000, "public"),
        (list("prompts/list"), 0, "private"),
        (list("resources/list"), 180_000, "private"),
        (list("resources/templates/list"), 0, "private"),
        (Request::read("x://r"), 240_000, "public"),
        (Request::read("x://plain"), 0, "private"),
        (Request::read("x://t/1"), 300_000, "private"),
    ] {
        assert_eq!(hints(request).await, (json!(ttl), json!(scope)));
    }
    // All pages of a list have the same scope.
    let first = page(&instance, "tools/list", None).await;
    let second = page(&instance, "tools/list", first["nextCursor"].as_str()).await;
    assert_eq!(second["cacheScope"], "public");
    assert_eq!(second["ttlMs"], 120_000);
}

#[tokio::test]
async fn titles_icons_and_metadata_are_listed() {
    let icon = || Icon {
        mime_type: Some("image/png".into()),
        sizes: vec!["48x48".into()],
        theme: Some(Theme::Dark),
        ..Icon::new("https://example.com/icon.png")
    };
    let icons = json!([{
        "src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark",
    }]);
    let hints = Annotations {
        audience: vec![Role::User],
        priority: Some(0.5),
        last_modified: Some("2026-01-01T00:00:00Z".into()),
    };
    let builder = Server::builder("displayed", "1")
        .title("Displayed")
        .describe("A server.")
        .website("https://example.com")
        .icon(icon())
        .extension("com.example/thing", serde_json::Map::new())
        .tool(
            Tool::new("t", word)
                .title("T")
                .describe("A tool.")
                .icon(icon())
                .meta("com.example/group", 1)
                .annotations(ToolAnnotations {
                    destructive_hint: Some(false),
                    ..ToolAnnotations::default()
                }),
        )
        .prompt(
            Prompt::new("p", word)
                .title("P")
                .icon(icon())
                .meta("a", "b"),
        )
        .resource(
            Resource::new("x://r", "r", word)
                .title("R")
                .size(4)
                .icon(icon())
                .annotations(hints.clone())
                .meta("a", "b"),
        )
        .resource_template(
            ResourceTemplate::new("x://{id}/t", "t", word)
                .icon(icon())
                .annotations(hints)
                .meta("a", "b"),
        );
    let instance = start(builder).await;
    let tools = page(&instance, "tools/list", None).await;
    let tool = &tools["tools"][0];
    assert_eq!(tool["title"], "T");
    assert_eq!(tool["description"], "A tool.");
    assert_eq!(tool["icons"], icons);
    assert_eq!(tool["_meta"], json!({"com.example/group": 1}));
    assert_eq!(tool["annotations"], json!({"destructiveHint": false}));
    let prompts = page(&instance, "prompts/list", None).await;
    assert_eq!(prompts["prompts"][0]["icons"], icons);
    assert_eq!(prompts["prompts"][0]["_meta"], json!({"a": "b"}));
    let annotated = json!({
        "audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z",
    });
    let resources = page(&instance, "resources/list", None).await;
    let resource = &resources["resources"][0];
    assert_eq!((&resource["icons"], &resource["size"]), (&icons, &json!(4)));
    assert_eq!(resource["annotations"], annotated);
    assert_eq!(resource["_meta"], json!({"a": "b"}));
    let templates = page(&instance, "resources/templates/list", None).await;
    let template = &templates["resourceTemplates"][0];
    assert_eq!(template["icons"], icons);
    assert_eq!(template["annotations"], annotated);

    let discovered = page(&instance, "server/discover", None).await;
    let info = &discovered["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(info["icons"], icons);
    assert_eq!(info["websiteUrl"], "https://example.com");
    assert_eq!(info["description"], "A server.");
    let extensions = &discovered["capabilities"]["extensions"];
    let declared = json!({"com.example/thing": {}, "refrain/callId": {}});
    assert_eq!(extensions, &declared);
}

#[tokio::test]
async fn added_entries_can_be_called_and_removed_ones_cannot() {
    let builder = Server::builder("changing", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("grow", grow));
    let instance = start(builder).await;
    let grown = Request::tool("grown", json!({}));
    let message = instance.send(&grown).await.error(200, -32602);
    assert_contains(&message, &["grown"]);
    let reply = instance.send(&Request::tool("grow", json!({}))).await;
    assert_eq!(text(&reply.reply()), "grown");
    assert_eq!(text(&instance.send(&grown).await.reply()), "word");
    let tools = page(&instance, "tools/list", None).await;
    assert_eq!(listed(&tools, "tools", "name"), ["echo", "grow", "grown"]);

    let changes = Changes::new()
        .prompt(Prompt::new("p", word))
        .resource(Resource::new("x://r", "r", word))
        .resource_template(ResourceTemplate::new("x://t/{id}", "t", word));
    instance.server.change(changes).expect("valid change");
    let prompt = Request::prompt("p", json!({}));
    assert!(result(&instance.send(&prompt).await.reply())["messages"].is_array());
    for uri in ["x://r", "x://t/1"] {
        let read = instance.send(&Request::read(uri)).await.reply();
        assert_eq!(result(&read)["contents"][0]["text"], "word");
    }
    let changes = Changes::new()
        .remove_tool("grown")
        .remove_prompt("p")
        .remove_resource("x://r")
        .remove_resource_template("x://t/{id}")
        .remove_tool("unknown");
    instance.server.change(changes).expect("valid change");
    for gone in [
        grown,
        prompt,
        Request::read("x://r"),
        Request::read("x://t/1"),
    ] {
        instance.send(&gone).await.error(200, -32602);
    }
    let discovered = page(&instance, "server/discover", None).await;
    assert_eq!(discovered["capabilities"].get("prompts"), None);
}

#[tokio::test]
async fn change_is_atomic() {
    let instance = start(Server::builder("whole", "1").tool(Tool::new("a", word))).await;
    let changes = Changes::new()
        .remove_tool("a")
        .tool(Tool::new("b", word))
        .tool(Tool::new("b", word));
    let rejected = instance
        .server
        .change(changes)
        .expect_err("b is a duplicate");
    assert!(
        matches!(rejected, BuildError::Duplicate { .. }),
        "{rejected}"
    );
    let tools = page(&instance, "tools/list", None).await;
    assert_eq!(listed(&tools, "tools", "name"), ["a"]);
    // Removing and adding the same name replaces the entry.
    let changes = Changes::new()
        .tool(Tool::new("a", echo).describe("Another."))
        .remove_tool("a");
    instance.server.change(changes).expect("valid change");
    let tools = page(&instance, "tools/list", None).await;
    assert_eq!(tools["tools"][0]["description"], "Another.");
    // Added entries are checked like those of the builder.
    async fn stateful(_: Cx, _: State<u8>) -> Result<&'static str> {
        Ok("never")
    }
    let rejected = instance
        .server
        .change(Changes::new().tool(Tool::new("n", stateful)));
    assert!(matches!(rejected, Err(BuildError::MissingState { .. })));
}

#[tokio::test]
async fn flow_survives_other_changes_but_not_removal_of_its_tool() {
    let builder = Server::builder("flows", "1").tool(Tool::new("greet", crate::support::greet));
    let instance = start(builder).await;
    let call = Request::tool("greet", json!({}));
    let token = token(&instance.send(&call).await.reply());
    let again = call.again(&token, login("Ada"));
    let changes = Changes::new().tool(Tool::new("other", word));
    instance.server.change(changes).expect("valid change");
    assert_eq!(text(&instance.send(&again).await.reply()), "Hello, Ada!");
    let changes = Changes::new().remove_tool("greet");
    instance.server.change(changes).expect("valid change");
    instance.send(&again).await.error(200, -32602);
}

#[test]
fn cache_time_is_limited_to_exact_json_numbers() {
    assert_eq!(Cache::public(Duration::MAX).ttl_ms, 1 << 53);
    assert_eq!(Cache::default().cache_scope, CacheScope::Private);
}

#[tokio::test]
async fn handler_sees_the_client_extensions() {
    let builder = Server::builder("extended", "1").tool(Tool::new("extension", extension));
    let instance = start(builder).await;
    let call = Request::tool("extension", json!({}));
    assert_eq!(text(&instance.send(&call).await.reply()), "not declared");
    let declared = |extensions: Value| {
        let call = call.clone();
        call.meta(CAPABILITIES_KEY, json!({"extensions": extensions}))
    };
    let with_settings =
        declared(json!({"com.example/thing": {"level": 2}, "com.example/other": {}}));
    assert_eq!(
        text(&instance.send(&with_settings).await.reply()),
        r#"{"level":2}"#
    );
    let message = instance.send(&declared(json!([]))).await.error(400, -32602);
    assert_contains(&message, &["clientCapabilities.extensions"]);
}

#[tokio::test]
async fn cursor_is_valid_on_another_instance() {
    let names = ["b", "c", "d", "e", "f", "a"];
    let with = |names: &[&str]| {
        let builder = Server::builder("pages", "1").limits(paged(2));
        names.iter().fold(builder, |builder, name| {
            builder.tool(Tool::new(*name, word))
        })
    };
    // Both instances have the same list, but number its entries differently.
    let one = start(with(&["a", "b", "c", "d", "e", "f"])).await;
    let again = Changes::new().remove_tool("a").tool(Tool::new("a", word));
    one.server.change(again).expect("valid change");
    let two = start(with(&names)).await;
    let mut seen = Vec::new();
    let mut cursor = None;
    for instance in [&one, &two, &one] {
        let page = page(instance, "tools/list", cursor.as_deref()).await;
        seen.extend(listed(&page, "tools", "name"));
        cursor = page["nextCursor"].as_str().map(str::to_owned);
    }
    assert_eq!(seen, names);
    assert_eq!(cursor, None);
}

#[tokio::test]
async fn resource_is_found_by_any_encoding_of_its_uri() {
    async fn secret(_: Cx) -> Result<&'static str> {
        Ok("secret")
    }
    let builder = Server::builder("encoded", "1")
        .resource(Resource::new("notes://secret", "secret", secret).scopes(["admin"]))
        .resource_template(ResourceTemplate::new("notes://{id}", "notes", word));
    let server = builder.build().expect("the server builds");
    let read = async |uri: &str, scopes: &str| {
        let caller = Caller {
            scopes: Scopes::parse(scopes),
            ..Principal::new("alice").into()
        };
        handle(&server, &Request::read(uri), caller).await
    };
    for uri in ["notes://secret", "notes://secre%74", "notes://%73ecre%74"] {
        let rejected = read(uri, "").await;
        assert_eq!(rejected["error"]["code"], -32600, "{rejected}");
        let reply = read(uri, "admin").await;
        assert_eq!(result(&reply)["contents"][0]["text"], "secret");
    }
    let reply = read("notes://other", "").await;
    assert_eq!(result(&reply)["contents"][0]["text"], "word");
    // Another encoding of the URI is a duplicate, and removes the resource.
    let twice = Changes::new().resource(Resource::new("notes://s%65cret", "again", word));
    assert!(matches!(
        server.change(twice),
        Err(BuildError::Duplicate { .. })
    ));
    let gone = Changes::new().remove_resource("notes://secr%65t");
    server.change(gone).expect("valid change");
    let reply = read("notes://secret", "").await;
    assert_eq!(result(&reply)["contents"][0]["text"], "word");
}

#[test]
fn handler_can_change_the_catalog_when_dropped() {
    struct Last(Server, &'static str);
    impl Drop for Last {
        fn drop(&mut self) {
            let changes = Changes::new().tool(Tool::new(self.1, word));
            self.0.change(changes).expect("valid change");
        }
    }
    let server = Server::builder("drop", "1")
        .build()
        .expect("the server builds");
    let loud = |name: &'static str, last: &'static str| {
        let last = Arc::new(Last(server.clone(), last));
        Tool::new(name, move |_: Cx| {
            let _last = last.clone();
            async { Ok("loud") }
        })
    };
    let (done, finished) = std::sync::mpsc::channel();
    let changing = server.clone();
    let (first, twice) = (
        loud("a", "after a"),
        [loud("b", "after b"), loud("b", "after c")],
    );
    std::thread::spawn(move || {
        changing
            .change(Changes::new().tool(first))
            .expect("valid change");
        // One handler is dropped because it is removed, others because they are rejected.
        changing
            .change(Changes::new().remove_tool("a"))
            .expect("valid change");
        let [one, other] = twice;
        let rejected = changing.change(Changes::new().tool(one).tool(other));
        done.send(rejected.is_err()).expect("the test waits");
    });
    let rejected = finished.recv_timeout(Duration::from_secs(20));
    assert_eq!(rejected, Ok(true), "deadlock");
    assert!(format!("{server:?}").contains("tools: 3"), "{server:?}");
}
