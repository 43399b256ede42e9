//! Lists: in pages, with caching hints, with what is shown of each thing, and changing while the server runs.

use crate::support::{CAPABILITIES, Instance, Request, echo, names, result, start, text, token};
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

/// Tells the settings of an extension that the client speaks.
async fn extension(cx: Cx) -> Result<String> {
    let settings = cx.extension("com.example/thing");
    Ok(settings.map_or("not spoken".into(), |settings| settings.to_string()))
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
    let items = page[member].as_array().expect("a list");
    items
        .iter()
        .map(|item| item[key].as_str().expect("a name").to_owned())
        .collect()
}

#[tokio::test]
async fn every_list_comes_in_pages_in_the_order_of_registration() {
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
async fn a_cursor_stays_good_while_the_list_changes() {
    let mut builder = Server::builder("pages", "1").limits(paged(2));
    for name in ["a", "b", "c", "d"] {
        builder = builder.tool(Tool::new(name, word));
    }
    let instance = start(builder).await;
    let first = page(&instance, "tools/list", None).await;
    let cursor = first["nextCursor"].as_str().expect("a cursor");
    // The last thing that was listed goes away, and another comes.
    let changes = Changes::new()
        .remove_tool("b")
        .tool(Tool::new("late", word));
    instance.server.change(changes).expect("a change");
    let second = page(&instance, "tools/list", Some(cursor)).await;
    assert_eq!(listed(&second, "tools", "name"), ["c", "d"]);
    let cursor = second["nextCursor"].as_str().expect("a cursor");
    let third = page(&instance, "tools/list", Some(cursor)).await;
    assert_eq!(listed(&third, "tools", "name"), ["late"]);
    assert_eq!(third.get("nextCursor"), None);
}

#[tokio::test]
async fn a_cursor_that_no_list_gave_out_is_refused() {
    let mut builder = Server::builder("pages", "1").limits(paged(1));
    for name in ["a", "b"] {
        builder = builder
            .tool(Tool::new(name, word))
            .prompt(Prompt::new(name, word));
    }
    let instance = start(builder).await;
    let tools = page(&instance, "tools/list", None).await;
    let of_tools = tools["nextCursor"].as_str().expect("a cursor");
    for bad in ["", "x", "MC4", "MC4wMQ", &format!("{of_tools}="), "\u{e9}"] {
        let request = Request::rpc("tools/list", json!({"cursor": bad}));
        let message = instance.send(&request).await.error(400, -32602);
        names(&message, &["cursor"]);
    }
    // The cursor of one list is none of another.
    let request = Request::rpc("prompts/list", json!({"cursor": of_tools}));
    instance.send(&request).await.error(400, -32602);
    let past = page(&instance, "tools/list", Some(of_tools)).await;
    assert_eq!(listed(&past, "tools", "name"), ["b"]);
}

#[tokio::test]
async fn each_list_and_resource_has_caching_hints_of_its_own() {
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
async fn what_is_shown_of_things_is_listed() {
    let icon = || Icon {
        mime_type: Some("image/png".into()),
        sizes: vec!["48x48".into()],
        theme: Some(Theme::Dark),
        ..Icon::new("https://example.com/icon.png")
    };
    let shown = json!([{
        "src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark",
    }]);
    let hints = Annotations {
        audience: vec![Role::User],
        priority: Some(0.5),
        last_modified: Some("2026-01-01T00:00:00Z".into()),
    };
    let builder = Server::builder("shown", "1")
        .title("Shown")
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
    assert_eq!(tool["icons"], shown);
    assert_eq!(tool["_meta"], json!({"com.example/group": 1}));
    assert_eq!(tool["annotations"], json!({"destructiveHint": false}));
    let prompts = page(&instance, "prompts/list", None).await;
    assert_eq!(prompts["prompts"][0]["icons"], shown);
    assert_eq!(prompts["prompts"][0]["_meta"], json!({"a": "b"}));
    let annotated = json!({
        "audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z",
    });
    let resources = page(&instance, "resources/list", None).await;
    let resource = &resources["resources"][0];
    assert_eq!((&resource["icons"], &resource["size"]), (&shown, &json!(4)));
    assert_eq!(resource["annotations"], annotated);
    assert_eq!(resource["_meta"], json!({"a": "b"}));
    let templates = page(&instance, "resources/templates/list", None).await;
    let template = &templates["resourceTemplates"][0];
    assert_eq!(template["icons"], shown);
    assert_eq!(template["annotations"], annotated);

    let discovered = page(&instance, "server/discover", None).await;
    let info = &discovered["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(info["icons"], shown);
    assert_eq!(info["websiteUrl"], "https://example.com");
    assert_eq!(info["description"], "A server.");
    let extensions = &discovered["capabilities"]["extensions"];
    let declared = json!({"com.example/thing": {}, "refrain/callId": {}});
    assert_eq!(extensions, &declared);
}

#[tokio::test]
async fn what_is_added_can_be_called_and_what_is_removed_cannot() {
    let builder = Server::builder("changing", "1")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("grow", grow));
    let instance = start(builder).await;
    let grown = Request::tool("grown", json!({}));
    let message = instance.send(&grown).await.error(200, -32602);
    names(&message, &["grown"]);
    let reply = instance.send(&Request::tool("grow", json!({}))).await;
    assert_eq!(text(&reply.reply()), "grown");
    assert_eq!(text(&instance.send(&grown).await.reply()), "word");
    let tools = page(&instance, "tools/list", None).await;
    assert_eq!(listed(&tools, "tools", "name"), ["echo", "grow", "grown"]);

    let changes = Changes::new()
        .prompt(Prompt::new("p", word))
        .resource(Resource::new("x://r", "r", word))
        .resource_template(ResourceTemplate::new("x://t/{id}", "t", word));
    instance.server.change(changes).expect("a change");
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
        .remove_tool("never there");
    instance.server.change(changes).expect("a change");
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
async fn a_change_is_made_whole_or_not_at_all() {
    let instance = start(Server::builder("whole", "1").tool(Tool::new("a", word))).await;
    let changes = Changes::new()
        .remove_tool("a")
        .tool(Tool::new("b", word))
        .tool(Tool::new("b", word));
    let refused = instance.server.change(changes).expect_err("b twice");
    assert!(matches!(refused, BuildError::Duplicate { .. }), "{refused}");
    let tools = page(&instance, "tools/list", None).await;
    assert_eq!(listed(&tools, "tools", "name"), ["a"]);
    // Removing and adding under one name replaces.
    let changes = Changes::new()
        .tool(Tool::new("a", echo).describe("Another."))
        .remove_tool("a");
    instance.server.change(changes).expect("a change");
    let tools = page(&instance, "tools/list", None).await;
    assert_eq!(tools["tools"][0]["description"], "Another.");
    // What a change adds must fit like anything else.
    async fn needy(_: Cx, _: State<u8>) -> Result<&'static str> {
        Ok("never")
    }
    let refused = instance
        .server
        .change(Changes::new().tool(Tool::new("n", needy)));
    assert!(matches!(refused, Err(BuildError::MissingState { .. })));
}

#[tokio::test]
async fn a_flow_goes_on_when_other_things_change_and_ends_when_its_tool_is_gone() {
    let builder = Server::builder("flows", "1").tool(Tool::new("greet", crate::support::greet));
    let instance = start(builder).await;
    let call = Request::tool("greet", json!({}));
    let token = token(&instance.send(&call).await.reply());
    let answer = json!({"login": {"action": "accept", "content": {"name": "Ada"}}});
    let again = call.again(&token, answer);
    let changes = Changes::new().tool(Tool::new("other", word));
    instance.server.change(changes).expect("a change");
    assert_eq!(text(&instance.send(&again).await.reply()), "Hello, Ada!");
    let changes = Changes::new().remove_tool("greet");
    instance.server.change(changes).expect("a change");
    instance.send(&again).await.error(200, -32602);
}

#[test]
fn a_cache_time_is_one_that_every_reader_can_hold() {
    assert_eq!(Cache::public(Duration::MAX).ttl_ms, 1 << 53);
    assert_eq!(Cache::default().cache_scope, CacheScope::Private);
}

#[tokio::test]
async fn a_handler_sees_the_extensions_that_the_client_speaks() {
    let builder = Server::builder("extended", "1").tool(Tool::new("extension", extension));
    let instance = start(builder).await;
    let call = Request::tool("extension", json!({}));
    assert_eq!(text(&instance.send(&call).await.reply()), "not spoken");
    let declared = |extensions: Value| {
        let call = call.clone();
        call.meta(CAPABILITIES, json!({"extensions": extensions}))
    };
    let spoken = declared(json!({"com.example/thing": {"level": 2}, "com.example/other": {}}));
    assert_eq!(
        text(&instance.send(&spoken).await.reply()),
        r#"{"level":2}"#
    );
    let message = instance.send(&declared(json!([]))).await.error(400, -32602);
    names(&message, &["clientCapabilities.extensions"]);
}

#[tokio::test]
async fn a_cursor_of_one_instance_is_good_on_another() {
    let names = ["b", "c", "d", "e", "f", "a"];
    let with = |names: &[&str]| {
        let builder = Server::builder("pages", "1").limits(paged(2));
        names.iter().fold(builder, |builder, name| {
            builder.tool(Tool::new(*name, word))
        })
    };
    // The same list, come about differently: the things of the two have different numbers.
    let one = start(with(&["a", "b", "c", "d", "e", "f"])).await;
    let again = Changes::new().remove_tool("a").tool(Tool::new("a", word));
    one.server.change(again).expect("a change");
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
async fn a_resource_is_the_same_however_its_uri_is_encoded() {
    async fn secret(_: Cx) -> Result<&'static str> {
        Ok("secret")
    }
    let builder = Server::builder("encoded", "1")
        .resource(Resource::new("notes://secret", "secret", secret).scopes(["admin"]))
        .resource_template(ResourceTemplate::new("notes://{id}", "notes", word));
    let server = builder.build().expect("a usable server");
    let read = async |uri: &str, scopes: &str| {
        let caller = Caller {
            principal: Principal::new("alice"),
            scopes: Scopes::parse(scopes),
            expires: None,
        };
        let mut out = server.handle(&Request::read(uri).message(), caller).await;
        let reply = out.next().await.expect("a reply");
        serde_json::from_slice::<Value>(&reply).expect("JSON")
    };
    for uri in ["notes://secret", "notes://secre%74", "notes://%73ecre%74"] {
        let refused = read(uri, "").await;
        assert_eq!(refused["error"]["code"], -32600, "{refused}");
        let reply = read(uri, "admin").await;
        assert_eq!(result(&reply)["contents"][0]["text"], "secret");
    }
    let reply = read("notes://other", "").await;
    assert_eq!(result(&reply)["contents"][0]["text"], "word");
    // There is one of it, and it can be removed.
    let twice = Changes::new().resource(Resource::new("notes://s%65cret", "again", word));
    assert!(matches!(
        server.change(twice),
        Err(BuildError::Duplicate { .. })
    ));
    let gone = Changes::new().remove_resource("notes://secr%65t");
    server.change(gone).expect("a change");
    let reply = read("notes://secret", "").await;
    assert_eq!(result(&reply)["contents"][0]["text"], "word");
}

#[test]
fn a_handler_may_change_the_server_when_it_is_dropped() {
    struct Last(Server, &'static str);
    impl Drop for Last {
        fn drop(&mut self) {
            let goodbye = Changes::new().tool(Tool::new(self.1, word));
            self.0.change(goodbye).expect("a change");
        }
    }
    let server = Server::builder("drop", "1")
        .build()
        .expect("a usable server");
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
            .expect("a change");
        // Dropped because it is removed, and because it is refused.
        changing
            .change(Changes::new().remove_tool("a"))
            .expect("a change");
        let [one, other] = twice;
        let refused = changing.change(Changes::new().tool(one).tool(other));
        done.send(refused.is_err()).expect("somebody waits");
    });
    let refused = finished.recv_timeout(Duration::from_secs(20));
    assert_eq!(refused, Ok(true), "it is stuck");
    assert!(format!("{server:?}").contains("tools: 3"), "{server:?}");
}
