//! `refrain store tasks`: tasks from the view of an operator.

use crate::support::tasks::{TaskView, fast_poll_config, in_the_middle, shared_store, show_task};
use crate::support::terminal::Terminal;
use crate::support::{
    Call, Client, Files, Instance, Ledger, Serve, ended, program, refrain, sqlite, within,
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// An instance and its store.
struct Fixture {
    client: Client,
    store: PathBuf,
    instance: Instance,
    files: Files,
}

impl Fixture {
    async fn start() -> Self {
        let files = Files::new();
        let (store, eager) = (shared_store(&files), fast_poll_config(&files));
        let tokens = files.write("tokens", "alice secret-of-alice-1\n");
        let ledger = files.write("ledger", "");
        let serve = Serve::new().store(&store).tokens(&tokens).config(&eager);
        let instance = serve.ledger(&ledger).start().await;
        Self {
            client: Client::new(instance.address).with_bearer("secret-of-alice-1"),
            store,
            instance,
            files,
        }
    }

    fn command(&self, args: &[&str]) -> crate::support::Output {
        let store = sqlite(&self.store);
        let args = ["store", "tasks"].iter().chain(args).copied();
        refrain(args.chain(["--store", &store]))
    }

    fn list(&self, args: &[&str]) -> Vec<Value> {
        let output = self.command(&[&["list", "--json"], args].concat());
        assert!(output.ok, "{output:?}");
        serde_json::from_str(&output.out).expect("one JSON array")
    }

    /// Creates a task that asks and one that is completed.
    async fn create_two(&self) -> [String; 2] {
        let asks = self.client.create(Call::new("echo_task", json!({}))).await;
        self.client.asked(&asks, &["echo_input"]).await;
        let secret = json!({"name": "hush-name"});
        let done = self.client.create(Call::new("move_vm", secret)).await;
        self.client.asked(&done, &["switch_over"]).await;
        // Answer only after the task has reported its last status.
        let copied = |look: &TaskView| look.0["statusMessage"] == "All parts are copied.";
        self.client.task_until(&done, copied).await;
        self.client
            .update(&done, "switch_over", &json!({"switch": false}))
            .await;
        self.client.completed(&done).await;
        [asks, done]
    }
}

fn ids(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["id"].as_str()).collect()
}

#[tokio::test]
async fn tasks_are_listed_as_text_or_json() {
    let tasks = Fixture::start().await;
    let none = tasks.command(&["list"]);
    assert_eq!((none.ok, none.out.as_str()), (true, ""), "{none:?}");
    assert!(none.err.contains("no tasks found"), "{none:?}");
    assert_eq!(tasks.list(&[]), [json!(null); 0]);

    let [asks, done] = tasks.create_two().await;
    let output = tasks.command(&["list"]);
    assert!(output.ok && output.err.is_empty(), "{output:?}");
    assert!(
        !output.out.contains('\x1b'),
        "colours where there is no terminal"
    );
    let lines: Vec<&str> = output.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", output.out);
    let words =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    assert_eq!(
        words(lines[0]),
        [
            "ID", "STATUS", "TOOL", "OWNER", "CREATED", "ATTEMPTS", "WORKER"
        ]
    );
    // The newest first, and each cell under its head.
    assert_eq!(
        words(lines[1])[..4],
        [done.as_str(), "completed", "move_vm", "alice"]
    );
    assert_eq!(
        words(lines[2])[..4],
        [asks.as_str(), "input_required", "echo_task", "alice"]
    );
    for head in ["STATUS", "TOOL", "OWNER", "CREATED", "ATTEMPTS", "WORKER"] {
        let at = lines[0].find(head).expect("a head");
        for line in &lines[1..] {
            assert_eq!(&line[at - 2..at], "  ", "{line}");
            assert_ne!(&line[at..=at], " ", "{line}");
        }
    }

    assert_eq!(ids(&tasks.list(&[])), [done.as_str(), &asks]);
    assert_eq!(ids(&tasks.list(&["--status", "input_required"])), [&asks]);
    assert_eq!(ids(&tasks.list(&["--tool", "move_vm"])), [&done]);
    assert_eq!(
        tasks
            .list(&["--tool", "move_vm", "--status", "failed"])
            .len(),
        0
    );
    let first = tasks.command(&["list", "--limit", "1"]);
    assert_eq!(first.out.lines().count(), 2, "{first:?}");
    assert!(first.err.contains("raise --limit"), "{first:?}");
    let first = tasks.command(&["list", "--limit", "2"]);
    assert!(first.err.is_empty(), "{first:?}");
}

