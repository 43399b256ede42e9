//! Subscriptions: filters, order of notifications, limits and the end of a stream.

use crate::support::{
    Connection, Instance, LOG_LEVEL_KEY, Request, StdioClient, assert_contains, legacy,
    next_message, start, text, until, within,
};
use refrain_core::{Cx, Principal, Result};
use refrain_server::{
    Caller, Changes, Prompt, Resource, Scopes, Server, ServerBuilder, ServerLimits,
    SubscribedResources, Tool,
};
use refrain_wire::LogLevel;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

const ID: &str = "io.modelcontextprotocol/subscriptionId";

async fn word(_: Cx) -> Result<&'static str> {
    Ok("word")
}

fn builder() -> ServerBuilder {
    Server::builder("listen", "1")
        .tool(Tool::new("a", word))
        .prompt(Prompt::new("p", word))
        .resource(Resource::new("x://r", "r", word))
}

fn listen(id: Value, filter: Value) -> Request {
    let request = Request::rpc("subscriptions/listen", json!({}));
    request.param("notifications", filter).id(id)
}

/// Opens a subscription. Returns its connection and the acknowledgement.
async fn subscribe(instance: &Instance, request: &Request) -> (Connection, Value) {
    let mut connection = instance.connect().await;
    connection.send(request).await;
    let head = connection.head().await;
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    let first = connection.event().await.expect("an acknowledgement");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    (connection, first["params"].clone())
}

async fn notification(connection: &mut Connection) -> (String, Value) {
    let event = within("a notification", connection.event())
        .await
        .expect("a notification");
    let method = event["method"].as_str().expect("a notification");
    (method.to_owned(), event["params"].clone())
}

/// Stops the instance. Returns the methods of the remaining messages.
async fn stop_and_read(mut instance: Instance, mut connection: Connection) -> Vec<String> {
    instance.stop();
    methods(&mut connection).await
}

/// The methods of all remaining messages.
async fn methods(connection: &mut Connection) -> Vec<String> {
    let mut methods = Vec::new();
    while let Some(event) = within("the end", connection.event()).await {
        let method = event["method"].as_str();
        methods.push(method.unwrap_or("the response").to_owned());
    }
    methods
}

/// The last messages of a subscription without pending changes.
const END: [&str; 2] = ["the response", "notifications/cancelled"];

fn add(name: &str) -> Changes {
    Changes::new().tool(Tool::new(name, word))
}

#[tokio::test]
async fn subscription_is_acknowledged_and_delivers_filtered_changes() {
    let instance = start(builder()).await;
    let filter = json!({
        "toolsListChanged": true, "promptsListChanged": false, "resourceSubscriptions": ["x://r", "x://other", "x://r"],
        "somethingElse": true,
    });
    let (mut connection, acknowledged) = subscribe(&instance, &listen(json!("s1"), filter)).await;
    assert_eq!(
        acknowledged,
        json!({
            "_meta": {ID: "s1"},
            "notifications": {"toolsListChanged": true, "resourceSubscriptions": ["x://other", "x://r"]},
        })
    );
    // A change outside the filter is not sent. The others are sent in order.
    let prompt = Changes::new().prompt(Prompt::new("q", word));
    instance.server.change(prompt).expect("a change");
    instance.server.change(add("b")).expect("a change");
    let (method, params) = notification(&mut connection).await;
    assert_eq!(method, "notifications/tools/list_changed");
    assert_eq!(params, json!({"_meta": {ID: "s1"}}));
    instance.server.resource_updated("x://unheard");
    instance.server.resource_updated("x://r");
    let (method, params) = notification(&mut connection).await;
    assert_eq!(method, "notifications/resources/updated");
    assert_eq!(params, json!({"_meta": {ID: "s1"}, "uri": "x://r"}));
    assert_eq!(instance.server.subscriptions(), 1);
}

