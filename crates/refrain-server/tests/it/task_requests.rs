//! Task requests: get, update and cancel.

use crate::support::tasks::{
    FaultyStore, ReadingStore, TASKS_EXTENSION, about, create, create_anonymous, declared, eager,
    form, get, stored, update, work,
};
use crate::support::watch::watch;
use crate::support::{
    CAPABILITIES_KEY, MetricsPort, Request, Response, assert_contains, handle, keys, result, start,
    text,
};
use refrain_core::Principal;
use refrain_server::{
    BearerTokens, BuildError, Server, ServerBuilder, ServerLimits, TaskOptions, Tool,
};
use refrain_store::{MemoryStore, Next, StoreError, TaskStore};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

const METHODS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];
const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

fn builder(store: &MemoryStore) -> ServerBuilder {
    Server::builder("tasks", "1")
        .tool(Tool::new("work", work))
        .tasks(Arc::new(store.clone()), eager())
}

/// A valid request of one of the methods.
fn valid(method: &str, id: &str) -> Request {
    about(method, id).param("inputResponses", json!({}))
}

/// Asserts that the result is empty.
#[track_caller]
fn assert_acknowledged(response: &Response) {
    let reply = response.reply();
    let mut result = result(&reply).clone();
    result
        .as_object_mut()
        .expect("the result is an object")
        .remove("_meta")
        .expect("_meta has the server info");
    assert_eq!(result, json!({"resultType": "complete"}));
}

#[tokio::test]
async fn get_returns_the_current_state() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = create_anonymous(&store).await;
    let task = get(&instance, work.id()).await;
    let created = task["createdAt"]
        .as_str()
        .expect("createdAt is a string")
        .to_owned();
    assert!(created.ends_with('Z') && created.len() == 24, "{created}");
    let meta = task["_meta"].clone();
    assert_eq!(
        task,
        json!({
            "resultType": "complete", "taskId": work.id(), "status": "working", "createdAt": created,
            "lastUpdatedAt": created, "ttlMs": 60000, "pollIntervalMs": 1000, "_meta": meta,
        })
    );

    work.say("halfway").await;
    let task = get(&instance, work.id()).await;
    assert_eq!(task["status"], "working");
    assert_eq!(task["statusMessage"], "halfway");
    assert_eq!(task["createdAt"], created);

    // All open asks are returned every time.
    work.ask(&[("second", form())]).await;
    work.ask(&[("first", json!({"method": "roots/list"}))])
        .await;
    for _ in 0..2 {
        let task = get(&instance, work.id()).await;
        assert_eq!(task["status"], "input_required");
        let asks = json!({"second": form(), "first": {"method": "roots/list"}});
        assert_eq!(task["inputRequests"], asks);
        assert_eq!(task.get("requestState"), None);
        assert_eq!(task.get("result"), None);
    }

    let result = json!({"content": [], "isError": true, "_meta": {"a/b": 1}});
    work.complete(&result).await;
    let task = get(&instance, work.id()).await;
    assert_eq!(task["resultType"], "complete");
    assert_eq!(task["status"], "completed");
    assert_eq!(task["result"], result);
    assert_eq!(task.get("inputRequests"), None);
    assert_eq!(task.get("error"), None);
}

#[tokio::test]
async fn asks_are_returned_in_the_order_made() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = create_anonymous(&store).await;
    let roots = || json!({"method": "roots/list"});
    work.ask(&[("z", roots()), ("a", roots()), ("m", roots())])
        .await;
    let response = instance.send(&about("tasks/get", work.id())).await;
    let body = String::from_utf8(response.body).expect("the body is UTF-8");
    let at = |key: &str| {
        body.find(&format!("\"{key}\":{{\"method\""))
            .expect("the key is in the body")
    };
    assert!(at("z") < at("a") && at("a") < at("m"), "{body}");
}

#[tokio::test]
async fn failed_task_has_its_error() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let error = json!({"code": -32603, "message": "it broke", "data": {"at": 3}});
    let silent = create_anonymous(&store).await;
    silent.next(Next::Fail(stored(&error))).await;
    let task = get(&instance, silent.id()).await;
    assert_eq!(task["status"], "failed");
    assert_eq!(task["error"], error);
    assert_eq!(task["statusMessage"], "it broke");
    assert_eq!(task.get("result"), None);
    let talking = create_anonymous(&store).await;
    talking.say("step 3 of 5").await;
    talking.next(Next::Fail(stored(&error))).await;
    let task = get(&instance, talking.id()).await;
    assert_eq!(
        task["statusMessage"], "it broke",
        "the error replaces the status message"
    );
}

