//! Legacy sessions: opened by one instance and served by any.

use crate::support::legacy::{Session, call, initialize, request};
use crate::support::{
    Clock, Instance, Request, assert_contains, cancel, echo, echo_call, keys, note, start,
    start_advertised, tampered, text,
};
use refrain_core::{Cx, KeyRing, Result};
use refrain_server::{
    BearerTokens, Resource, Server, ServerBuilder, ServerLimits, TaskOptions, Tool,
};
use refrain_store::MemoryStore;
use refrain_wire::LogLevel;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

async fn logs(cx: Cx) -> Result<String> {
    cx.log(LogLevel::Debug, "a detail");
    cx.log(LogLevel::Info, "news");
    cx.log(LogLevel::Error, "a fault");
    Ok("logged".into())
}

fn builder(keys: &KeyRing) -> ServerBuilder {
    Server::builder("legacy", "1")
        .keys(keys.clone())
        .instructions("Be brief.")
        .tool(Tool::new("echo", echo))
        .tool(Tool::new("logs", logs))
        .resource(Resource::new("notes://today", "today", note))
}

async fn instance() -> Instance {
    start(builder(&keys())).await
}

/// The data of the log messages of a call.
async fn logged(session: &Session) -> Vec<Value> {
    let response = session.post(&call(9, "logs", json!({}))).await;
    if response.header("content-type") == Some("application/json") {
        return Vec::new();
    }
    let body = String::from_utf8(response.body).expect("text");
    let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let messages = events.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
    let logs = messages.filter(|message| message["method"] == "notifications/message");
    logs.map(|message| message["params"]["data"].clone())
        .collect()
}

#[tokio::test]
async fn session_uses_the_requested_revision_if_supported() {
    let instance = instance().await;
    for (wanted, agreed) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2025-11-25"),
        ("2027-01-01", "2025-11-25"),
    ] {
        let request = Request::bytes(initialize(wanted, &json!({})).to_string());
        let response = instance.send(&request).await;
        let reply = response.reply();
        assert_eq!(
            reply["result"],
            json!({
                "protocolVersion": agreed,
                "capabilities": {
                    "tools": {"listChanged": true},
                    "resources": {"listChanged": true, "subscribe": true},
                    "logging": {},
                },
                "serverInfo": {"name": "legacy", "version": "1"},
                "instructions": "Be brief.",
            })
        );
        let id = response.header("mcp-session-id").expect("a session");
        assert!(id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
    }
}

#[tokio::test]
async fn incomplete_initialize_is_rejected() {
    let instance = instance().await;
    for (params, word) in [
        (json!({}), "protocolVersion"),
        (
            json!({"protocolVersion": "2025-11-25", "clientInfo": {}}),
            "capabilities",
        ),
        (
            json!({"protocolVersion": "2025-11-25", "capabilities": {}}),
            "clientInfo",
        ),
        (
            json!({"protocolVersion": 7, "capabilities": {}, "clientInfo": {}}),
            "string",
        ),
    ] {
        let message = request(1, "initialize", params);
        let response = instance.send(&Request::bytes(message.to_string())).await;
        assert_contains(&response.error(400, -32602), &[word]);
    }
}

#[tokio::test]
async fn responses_omit_members_unknown_to_the_revision() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let listed = session.result(&request(1, "tools/list", json!({}))).await;
    let members: Vec<&String> = listed.as_object().expect("an object").keys().collect();
    assert_eq!(members, ["tools"]);
    let echoed = session.result(&call(2, "echo", json!({"text": "x"}))).await;
    assert_eq!(
        echoed,
        json!({"content": [{"type": "text", "text": "Echo: x"}], "isError": false})
    );
    let read = request(3, "resources/read", json!({"uri": "notes://today"}));
    let members = session.result(&read).await;
    assert_eq!(members["contents"][0]["text"], "a note");
    assert!(members.get("ttlMs").is_none(), "{members}");
    assert_eq!(
        session.result(&request(4, "ping", json!({}))).await,
        json!({})
    );
    // Params may be omitted.
    let bare = json!({"jsonrpc": "2.0", "id": 5, "method": "resources/list"});
    assert_eq!(
        session.result(&bare).await["resources"][0]["uri"],
        "notes://today"
    );
}