#[tokio::test]
async fn each_list_has_its_own_notification() {
    let instance = start(builder()).await;
    let all =
        json!({"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true});
    let (mut connection, _) = subscribe(&instance, &listen(json!(7), all)).await;
    let resource = Changes::new().resource(Resource::new("x://new", "new", word));
    for (change, method) in [
        (add("b"), "notifications/tools/list_changed"),
        (
            Changes::new().remove_prompt("p"),
            "notifications/prompts/list_changed",
        ),
        (resource, "notifications/resources/list_changed"),
    ] {
        instance.server.change(change).expect("a change");
        let (sent, params) = notification(&mut connection).await;
        assert_eq!(sent, method);
        assert_eq!(params["_meta"][ID], 7);
    }
    // Changes without effect and failed changes are not notified.
    let nothing = Changes::new().remove_tool("never there");
    let nothing = nothing.remove_prompt("p").remove_resource("x://never");
    instance.server.change(nothing).expect("no change");
    instance
        .server
        .change(add("b"))
        .expect_err("b already exists");
    assert_eq!(stop_and_read(instance, connection).await, END);
}

#[tokio::test]
async fn concurrent_subscriptions_receive_their_own_changes() {
    let instance = start(builder()).await;
    let (mut tools, _) = subscribe(
        &instance,
        &listen(json!(1), json!({"toolsListChanged": true})),
    )
    .await;
    let (mut prompts, _) = subscribe(
        &instance,
        &listen(json!(2), json!({"promptsListChanged": true})),
    )
    .await;
    instance.server.change(add("b")).expect("a change");
    let prompt = Changes::new().prompt(Prompt::new("q", word));
    instance.server.change(prompt).expect("a change");
    let (method, params) = notification(&mut tools).await;
    assert_eq!(method, "notifications/tools/list_changed");
    assert_eq!(params["_meta"][ID], 1);
    let (method, params) = notification(&mut prompts).await;
    assert_eq!(method, "notifications/prompts/list_changed");
    assert_eq!(params["_meta"][ID], 2);
    // Neither receives the changes of the other.
    assert_eq!(stop_and_read(instance, tools).await, END);
    assert_eq!(methods(&mut prompts).await, END);
}

#[tokio::test]
async fn acknowledgement_precedes_all_notifications() {
    let server = builder().build().expect("a valid server");
    let filter = json!({"toolsListChanged": true, "resourceSubscriptions": ["x://r"]});
    let mut stream = server
        .handle(&listen(json!(1), filter).message(), Principal::anonymous())
        .await;
    // Changes before the first message is read.
    server.change(add("b")).expect("a change");
    server.resource_updated("x://r");
    for method in [
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
        "notifications/resources/updated",
    ] {
        let message = next_message(&mut stream).await;
        assert_eq!(message["method"], method);
        assert_eq!(message["params"]["_meta"][ID], 1);
    }
}

#[tokio::test]
async fn subscription_receives_no_messages_of_calls() {
    let reporting = async |cx: Cx| {
        cx.progress(1.0, None, "");
        cx.log(LogLevel::Error, "of the call");
        Ok("reported")
    };
    let instance = start(builder().tool(Tool::new("reporting", reporting))).await;
    let wants_both = |request: Request| {
        request
            .meta(LOG_LEVEL_KEY, json!("debug"))
            .meta("progressToken", json!("p"))
    };
    let request = wants_both(listen(json!(1), json!({"toolsListChanged": true})));
    let (mut listener, _) = subscribe(&instance, &request).await;
    let call = wants_both(Request::tool("reporting", json!({})));
    let events = instance.send(&call).await.events();
    assert_eq!((events.len(), text(&events[2])), (3, "reported"));
    assert_eq!(events[0]["params"].get("_meta"), None);
    instance.server.change(add("b")).expect("a change");
    let (method, _) = notification(&mut listener).await;
    assert_eq!(method, "notifications/tools/list_changed");
}

#[tokio::test]
async fn slow_client_gets_one_notification_for_many_changes() {
    let server = builder().build().expect("a valid server");
    let request = listen(
        json!(1),
        json!({"toolsListChanged": true, "resourceSubscriptions": ["x://r"]}),
    );
    let mut slow = server
        .handle(&request.message(), Principal::anonymous())
        .await;
    slow.next().await.expect("an acknowledgement");
    for n in 0..1000 {
        server.change(add(&format!("t{n}"))).expect("a change");
        server.resource_updated("x://r");
    }
    server.start_draining();
    let mut methods = Vec::new();
    while let Some(message) = slow.next().await {
        let message: Value = serde_json::from_slice(&message).expect("JSON");
        methods.push(message["method"].as_str().unwrap_or("reply").to_owned());
    }
    assert_eq!(
        methods,
        [
            "notifications/tools/list_changed",
            "notifications/resources/updated",
            "reply",
            "notifications/cancelled"
        ]
    );
}

#[tokio::test]
async fn disconnected_client_ends_its_subscription() {
    let instance = start(builder()).await;
    let request = listen(json!(1), json!({"toolsListChanged": true}));
    let (connection, _) = subscribe(&instance, &request).await;
    assert_eq!(instance.server.subscriptions(), 1);
    drop(connection);
    until("the subscription to end", || {
        instance.server.subscriptions() == 0
    })
    .await;
}

#[tokio::test]
async fn shutdown_ends_subscriptions_with_a_response() {
    let mut instance = start(builder()).await;
    let request = listen(json!("end"), json!({"toolsListChanged": true}));
    let (mut connection, _) = subscribe(&instance, &request).await;
    instance.stop();
    let response = connection.event().await.expect("a response");
    assert_eq!(response["id"], "end");
    assert_eq!(response["result"]["resultType"], "complete");
    assert_eq!(response["result"]["_meta"][ID], "end");
    assert!(response["result"]["_meta"]["io.modelcontextprotocol/serverInfo"].is_object());
    let (method, params) = notification(&mut connection).await;
    assert_eq!(method, "notifications/cancelled");
    assert_eq!(params["requestId"], "end");
    assert_eq!(params["_meta"][ID], "end");
    assert_eq!(connection.event().await, None);
    instance.stopped().await;
}

#[tokio::test]
async fn silent_stream_sends_keep_alive_comments() {
    let limits = ServerLimits {
        keep_alive: Duration::from_millis(20),
        ..ServerLimits::default()
    };
    let instance = start(builder().limits(limits)).await;
    let request = listen(json!(1), json!({"toolsListChanged": true}));
    let mut connection = instance.connect().await;
    connection.send(&request).await;
    connection.head().await;
    connection.event().await.expect("an acknowledgement");
    for _ in 0..3 {
        assert_eq!(connection.block().await.as_deref(), Some(":"));
    }
    instance.server.change(add("b")).expect("a change");
    loop {
        // Keep-alive comments may come first.
        if connection.block().await.as_deref() != Some(":") {
            break;
        }
    }
}

#[tokio::test]
async fn subscription_limits_are_enforced() {
    let limits = ServerLimits {
        subscriptions: 1,
        subscribed_resources: 2,
        ..ServerLimits::default()
    };
    let instance = start(builder().limits(limits)).await;
    let three = json!({"resourceSubscriptions": ["x://1", "x://2", "x://3"]});
    let message = instance
        .send(&listen(json!(1), three))
        .await
        .error(400, -32602);
    assert_contains(&message, &["resourceSubscriptions", "2"]);
    let two = json!({"resourceSubscriptions": ["x://1", "x://2", "x://2"]});
    let (_first, _) = subscribe(&instance, &listen(json!(1), two)).await;
    let second = instance.send(&listen(json!(2), json!({}))).await;
    assert_contains(&second.error(503, -32603), &["1 subscriptions"]);
    assert_eq!(second.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn errors_for_malformed_filters_name_the_member() {
    let instance = start(builder()).await;
    for (params, expected) in [
        (json!({}), "notifications"),
        (json!({"notifications": []}), "notifications"),
        (
            json!({"notifications": {"toolsListChanged": 1}}),
            "toolsListChanged",
        ),
        (
            json!({"notifications": {"resourceSubscriptions": "x"}}),
            "resourceSubscriptions",
        ),
        (
            json!({"notifications": {"resourceSubscriptions": [1]}}),
            "resourceSubscriptions",
        ),
    ] {
        let request = Request::rpc("subscriptions/listen", params);
        let message = instance.send(&request).await.error(400, -32602);
        assert_contains(&message, &[expected]);
    }
    assert_eq!(instance.server.subscriptions(), 0);
}

#[tokio::test]
async fn stdio_subscriptions_can_be_cancelled_by_id() {
    let mut client = StdioClient::start(builder());
    let server = client.server.clone();
    for id in [1, 2] {
        let request = listen(json!(id), json!({"toolsListChanged": true}));
        let first = client.call(&request).await;
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(first["params"]["_meta"][ID], id);
    }
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "enough"}});
    client.message(&cancel).await;
    until("the subscription to end", || server.subscriptions() <= 1).await;
    server.change(add("b")).expect("a change");
    assert_eq!(client.read().await["params"]["_meta"][ID], 2);
    // At the end of the input, subscriptions end with their last messages, and the process exits.
    client.close().await;
    assert_eq!(client.read().await["id"], 2);
    let cancelled = client.read().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], 2);
    assert_eq!(client.rest().await, [Value::Null; 0]);
}

