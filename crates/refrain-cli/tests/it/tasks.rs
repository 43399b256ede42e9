//! Tasks over HTTP with a SQLite store: created, polled, answered, cancelled, and kept over a restart.

use crate::support::tasks::{fast_poll_config, form, shared_store};
use crate::support::{Call, Client, Files, Ledger, Reply, Serve};
use serde_json::{Value, json};

fn echo_task(arguments: Value) -> Call {
    Call::new("echo_task", arguments)
}

/// The echo example of the MCP proposals, in the format of the tasks extension.
#[tokio::test]
async fn echo_task_is_created_polled_answered_and_completed() {
    let files = Files::new();
    let file = files.write("ledger", "");
    let instance = Serve::new().ledger(&file).start().await;
    let client = Client::new(instance.address);

    let id = client.create(echo_task(json!({}))).await;
    let look = client.asked(&id, &["echo_input"]).await;
    assert_eq!(look.status(), "input_required");
    assert_eq!(look.0["ttlMs"], 60_000);
    assert_eq!(look.0["pollIntervalMs"], 100);
    assert_eq!(
        look.0["statusMessage"],
        "Task has been created for echo tool invocation."
    );
    let ask = &look.0["inputRequests"]["echo_input"];
    assert_eq!(ask["method"], "elicitation/create");
    assert_eq!(
        ask["params"]["message"],
        "Please provide the input string to echo back"
    );

    // An unrequested answer is accepted, and changes nothing.
    let other = json!({"not_requested": form(&json!({"input": "?"}))});
    let reply = client.about_task("tasks/update", &id, Some(&other)).await;
    assert!(reply.expect("the server replies").get("result").is_some());
    assert_eq!(client.task(&id).await.asked(), ["echo_input"]);

    let content = json!({"input": "Hello World!"});
    client.update(&id, "echo_input", &content).await;
    let done = client.completed(&id).await;
    assert_eq!(done.text(), "Echo: Hello World!");
    assert_ne!(done.0["result"]["isError"], true);
    let ledger = Ledger::at(&file);
    assert_eq!(ledger.done(), ["echo Hello World!"]);
    assert_eq!(ledger.attempts("echo"), [instance.id()]);
}

#[tokio::test]
async fn client_without_tasks_gets_rounds() {
    let instance = Serve::new().start().await;
    let client = Client::new(instance.address);
    let done = client.finish(echo_task(json!({}))).await;
    assert_eq!(done.reply, Reply::Done("Echo: hello".into()));

    let mut vm = Call::new("create_vm", json!({"name": "web"}));
    assert_eq!(
        client.round(&mut vm).await,
        Reply::Asked(vec!["size".into()])
    );
    vm.answer("size", &json!({"processors": 2}));
    let done = client.round(&mut vm).await;
    assert_eq!(done, Reply::Done("web runs, with 2 processors.".into()));
}

#[tokio::test]
async fn call_asks_in_a_round_and_continues_as_a_task() {
    let files = Files::new();
    let file = files.write("ledger", "");
    let instance = Serve::new().ledger(&file).start().await;
    let client = Client::new(instance.address).with_tasks();
    let mut vm = Call::new("create_vm", json!({"name": "web"}));
    assert_eq!(
        client.round(&mut vm).await,
        Reply::Asked(vec!["size".into()])
    );
    assert_eq!(Ledger::at(&file).effects("attempt"), []);
    vm.answer("size", &json!({"processors": 2}));
    let Reply::Task(id) = client.round(&mut vm).await else {
        panic!("the call did not become a task");
    };
    let done = client.completed(&id).await;
    assert_eq!(done.text(), "web runs, with 2 processors.");
    assert_eq!(Ledger::at(&file).done(), ["make web", "start web"]);
}

#[tokio::test]
async fn task_runs_while_it_waits_for_an_answer() {
    let files = Files::new();
    let file = files.write("ledger", "");
    let instance = Serve::new().ledger(&file).start().await;
    let client = Client::new(instance.address);
    let call = Call::new("move_vm", json!({"name": "web", "pause_ms": 20}));
    let id = client.create(call).await;

    let all =
        |look: &crate::support::tasks::TaskView| look.0["statusMessage"] == "All parts are copied.";
    let look = client.task_until(&id, all).await;
    assert_eq!(
        (look.status(), look.asked()),
        ("input_required", vec!["switch_over"])
    );
    let parts: Vec<String> = (1..=5).map(|part| format!("copy_{part} web")).collect();
    assert_eq!(Ledger::at(&file).done(), parts);

    client
        .update(&id, "switch_over", &json!({"switch": true}))
        .await;
    assert_eq!(
        client.completed(&id).await.text(),
        "web runs on the other host."
    );
    assert_eq!(Ledger::at(&file).done().len(), parts.len() + 1);
}

#[tokio::test]
async fn running_task_is_cancelled_by_another_instance() {
    let files = Files::new();
    let (file, store, eager) = (
        files.write("ledger", ""),
        shared_store(&files),
        fast_poll_config(&files),
    );
    let serve = || Serve::new().ledger(&file).store(&store).config(&eager);
    let (a, b) = (serve().start().await, serve().start().await);
    let ledger = Ledger::at(&file);
    let call = Call::new("move_vm", json!({"name": "web", "pause_ms": 60_000}));
    let id = Client::new(a.address).create(call).await;
    let at_b = Client::new(b.address);
    at_b.asked(&id, &["switch_over"]).await;
    ledger.wait_for("attempt", 1).await;

    at_b.cancel(&id).await;
    assert_eq!(at_b.task(&id).await.status(), "cancelled");
    // The instance that runs the task notices, and stops in the middle of the step.
    a.log.wait_for("task lease lost", 1).await;
    assert_eq!(ledger.done(), [""; 0]);
    assert_eq!(at_b.task(&id).await.status(), "cancelled");
}

#[tokio::test]
async fn tasks_belong_to_their_caller_and_survive_a_restart() {
    let files = Files::new();
    let (store, eager) = (shared_store(&files), fast_poll_config(&files));
    let tokens = files.write("tokens", "alice secret-of-alice-1\nbob secret-of-bob-12\n");
    let serve = || Serve::new().store(&store).tokens(&tokens).config(&eager);
    let mut first = serve().start().await;
    let alice = Client::new(first.address).with_bearer("secret-of-alice-1");
    let id = alice.create(echo_task(json!({}))).await;
    alice.asked(&id, &["echo_input"]).await;
    first.stop().await;

    let second = serve().start().await;
    let bob = Client::new(second.address).with_bearer("secret-of-bob-12");
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let answers = json!({"echo_input": form(&json!({"input": "stolen"}))});
        let answers = (method == "tasks/update").then_some(&answers);
        let reply = bob
            .about_task(method, &id, answers)
            .await
            .expect("the server replies");
        assert_eq!(reply["error"]["code"], -32602, "{method}: {reply}");
    }
    let alice = Client::new(second.address).with_bearer("secret-of-alice-1");
    let look = alice.task(&id).await;
    assert_eq!(look.asked(), ["echo_input"]);
    alice
        .update(&id, "echo_input", &json!({"input": "mine"}))
        .await;
    assert_eq!(alice.completed(&id).await.text(), "Echo: mine");
}
