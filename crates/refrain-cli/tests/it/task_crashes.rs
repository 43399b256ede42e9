//! Tasks of instances that are killed, paused for longer than their lease, drained, or upgraded.

use crate::support::tasks::{TaskView, in_the_middle, shared_store, short_lease_config, show_task};
use crate::support::{Call, Client, Files, Ledger, Reply, Serve, refrain, sqlite};
use rustix::process::Signal;
use serde_json::json;
use std::path::PathBuf;

/// The store and the ledger that the instances share.
struct Fleet {
    ledger: PathBuf,
    store: PathBuf,
    config: PathBuf,
    _files: Files,
}

impl Fleet {
    fn new() -> Self {
        let files = Files::new();
        Self {
            ledger: files.write("ledger", ""),
            store: shared_store(&files),
            config: short_lease_config(&files),
            _files: files,
        }
    }

    fn with(&self, serve: Serve) -> Serve {
        let serve = serve.ledger(&self.ledger).store(&self.store);
        serve.config(&self.config)
    }

    fn serve(&self) -> Serve {
        self.with(Serve::new())
    }

    fn ledger(&self) -> Ledger {
        Ledger::at(&self.ledger)
    }
}

/// An echo whose step takes this long.
fn echo(text: &str, pause_ms: u64) -> Call {
    Call::new("echo_task", json!({"text": text, "pause_ms": pause_ms}))
}

/// An instance is killed in the middle of a step. Another one repeats it under the same key.
#[tokio::test]
async fn task_of_a_killed_instance_is_finished_by_another() {
    in_the_middle(async |pause_ms| {
        let fleet = Fleet::new();
        let mut a = fleet.serve().start().await;
        let b = fleet.serve().start().await;
        let id = Client::new(a.address).create(echo("lamp", pause_ms)).await;
        fleet.ledger().wait_for("attempt", 1).await;
        let killed = a.id();
        a.kill().await;
        if !fleet.ledger().done().is_empty() {
            return None;
        }
        let done = Client::new(b.address).completed(&id).await;
        assert_eq!(done.text(), "Echo: lamp");
        assert_eq!(fleet.ledger().attempts("echo"), [killed, b.id()]);
        assert_eq!(fleet.ledger().done(), ["echo lamp"]);
        Some(())
    })
    .await;
}

/// An instance is killed in its second step. The first one is in the journal, and is not repeated.
#[tokio::test]
async fn finished_step_of_a_killed_instance_is_not_repeated() {
    in_the_middle(async |pause_ms| {
        let fleet = Fleet::new();
        let mut a = fleet.serve().start().await;
        let client = Client::new(a.address).with_tasks();
        let mut vm = Call::new("create_vm", json!({"name": "web", "pause_ms": pause_ms}));
        let asked = client.round(&mut vm).await;
        assert_eq!(asked, Reply::Asked(vec!["size".into()]));
        vm.answer("size", &json!({"processors": 4}));
        let Reply::Task(id) = client.round(&mut vm).await else {
            panic!("the call did not become a task");
        };
        // The second step starts when the value of the first one is stored.
        fleet.ledger().wait_for("attempt", 2).await;
        let killed = a.id();
        a.kill().await;
        if fleet.ledger().done().len() > 1 {
            return None;
        }
        let b = fleet.serve().start().await;
        let done = Client::new(b.address).completed(&id).await;
        assert_eq!(done.text(), "web runs, with 4 processors.");
        assert_eq!(fleet.ledger().attempts("make"), [killed]);
        assert_eq!(fleet.ledger().attempts("start"), [killed, b.id()]);
        assert_eq!(fleet.ledger().done(), ["make web", "start web"]);
        Some(())
    })
    .await;
}