#[tokio::test]
async fn subscribed_uris_are_limited_in_bytes() {
    let limits = ServerLimits {
        subscribed_bytes: 100,
        ..ServerLimits::default()
    };
    let instance = start(builder().limits(limits)).await;
    let long = json!({"resourceSubscriptions": [format!("x://{}", "a".repeat(97))]});
    let message = instance.send(&listen(json!(1), long)).await;
    assert_contains(
        &message.error(400, -32602),
        &["resourceSubscriptions", "100"],
    );
    let fitting = json!({"resourceSubscriptions": [format!("x://{}", "a".repeat(96))]});
    subscribe(&instance, &listen(json!(1), fitting)).await;
}

#[tokio::test]
async fn subscriptions_are_limited_per_caller() {
    let limits = ServerLimits {
        subscriptions_each: 1,
        ..ServerLimits::default()
    };
    let server = builder().limits(limits).build().expect("a valid server");
    let request = listen(json!(1), json!({"toolsListChanged": true}));
    let begin = async |principal: Principal| {
        let mut out = server.handle(&request.message(), principal).await;
        let first = next_message(&mut out).await;
        (out, first)
    };
    let (held, first) = begin(Principal::new("alice")).await;
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    let (_, second) = begin(Principal::new("alice")).await;
    assert_eq!(second["error"]["code"], -32603);
    let message = second["error"]["message"].as_str().expect("a message");
    assert_contains(message, &["this caller is at its limit of 1 subscriptions"]);
    let (_bob, first) = begin(Principal::new("bob")).await;
    assert!(first.get("error").is_none());
    // Anonymous callers count as one caller.
    let (_one, first) = begin(Principal::anonymous()).await;
    let (_two, second) = begin(Principal::anonymous()).await;
    assert!(first.get("error").is_none());
    assert_eq!(second["error"]["code"], -32603);
    // The permit was released.
    drop(held);
    let (_, again) = begin(Principal::new("alice")).await;
    assert!(again.get("error").is_none());
}