#[tokio::test]
async fn errors_in_a_session_have_status_200() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    for (message, code) in [
        (request(1, "tasks/get", json!({"taskId": "x"})), -32601),
        (request(2, "server/discover", json!({})), -32601),
        (request(3, "subscriptions/listen", json!({})), -32601),
        (request(4, "tools/call", json!({})), -32602),
        (request(5, "tools/list", json!({"cursor": "none"})), -32602),
        (
            request(6, "resources/read", json!({"uri": "notes://never"})),
            -32002,
        ),
        (
            request(7, "resources/subscribe", json!({"uri": "notes://never"})),
            -32002,
        ),
        (
            request(8, "logging/setLevel", json!({"level": "loud"})),
            -32602,
        ),
        (initialize("2025-11-25", &json!({})), -32600),
    ] {
        // Not 404, which would mean that the session has ended.
        let reply = session.post(&message).await.error(200, code);
        assert!(!reply.is_empty());
    }
    for wrong in [json!(7), json!({"jsonrpc": "2.0"}), json!([])] {
        session.post(&wrong).await.error(400, -32600);
    }
}

#[tokio::test]
async fn session_is_served_by_any_instance_for_its_caller_only() {
    let ring = keys();
    let tokens = || {
        BearerTokens::new()
            .with("alice", "aaaaaaaaaaaaaaaaaaaa")
            .with("bob", "bbbbbbbbbbbbbbbbbbbb")
    };
    let one = start(builder(&ring).authenticator(tokens())).await;
    let other = start(builder(&ring).authenticator(tokens())).await;
    let foreign = start(builder(&keys()).authenticator(tokens())).await;
    let other_audience = start(builder(&ring).audience("other").authenticator(tokens())).await;
    let alice = [("Authorization", "Bearer aaaaaaaaaaaaaaaaaaaa")];
    let session = Session::open_with(one.address, "2025-06-18", &json!({}), &alice).await;
    let ping = request(1, "ping", json!({}));
    for instance in [&one, &other] {
        assert_eq!(session.at(instance).result(&ping).await, json!({}));
    }
    for instance in [&foreign, &other_audience] {
        let gone = session.at(instance).post(&ping).await;
        assert_contains(&gone.error(404, -32600), &["initialize"]);
    }
    let bob = [("Authorization", "Bearer bbbbbbbbbbbbbbbbbbbb")];
    let bobs = Session::open_with(one.address, "2025-06-18", &json!({}), &bob).await;
    let mut stolen = bobs;
    stolen.id = session.id.clone();
    stolen.post(&ping).await.error(404, -32600);
    let mut changed = session.clone();
    changed.id = tampered(&session.id, 60);
    changed.post(&ping).await.error(404, -32600);
    for odd in ["x", "not base64!", &"A".repeat(5000)] {
        changed.id = odd.to_owned();
        changed.post(&ping).await.error(404, -32600);
    }
    let twice = session.clone().header("Mcp-Session-Id", &session.id);
    twice.post(&ping).await.error(404, -32600);
}

#[tokio::test]
async fn session_expires() {
    let clock = Clock::new();
    let limits = ServerLimits {
        session_time: Duration::from_secs(600),
        ..ServerLimits::default()
    };
    let builder = builder(&keys()).source(clock.clone()).limits(limits);
    let instance = start(builder).await;
    let session = Session::open(&instance).await;
    let ping = request(1, "ping", json!({}));
    clock.forward(599);
    assert_eq!(session.result(&ping).await, json!({}));
    clock.forward(1);
    session.post(&ping).await.error(404, -32600);
}

