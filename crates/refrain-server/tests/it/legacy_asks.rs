//! Asks of legacy clients: requests on the stream of the call, answered by another POST.

use crate::support::legacy::{Session, call, filled_in, request};
use crate::support::{
    Guard, Instance, Login, SignalReceiver, Signals, Word, assert_contains, cancel, expect_signal,
    greet, keys, poll_again, signals, start, start_advertised,
};
use refrain_core::{Cx, Elicit, Incomplete, KeyRing, Result};
use refrain_server::{
    Prompt, Reply, ResourceTemplate, Server, ServerBuilder, ServerLimits, State, Tool,
};
use refrain_wire::SamplingParams;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Asks a model and a person concurrently.
async fn both(cx: Cx) -> Result<String> {
    let question = SamplingParams::new(10).user("Who?");
    let (login, opinion) = tokio::try_join!(
        cx.elicit::<Login>("login", "Who are you?"),
        cx.sample("model", question)
    )?;
    Ok(format!("{} {}", login.name, opinion.text()))
}

/// Asks, and drops the ask if the gate opens first.
async fn impatient(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    tokio::select! {
        login = cx.elicit::<Login>("login", "Who are you?") => Ok(login?.name),
        () = signals.pass() => {
            let login: Login = cx.elicit("other", "And you?").await?;
            Ok(format!("{} instead", login.name))
        }
    }
}

/// Asks, and signals when it is dropped.
async fn guarded(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    signals.say("started");
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(login.name)
}

/// Reports progress at every poll, and is always ready to be polled again.
async fn talks(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    loop {
        cx.progress(1.0, None, "and on");
        poll_again().await;
    }
}

async fn poem(cx: Cx) -> Result<String> {
    let poem = cx.sample("poem", SamplingParams::new(10).user("A poem!"));
    Ok(poem.await?.text().to_owned())
}

async fn roots(cx: Cx) -> Result<String> {
    Ok(cx.roots("roots").await?.len().to_string())
}

/// The explicit style: asks for a name, and runs again with its arguments.
async fn addressed(cx: Cx, word: Word) -> Result<Reply<String>> {
    Ok(match cx.answer("login") {
        Some(_) => Reply::Complete(word.text),
        None => Reply::Incomplete(Incomplete::new().form("login", "?", Login::form())),
    })
}

fn builder(keys: &KeyRing) -> (ServerBuilder, Arc<Signals>, SignalReceiver) {
    let (signals, received) = signals();
    let builder = Server::builder("legacy", "1")
        .keys(keys.clone())
        .state(signals.clone())
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("both", both))
        .tool(Tool::new("impatient", impatient))
        .tool(Tool::new("guarded", guarded))
        .tool(Tool::new("talks", talks))
        .tool(Tool::new("poem", poem))
        .tool(Tool::new("addressed", addressed))
        .resource_template(ResourceTemplate::new("a://{text}", "addressed", addressed))
        .tool(Tool::new("roots", roots));
    (builder, signals, received)
}

async fn instance() -> Instance {
    start(builder(&keys()).0).await
}

/// Two instances with advertised URLs, and the signals of the first.
async fn two_instances(keys: &KeyRing) -> ([Instance; 2], SignalReceiver) {
    let (one, _, received) = builder(keys);
    let one = start_advertised(one).await;
    let other = start_advertised(builder(keys).0).await;
    ([one, other], received)
}

fn text(reply: &Value) -> &Value {
    &reply["result"]["content"][0]["text"]
}

#[tokio::test]
async fn form_is_asked_on_the_stream_of_its_call() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(7, "greet", json!({}))).await;
    let asked = stream.next().await;
    assert_eq!(asked["method"], "elicitation/create");
    assert_eq!(
        asked["params"],
        json!({
            "mode": "form",
            "message": "Who are you?",
            "requestedSchema": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
            },
        })
    );
    let answered = session.post(&filled_in(&asked, "Ann")).await;
    assert_eq!((answered.status, answered.body.len()), (202, 0));
    let replies = stream.rest().await;
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0]["id"], 7);
    assert_eq!(text(&replies[0]), "Hello, Ann!");
    // A late answer is ignored.
    assert_eq!(session.post(&filled_in(&asked, "Bob")).await.status, 202);
}

#[tokio::test]
async fn asks_follow_the_negotiated_revision() {
    let instance = instance().await;
    let all = json!({"elicitation": {"url": {}, "form": {}}, "sampling": {}, "roots": {}});
    let session = Session::open_with(instance.address, "2025-06-18", &all, &[]).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    assert!(asked["params"].get("mode").is_none(), "{asked}");
    // 2025-03-26 has no elicitation.
    let session = Session::open_with(instance.address, "2025-03-26", &all, &[]).await;
    let rejected = session.result(&call(1, "greet", json!({}))).await;
    assert_eq!(rejected["isError"], true);
    let text_of = |result: &Value| result["content"][0]["text"].as_str().map(str::to_owned);
    assert_contains(&text_of(&rejected).expect("text"), &["elicitation"]);
    let mut stream = session.stream(&call(2, "roots", json!({}))).await;
    let asked = stream.next().await;
    assert_eq!(asked["method"], "roots/list");
    assert!(asked.get("params").is_none(), "{asked}");
    let result = json!({"roots": [{"uri": "file:///a"}]});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
    assert_eq!(session.post(&answer).await.status, 202);
    assert_eq!(text(&stream.next().await), "1");
}