#[tokio::test]
async fn oldest_subscription_of_the_largest_anonymous_caller_is_evicted() {
    let limits = ServerLimits {
        subscriptions: 4,
        subscriptions_each: 2,
        ..ServerLimits::default()
    };
    let server = builder().limits(limits).build().expect("a valid server");
    let request = listen(json!(1), json!({"toolsListChanged": true}));
    let begin = async |address: u8| {
        let address = Some([192, 0, 2, address].into());
        let caller = Caller {
            address,
            ..Principal::anonymous().into()
        };
        let mut out = server.handle(&request.message(), caller).await;
        let first = next_message(&mut out).await;
        (out, first["method"].clone())
    };
    let mut open = Vec::new();
    for address in [1, 1, 2, 3, 4] {
        let (out, method) = begin(address).await;
        assert_eq!(method, "notifications/subscriptions/acknowledged");
        open.push(out);
    }
    assert_eq!(next_message(&mut open[0]).await["id"], 1);
    let cancelled = next_message(&mut open[0]).await;
    let reason = cancelled["params"]["reason"].as_str().expect("a reason");
    assert_contains(reason, &["other callers", "subscribe again"]);
    assert_eq!(open.remove(0).next().await, None);
    // All callers have one subscription now, and none is evicted.
    assert_eq!(begin(5).await.1, Value::Null);
    server.change(add("b")).expect("a change");
    for out in &mut open {
        let change = next_message(out).await;
        assert_eq!(change["method"], "notifications/tools/list_changed");
    }
}

#[tokio::test]
async fn draining_instance_rejects_subscriptions() {
    let instance = start(builder()).await;
    instance.server.start_draining();
    let response = instance.send(&listen(json!(1), json!({}))).await;
    assert_contains(&response.error(503, -32603), &["shutting down"]);
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(instance.server.subscriptions(), 0);
}

/// A caller with these scopes until this time.
fn caller(scopes: &str, expires: Option<SystemTime>) -> Caller {
    Caller {
        scopes: Scopes::parse(scopes),
        expires,
        ..Principal::new("alice").into()
    }
}

#[tokio::test]
async fn resource_notifications_require_the_scopes_of_the_resource() {
    let server = builder().build().expect("a valid server");
    let filter = json!({"resourceSubscriptions": ["x://late", "x://r"]});
    let request = listen(json!(1), filter).message();
    let mut without = server.handle(&request, caller("", None)).await;
    let mut with = server.handle(&request, caller("admin", None)).await;
    let late = Resource::new("x://late", "late", word).scopes(["admin"]);
    let changes = Changes::new().resource(late);
    for out in [&mut without, &mut with] {
        out.next().await.expect("an acknowledgement");
    }
    server.change(changes).expect("a change");
    server.resource_updated("x://late");
    // The same resource with another spelling of its URI.
    server.resource_updated("x://%6cate");
    server.resource_updated("x://r");
    server.start_draining();
    let mut received = Vec::new();
    for out in [&mut without, &mut with] {
        let mut uris = Vec::new();
        while let Some(message) = out.next().await {
            let message: Value = serde_json::from_slice(&message).expect("JSON");
            uris.extend(message["params"]["uri"].as_str().map(str::to_owned));
        }
        received.push(uris);
    }
    assert_eq!(received, [vec!["x://r"], vec!["x://late", "x://r"]]);
}