#[tokio::test]
async fn task_is_shown_without_its_arguments_and_result() {
    let tasks = Fixture::start().await;
    let [asks, done] = tasks.create_two().await;
    let output = tasks.command(&["show", &asks]);
    assert!(output.ok && !output.out.contains('\x1b'), "{output:?}");
    let value = |name: &str| {
        let line = output.out.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {output:?}"))[12..].to_owned()
    };
    assert_eq!(value("id "), asks);
    assert_eq!(value("tool"), "echo_task");
    assert_eq!(value("owner"), "alice");
    assert_eq!(value("status"), "input_required");
    assert_eq!(
        value("message"),
        "Task has been created for echo tool invocation."
    );
    assert_eq!(value("worker"), "-");
    assert_eq!(value("last error"), "-");
    assert!(value("asks").starts_with("echo_input ("), "{output:?}");
    assert_eq!(value("outcome"), "-");

    let row = show_task(&tasks.store, &done);
    assert_eq!(row["status"], "completed");
    assert_eq!(row["owner"], "alice");
    // The last status message is removed when the task ends.
    assert_eq!(row["message"], json!(null));
    assert_eq!(row["due"], json!(null));
    assert_eq!(row["asks"], json!([]));
    assert!(
        row["outcomeBytes"].as_u64().is_some_and(|bytes| bytes > 0),
        "{row}"
    );
    for time in ["created", "updated", "expires"] {
        let time = row[time].as_str().expect("a time");
        assert!(time.ends_with('Z') && time.len() == 24, "{time}");
    }
    // The arguments and the result contain this name.
    for args in [
        &["list"][..],
        &["list", "--json"],
        &["show", &done],
        &["show", &done, "--json"],
    ] {
        let output = tasks.command(args);
        assert!(output.ok && !output.out.contains("hush"), "{output:?}");
    }
    // A running task is shown with its worker.
    let call = json!({"name": "web", "pause_ms": 60_000});
    let runs = tasks.client.create(Call::new("move_vm", call)).await;
    // `done` has made the first five attempts.
    Ledger::at(&tasks.files.path("ledger"))
        .wait_for("attempt", 6)
        .await;
    let row = show_task(&tasks.store, &runs);
    let worker = row["worker"].as_str().expect("a worker");
    assert!(
        worker.starts_with(&format!("{}-", tasks.instance.id())),
        "{worker}"
    );
    assert!(row["due"].is_string(), "{row}");
}

#[tokio::test]
async fn task_is_cancelled_on_any_instance() {
    let tasks = Fixture::start().await;
    let [asks, done] = tasks.create_two().await;
    let call = json!({"text": "x", "pause_ms": 60_000});
    let runs = tasks.client.create(Call::new("echo_task", call)).await;
    // `done` has made the first five attempts.
    Ledger::at(&tasks.files.path("ledger"))
        .wait_for("attempt", 6)
        .await;
    for id in [&asks, &runs] {
        let output = tasks.command(&["cancel", id]);
        assert!(output.ok, "{output:?}");
        assert_eq!(output.out, format!("{id}  cancelled\n"));
        assert_eq!(tasks.client.task(id).await.status(), "cancelled");
        // Cancelling again succeeds.
        assert!(tasks.command(&["cancel", id]).ok);
    }
    tasks.instance.log.wait_for("task lease lost", 1).await;
    let output = tasks.command(&["cancel", &done]);
    assert_eq!((output.code, output.out.as_str()), (1, ""), "{output:?}");
    assert!(output.err.contains("is already completed"), "{output:?}");
}