/// Checks that a task failed because the instance that ran its live tool was lost.
fn assert_unknown(task: &TaskView) {
    assert_eq!(task.status(), "failed", "{task:?}");
    let error = &task.0["error"];
    assert_eq!(error["code"], -32603, "{task:?}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.starts_with("outcome unknown: "), "{message}");
}

/// An instance is killed while it runs the task of a live tool. The task fails, and is not repeated, also if an operator
/// requeues it.
#[tokio::test]
async fn live_task_of_a_killed_instance_has_an_unknown_outcome() {
    in_the_middle(async |pause_ms| {
        let fleet = Fleet::new();
        let mut a = fleet.serve().start().await;
        let b = fleet.serve().start().await;
        let call = json!({"title": "Lamps", "pause_ms": pause_ms});
        let call = Call::new("print_poster", call);
        let id = Client::new(a.address).create(call).await;
        fleet.ledger().wait_for("attempt", 1).await;
        let killed = a.id();
        a.kill().await;
        if !fleet.ledger().done().is_empty() {
            return None;
        }
        let at_b = Client::new(b.address);
        let has_failed = |look: &TaskView| look.status() == "failed";
        assert_unknown(&at_b.task_until(&id, has_failed).await);
        let output = refrain([
            "store",
            "tasks",
            "requeue",
            &id,
            "--store",
            &sqlite(&fleet.store),
        ]);
        assert!(output.ok, "{output:?}");
        assert_unknown(&at_b.task_until(&id, has_failed).await);
        assert_eq!(fleet.ledger().attempts("print"), [killed]);
        assert!(fleet.ledger().done().is_empty());
        Some(())
    })
    .await;
}

/// The handler of a live tool is in memory while its ask is open, and lost with its instance.
#[tokio::test]
async fn live_task_of_a_killed_instance_is_lost_at_its_ask() {
    let fleet = Fleet::new();
    let mut a = fleet.serve().start().await;
    let b = fleet.serve().start().await;
    let call = Call::new("print_poster", json!({"title": "Lamps"}));
    let (at_a, at_b) = (Client::new(a.address), Client::new(b.address));
    let done = at_a.create(call.clone()).await;
    let lost = at_a.create(call).await;
    let good = json!({"good": true});
    for id in [&done, &lost] {
        at_b.asked(id, &["check"]).await;
    }
    // An answer at another instance reaches the handler.
    at_b.update(&done, "check", &good).await;
    let text = "The poster \"Lamps\" is printed.";
    assert_eq!(at_b.completed(&done).await.text(), text);
    a.kill().await;
    at_b.update(&lost, "check", &good).await;
    let has_failed = |look: &TaskView| look.status() == "failed";
    assert_unknown(&at_b.task_until(&lost, has_failed).await);
    let printed = "print Lamps".to_owned();
    assert_eq!(fleet.ledger().done(), [printed.clone(), printed]);
}

/// An instance that is paused for longer than its lease cannot write: the other one has the result.
#[tokio::test]
async fn paused_worker_cannot_write() {
    in_the_middle(async |pause_ms| {
        let fleet = Fleet::new();
        let a = fleet.serve().start().await;
        let b = fleet.serve().start().await;
        let at_b = Client::new(b.address);
        let id = Client::new(a.address).create(echo("lamp", pause_ms)).await;
        fleet.ledger().wait_for("attempt", 1).await;
        // Do not pause the instance while it writes the attempt.
        let begun = |look: &TaskView| {
            look.status() == "completed" || look.0["statusMessage"] == "Echoing the input."
        };
        at_b.task_until(&id, begun).await;
        a.signal(Signal::STOP);
        if !fleet.ledger().done().is_empty() {
            return None;
        }
        // A process that is paused during a SQLite write blocks all other writers: try again.
        let mut other = Call::new("accounts_task", json!({}));
        let other = at_b.clone().with_tasks().round(&mut other).await;
        if matches!(other, Reply::Refused { .. }) {
            b.log.wait_for("database is locked", 1).await;
            return None;
        }
        // The lease expires, and b takes the task.
        let done = at_b.completed(&id).await;
        assert_eq!(done.text(), "Echo: lamp");
        let attempts = [a.id(), b.id()];
        assert_eq!(fleet.ledger().attempts("echo"), attempts);
        assert_eq!(fleet.ledger().done(), ["echo lamp"]);
        let row = show_task(&fleet.store, &id);

        a.signal(Signal::CONT);
        let line = a.log.wait_for("task lease lost", 1).await;
        assert!(line.contains(&id[..8]), "{line}");
        // Nothing has changed since b completed the task.
        assert_eq!(show_task(&fleet.store, &id), row);
        assert_eq!(at_b.task(&id).await.text(), "Echo: lamp");
        assert_eq!(fleet.ledger().attempts("echo"), attempts);
        assert_eq!(fleet.ledger().done(), ["echo lamp"]);
        Some(())
    })
    .await;
}

/// A drained instance hands its task on after the current step, and another one continues it.
#[tokio::test]
async fn task_of_a_drained_instance_is_finished_by_another() {
    in_the_middle(async |pause_ms| {
        let fleet = Fleet::new();
        let mut a = fleet.serve().start().await;
        let call = Call::new("move_vm", json!({"name": "web", "pause_ms": pause_ms}));
        let id = Client::new(a.address).create(call).await;
        fleet.ledger().wait_for("attempt", 1).await;
        let stopped = a.id();
        a.stop().await;
        let begun = fleet.ledger().effects("attempt").len();
        if begun == 5 {
            return None;
        }
        assert_eq!(fleet.ledger().done().len(), begun, "a step was broken off");
        // The task is handed on before its lease expires.
        assert_eq!(show_task(&fleet.store, &id)["worker"], json!(null));

        let b = fleet.serve().start().await;
        let at_b = Client::new(b.address);
        let answer = json!({"switch": true});
        at_b.update(&id, "switch_over", &answer).await;
        let done = at_b.completed(&id).await;
        assert_eq!(done.text(), "web runs on the other host.");
        // Every part is copied once, by either instance.
        for part in 1..=5 {
            let by = if part <= begun { stopped } else { b.id() };
            let attempts = fleet.ledger().attempts(&format!("copy_{part}"));
            assert_eq!(attempts, [by], "part {part}");
        }
        assert_eq!(fleet.ledger().done().len(), 6);
        Some(())
    })
    .await;
}

/// The new version finishes the task, and asks only for missing answers.
#[tokio::test]
async fn task_of_the_old_version_is_finished_by_the_new_one() {
    let fleet = Fleet::new();
    let version = |number| fleet.serve().args(["--accounts", number]);
    let mut old = version("1").start().await;
    let at_old = Client::new(old.address);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(at_old.create(Call::new("accounts_task", json!({}))).await);
    }
    let octocat = json!({"name": "octocat"});
    for id in &ids {
        at_old.asked(id, &["github_login", "google_login"]).await;
    }
    // The first task has an answer that the new version needs, the second one that it does not
    // need, the third no answer.
    at_old.update(&ids[0], "github_login", &octocat).await;
    at_old.asked(&ids[0], &["google_login"]).await;
    at_old.update(&ids[1], "google_login", &octocat).await;
    at_old.asked(&ids[1], &["github_login"]).await;
    old.stop().await;

    let new = version("2").start().await;
    let at_new = Client::new(new.address);
    let linked = "Linked GitHub octocat and Microsoft octocat.";
    for (id, open) in ids
        .iter()
        .zip(["google_login", "github_login", "github_login"])
    {
        // The ask of the old version is still open. Its answer makes the new version run the task.
        at_new.update(id, open, &octocat).await;
        let look = at_new.task_until(id, |look| look.asked().contains(&"microsoft_login"));
        let look = look.await;
        assert_eq!(look.asked(), ["microsoft_login"], "{look:?}");
        at_new.update(id, "microsoft_login", &octocat).await;
        assert_eq!(at_new.completed(id).await.text(), linked);
    }
}