#[tokio::test]
async fn version_header_must_match_the_session() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let ping = request(1, "ping", json!({}));
    let right = session.clone().header("MCP-Protocol-Version", "2025-11-25");
    assert_eq!(right.result(&ping).await, json!({}));
    // Other legacy revisions are rejected, too.
    for wrong in ["2026-07-28", "2025-06-18", "1999-01-01", "latest"] {
        let session = session.clone().header("MCP-Protocol-Version", wrong);
        assert_contains(
            &session.post(&ping).await.error(400, -32600),
            &["2025-11-25"],
        );
    }
}

#[tokio::test]
async fn modern_request_ignores_the_session_header() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let request = echo_call().header("Mcp-Session-Id", &session.id);
    assert_eq!(text(&instance.send(&request).await.reply()), "Echo: x");
    let list = Request::rpc("tools/list", json!({})).header("Mcp-Session-Id", &session.id);
    let reply = instance.send(&list).await.reply();
    assert_eq!(reply["result"]["resultType"], "complete");
    // Without a session, a request needs the metadata of 2026-07-28.
    let bare = request_bytes();
    instance
        .send(&Request::bytes(bare))
        .await
        .error(400, -32602);
}

fn request_bytes() -> String {
    request(1, "tools/list", json!({})).to_string()
}

#[tokio::test]
async fn log_level_is_kept_per_session() {
    let ring = keys();
    let one = start_advertised(builder(&ring)).await;
    let other = start_advertised(builder(&ring)).await;
    let session = Session::open(&one).await;
    assert_eq!(logged(&session).await, ["news", "a fault"]);
    let set = |level: &str| request(1, "logging/setLevel", json!({"level": level}));
    assert_eq!(session.result(&set("error")).await, json!({}));
    for instance in [&one, &other] {
        assert_eq!(logged(&session.at(instance)).await, ["a fault"]);
    }
    assert_eq!(session.at(&other).result(&set("debug")).await, json!({}));
    assert_eq!(logged(&session).await, ["a detail", "news", "a fault"]);
    // Without an advertised URL, each instance has its own level.
    let (alone, another) = (start(builder(&ring)).await, start(builder(&ring)).await);
    let session = Session::open(&another).await;
    let there = session.at(&alone);
    assert_eq!(there.result(&set("emergency")).await, json!({}));
    assert!(logged(&there).await.is_empty());
    assert_eq!(logged(&session).await, ["news", "a fault"]);
}

#[tokio::test]
async fn deleted_session_ends_at_all_instances() {
    let ring = keys();
    let one = start_advertised(builder(&ring)).await;
    let other = start_advertised(builder(&ring)).await;
    let session = Session::open(&one).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(session.at(&other).result(&ping).await, json!({}));
    assert_eq!(session.at(&other).delete().await.status, 204);
    for instance in [&one, &other] {
        session.at(instance).post(&ping).await.error(404, -32600);
        session.at(instance).delete().await.error(404, -32600);
        session
            .at(instance)
            .send_empty("GET")
            .await
            .error(404, -32600);
    }
}

#[tokio::test]
async fn deleted_session_without_advertised_url_ends_locally() {
    let ring = keys();
    let (one, other) = (start(builder(&ring)).await, start(builder(&ring)).await);
    let session = Session::open(&one).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(session.at(&other).delete().await.status, 204);
    session.at(&other).post(&ping).await.error(404, -32600);
    assert_eq!(session.result(&ping).await, json!({}));
    assert_eq!(session.delete().await.status, 204);
    session.post(&ping).await.error(404, -32600);
}

#[tokio::test]
async fn get_and_delete_without_a_session_are_rejected() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut without_id = session.clone();
    without_id.id.clear();
    for (method, words) in [
        (
            "GET",
            &["use POST", "Mcp-Session-Id of a legacy session"][..],
        ),
        (
            "DELETE",
            &["use POST", "Mcp-Session-Id of a legacy session"],
        ),
        ("PUT", &["POST"]),
    ] {
        let rejected = without_id.send_empty(method).await;
        assert_contains(&rejected.error(405, -32600), words);
        assert_eq!(rejected.header("allow"), Some("POST"));
    }
    session.send_empty("PUT").await.error(405, -32600);
}