#[tokio::test]
async fn failed_task_is_requeued() {
    in_the_middle(async |pause_ms| {
        let files = Files::new();
        let (store, file) = (shared_store(&files), files.write("ledger", ""));
        let settings = "[tasks]\nlook_ms = 50\nlease_ms = 4000\nattempts = 1\n";
        let config = files.write("config.toml", settings);
        let serve = || Serve::new().store(&store).config(&config).ledger(&file);
        let mut first = serve().start().await;
        let call = json!({"text": "lamp", "pause_ms": pause_ms});
        let call = Call::new("echo_task", call);
        let id = Client::new(first.address).create(call).await;
        let ledger = Ledger::at(&file);
        ledger.wait_for("attempt", 1).await;
        first.kill().await;
        if !ledger.done().is_empty() {
            return None;
        }
        let second = serve().start().await;
        let client = Client::new(second.address);
        let failed = client
            .task_until(&id, |look| look.status() == "failed")
            .await;
        let message = failed.0["error"]["message"].as_str().expect("an error");
        assert!(message.contains("no progress in 1 attempt;"), "{message}");
        assert_eq!(ledger.attempts("echo").len(), 1);

        let url = sqlite(&store);
        let output = refrain(["store", "tasks", "requeue", &id, "--store", &url]);
        assert!(output.ok, "{output:?}");
        assert_eq!(output.out, format!("{id}  working\n"));
        assert_eq!(client.completed(&id).await.text(), "Echo: lamp");
        assert_eq!(ledger.done(), ["echo lamp"]);
        assert_eq!(ledger.attempts("echo").len(), 2);
        let output = refrain(["store", "tasks", "requeue", &id, "--store", &url]);
        assert_eq!((output.code, output.out.as_str()), (1, ""), "{output:?}");
        assert!(output.err.contains("is already completed"), "{output:?}");
        Some(())
    })
    .await;
}

#[tokio::test]
async fn wrong_usage_of_tasks_is_reported() {
    let tasks = Fixture::start().await;
    let [asks, _] = tasks.create_two().await;
    for command in ["show", "cancel", "requeue"] {
        // A prefix of an id is not enough.
        for id in ["0000", &asks[..12], "no id\x1b[31m", ""] {
            let output = tasks.command(&[command, id]);
            assert_eq!((output.code, output.out.as_str()), (1, ""), "{output:?}");
            assert!(output.err.contains("unknown task"), "{output:?}");
            assert!(!output.err.contains('\x1b'), "{output:?}");
        }
    }
    assert_eq!(tasks.client.task(&asks).await.status(), "input_required");
    let output = tasks.command(&["show", "0000", "--json"]);
    let reply: Value = serde_json::from_str(&output.out).expect("valid JSON");
    let why = reply["error"]["message"]
        .as_str()
        .expect("the message is a string");
    let hint = reply["hints"][0].as_str().expect("a hint");
    let expected = format!("error: {why}\nhint: {hint}\n");
    assert_eq!((output.code, output.err), (1, expected));
    let output = tasks.command(&["list", "--status", "done"]);
    assert_eq!(output.code, 2, "{output:?}");
    assert!(
        output
            .err
            .contains("working, input_required, completed, failed, cancelled"),
        "{output:?}"
    );

    let output = refrain(["store", "tasks", "list", "--store", "memory:"]);
    let why = "error: a memory store belongs to one process";
    assert!(output.code == 1 && output.err.contains(why), "{output:?}");

    // A missing store is not created.
    let absent = tasks.files.path("absent.db");
    let output = refrain(["store", "tasks", "list", "--store", &sqlite(&absent)]);
    assert_eq!(output.code, 1, "{output:?}");
    assert!(
        output.err.contains("absent.db does not exist"),
        "{output:?}"
    );
    assert!(!absent.exists());

    // The configuration file of the instances can name the store.
    let config = format!("store = {:?}\n", sqlite(&tasks.store));
    let config = tasks.files.write("config.toml", &config);
    let output = refrain([
        "store",
        "tasks",
        "list",
        "--config",
        &config.display().to_string(),
    ]);
    assert!(output.ok && output.out.contains(&asks), "{output:?}");
}

#[tokio::test]
async fn tasks_are_coloured_on_a_terminal() {
    let tasks = Fixture::start().await;
    let [asks, _] = tasks.create_two().await;
    let coloured = "\x1b[33minput_required";
    for args in [&["list"][..], &["show", &asks]] {
        let mut terminal = Terminal::open();
        let mut command = program();
        let command = command
            .args(["store", "tasks"])
            .args(args)
            .args(["--store", &sqlite(&tasks.store)]);
        let command = command.env("TERM", "xterm").stdout(terminal.take_device());
        let mut child = command.spawn().expect("the binary starts");
        let shown = within("colours", terminal.read_until(coloured)).await;
        assert!(shown.contains(coloured), "{shown}");
        assert!(ended(&mut child).await.success());
    }
}