#[tokio::test]
async fn task_of_another_caller_is_unknown() {
    let store = MemoryStore::new();
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let instance = start(builder(&store).authenticator(tokens)).await;
    let alices = create(Arc::new(store.clone()), Principal::new("alice")).await;
    let anonymous = create_anonymous(&store).await;
    alices.ask(&[("name", form())]).await;
    for method in METHODS {
        let mut bodies = Vec::new();
        let long = "a".repeat(65);
        let ids = [
            alices.id(),
            anonymous.id(),
            "000000000000000000000000000000000000000000000000",
            "../etc",
            "",
            &long,
        ];
        for id in ids {
            let response = instance.send(&valid(method, id).bearer(BOB)).await;
            let message = response.error(200, -32602);
            assert_contains(&message, &["unknown task", "does not exist"]);
            bodies.push(response.body);
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "all responses are equal");
    }
    // The task is unchanged.
    let answer = json!({"name": {"action": "cancel"}});
    let foreign = update(alices.id(), answer).bearer(BOB);
    instance.send(&foreign).await.error(200, -32602);
    assert_eq!(alices.answers().await, []);
    let mine = about("tasks/get", alices.id()).bearer(ALICE);
    let reply = instance.send(&mine).await.reply();
    assert_eq!(result(&reply)["status"], "input_required");
}

#[tokio::test]
async fn client_without_task_support_gets_missing_capability() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = create_anonymous(&store).await;
    for method in METHODS {
        for capabilities in [
            json!({}),
            json!({"extensions": {"com.example/other": {}}}),
            // The capability of a legacy revision.
            json!({"tasks": {"cancel": {}}}),
        ] {
            let request = valid(method, work.id()).meta(CAPABILITIES_KEY, capabilities);
            let response = instance.send(&request).await;
            assert_contains(&response.error(400, -32021), &[TASKS_EXTENSION]);
            assert_eq!(
                response.json()["error"]["data"],
                json!({"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}})
            );
        }
    }
    assert_eq!(get(&instance, work.id()).await["status"], "working");
}

#[tokio::test]
async fn name_header_must_equal_the_task_id_or_be_absent() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = create_anonymous(&store).await;
    for method in METHODS {
        let other = valid(method, work.id()).header("Mcp-Name", "another");
        let message = instance.send(&other).await.error(400, -32020);
        assert_contains(&message, &["Mcp-Name", "another", work.id()]);
        let repeated = valid(method, work.id()).second_header("Mcp-Name", work.id());
        let message = instance.send(&repeated).await.error(400, -32020);
        assert_contains(&message, &["Mcp-Name", "repeated"]);
        let other = valid(method, work.id()).header("Mcp-Method", "tasks/other");
        instance.send(&other).await.error(400, -32020);
    }
    assert_eq!(get(&instance, work.id()).await["status"], "working");
    for method in METHODS {
        let none = valid(method, work.id()).without_header("Mcp-Name");
        let reply = instance.send(&none).await.reply();
        assert_eq!(result(&reply)["resultType"], "complete");
    }
}

#[tokio::test]
async fn task_methods_are_unknown_without_a_store() {
    let plain = start(Server::builder("plain", "1")).await;
    for method in METHODS {
        let message = plain.send(&valid(method, "abc")).await.error(404, -32601);
        assert_contains(&message, &[method]);
        // The parameters do not matter.
        let empty = declared(Request::rpc(method, json!({})));
        plain.send(&empty).await.error(404, -32601);
    }
    let discover = Request::rpc("server/discover", json!({}));
    let reply = plain.send(&discover).await.reply();
    let extensions = &result(&reply)["capabilities"]["extensions"];
    assert_eq!(extensions, &json!({"refrain/callId": {}}));
}

