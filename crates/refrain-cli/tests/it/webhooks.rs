//! Webhooks of ended tasks, with real processes.

use crate::support::tasks::shared_store;
use crate::support::{Call, Client, FakeServer, Files, Respond, Serve, config_check, until};

use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";

/// A configuration with a short lease and a webhook.
fn config(files: &Files, url: &str) -> PathBuf {
    let secret = files.write("webhook.secret", SECRET);
    let secret = secret.display();
    let text = format!(
        "[tasks]\nlook_ms = 50\nlease_ms = 4000\n\n[webhooks.billing]\nurl = \"{url}\"\nsecret_file = \"{secret}\"\n"
    );
    files.write("hooked.toml", &text)
}

/// The instance is killed after the task has ended, while the receiver has not responded.
#[tokio::test]
async fn delivery_of_a_killed_instance_is_made_by_another() {
    let files = Files::new();
    let (hold, gate) = watch::channel(false);
    let is_first = AtomicBool::new(true);
    let receiver = FakeServer::start_raw(move |_| {
        let _never_opened = &hold;
        match is_first.swap(false, Ordering::SeqCst) {
            true => Respond::When(gate.clone(), Default::default()),
            false => Respond::Status(204),
        }
    })
    .await;
    let (store, config) = (shared_store(&files), config(&files, &receiver.url()));
    let with = |serve: Serve| serve.store(&store).config(&config);
    let mut instance = with(Serve::new()).start().await;
    let call = Call::new("echo_task", json!({"text": "lamp"}));
    let id = Client::new(instance.address).create(call).await;
    receiver.receives("a delivery", |_| true).await;
    instance.kill().await;

    let mut worker = with(Serve::worker()).start_worker().await;
    until("a second delivery", || receiver.all().len() > 1).await;
    let received = receiver.all();
    for delivery in &received {
        assert_eq!(delivery["type"], "task.completed");
        assert_eq!(delivery["data"]["taskId"], id);
        assert_eq!(delivery["data"]["tool"], "echo_task");
    }
    let ids = received.iter().map(|one| one.header("webhook-id"));
    let ids: Vec<_> = ids.map(|id| id.expect("an id")).collect();
    assert_eq!(ids[0], ids[1]);
    worker.stop().await;
    assert_eq!(
        receiver.all().len(),
        2,
        "it is delivered once more, not twice"
    );
}

#[test]
fn invalid_webhooks_are_reported_with_their_positions() {
    let files = Files::new();
    let path = config(&files, "http://hooks.example.com/tasks");
    let check = config_check(&path, &[]);
    let expected = "hooked.toml:6:7: webhooks.billing.url: invalid URL: plain http is allowed for loopback hosts only: use https\n";
    assert!(check.err.contains(expected), "{check:?}");
    let path = config(&files, "http://127.0.0.1:9/");
    std::fs::write(files.path("webhook.secret"), "topsecret\n").expect("it is written");
    let check = config_check(&path, &[]);
    assert!(
        check
            .err
            .contains("hooked.toml:7:15: webhooks.billing.secret_file: "),
        "{check:?}"
    );
    assert!(
        check
            .err
            .contains("invalid secret: expected `whsec_` and 24 to 64 bytes in base64")
    );
    assert!(!check.err.contains("topsecret"));
}
