//! Tasks of live tools: the running handler moves into the task and never runs a second time.

use super::*;
use crate::support::tasks::{TASKS_EXTENSION, about, eager, update};
use refrain_core::Error;
use refrain_server::TaskOptions;
use refrain_store::{MemoryStore, SqliteStore, TaskId, TaskStore};

/// A store of each kind, and the directory of the file.
async fn stores() -> (Vec<Arc<dyn TaskStore>>, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let sqlite = SqliteStore::open(directory.path().join("tasks.db")).await;
    let sqlite = sqlite.expect("the store opens");
    (
        vec![Arc::new(MemoryStore::new()), Arc::new(sqlite)],
        directory,
    )
}

/// The state of the handlers, shared by all instances of a test.
#[derive(Clone)]
struct Shared {
    store: Arc<dyn TaskStore>,
    ledger: Arc<Ledger>,
    signals: Arc<Signals>,
    keys: KeyRing,
}

impl Shared {
    fn new(store: Arc<dyn TaskStore>) -> Self {
        Self {
            store,
            ledger: Arc::default(),
            signals: signals().0,
            keys: keys(),
        }
    }

    fn server(&self, tool: Tool) -> ServerBuilder {
        let options = TaskOptions {
            lease: Duration::from_millis(500),
            ..eager()
        };
        Server::builder("live tasks", "1")
            .keys(self.keys.clone())
            .tasks(self.store.clone(), options)
            .state(self.ledger.clone())
            .state(self.signals.clone())
            .tool(tool)
    }

    async fn requeue(&self, id: &str) {
        let id = TaskId::parse(id).expect("an id");
        let requeued = self.store.requeue(&id).await.expect("the store works");
        assert!(requeued.is_some());
    }
}

/// Waits at the gate, asks twice, and counts in a local variable that is in no journal.
async fn dialogue(cx: Cx, ledger: LedgerState, signals: State<Arc<Signals>>) -> Result<String> {
    let _dropped = DropGuard(Arc::clone(&ledger));
    ledger.write("started");
    let mut names = Vec::new();
    signals.pass().await;
    for ask in ["first", "second"] {
        let login: Login = cx.elicit(ask, "Who?").await?;
        names.push(login.name);
        ledger.write(ask);
        signals.pass().await;
    }
    ledger.write(format!("ended as a task: {}", cx.is_task()));
    Ok(names.join(" and "))
}

/// Waits at the gate.
async fn work(_: Cx, ledger: LedgerState, signals: State<Arc<Signals>>) -> Result<String> {
    let _dropped = DropGuard(Arc::clone(&ledger));
    ledger.write("started");
    signals.pass().await;
    Ok("worked".into())
}

const SOON: Duration = Duration::from_millis(20);

