//! What clients ask about their tasks: how one stands, to take in answers, to call it off.

use crate::support::tasks::{
    FaultyStore, TASKS, Work, about, create, declared, eager, form, stored, update,
};
use crate::support::watch::watch;
use crate::support::{
    CAPABILITIES, Instance, MetricsPort, Request, Response, names, result, start, text,
};
use refrain_core::{Cx, KeyRing, Principal, Result, SystemSource};
use refrain_server::{
    BearerTokens, BuildError, Server, ServerBuilder, ServerLimits, TaskOptions, Tool,
};
use refrain_store::{MemoryStore, Next, StoreError, TaskStore};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

const METHODS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];
const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

async fn work(_: Cx) -> Result<&'static str> {
    Ok("worked")
}

fn builder(store: &MemoryStore) -> ServerBuilder {
    Server::builder("tasks", "1")
        .tool(Tool::new("work", work))
        .tasks(Arc::new(store.clone()), eager())
}

/// A task of a caller without a name.
async fn anyones(store: &MemoryStore) -> Work {
    create(Arc::new(store.clone()), Principal::anonymous()).await
}

/// A request of one of the methods, complete in every way.
fn whole(method: &str, id: &str) -> Request {
    about(method, id).param("inputResponses", json!({}))
}

fn of(request: Request, bearer: &str) -> Request {
    request.header("Authorization", &format!("Bearer {bearer}"))
}

async fn get(instance: &Instance, id: &str) -> Value {
    let reply = instance.send(&about("tasks/get", id)).await.reply();
    result(&reply).clone()
}

/// The result of a request that is only acknowledged.
#[track_caller]
fn acknowledged(response: &Response) {
    let reply = response.reply();
    let mut result = result(&reply).clone();
    result
        .as_object_mut()
        .expect("an object")
        .remove("_meta")
        .expect("a server says who it is");
    assert_eq!(result, json!({"resultType": "complete"}));
}

#[tokio::test]
async fn a_task_is_shown_as_it_stands() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = anyones(&store).await;
    let shown = get(&instance, work.id()).await;
    let created = shown["createdAt"].as_str().expect("a time").to_owned();
    assert!(created.ends_with('Z') && created.len() == 24, "{created}");
    let meta = shown["_meta"].clone();
    assert_eq!(
        shown,
        json!({
            "resultType": "complete", "taskId": work.id(), "status": "working", "createdAt": created,
            "lastUpdatedAt": created, "ttlMs": 60000, "pollIntervalMs": 1000, "_meta": meta,
        })
    );

    work.say("halfway").await;
    let shown = get(&instance, work.id()).await;
    assert_eq!(shown["status"], "working");
    assert_eq!(shown["statusMessage"], "halfway");
    assert_eq!(shown["createdAt"], created);

    // All that is open, in the order it was asked; the same again for whoever looks again.
    work.ask(&[("second", form())]).await;
    work.ask(&[("first", json!({"method": "roots/list"}))])
        .await;
    for _ in 0..2 {
        let shown = get(&instance, work.id()).await;
        assert_eq!(shown["status"], "input_required");
        let asks = json!({"second": form(), "first": {"method": "roots/list"}});
        assert_eq!(shown["inputRequests"], asks);
        assert_eq!(shown.get("requestState"), None);
        assert_eq!(shown.get("result"), None);
    }

    let result = json!({"content": [], "isError": true, "_meta": {"a/b": 1}});
    work.complete(&result).await;
    let shown = get(&instance, work.id()).await;
    assert_eq!(shown["resultType"], "complete");
    assert_eq!(shown["status"], "completed");
    assert_eq!(shown["result"], result);
    assert_eq!(shown.get("inputRequests"), None);
    assert_eq!(shown.get("error"), None);
}

#[tokio::test]
async fn the_asks_of_a_task_are_shown_in_the_order_they_were_made() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = anyones(&store).await;
    let roots = || json!({"method": "roots/list"});
    work.ask(&[("z", roots()), ("a", roots()), ("m", roots())])
        .await;
    let response = instance.send(&about("tasks/get", work.id())).await;
    let body = String::from_utf8(response.body).expect("text");
    let at = |key: &str| {
        body.find(&format!("\"{key}\":{{\"method\""))
            .expect("a key")
    };
    assert!(at("z") < at("a") && at("a") < at("m"), "{body}");
}