#[tokio::test]
async fn concurrent_asks_can_be_answered_in_any_order() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "both", json!({}))).await;
    let (form, model) = (stream.next().await, stream.next().await);
    assert_eq!(form["method"], "elicitation/create");
    assert_eq!(model["method"], "sampling/createMessage");
    assert_ne!(form["id"], model["id"]);
    let result =
        json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "me"}});
    let answer = json!({"jsonrpc": "2.0", "id": model["id"], "result": result});
    assert_eq!(session.post(&answer).await.status, 202);
    assert_eq!(session.post(&filled_in(&form, "Ann")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Ann me");
}

#[tokio::test]
async fn ask_without_client_capability_is_an_error_result_of_tools() {
    let server = builder(&keys()).0.prompt(Prompt::new("greeting", greet));
    let instance = start(server).await;
    let none = Session::open_with(instance.address, "2025-11-25", &json!({}), &[]).await;
    // A client with URL mode only lacks form mode.
    let can = json!({"elicitation": {"url": {}}});
    let url = Session::open_with(instance.address, "2025-11-25", &can, &[]).await;
    for session in [none, url] {
        let rejected = session.result(&call(1, "greet", json!({}))).await;
        assert_eq!(rejected["isError"], true);
        let message = rejected["content"][0]["text"].as_str().expect("text");
        assert_contains(message, &["elicitation.form", "tell the user"]);
        // Only the result of a tool is read by a model, so a prompt ends with a JSON-RPC error.
        let prompt = request(2, "prompts/get", json!({"name": "greeting"}));
        let rejected = session.post(&prompt).await;
        rejected.error(200, -32021);
        let form = json!({"requiredCapabilities": {"elicitation": {"form": {}}}});
        assert_eq!(rejected.json()["error"]["data"], form);
    }
}

#[tokio::test]
async fn client_error_ends_the_ask_and_invalid_answer_is_asked_again() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    let error = json!({"code": -1, "message": "no user available"});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "error": error});
    assert_eq!(session.post(&answer).await.status, 202);
    let reply = stream.next().await;
    assert_eq!(reply["result"]["isError"], true);
    assert_contains(text(&reply).as_str().expect("text"), &["no user available"]);

    let mut stream = session.stream(&call(2, "greet", json!({}))).await;
    let asked = stream.next().await;
    let content = json!({"action": "accept", "content": {"name": 7}});
    let wrong = json!({"jsonrpc": "2.0", "id": asked["id"], "result": content});
    assert_eq!(session.post(&wrong).await.status, 202);
    let again = stream.next().await;
    assert_ne!(again["id"], asked["id"], "a new request");
    assert_eq!(session.post(&filled_in(&again, "Ann")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Hello, Ann!");
}

#[tokio::test]
async fn malformed_answer_ends_its_ask_with_the_reason() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    let bare = json!({"role": "assistant", "content": {"type": "text", "text": "me"}});
    let malformed = [
        ("greet", json!({"result": {}}), "action"),
        ("greet", json!({"result": {"action": "perhaps"}}), "perhaps"),
        (
            "greet",
            json!({"result": {"action": "accept", "content": 7}}),
            "content must be an object",
        ),
        ("greet", json!({"result": 7}), "not an object"),
        ("greet", json!({"error": {"code": 1}}), "no message"),
        ("greet", json!({"result": {}, "error": {}}), "both"),
        ("poem", json!({"result": bare}), "model"),
        ("roots", json!({"result": {"roots": [{}]}}), "uri"),
    ];
    for (tool, mut answer, why) in malformed {
        let mut stream = session.stream(&call(1, tool, json!({}))).await;
        answer["jsonrpc"] = "2.0".into();
        answer["id"] = stream.next().await["id"].clone();
        assert_eq!(session.post(&answer).await.status, 202);
        let replies = stream.rest().await;
        assert_eq!(replies.len(), 1, "{answer}: unexpected second ask");
        assert_eq!(replies[0]["result"]["isError"], true, "{}", replies[0]);
        let message = text(&replies[0]).as_str().expect("text");
        assert_contains(message, &["the client could not answer", why]);
    }
}

#[tokio::test]
async fn answers_with_unknown_ids_or_sessions_are_rejected() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    for id in [json!(7), json!("7"), json!("never-asked-1")] {
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": {}});
        assert_contains(
            &session.post(&answer).await.error(400, -32600),
            &["does not match a request"],
        );
    }
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    // Another session cannot answer for this one.
    let other_session = Session::open(&instance).await;
    let rejected = other_session.post(&filled_in(&asked, "Eve")).await;
    assert_contains(&rejected.error(400, -32600), &["does not match a request"]);
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Hello, Ann!");
}