#[tokio::test]
async fn server_declares_tasks_without_legacy_methods() {
    let store = MemoryStore::new();
    let builder = builder(&store).extension("com.example/own", serde_json::Map::new());
    let instance = start(builder).await;
    let discover = Request::rpc("server/discover", json!({}));
    let reply = instance.send(&discover).await.reply();
    let capabilities = &result(&reply)["capabilities"];
    let extensions = json!({TASKS_EXTENSION: {}, "com.example/own": {}, "refrain/callId": {}});
    assert_eq!(capabilities["extensions"], extensions);
    assert_eq!(capabilities.get("tasks"), None);
    for method in ["tasks/result", "tasks/list", "tasks/input_response"] {
        let message = instance.send(&valid(method, "a")).await.error(404, -32601);
        assert_contains(&message, &[method]);
    }
    // The task parameter of a legacy revision is ignored.
    let call = declared(Request::tool("work", json!({}))).param("task", json!({"ttl": 60000}));
    assert_eq!(text(&instance.send(&call).await.reply()), "worked");
}

#[test]
fn tasks_extension_cannot_be_declared_manually() {
    for builder in [Server::builder("tasks", "1"), builder(&MemoryStore::new())] {
        let built = builder
            .extension(TASKS_EXTENSION, serde_json::Map::new())
            .build();
        let error = built.expect_err("the extension is built in");
        assert!(matches!(error, BuildError::ReservedExtension { .. }));
        assert_contains(&error.to_string(), &[TASKS_EXTENSION, ".store(..)"]);
    }
}

#[tokio::test]
async fn each_answer_is_accepted_once() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = create_anonymous(&store).await;
    let roots = json!({"method": "roots/list"});
    work.ask(&[("name", form()), ("dirs", roots.clone())]).await;

    let accepted = json!({"action": "accept", "content": {"name": "Alice"}});
    let some = update(
        work.id(),
        json!({"name": accepted, "never": {"anything": 1}}),
    );
    assert_acknowledged(&instance.send(&some).await);
    let task = get(&instance, work.id()).await;
    assert_eq!(task["status"], "input_required");
    assert_eq!(task["inputRequests"], json!({"dirs": roots}));

    // Later answers to the same ask are ignored, even if malformed.
    for late in [json!({"action": "decline"}), json!({"action": 7})] {
        let again = update(work.id(), json!({"name": late}));
        assert_acknowledged(&instance.send(&again).await);
    }
    assert_acknowledged(&instance.send(&update(work.id(), json!({}))).await);
    let rest = update(work.id(), json!({"dirs": {"roots": []}}));
    assert_acknowledged(&instance.send(&rest).await);
    assert_eq!(get(&instance, work.id()).await["status"], "working");
    assert_eq!(
        work.plain_answers().await,
        [
            ("name".to_owned(), accepted),
            ("dirs".to_owned(), json!({"roots": []}))
        ]
    );

    work.complete(&json!({"content": []})).await;
    let late = update(work.id(), json!({"dirs": {"roots": 7}}));
    assert_acknowledged(&instance.send(&late).await);
}

#[tokio::test]
async fn malformed_answer_rejects_the_whole_update() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = create_anonymous(&store).await;
    let url = json!({"mode": "url", "message": "Go", "url": "https://a.example"});
    let message = json!({"role": "user", "content": {"type": "text", "text": "?"}});
    let sampling = json!({"messages": [message], "maxTokens": 5});
    work.ask(&[
        ("form", form()),
        (
            "url",
            json!({"method": "elicitation/create", "params": url}),
        ),
        (
            "sampling",
            json!({"method": "sampling/createMessage", "params": sampling}),
        ),
        ("roots", json!({"method": "roots/list"})),
    ])
    .await;
    for (key, bad, why) in [
        ("form", json!({"action": "perhaps"}), "perhaps"),
        (
            "form",
            json!({"action": "accept", "content": 7}),
            "content must be an object",
        ),
        ("url", json!({}), "action"),
        ("sampling", json!({"action": "accept"}), "sampling"),
        ("roots", json!({"roots": [{}]}), "roots[0]"),
    ] {
        let mut answers = json!({"roots": {"roots": []}, "form": {"action": "decline"}});
        answers[key] = bad;
        let response = instance.send(&update(work.id(), answers)).await;
        let message = response.error(200, -32602);
        assert_contains(&message, &[&format!("inputResponses[{key:?}]"), why]);
        assert_eq!(work.answers().await, []);
    }
    // Answers must be objects, and the member must exist, regardless of the asks.
    let request = update(work.id(), json!({"other": 7}));
    let message = instance.send(&request).await.error(400, -32602);
    assert_contains(&message, &["inputResponses[\"other\"]", "an object"]);
    let request = about("tasks/update", work.id());
    let message = instance.send(&request).await.error(400, -32602);
    assert_contains(&message, &["inputResponses is missing"]);
    let task = get(&instance, work.id()).await;
    assert_eq!(task["inputRequests"].as_object().map(|a| a.len()), Some(4));
}