#[tokio::test]
async fn a_task_that_failed_says_why() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let error = json!({"code": -32603, "message": "it broke", "data": {"at": 3}});
    let silent = anyones(&store).await;
    silent.next(Next::Fail(stored(&error))).await;
    let shown = get(&instance, silent.id()).await;
    assert_eq!(shown["status"], "failed");
    assert_eq!(shown["error"], error);
    assert_eq!(shown["statusMessage"], "it broke");
    assert_eq!(shown.get("result"), None);
    let talking = anyones(&store).await;
    talking.say("step 3 of 5").await;
    talking.next(Next::Fail(stored(&error))).await;
    let shown = get(&instance, talking.id()).await;
    assert_eq!(shown["statusMessage"], "it broke", "not what it did before");
}

#[tokio::test]
async fn a_task_that_is_not_the_callers_is_not_there() {
    let store = MemoryStore::new();
    let tokens = BearerTokens::new().with("alice", ALICE).with("bob", BOB);
    let instance = start(builder(&store).authenticator(tokens)).await;
    let alices = create(Arc::new(store.clone()), Principal::new("alice")).await;
    let nobodys = anyones(&store).await;
    alices.ask(&[("name", form())]).await;
    for method in METHODS {
        let mut bodies = Vec::new();
        let long = "a".repeat(65);
        let ids = [
            alices.id(),
            nobodys.id(),
            "000000000000000000000000000000000000000000000000",
            "../etc",
            "",
            &long,
        ];
        for id in ids {
            let response = instance.send(&of(whole(method, id), BOB)).await;
            let message = response.error(200, -32602);
            names(&message, &["taskId", "no such task"]);
            bodies.push(response.body);
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "one answer for all");
    }
    // And nothing was done.
    let answer = json!({"name": {"action": "cancel"}});
    let strange = of(update(alices.id(), answer), BOB);
    instance.send(&strange).await.error(200, -32602);
    assert_eq!(alices.answers().await, []);
    let mine = of(about("tasks/get", alices.id()), ALICE);
    let reply = instance.send(&mine).await.reply();
    assert_eq!(result(&reply)["status"], "input_required");
}

#[tokio::test]
async fn a_client_that_does_not_speak_of_tasks_is_told_what_it_lacks() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = anyones(&store).await;
    for method in METHODS {
        for capabilities in [
            json!({}),
            json!({"extensions": {"com.example/other": {}}}),
            // What an earlier revision had.
            json!({"tasks": {"cancel": {}}}),
        ] {
            let request = whole(method, work.id()).meta(CAPABILITIES, capabilities);
            let response = instance.send(&request).await;
            names(&response.error(400, -32021), &[TASKS]);
            assert_eq!(
                response.json()["error"]["data"],
                json!({"requiredCapabilities": {"extensions": {TASKS: {}}}})
            );
        }
    }
    assert_eq!(get(&instance, work.id()).await["status"], "working");
}

#[tokio::test]
async fn the_header_names_the_task() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = anyones(&store).await;
    for method in METHODS {
        let other = whole(method, work.id()).header("Mcp-Name", "another");
        let message = instance.send(&other).await.error(400, -32020);
        names(&message, &["Mcp-Name", "another", work.id()]);
        let none = whole(method, work.id()).without_header("Mcp-Name");
        let message = instance.send(&none).await.error(400, -32020);
        names(&message, &["Mcp-Name", "missing"]);
        let other = whole(method, work.id()).header("Mcp-Method", "tasks/other");
        instance.send(&other).await.error(400, -32020);
    }
    assert_eq!(get(&instance, work.id()).await["status"], "working");
}

#[tokio::test]
async fn without_a_store_there_are_no_such_methods() {
    let plain = start(Server::builder("plain", "1")).await;
    for method in METHODS {
        let message = plain.send(&whole(method, "abc")).await.error(404, -32601);
        names(&message, &[method]);
        // Nor does it matter what is in them.
        let empty = declared(Request::rpc(method, json!({})));
        plain.send(&empty).await.error(404, -32601);
    }
    let discover = Request::rpc("server/discover", json!({}));
    let reply = plain.send(&discover).await.reply();
    let extensions = &result(&reply)["capabilities"]["extensions"];
    assert_eq!(extensions, &json!({"refrain/callId": {}}));
}