#[tokio::test]
async fn dropped_ask_is_withdrawn() {
    let (builder, signals, _received) = builder(&keys());
    let instance = start(builder).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "impatient", json!({}))).await;
    let first = stream.next().await;
    signals.open();
    let withdrawn = stream.next().await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], first["id"]);
    let second = stream.next().await;
    assert_eq!(session.post(&filled_in(&first, "Ann")).await.status, 202);
    assert_eq!(session.post(&filled_in(&second, "Bob")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Bob instead");
}

#[tokio::test]
async fn answer_is_relayed_to_the_holder_of_its_call() {
    let ([one, other], _received) = two_instances(&keys()).await;
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    assert_eq!(
        session
            .at(&other)
            .post(&filled_in(&asked, "Ann"))
            .await
            .status,
        202
    );
    assert_eq!(text(&stream.next().await), "Hello, Ann!");
}

#[tokio::test]
async fn answer_without_advertised_url_is_rejected_and_can_be_retried() {
    let ring = keys();
    let (one, other) = (start(builder(&ring).0).await, start(builder(&ring).0).await);
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    let rejected = session.at(&other).post(&filled_in(&asked, "Ann")).await;
    assert_contains(
        &rejected.error(400, -32600),
        &["another instance", "--advertise"],
    );
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Hello, Ann!");
}

#[tokio::test]
async fn call_can_be_cancelled_at_any_instance() {
    let ([one, other], mut received) = two_instances(&keys()).await;
    let session = Session::open(&one).await;
    for (id, instance) in [(1, &one), (2, &other)] {
        let mut stream = session.stream(&call(id, "guarded", json!({}))).await;
        expect_signal(&mut received, "started").await;
        stream.next().await;
        assert_eq!(session.at(instance).post(&cancel(id)).await.status, 202);
        expect_signal(&mut received, "dropped").await;
        assert!(stream.rest().await.is_empty(), "no further message");
    }
    // The number 3 and the string "3" are different ids.
    let mut stream = session.stream(&call(3, "guarded", json!({}))).await;
    let asked = stream.next().await;
    assert_eq!(session.post(&cancel("3")).await.status, 202);
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Ann");
}

/// The runtime has one thread, so the handler must not occupy it.
#[tokio::test]
async fn handler_with_constant_progress_can_be_cancelled() {
    let (builder, _signals, mut received) = builder(&keys());
    let instance = start(builder).await;
    let session = Session::open(&instance).await;
    let mut talks = call(1, "talks", json!({}));
    talks["params"]["_meta"] = json!({"progressToken": 1});
    let mut stream = session.stream(&talks).await;
    assert_eq!(stream.next().await["params"]["message"], "and on");
    assert_eq!(session.post(&cancel(1)).await.status, 202);
    expect_signal(&mut received, "dropped").await;
}

#[tokio::test]
async fn deleted_session_ends_its_calls_at_all_instances() {
    let ([one, other], mut received) = two_instances(&keys()).await;
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(1, "guarded", json!({}))).await;
    expect_signal(&mut received, "started").await;
    stream.next().await;
    assert_eq!(session.at(&other).delete().await.status, 204);
    expect_signal(&mut received, "dropped").await;
    assert!(stream.rest().await.is_empty());
    session
        .post(&request(2, "ping", json!({})))
        .await
        .error(404, -32600);
}

#[tokio::test]
async fn live_calls_are_limited_in_number_and_duration() {
    let limits = ServerLimits {
        live_calls: 1,
        ..ServerLimits::default()
    };
    let instance = start(builder(&keys()).0.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    let rejected = session.post(&call(2, "greet", json!({}))).await;
    assert_contains(&rejected.error(503, -32603), &["live calls"]);
    assert_eq!(rejected.header("retry-after"), Some("1"));
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    assert_eq!(text(&stream.next().await), "Hello, Ann!");
    instance.at_rest().await;
    let mut stream = session.stream(&call(3, "greet", json!({}))).await;
    stream.next().await;

    let limits = ServerLimits {
        live_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let instance = start(builder(&keys()).0.limits(limits)).await;
    let session = Session::open(&instance).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    let rest = stream.rest().await;
    let withdrawn = rest.first().expect("a message");
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    let reply = rest.last().expect("the reply");
    assert_eq!(
        (&reply["id"], &reply["error"]["code"]),
        (&json!(1), &json!(-32603))
    );
    // A late answer is ignored.
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
}

#[tokio::test]
async fn explicit_handler_runs_again_with_its_arguments() {
    let instance = instance().await;
    let session = Session::open(&instance).await;
    for (message, path) in [
        (
            call(1, "addressed", json!({"text": "Oslo"})),
            "/result/content/0/text",
        ),
        (
            request(2, "resources/read", json!({"uri": "a://Oslo"})),
            "/result/contents/0/text",
        ),
    ] {
        let mut stream = session.stream(&message).await;
        let asked = stream.next().await;
        assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
        let reply = stream.next().await;
        assert_eq!(reply.pointer(path), Some(&json!("Oslo")), "{reply}");
    }
}
