//! Webhooks: deliveries of ended tasks to a real receiver.

use crate::support::tasks::{TASKS_EXTENSION, about, eager};
use crate::support::{CAPABILITIES_KEY, Instance, Request, keys, result, start, until};
use refrain_core::{Cx, Error, Result};
use refrain_server::{BuildError, Server, ServerBuilder, TaskOptions, Tool, Webhook};
use refrain_store::{MemoryStore, TaskStore};
use refrain_testkit::net::{FakeServer, Received, Respond};
use serde_json::json;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The reaction of the receiver to a request.
#[derive(Clone, Copy)]
enum Reaction {
    Status(u16),
    /// No response.
    Hang,
}

/// A receiver with these reactions in turn, then status 204.
async fn receiver(reactions: &[Reaction]) -> FakeServer {
    let reactions = reactions.to_vec();
    let requests = AtomicUsize::new(0);
    let (hold, gate) = watch::channel(false);
    FakeServer::start_raw(move |_| {
        let _never_opened = &hold;
        let number = requests.fetch_add(1, Ordering::SeqCst);
        match reactions.get(number) {
            Some(Reaction::Status(status)) => Respond::Status(*status),
            Some(Reaction::Hang) => Respond::When(gate.clone(), Default::default()),
            None => Respond::Status(204),
        }
    })
    .await
}

/// Waits for this many requests.
async fn posts(receiver: &FakeServer, count: usize) -> Vec<Received> {
    let is_reached = || receiver.all().len() >= count;
    until("a request to the webhook", is_reached).await;
    receiver.all()
}

fn header<'a>(post: &'a Received, name: &str) -> &'a str {
    post.header(name).expect("a header")
}

/// Options with short waits. A request times out after half of the lease.
fn short_waits() -> TaskOptions {
    TaskOptions {
        lease: Duration::from_secs(1),
        retry_after: Duration::from_millis(1),
        ..eager()
    }
}

async fn add(_: Cx) -> Result<&'static str> {
    Ok("a confidential result")
}

async fn broken(_: Cx) -> Result<String> {
    Err(Error::msg("a confidential error"))
}

async fn waits(cx: Cx) -> Result<String> {
    cx.elicit::<crate::support::Login>("login", "a confidential question")
        .await?;
    Ok(String::new())
}

fn server(store: &MemoryStore, options: TaskOptions, webhooks: &[(&str, &str)]) -> ServerBuilder {
    let builder = Server::builder("hooked", "1")
        .keys(keys())
        .tasks(Arc::new(store.clone()), options)
        .tool(Tool::new("add", add).task())
        .tool(Tool::new("broken", broken).task())
        .tool(Tool::new("waits", waits).task());
    webhooks.iter().fold(builder, |builder, (name, url)| {
        builder.webhook(Webhook::new(*name, url, SECRET).expect("it is valid"))
    })
}