#[tokio::test]
async fn unsealed_task_is_rejected_if_sealing_is_required() {
    let store = MemoryStore::new();
    let options = TaskOptions {
        seal: true,
        ..eager()
    };
    let keys = keys();
    let server = builder(&store).keys(keys);
    let instance = start(server.tasks(Arc::new(store.clone()), options)).await;
    let work = create_anonymous(&store).await;
    work.ask(&[("name", form())]).await;
    let get = about("tasks/get", work.id());
    instance.send(&get).await.error(200, -32603);
    let answers = json!({"name": {"action": "decline"}});
    let update = update(work.id(), answers);
    instance.send(&update).await.error(200, -32603);
    assert_eq!(work.answers().await, []);
}

#[tokio::test]
async fn cancel_ends_a_task_unless_it_ended() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = create_anonymous(&store).await;
    work.ask(&[("name", form())]).await;
    for _ in 0..2 {
        assert_acknowledged(&instance.send(&about("tasks/cancel", work.id())).await);
        let task = get(&instance, work.id()).await;
        assert_eq!(task["status"], "cancelled");
        for member in ["inputRequests", "result", "error"] {
            assert_eq!(task.get(member), None);
        }
    }
    let lost = store.answers(&work.lease).await;
    assert!(matches!(lost, Err(StoreError::Lost)), "{lost:?}");

    let done = create_anonymous(&store).await;
    done.complete(&json!({"content": []})).await;
    assert_acknowledged(&instance.send(&about("tasks/cancel", done.id())).await);
    assert_eq!(get(&instance, done.id()).await["status"], "completed");
}

#[tokio::test]
async fn task_requests_require_the_scopes_of_the_tool() {
    const MORE: &str = "alice-with-more-0123456789abcdef";
    const LESS: &str = "alice-with-less-0123456789abcdef";
    let store = MemoryStore::new();
    let tokens = BearerTokens::new()
        .with_scopes("alice", MORE, ["use", "files:write"])
        .with_scopes("alice", ALICE, ["use"])
        .with("alice", LESS);
    let server = Server::builder("tasks", "1")
        .tool(Tool::new("work", work).scopes(["files:write"]))
        .scopes(["use"])
        .authenticator(tokens)
        .tasks(Arc::new(store.clone()), eager());
    let instance = start(server).await;
    let work = create(Arc::new(store.clone()), Principal::new("alice")).await;
    work.ask(&[("name", form())]).await;
    for method in METHODS {
        let request = valid(method, work.id()).id(json!("the id"));
        // The response equals that to a call of the tool.
        let response = instance.send(&request.clone().bearer(ALICE)).await;
        let call = Request::tool("work", json!({})).id(json!("the id"));
        let called = instance.send(&call.bearer(ALICE)).await;
        response.error(403, -32600);
        assert_eq!(response.json(), called.json());
        let challenge = response.header("www-authenticate");
        assert_eq!(challenge, called.header("www-authenticate"));
        assert_contains(
            challenge.expect("there is a challenge"),
            &["use files:write"],
        );
        // Without the server's scopes, the tool's scopes are not revealed.
        let response = instance.send(&request.bearer(LESS)).await;
        response.error(403, -32600);
        let challenge = response
            .header("www-authenticate")
            .expect("there is a challenge");
        assert!(challenge.contains("scope=\"use\""), "{challenge}");
    }
    let answer = json!({"name": {"action": "cancel"}});
    let response = instance
        .send(&update(work.id(), answer).bearer(ALICE))
        .await;
    response.error(403, -32600);
    assert_eq!(work.answers().await, []);
    for method in METHODS {
        let request = valid(method, work.id()).bearer(MORE);
        instance.send(&request).await.reply();
    }
    // The same without a transport.
    let caller = refrain_server::Caller {
        scopes: ["use"].into_iter().collect(),
        ..Principal::new("alice").into()
    };
    let request = about("tasks/get", work.id());
    let reply = handle(&instance.server, &request, caller).await;
    let needed = json!(["use", "files:write"]);
    assert_eq!(reply["error"]["data"]["requiredScopes"], needed);
}