#[tokio::test]
async fn legacy_request_without_session_id_is_rejected() {
    let instance = instance().await;
    let mut without_id = Session::open(&instance).await;
    without_id.id.clear();
    let missing = ["missing Mcp-Session-Id header", "initialize"];
    for revision in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let without_id = without_id.clone().header("MCP-Protocol-Version", revision);
        for message in [
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
            request(2, "tools/list", json!({})),
            call(3, "echo", json!({"text": "x"})),
            request(4, "ping", json!({})),
            json!({"jsonrpc": "2.0", "id": "a-1-b", "result": {}}),
            json!([request(5, "ping", json!({}))]),
        ] {
            let rejected = without_id.post(&message).await;
            assert_contains(&rejected.error(400, -32600), &missing);
        }
    }
    // Other requests get the usual errors.
    for version in ["2026-07-28", "2024-11-05"] {
        let without_id = without_id.clone().header("MCP-Protocol-Version", version);
        let rejected = without_id.post(&request(1, "tools/list", json!({}))).await;
        assert_contains(&rejected.error(400, -32602), &["_meta"]);
    }
    let broken = Request::bytes("{").header("MCP-Protocol-Version", "2025-11-25");
    instance.send(&broken).await.error(400, -32700);
}

#[tokio::test]
async fn batches_are_accepted_in_2025_03_26_only() {
    let limits = ServerLimits {
        batch: 4,
        ..ServerLimits::default()
    };
    let instance = start(builder(&keys()).limits(limits)).await;
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    let batch = json!([
        request(1, "ping", json!({})),
        notification,
        call(2, "echo", json!({"text": "x"})),
        call(3, "echo", json!({})),
    ]);
    for newer in ["2025-06-18", "2025-11-25"] {
        let session = Session::open_with(instance.address, newer, &json!({}), &[]).await;
        assert_contains(&session.post(&batch).await.error(400, -32600), &["batches"]);
    }
    let session = Session::open_with(instance.address, "2025-03-26", &json!({}), &[]).await;
    let mut replies = session.stream(&batch).await.rest().await;
    replies.sort_by_key(|reply| reply["id"].as_u64());
    assert_eq!(replies[0]["result"], json!({}));
    assert_eq!(replies[1]["result"]["content"][0]["text"], "Echo: x");
    assert_eq!(replies[2]["result"]["isError"], true);
    assert_eq!(replies.len(), 3);
    let accepted = session.post(&json!([notification, notification])).await;
    assert_eq!(accepted.status, 202);
    assert_contains(
        &session.post(&json!([])).await.error(400, -32600),
        &["empty"],
    );
    let many: Vec<Value> = (0..5).map(|id| request(id, "ping", json!({}))).collect();
    assert_contains(
        &session.post(&json!(many)).await.error(400, -32600),
        &["at most 4"],
    );
}

#[tokio::test]
async fn invalid_message_of_a_batch_does_not_affect_others() {
    let instance = instance().await;
    let session = Session::open_with(instance.address, "2025-03-26", &json!({}), &[]).await;
    let stray = json!({"jsonrpc": "2.0", "id": "x", "result": {}});
    let batch = json!([
        request(1, "ping", json!({})),
        7,
        stray,
        call(2, "echo", json!({"text": "x"}))
    ]);
    let replies = session.stream(&batch).await.rest().await;
    let of = |id: Value| replies.iter().filter(move |reply| reply["id"] == id);
    assert_eq!(of(json!(1)).count(), 1);
    let echoed = of(json!(2)).next().expect("a reply");
    assert_eq!(echoed["result"]["content"][0]["text"], "Echo: x");
    let errors: Vec<&Value> = of(Value::Null).map(|reply| &reply["error"]).collect();
    assert_eq!(errors.len(), 2, "{replies:?}");
    assert!(
        errors.iter().all(|error| error["code"] == -32600),
        "{errors:?}"
    );
    assert_eq!(replies.len(), 4);
    let wrong = session.stream(&json!([1, 2])).await.rest().await;
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}