async fn create(instance: &Instance, tool: &str) -> String {
    let capabilities = json!({"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}});
    let request = Request::tool(tool, json!({})).meta(CAPABILITIES_KEY, capabilities);
    let reply = instance.send(&request).await.reply();
    let id = result(&reply)["taskId"].as_str();
    id.expect("a task id").to_owned()
}

/// Whether the server counted an event this many times.
fn counted(instance: &Instance, event: &str, count: u32) -> bool {
    let line = format!("refrain_webhooks_total{{event=\"{event}\"}} {count}\n");
    instance.server.metrics_text().contains(&line)
}

/// Deletes the deliveries in the outbox, and returns their number.
async fn drain_outbox(store: &MemoryStore) -> u64 {
    let left = store.trim_outbox(Duration::ZERO, 0, 100).await;
    left.expect("the store is available")
}

/// Checks the signature with an independent implementation.
fn verify(post: &Received) {
    let script = "import base64, hashlib, hmac, sys
id, at, signature, secret, body = sys.argv[1:]
key = base64.b64decode(secret.removeprefix('whsec_'))
made = hmac.new(key, f'{id}.{at}.{body}'.encode(), hashlib.sha256).digest()
assert signature == 'v1,' + base64.b64encode(made).decode(), signature";
    let parts = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let checked = Command::new("python3")
        .args(["-c", script])
        .args(parts.map(|name| header(post, name)))
        .args([SECRET, &post.message.to_string()])
        .output()
        .expect("Python runs");
    let error = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{error}");
}

#[tokio::test]
async fn every_end_of_a_task_is_delivered() {
    let receiver = receiver(&[]).await;
    let url = receiver.url();
    let store = MemoryStore::new();
    let options = TaskOptions {
        lease: Duration::from_secs(30),
        ..short_waits()
    };
    let instance = start(server(&store, options, &[("one", &url)])).await;
    for (number, (tool, status)) in [
        ("add", "completed"),
        ("broken", "completed"),
        ("waits", "cancelled"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = create(&instance, tool).await;
        if status == "cancelled" {
            instance.send(&about("tasks/cancel", &id)).await.reply();
        }
        let post = posts(&receiver, number + 1).await.remove(number);
        let body = &post.message;
        assert_eq!(body["type"], format!("task.{status}"));
        let data = &body["data"];
        assert_eq!(data["taskId"], id);
        assert_eq!(data["tool"], tool);
        assert_eq!(data["status"], status);
        assert_eq!(data["endedAt"], body["timestamp"]);
        assert!(data["createdAt"].as_str() <= data["endedAt"].as_str());
        assert!(!body.to_string().contains("confidential"), "{body}");
        assert_eq!(header(&post, "content-type"), "application/json");
        verify(&post);
    }
    // The instance records its last deliveries before it stops.
    instance.stopped_now().await;
    assert_eq!(drain_outbox(&store).await, 0);
}

#[tokio::test]
async fn failed_delivery_is_repeated_with_the_same_id() {
    let failures = [500, 404, 302].map(Reaction::Status);
    let receiver = receiver(&failures).await;
    let url = receiver.url();
    let store = MemoryStore::new();
    let instance = start(server(&store, short_waits(), &[("one", &url)])).await;
    create(&instance, "add").await;
    let posts = posts(&receiver, 4).await;
    for post in &posts {
        assert_eq!(header(post, "webhook-id"), header(&posts[0], "webhook-id"));
        assert_eq!(post.message, posts[0].message);
        verify(post);
    }
    assert!(counted(&instance, "retried", 3));
}

#[tokio::test]
async fn delivery_to_a_hanging_receiver_is_repeated() {
    let receiver = receiver(&[Reaction::Hang]).await;
    let url = receiver.url();
    let store = MemoryStore::new();
    let instance = start(server(&store, short_waits(), &[("one", &url)])).await;
    create(&instance, "add").await;
    let posts = posts(&receiver, 2).await;
    assert_eq!(
        header(&posts[0], "webhook-id"),
        header(&posts[1], "webhook-id")
    );
}

#[tokio::test]
async fn hanging_receiver_does_not_delay_others() {
    let hanging = receiver(&[Reaction::Hang; 64]).await;
    let hanging_url = hanging.url();
    let receiver = receiver(&[]).await;
    let url = receiver.url();
    // A request to the hanging receiver takes longer than the test.
    let options = TaskOptions {
        lease: Duration::from_secs(600),
        ..short_waits()
    };
    let store = MemoryStore::new();
    let webhooks = [("hanging", &*hanging_url), ("one", &*url)];
    let instance = start(server(&store, options, &webhooks)).await;
    for _ in 0..20 {
        create(&instance, "add").await;
    }
    posts(&receiver, 20).await;
    let waiting = posts(&hanging, 8).await.len();
    assert_eq!(waiting, 8, "requests to one endpoint are limited");
}

#[tokio::test]
async fn delivery_is_given_up_after_its_time_or_status_410() {
    for (status, age) in [
        (500, Duration::from_millis(1)),
        (410, Duration::from_secs(3600)),
    ] {
        let receiver = receiver(&[Reaction::Status(status); 64]).await;
        let url = receiver.url();
        let options = TaskOptions {
            lease: Duration::from_secs(30),
            webhook_age: age,
            retry_after: Duration::from_millis(20),
            // The sweep could drop it first.
            sweep: Duration::from_secs(3600),
            ..short_waits()
        };
        let store = MemoryStore::new();
        let instance = start(server(&store, options, &[("one", &url)])).await;
        create(&instance, "add").await;
        posts(&receiver, 1).await;
        let is_counted = || counted(&instance, "given_up", 1);
        until("a delivery that is given up", is_counted).await;
        assert!(counted(&instance, "delivered", 0));
        instance.stopped_now().await;
        assert_eq!(drain_outbox(&store).await, 0);
    }
}

#[tokio::test]
async fn without_webhooks_nothing_is_added_to_the_outbox() {
    let store = MemoryStore::new();
    let instance = start(server(&store, short_waits(), &[])).await;
    create(&instance, "add").await;
    let is_done = || {
        instance
            .server
            .metrics_text()
            .contains("event=\"completed\"} 1\n")
    };
    until("the end of the task", is_done).await;
    assert_eq!(drain_outbox(&store).await, 0);
}

#[test]
fn webhook_needs_a_store_and_a_unique_name() {
    let webhook = || Webhook::new("one", "http://127.0.0.1:1/", SECRET).expect("it is valid");
    let built = Server::builder("hooked", "1").webhook(webhook()).build();
    assert!(matches!(built, Err(BuildError::WebhookNeedsTaskStore(name)) if name == "one"));
    let built = Server::builder("hooked", "1")
        .tasks(Arc::new(MemoryStore::new()), TaskOptions::default())
        .webhook(webhook())
        .webhook(webhook())
        .build();
    assert!(matches!(
        built,
        Err(BuildError::Duplicate {
            kind: "webhook",
            ..
        })
    ));
}
