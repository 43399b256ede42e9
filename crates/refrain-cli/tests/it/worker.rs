//! `refrain worker`: runs tasks of other instances.

use crate::metrics::metrics_address;
use crate::support::http::{status_of, text_of};
use crate::support::tasks::{
    in_the_middle, shared_store, short_lease_config, show_task, wait_until_completed,
};
use crate::support::{Call, Client, Files, Ledger, Serve, refrain, sqlite};
use rustix::process::Signal;
use serde_json::json;

#[tokio::test]
async fn worker_finishes_the_tasks_of_an_instance() {
    in_the_middle(async |pause_ms| {
        let files = Files::new();
        let (file, store, brief) = (
            files.write("ledger", ""),
            shared_store(&files),
            short_lease_config(&files),
        );
        let with = |serve: Serve| serve.ledger(&file).store(&store).config(&brief);
        let mut instance = with(Serve::new()).start().await;
        let client = Client::new(instance.address);
        let asking_task = client.create(Call::new("echo_task", json!({}))).await;
        client.asked(&asking_task, &["echo_input"]).await;
        let call = json!({"text": "chair", "pause_ms": pause_ms});
        let running_task = client.create(Call::new("echo_task", call)).await;
        let ledger = Ledger::at(&file);
        ledger.wait_for("attempt", 1).await;
        let killed = instance.id();
        instance.kill().await;
        if !ledger.done().is_empty() {
            return None;
        }
        let mut worker = with(Serve::worker()).start_worker().await;
        ledger.wait_for("done", 1).await;
        assert_eq!(ledger.attempts("echo"), [killed, worker.id()]);
        assert_eq!(ledger.done(), ["echo chair"]);
        // A worker that is stopped right after the step would hand the task on.
        wait_until_completed(&store, &running_task).await;
        worker.stop().await;
        assert_eq!(show_task(&store, &asking_task)["status"], "input_required");
        Some(())
    })
    .await;
}

#[tokio::test]
async fn worker_without_a_shared_store_is_rejected() {
    let files = Files::new();
    let config = files.write("config.toml", "store = \"memory:\"\n");
    for worker in [
        Serve::worker().args(["--store", "memory:"]),
        Serve::worker().env("REFRAIN_STORE", "memory:"),
        Serve::worker().config(&config),
    ] {
        let expected = "error: a memory store belongs to one process: no other process can use it\n\
                        hint: pass the store that the instances use: --store URL, --config FILE or $REFRAIN_STORE\n";
        assert_eq!(worker.fails().await, expected);
    }
}

#[tokio::test]
async fn sigterm_and_sigint_stop_a_worker_and_hand_its_task_on() {
    for signal in [Signal::TERM, Signal::INT] {
        in_the_middle(async |pause_ms| {
            let files = Files::new();
            let (file, store, brief) = (
                files.write("ledger", ""),
                shared_store(&files),
                short_lease_config(&files),
            );
            let with = |serve: Serve| serve.ledger(&file).store(&store).config(&brief);
            let ledger = Ledger::at(&file);
            let mut instance = with(Serve::new()).start().await;
            let call = Call::new("move_vm", json!({"name": "web", "pause_ms": pause_ms}));
            let id = Client::new(instance.address).create(call).await;
            ledger.wait_for("attempt", 1).await;
            instance.stop().await;
            let before = ledger.effects("attempt").len();

            let mut worker = with(Serve::worker()).start_worker().await;
            if before < 5 {
                ledger.wait_for("attempt", before + 1).await;
            }
            worker.signal(signal);
            let ended = worker.ended().await;
            assert!(ended.success(), "{ended} {:?}", worker.log);
            let row = show_task(&store, &id);
            let state = (&row["worker"], &row["status"]);
            assert_eq!(state, (&json!(null), &json!("input_required")));
            if ledger.effects("attempt").len() == 5 {
                return None;
            }
            let _other = with(Serve::worker()).start_worker().await;
            ledger.wait_for("done", 5).await;
            assert_eq!(ledger.done().len(), 5);
            assert_eq!(ledger.effects("attempt").len(), 5);
            Some(())
        })
        .await;
    }
}

#[tokio::test]
async fn worker_serves_metrics_if_configured() {
    let worker = Serve::worker().args(["--metrics", "127.0.0.1:0"]);
    let mut worker = worker.start_worker().await;
    let address = metrics_address(&worker.log).await;
    assert_eq!(status_of(address, "/readyz").await.expect("a page"), 200);
    assert!(
        text_of(address, "/metrics")
            .await
            .contains("refrain_build_info")
    );
    worker.stop().await;
}

/// Instances and workers may share one configuration file.
#[tokio::test]
async fn worker_ignores_settings_of_the_endpoint() {
    let files = Files::new();
    for (settings, expected) in [
        (
            "advertise = \"http://127.0.0.1:1/mcp\"\n",
            "--advertise (or `advertise` in the configuration) needs keys",
        ),
        (
            "[server_card]\nname = \"com.example/demo\"\nurl = \"https://mcp.example.com/mcp\"\n",
            "description",
        ),
    ] {
        let config = files.write("fleet.toml", settings);
        let error = Serve::new().config(&config).fails().await;
        assert!(error.contains(expected), "{error}");
        let mut worker = Serve::worker().config(&config).start_worker().await;
        worker.stop().await;
    }
}

#[tokio::test]
async fn worker_names_its_store_and_warns_if_it_is_new() {
    let files = Files::new();
    let store = files.path("tasks.db");
    for warnings in [1, 0] {
        let mut worker = Serve::worker().store(&store).start_worker().await;
        let line = format!("refrain: running tasks of {}", sqlite(&store));
        assert_eq!(worker.log.count(&line), 1, "{:?}", worker.log);
        worker.stop().await;
        assert_eq!(worker.log.count("store created"), warnings);
        // Only instances that serve calls need keys.
        assert_eq!(worker.log.count("no keys are configured"), 0);
    }
    let worker = Serve::worker().store(&store).args(["--log", "json"]);
    let mut worker = worker.start_worker().await;
    let line = worker.log.wait_for("running tasks", 1).await;
    let line: serde_json::Value = serde_json::from_str(&line).expect("valid JSON");
    assert_eq!(line["fields"]["store"], sqlite(&store));
    worker.stop().await;
}

#[tokio::test]
async fn worker_rejects_flags_of_serve() {
    for flag in [
        ["--listen", "127.0.0.1:0"],
        ["--tokens", "file"],
        ["--explain", "a"],
    ] {
        let output = refrain(["worker"].iter().chain(&flag));
        assert_eq!(output.code, 2, "{output:?}");
        assert!(output.err.contains("unexpected argument"), "{output:?}");
        assert!(!output.err.contains("tip:"), "{output:?}");
        assert!(!output.err.contains("--store"), "{output:?}");
    }
    let output = Serve::worker().args(["--log", "json", "--store", "sqlite:/no/such/place/x.db"]);
    let output = output.fails().await;
    let line: serde_json::Value =
        serde_json::from_str(output.lines().last().expect("a line")).expect("valid JSON");
    let error = line["fields"]["error"].as_str().expect("an error");
    assert!(
        error.contains("cannot open store \"sqlite:/no/such/place/x.db\""),
        "{error}"
    );
}