#[tokio::test]
async fn unavailable_store_is_an_internal_error() {
    let store = MemoryStore::new();
    let faulty = FaultyStore::new(&store);
    let limits = ServerLimits {
        round_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let server = builder(&store)
        .limits(limits)
        .tasks(faulty.clone(), eager());
    let instance = start(server).await;
    let work = create_anonymous(&store).await;
    let (watching, _guard) = watch(LevelFilter::WARN);
    for (fault, message) in [
        (
            StoreError::Unavailable("at 10.0.0.7".into()),
            "the task store is unavailable; try again",
        ),
        (StoreError::Failed("in table 7".into()), "Internal error"),
    ] {
        let reason = fault.to_string();
        faulty.fail(Some(fault));
        for method in METHODS {
            let response = instance.send(&valid(method, work.id())).await;
            assert_eq!(response.error(200, -32603), message);
            // The reason is logged, but not sent to the client.
            let logged = watching.take().events;
            let is_logged = logged
                .iter()
                .any(|event| event.fields.get("error") == Some(&reason));
            assert!(is_logged, "{logged:?}");
        }
    }
    faulty.fail(None);
    assert_eq!(get(&instance, work.id()).await["status"], "working");
    faulty.hang();
    for method in METHODS {
        let response = instance.send(&valid(method, work.id())).await;
        assert_contains(&response.error(200, -32603), &["try again"]);
    }
    instance.at_rest().await;
}

#[tokio::test]
async fn undecodable_outcome_is_an_internal_error() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    for undecodable in [
        vec![],
        vec![9, b'{', b'}'],
        b"\0no JSON".to_vec(),
        vec![1; 80],
    ] {
        let done = create_anonymous(&store).await;
        done.next(Next::Complete(undecodable)).await;
        let response = instance.send(&about("tasks/get", done.id())).await;
        assert_eq!(response.error(200, -32603), "Internal error");
        // Cancelling does not need the outcome.
        assert_acknowledged(&instance.send(&about("tasks/cancel", done.id())).await);
    }
}

#[tokio::test]
async fn task_requests_are_counted_by_method() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let metrics = MetricsPort::start(&instance.server).await;
    let work = create_anonymous(&store).await;
    for method in METHODS {
        instance.send(&valid(method, work.id())).await.reply();
    }
    let bare = valid("tasks/get", work.id()).meta(CAPABILITIES_KEY, json!({}));
    instance.send(&bare).await.error(400, -32021);
    let scrape = metrics.scrape().await;
    for method in METHODS {
        let count = format!("refrain_other_requests_total{{method=\"{method}\"}}");
        assert_eq!(scrape.get(&count), 1.0);
    }
}

#[tokio::test]
async fn only_get_reads_the_whole_task() {
    let store = MemoryStore::new();
    let reading = ReadingStore::new(&store, 1);
    let tasks = Server::builder("tasks", "1").tasks(reading.clone(), eager());
    let instance = start(tasks).await;
    let work = create_anonymous(&store).await;
    work.ask(&[("name", form()), ("other", form())]).await;
    let answer = json!({"action": "decline"});
    for key in ["never", "name"] {
        let update = update(work.id(), json!({key: answer}));
        assert_acknowledged(&instance.send(&update).await);
    }
    let malformed = update(work.id(), json!({"other": {"action": 7}}));
    instance.send(&malformed).await.error(200, -32602);
    assert_eq!(work.plain_answers().await, [("name".to_owned(), answer)]);
    for _ in 0..2 {
        let cancel = about("tasks/cancel", work.id());
        assert_acknowledged(&instance.send(&cancel).await);
    }
    assert_eq!(reading.reads(), 0);
    assert_eq!(get(&instance, work.id()).await["status"], "cancelled");
    assert_eq!(reading.reads(), 1);
}