#[tokio::test]
async fn subscriptions_of_a_session_are_limited() {
    let limits = ServerLimits {
        subscribed_resources: 2,
        subscribed_bytes: 28,
        ..ServerLimits::default()
    };
    let ring = keys();
    let start = async || {
        let builder = builder(&ring).limits(limits.clone());
        let builder = builder.resource(Resource::new("notes://a", "a", note));
        start_advertised(builder.resource(Resource::new("notes://tomorrow", "b", note))).await
    };
    let (one, other) = (start().await, start().await);
    let session = Session::open_with(one.address, "2025-03-26", &json!({}), &[]).await;
    let change = |id: u32, method: &str, uri: &str| {
        request(
            id,
            &format!("resources/{method}"),
            json!({"uri": format!("notes://{uri}")}),
        )
    };
    let there = session.at(&other);
    let unsubscribe = async || {
        for uri in ["a", "today", "tomorrow"] {
            let gone = there.result(&change(6, "unsubscribe", uri)).await;
            assert_eq!(gone, json!({}));
        }
    };
    // The messages of a batch are handled in order.
    let batch = ["a", "today", "tomorrow"].map(|uri| change(1, "subscribe", uri));
    let replies = session.stream(&json!(batch)).await.rest().await;
    let errors = replies.iter().filter(|reply| reply.get("error").is_some());
    assert_eq!(errors.count(), 1, "{replies:?}");
    unsubscribe().await;
    for uri in ["a", "today", "today"] {
        let done = session.result(&change(2, "subscribe", uri)).await;
        assert_eq!(done, json!({}));
    }
    let full = there.post(&change(5, "subscribe", "tomorrow")).await;
    assert_contains(
        &full.error(200, -32602),
        &["2 resources", "28 bytes", "unsubscribe"],
    );
    unsubscribe().await;
    // Two subscriptions are allowed, but these exceed the limit of bytes.
    assert_eq!(
        session.result(&change(7, "subscribe", "tomorrow")).await,
        json!({})
    );
    let full = session.post(&change(8, "subscribe", "today")).await;
    assert_contains(&full.error(200, -32602), &["28 bytes"]);
    let long = format!("notes://{}", "x".repeat(2000));
    let long = session
        .post(&request(9, "resources/subscribe", json!({"uri": long})))
        .await;
    long.error(200, -32002);
}

#[tokio::test]
async fn answers_and_cancellations_need_the_scopes_of_calls() {
    const MAY: &str = "may-0123456789abcdef";
    const MAY_NOT: &str = "may-not-0123456789abcdef";
    let tokens = BearerTokens::new()
        .with_scopes("alice", MAY, ["use"])
        .with("alice", MAY_NOT);
    let instance = start(builder(&keys()).scopes(["use"]).authenticator(tokens)).await;
    let authorization = format!("Bearer {MAY}");
    let headers = [("Authorization", authorization.as_str())];
    let session = Session::open_with(instance.address, "2025-11-25", &json!({}), &headers).await;
    assert_eq!(session.post(&cancel(1)).await.status, 202);
    let less = session.bearer(MAY_NOT);
    for message in [
        cancel(1),
        json!({"jsonrpc": "2.0", "id": "x", "result": {}}),
        request(1, "ping", json!({})),
    ] {
        let rejected = less.post(&message).await;
        rejected.error(403, -32600);
        assert!(rejected.header("www-authenticate").is_some());
    }
}

#[tokio::test]
async fn task_required_tools_are_unavailable_to_legacy_clients() {
    let store = Arc::new(MemoryStore::new());
    let server = builder(&keys())
        .tasks(store, TaskOptions::default())
        .tool(Tool::new("job", echo).task_required())
        .tool(Tool::new("either", echo).task());
    let instance = start(server).await;
    let session = Session::open(&instance).await;
    let rejected = session.result(&call(1, "job", json!({"text": "x"}))).await;
    assert_eq!(rejected["isError"], true);
    let said = rejected["content"][0]["text"].as_str().expect("text");
    assert_contains(said, &["tasks"]);
    let inline = session
        .result(&call(2, "either", json!({"text": "x"})))
        .await;
    assert_eq!(inline["content"][0]["text"], "Echo: x");
}