fn tool_call(tool: &str) -> Request {
    let capabilities = json!({"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}});
    Request::tool(tool, json!({})).meta(CAPABILITIES_KEY, capabilities)
}

fn task_id(reply: &Value) -> String {
    let id = result(reply)["taskId"].as_str();
    id.unwrap_or_else(|| panic!("no task: {reply}")).to_owned()
}

async fn create(instance: &Instance, tool: &str) -> String {
    task_id(&instance.send(&tool_call(tool)).await.reply())
}

/// Polls the task until it has this status.
async fn wait_for_status(instance: &Instance, id: &str, status: &str) -> Value {
    let polling = async {
        loop {
            let reply = instance.send(&about("tasks/get", id)).await.reply();
            let task = result(&reply).clone();
            if task["status"] == status {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(status, polling).await
}

async fn completed(instance: &Instance, id: &str) -> String {
    let task = wait_for_status(instance, id, "completed").await;
    let text = task["result"]["content"][0]["text"].as_str();
    text.expect("the content is text").to_owned()
}

/// Checks that the task failed because its instance was lost.
async fn assert_outcome_unknown(instance: &Instance, id: &str) {
    let task = wait_for_status(instance, id, "failed").await;
    let error = &task["error"];
    assert_eq!(error["code"], -32603, "{task}");
    assert_eq!(error["data"], json!({"outcomeUnknown": true}));
    let message = error["message"].as_str().unwrap_or_default();
    assert_contains(
        message,
        &[
            "outcome unknown",
            "effects may have happened",
            "was not repeated",
        ],
    );
}

#[tokio::test]
async fn running_handler_moves_into_a_task_after_its_time() {
    let (stores, _files) = stores().await;
    for store in stores {
        let shared = Shared::new(store);
        let tool = Tool::new("dialogue", dialogue).live().task_after(SOON);
        let instance = start(shared.server(tool)).await;
        let id = create(&instance, "dialogue").await;
        // Its asks are published in the task, and the handler stays in memory while they are open.
        shared.signals.open();
        for ask in ["first", "second"] {
            let task = wait_for_status(&instance, &id, "input_required").await;
            let keys: Vec<&String> = task["inputRequests"]
                .as_object()
                .expect("asks")
                .keys()
                .collect();
            assert_eq!(keys, [ask]);
            assert_eq!(instance.server.running_tasks(), 1);
            let answer = update(&id, json!({ask: accept(ask)}));
            assert_eq!(instance.send(&answer).await.status, 200);
            shared.ledger.wait_for(ask).await;
            shared.signals.open();
        }
        assert_eq!(completed(&instance, &id).await, "first and second");
        let lines = shared.ledger.lines();
        let once = [
            "started",
            "first",
            "second",
            "ended as a task: true",
            "dropped",
        ];
        assert_eq!(lines, once);
    }
}

#[tokio::test]
async fn ask_before_the_time_is_a_live_round() {
    let shared = Shared::new(Arc::new(MemoryStore::new()));
    let tool = Tool::new("dialogue", dialogue).live().task_after(SOON);
    let instance = start(shared.server(tool)).await;
    shared.signals.open();
    let first = instance.send(&tool_call("dialogue")).await.reply();
    assert_eq!(asked(&first), ["first"]);
    // A parked call is not running: the time of another round begins with its request.
    tokio::time::sleep(2 * SOON).await;
    assert_eq!(instance.server.running_tasks(), 0);
    let second = tool_call("dialogue").again(&token(&first), json!({"first": accept("one")}));
    let id = task_id(&instance.send(&second).await.reply());
    shared.signals.open();
    wait_for_status(&instance, &id, "input_required").await;
    let answer = update(&id, json!({"second": accept("two")}));
    assert_eq!(instance.send(&answer).await.status, 200);
    shared.signals.open();
    assert_eq!(completed(&instance, &id).await, "one and two");
    // The round's request can be repeated, and gets the same task.
    let repeated = instance.send(&second).await.reply();
    assert_eq!(task_id(&repeated), id);
}

#[tokio::test]
async fn open_ask_of_a_live_round_is_published_in_the_task() {
    /// Asks while it works in a step.
    async fn both(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
        let work = cx.step("work", async {
            signals.pass().await;
            ok(())
        });
        let (login, worked) = tokio::join!(cx.elicit::<Login>("name", "Who?"), work);
        worked?;
        Ok(login?.name)
    }
    let shared = Shared::new(Arc::new(MemoryStore::new()));
    let tool = Tool::new("both", both).live().task_after(SOON);
    let instance = start(shared.server(tool)).await;
    let id = create(&instance, "both").await;
    wait_for_status(&instance, &id, "input_required").await;
    let answer = update(&id, json!({"name": accept("Ada")}));
    assert_eq!(instance.send(&answer).await.status, 200);
    wait_for_status(&instance, &id, "working").await;
    shared.signals.open();
    assert_eq!(completed(&instance, &id).await, "Ada");
}

#[tokio::test]
async fn call_becomes_a_task_only_for_clients_that_support_tasks() {
    let shared = Shared::new(Arc::new(MemoryStore::new()));
    let tool = Tool::new("work", work).live().task_after(SOON);
    let detach = async |cx: Cx| {
        cx.detach().await?;
        Ok(format!("{}", cx.is_task()))
    };
    let builder = shared
        .server(tool)
        .tool(Tool::new("at_once", work).live().task())
        .tool(Tool::new("required", work).live().task_required())
        .tool(Tool::new("detach", detach).live().detaches());
    let instance = start(builder).await;
    let plain = Request::tool("work", json!({}));
    let running = async {
        shared.ledger.wait_for("started").await;
        tokio::time::sleep(2 * SOON).await;
        shared.signals.open();
    };
    let (reply, ()) = tokio::join!(instance.send(&plain), running);
    assert_eq!(text(&reply.reply()), "worked");
    let refused = instance.send(&Request::tool("required", json!({}))).await;
    refused.error(400, -32021);
    for tool in ["at_once", "required"] {
        let id = create(&instance, tool).await;
        shared.signals.open();
        assert_eq!(completed(&instance, &id).await, "worked");
    }
    let id = create(&instance, "detach").await;
    assert_eq!(completed(&instance, &id).await, "true");
}

#[tokio::test]
async fn cancelled_task_cancels_its_handler() {
    let (stores, _files) = stores().await;
    for store in stores {
        let shared = Shared::new(store);
        let instance = start(shared.server(Tool::new("work", work).live().task())).await;
        let id = create(&instance, "work").await;
        shared.ledger.wait_for("started").await;
        let cancelled = instance.send(&about("tasks/cancel", &id)).await;
        assert_eq!(cancelled.status, 200);
        shared.ledger.wait_for("dropped").await;
        wait_for_status(&instance, &id, "cancelled").await;
    }
}

#[tokio::test]
async fn task_of_a_lost_lease_fails_and_is_not_repeated() {
    let (stores, _files) = stores().await;
    for store in stores {
        let shared = Shared::new(store);
        let tool = || Tool::new("work", work).live().task();
        let instance = start(shared.server(tool())).await;
        let other = start(shared.server(tool())).await;
        let id = create(&instance, "work").await;
        shared.ledger.wait_for("started").await;
        // Requeueing takes the lease away: the handler is cancelled, and a worker claims the task.
        shared.requeue(&id).await;
        assert_outcome_unknown(&other, &id).await;
        shared.ledger.wait_for("dropped").await;
        // An operator cannot make it run again either.
        shared.requeue(&id).await;
        assert_outcome_unknown(&instance, &id).await;
        assert_eq!(shared.ledger.lines(), ["started", "dropped"]);
    }
}

#[tokio::test]
async fn drained_instance_fails_its_live_tasks_after_the_drain_time() {
    let shared = Shared::new(Arc::new(MemoryStore::new()));
    let tool = || Tool::new("work", work).live().task();
    let limits = ServerLimits {
        drain_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let instance = start(shared.server(tool()).limits(limits)).await;
    let other = start(shared.server(tool())).await;
    let lost = create(&instance, "work").await;
    shared.ledger.wait_for("started").await;
    instance.stopped_now().await;
    assert_outcome_unknown(&other, &lost).await;
    assert_eq!(shared.ledger.lines(), ["started", "dropped"]);
    // A handler that ends within the drain time completes its task.
    let instance = start(shared.server(tool())).await;
    let done = create(&instance, "work").await;
    let stopping = tokio::spawn(instance.stopped_now());
    shared.signals.open();
    assert_eq!(completed(&other, &done).await, "worked");
    within("the end", stopping).await.expect("no panic");
}

#[tokio::test]
async fn failed_handler_is_not_retried() {
    async fn retry(_: Cx, ledger: LedgerState) -> Result<String> {
        ledger.write("retry");
        Err(Error::retry("not now"))
    }
    async fn step(cx: Cx, ledger: LedgerState) -> Result<String> {
        let failing = cx.step("step", async {
            ledger.write("step");
            Err::<(), _>(Error::retry("not now"))
        });
        failing.await?;
        Ok(String::new())
    }
    async fn panics(_: Cx, ledger: LedgerState) -> Result<String> {
        ledger.write("panics");
        panic!("not again")
    }
    async fn explicit(_: Cx, ledger: LedgerState) -> Result<Reply<String>> {
        ledger.write("explicit");
        let asks = Incomplete::new().form("name", "Who?", Login::form());
        Ok(Reply::Incomplete(asks))
    }
    let shared = Shared::new(Arc::new(MemoryStore::new()));
    let builder = shared
        .server(Tool::new("retry", retry).live().task())
        .tool(Tool::new("step", step).live().task())
        .tool(Tool::new("panics", panics).live().task())
        .tool(Tool::new("explicit", explicit).live().task());
    let instance = start(builder).await;
    for tool in ["retry", "step"] {
        let id = create(&instance, tool).await;
        assert_eq!(completed(&instance, &id).await, "not now", "{tool}");
    }
    for (tool, reason) in [("panics", "panicked"), ("explicit", "remove `live`")] {
        let id = create(&instance, tool).await;
        let task = wait_for_status(&instance, &id, "failed").await;
        let message = task["error"]["message"].as_str().unwrap_or_default();
        assert_contains(message, &[reason]);
    }
    let lines = shared.ledger.lines();
    assert_eq!(lines, ["retry", "step", "panics", "explicit"]);
}

#[tokio::test]
async fn time_to_live_ends_the_handler() {
    let shared = Shared::new(Arc::new(MemoryStore::new()));
    let tool = Tool::new("dialogue", dialogue).live().task();
    let tool = tool.task_ttl(Duration::from_millis(300));
    let instance = start(shared.server(tool)).await;
    shared.signals.open();
    let id = create(&instance, "dialogue").await;
    let task = wait_for_status(&instance, &id, "failed").await;
    let message = task["error"]["message"].as_str().unwrap_or_default();
    assert_contains(message, &["time to live", "unanswered asks: first"]);
    shared.ledger.wait_for("dropped").await;
}

#[tokio::test]
async fn repeated_first_request_gets_the_same_task() {
    let shared = Shared::new(Arc::new(MemoryStore::new()));
    let tool = || Tool::new("work", work).live().task_after(SOON);
    let instance = start(shared.server(tool())).await;
    let call = tool_call("work").meta("refrain/callId", json!("c1"));
    let id = task_id(&instance.send(&call).await.reply());
    assert_eq!(task_id(&instance.send(&call).await.reply()), id);
    shared.signals.open();
    assert_eq!(completed(&instance, &id).await, "worked");
    assert_eq!(shared.ledger.lines(), ["started", "dropped"]);
}

#[tokio::test]
async fn disconnected_client_cancels_the_call_before_its_task_exists() {
    let shared = Shared::new(Arc::new(MemoryStore::new()));
    let tool = Tool::new("work", work)
        .live()
        .task_after(Duration::from_secs(600));
    let instance = start(shared.server(tool)).await;
    let mut connection = instance.connect().await;
    connection.send(&tool_call("work")).await;
    shared.ledger.wait_for("started").await;
    drop(connection);
    shared.ledger.wait_for("dropped").await;
    assert_eq!(instance.server.running_tasks(), 0);
}