#[tokio::test]
async fn a_server_with_tasks_says_so_and_has_none_of_the_earlier_methods() {
    let store = MemoryStore::new();
    let builder = builder(&store).extension("com.example/own", serde_json::Map::new());
    let instance = start(builder).await;
    let discover = Request::rpc("server/discover", json!({}));
    let reply = instance.send(&discover).await.reply();
    let capabilities = &result(&reply)["capabilities"];
    let extensions = json!({TASKS: {}, "com.example/own": {}, "refrain/callId": {}});
    assert_eq!(capabilities["extensions"], extensions);
    assert_eq!(capabilities.get("tasks"), None);
    for method in ["tasks/result", "tasks/list", "tasks/input_response"] {
        let message = instance.send(&whole(method, "a")).await.error(404, -32601);
        names(&message, &[method]);
    }
    // The parameter of an earlier revision is one that nobody knows, and so is a call that knows nothing of tasks.
    let call = declared(Request::tool("work", json!({}))).param("task", json!({"ttl": 60000}));
    assert_eq!(text(&instance.send(&call).await.reply()), "worked");
}

#[test]
fn the_extension_is_not_declared_by_hand() {
    for builder in [Server::builder("tasks", "1"), builder(&MemoryStore::new())] {
        let built = builder.extension(TASKS, serde_json::Map::new()).build();
        let error = built.expect_err("declared by hand");
        assert!(matches!(error, BuildError::ReservedExtension { .. }));
        names(&error.to_string(), &[TASKS, ".tasks(..)"]);
    }
}

#[tokio::test]
async fn answers_are_taken_in_one_by_one_and_once() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = anyones(&store).await;
    let roots = json!({"method": "roots/list"});
    work.ask(&[("name", form()), ("dirs", roots.clone())]).await;

    let accepted = json!({"action": "accept", "content": {"name": "Alice"}});
    let some = update(
        work.id(),
        json!({"name": accepted, "never": {"anything": 1}}),
    );
    acknowledged(&instance.send(&some).await);
    let shown = get(&instance, work.id()).await;
    assert_eq!(shown["status"], "input_required");
    assert_eq!(shown["inputRequests"], json!({"dirs": roots}));

    // What was answered is, whatever comes after it; not even its shape is looked at.
    for late in [json!({"action": "decline"}), json!({"action": 7})] {
        let again = update(work.id(), json!({"name": late}));
        acknowledged(&instance.send(&again).await);
    }
    acknowledged(&instance.send(&update(work.id(), json!({}))).await);
    let rest = update(work.id(), json!({"dirs": {"roots": []}}));
    acknowledged(&instance.send(&rest).await);
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
    acknowledged(&instance.send(&late).await);
}

#[tokio::test]
async fn a_malformed_answer_is_named_and_nothing_of_its_update_is_taken_in() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = anyones(&store).await;
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
        names(&message, &[&format!("inputResponses[{key:?}]"), why]);
        assert_eq!(work.answers().await, []);
    }
    // What is no object, or there twice, is so whatever was asked.
    let request = update(work.id(), json!({"other": 7}));
    let message = instance.send(&request).await.error(400, -32602);
    names(&message, &["inputResponses[\"other\"]", "an object"]);
    let request = about("tasks/update", work.id());
    let message = instance.send(&request).await.error(400, -32602);
    names(&message, &["inputResponses is missing"]);
    let shown = get(&instance, work.id()).await;
    assert_eq!(shown["inputRequests"].as_object().map(|a| a.len()), Some(4));
}

#[tokio::test]
async fn what_is_not_sealed_is_refused_where_it_has_to_be() {
    let store = MemoryStore::new();
    let options = TaskOptions {
        seal: true,
        ..eager()
    };
    let keys = KeyRing::generate(&SystemSource::new());
    let server = builder(&store).keys(keys);
    let instance = start(server.tasks(Arc::new(store.clone()), options)).await;
    let work = anyones(&store).await;
    work.ask(&[("name", form())]).await;
    let get = about("tasks/get", work.id());
    instance.send(&get).await.error(200, -32603);
    let answers = json!({"name": {"action": "decline"}});
    let update = update(work.id(), answers);
    instance.send(&update).await.error(200, -32603);
    assert_eq!(work.answers().await, []);
}

#[tokio::test]
async fn a_task_is_called_off_unless_it_is_over() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let work = anyones(&store).await;
    work.ask(&[("name", form())]).await;
    for _ in 0..2 {
        acknowledged(&instance.send(&about("tasks/cancel", work.id())).await);
        let shown = get(&instance, work.id()).await;
        assert_eq!(shown["status"], "cancelled");
        for member in ["inputRequests", "result", "error"] {
            assert_eq!(shown.get(member), None);
        }
    }
    let lost = store.answers(&work.lease).await;
    assert!(matches!(lost, Err(StoreError::Lost)), "{lost:?}");

    let done = anyones(&store).await;
    done.complete(&json!({"content": []})).await;
    acknowledged(&instance.send(&about("tasks/cancel", done.id())).await);
    assert_eq!(get(&instance, done.id()).await["status"], "completed");
}