#[tokio::test(start_paused = true)]
async fn subscription_ends_when_the_callers_access_expires() {
    let server = builder().build().expect("a valid server");
    let request = listen(json!(1), json!({"toolsListChanged": true})).message();
    let end = SystemTime::now() + Duration::from_secs(60);
    let mut out = server.handle(&request, caller("", Some(end))).await;
    out.next().await.expect("an acknowledgement");
    server.change(add("b")).expect("a change");
    let message = out.next().await.expect("a notification");
    assert!(String::from_utf8_lossy(&message).contains("list_changed"));
    // The paused clock advances to the expiry.
    let response = out.next().await.expect("a response");
    let response: Value = serde_json::from_slice(&response).expect("JSON");
    assert_eq!(response["id"], 1);
    let cancelled = out.next().await.expect("a reason");
    assert_contains(&String::from_utf8_lossy(&cancelled), &["expired"]);
    assert_eq!(out.next().await, None);
    // With expired access, the subscription ends without notifications.
    let past = SystemTime::now() - Duration::from_secs(1);
    let mut out = server.handle(&request, caller("", Some(past))).await;
    out.next().await.expect("an acknowledgement");
    server.change(add("c")).expect("a change");
    let response = out.next().await.expect("a response");
    assert!(String::from_utf8_lossy(&response).contains("\"id\":1"));
}

/// Waits until exactly these URIs are subscribed.
async fn wait_for_subscribed(resources: &mut SubscribedResources, expected: &[&str]) {
    let waiting = async {
        while !resources.uris().iter().eq(expected) {
            assert!(resources.changed().await, "the server is gone");
        }
    };
    within("the subscribed resources", waiting).await;
}

#[tokio::test]
async fn subscribed_resources_are_known_to_the_server() {
    let instance = start(builder()).await;
    let mut resources = instance.server.subscribed_resources();
    wait_for_subscribed(&mut resources, &[]).await;
    let filter = json!({"resourceSubscriptions": ["x://r", "x://other", "x://r"]});
    let (first, _) = subscribe(&instance, &listen(json!(1), filter)).await;
    wait_for_subscribed(&mut resources, &["x://other", "x://r"]).await;
    // Another subscription of a known URI changes nothing.
    let filter = json!({"resourceSubscriptions": ["x://r"]});
    let (second, _) = subscribe(&instance, &listen(json!(2), filter)).await;
    let mut later = instance.server.subscribed_resources();
    let unchanged = tokio::time::timeout(Duration::from_millis(50), resources.changed());
    assert!(unchanged.await.is_err());
    drop(first);
    wait_for_subscribed(&mut resources, &["x://r"]).await;
    drop(second);
    wait_for_subscribed(&mut resources, &[]).await;

    // A legacy client counts while it has a stream for notifications.
    let session = legacy::Session::open(&instance).await;
    let change = |id, method: &str| {
        let method = format!("resources/{method}");
        legacy::request(id, &method, json!({"uri": "x://r"}))
    };
    assert_eq!(session.post(&change(1, "subscribe")).await.status, 200);
    let stream = session.get().await;
    wait_for_subscribed(&mut resources, &["x://r"]).await;
    assert_eq!(session.post(&change(2, "unsubscribe")).await.status, 200);
    wait_for_subscribed(&mut resources, &[]).await;
    assert_eq!(session.post(&change(3, "subscribe")).await.status, 200);
    wait_for_subscribed(&mut later, &["x://r"]).await;
    assert_eq!(session.delete().await.status, 204);
    wait_for_subscribed(&mut resources, &[]).await;
    drop(stream);
}

#[tokio::test]
async fn subscribed_resources_end_with_the_server() {
    let server = builder().build().expect("a server");
    let mut resources = server.subscribed_resources();
    assert!(resources.uris().is_empty());
    drop(server);
    assert!(!within("the end", resources.changed()).await);
    assert!(resources.uris().is_empty());
}