#[tokio::test]
async fn a_caller_needs_the_scopes_of_the_tool() {
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
        let request = whole(method, work.id()).id(json!("the id"));
        // As a call of the tool would be answered.
        let response = instance.send(&of(request.clone(), ALICE)).await;
        let call = Request::tool("work", json!({})).id(json!("the id"));
        let called = instance.send(&of(call, ALICE)).await;
        response.error(403, -32600);
        assert_eq!(response.json(), called.json());
        let challenge = response.header("www-authenticate");
        assert_eq!(challenge, called.header("www-authenticate"));
        names(challenge.expect("a challenge"), &["use files:write"]);
        // Without what every request needs, not even that is said.
        let response = instance.send(&of(request, LESS)).await;
        response.error(403, -32600);
        let challenge = response.header("www-authenticate").expect("a challenge");
        assert!(challenge.contains("scope=\"use\""), "{challenge}");
    }
    let answer = json!({"name": {"action": "cancel"}});
    let response = instance.send(&of(update(work.id(), answer), ALICE)).await;
    response.error(403, -32600);
    assert_eq!(work.answers().await, []);
    for method in METHODS {
        let request = of(whole(method, work.id()), MORE);
        instance.send(&request).await.reply();
    }
    // The same without a transport that has status codes.
    let caller = refrain_server::Caller {
        principal: Principal::new("alice"),
        scopes: ["use"].into_iter().collect(),
        expires: None,
    };
    let request = about("tasks/get", work.id());
    let mut out = instance.server.handle(&request.message(), caller).await;
    let reply = out.next().await;
    let reply: Value = serde_json::from_slice(&reply.expect("a reply")).expect("JSON");
    let needed = json!(["use", "files:write"]);
    assert_eq!(reply["error"]["data"]["requiredScopes"], needed);
}

#[tokio::test]
async fn a_store_that_is_not_there_is_the_servers_fault() {
    let store = MemoryStore::new();
    let shaky = FaultyStore::new(&store);
    let limits = ServerLimits {
        round_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let server = builder(&store).limits(limits).tasks(shaky.clone(), eager());
    let instance = start(server).await;
    let work = anyones(&store).await;
    let (watching, _guard) = watch(LevelFilter::WARN);
    for (fault, message) in [
        (
            StoreError::Unavailable("at 10.0.0.7".into()),
            "the task store cannot be reached; try again",
        ),
        (StoreError::Failed("in table 7".into()), "Internal error"),
    ] {
        let reason = fault.to_string();
        shaky.fail(Some(fault));
        for method in METHODS {
            let response = instance.send(&whole(method, work.id())).await;
            assert_eq!(response.error(200, -32603), message);
            // The client learns nothing of the store, and the log does.
            let logged = watching.take().events;
            let said = logged
                .iter()
                .any(|said| said.fields.get("error") == Some(&reason));
            assert!(said, "{logged:?}");
        }
    }
    shaky.fail(None);
    assert_eq!(get(&instance, work.id()).await["status"], "working");
    shaky.hang();
    for method in METHODS {
        let response = instance.send(&whole(method, work.id())).await;
        names(&response.error(200, -32603), &["try again"]);
    }
    instance.at_rest().await;
}

#[tokio::test]
async fn what_does_not_open_is_not_shown() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    for unusable in [
        vec![],
        vec![9, b'{', b'}'],
        b"\0no JSON".to_vec(),
        vec![1; 80],
    ] {
        let done = anyones(&store).await;
        done.next(Next::Complete(unusable)).await;
        let response = instance.send(&about("tasks/get", done.id())).await;
        assert_eq!(response.error(200, -32603), "Internal error");
        // What needs no look at it is done all the same.
        acknowledged(&instance.send(&about("tasks/cancel", done.id())).await);
    }
}

#[tokio::test]
async fn requests_about_tasks_are_counted_by_method() {
    let store = MemoryStore::new();
    let instance = start(builder(&store)).await;
    let metrics = MetricsPort::start(&instance.server).await;
    let work = anyones(&store).await;
    for method in METHODS {
        instance.send(&whole(method, work.id())).await.reply();
    }
    let bare = whole("tasks/get", work.id()).meta(CAPABILITIES, json!({}));
    instance.send(&bare).await.error(400, -32021);
    let scrape = metrics.scrape().await;
    for method in METHODS {
        let count = format!("refrain_other_requests_total{{method=\"{method}\"}}");
        assert_eq!(scrape.get(&count), 1.0);
    }
}
