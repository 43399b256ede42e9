//! The settings of `[limits]`, and the lifetimes.

use crate::support::http::status_of;
use crate::support::tasks::in_the_middle;
use crate::support::{Call, Client, Files, Instance, Ledger, Reply, Serve, within};
use refrain_testkit::net::Connection;
use rustix::process::Signal;
use serde_json::json;
use std::time::{Duration, Instant};

/// Starts an instance with these settings.
async fn with(settings: &str) -> (Instance, Client) {
    let files = Files::new();
    let config = files.write("config.toml", settings);
    let instance = Serve::new().config(&config).start().await;
    let client = Client::new(instance.address);
    (instance, client)
}

async fn with_limit(limit: &str) -> (Instance, Client) {
    with(&format!("[limits]\n{limit}\n")).await
}

/// Checks that the reply is an internal error that contains `part`.
#[track_caller]
fn assert_internal(reply: &Reply, part: &str) {
    let Reply::Refused { code, message, .. } = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(*code, -32603, "{message}");
    assert!(message.contains(part), "no {part:?} in {message:?}");
}

fn asked(key: &str) -> Reply {
    Reply::Asked(vec![key.into()])
}

/// Starts a call of `sum` and waits for its first event.
async fn sum_at_work(client: &Client, call: &Call) -> Connection {
    let client = client.clone().with_progress(true);
    let begun = within("a response", client.begin(call)).await;
    let mut connection = begun.expect("a response");
    let event = connection.event().await.expect("an event");
    assert_eq!(event["method"], "notifications/progress", "{event}");
    connection
}

#[tokio::test]
async fn body_bytes_limits_request_bodies() {
    let (_instance, client) = with_limit("body_bytes = 1000").await;
    let call = |text: &str| Call::new("echo", json!({"text": text}));
    let small = client.round(&mut call("hello")).await;
    assert_eq!(small, Reply::Done("Echo: hello".into()));
    let large = client.round(&mut call(&"hello".repeat(200))).await;
    assert!(
        matches!(large, Reply::Refused { status: 413, .. }),
        "{large:?}"
    );
}

#[tokio::test]
async fn json_values_limits_the_values_of_a_message() {
    let (_instance, client) = with_limit("json_values = 256").await;
    let call = |more: usize| Call::new("echo", json!({"text": "hello", "more": vec![0; more]}));
    let few = client.round(&mut call(100)).await;
    assert_eq!(few, Reply::Done("Echo: hello".into()));
    let many = client.round(&mut call(256)).await;
    assert!(
        matches!(many, Reply::Refused { status: 413, .. }),
        "{many:?}"
    );
}

/// A larger token is stored, and the client gets a reference.
#[tokio::test]
async fn token_chars_moves_larger_tokens_to_the_store() {
    let (_instance, client) = with_limit("token_chars = 150").await;
    let mut order = Call::order("lamp");
    assert_eq!(client.round(&mut order).await, asked("confirm_order"));
    let token = order.token.clone().expect("a token");
    assert!(token.len() < 150, "{token}");
    let done = client.finish(order).await.reply;
    assert!(matches!(&done, Reply::Done(text) if text.starts_with("Ordered one lamp")));
}

#[tokio::test]
async fn journal_bytes_limits_stored_journals() {
    let settings = "[limits]\ntoken_chars = 150\n[tasks]\njournal_bytes = 150\n";
    let (_instance, client) = with(settings).await;
    let reply = client.round(&mut Call::order("lamp")).await;
    assert_internal(&reply, "the limit is 150");
    assert_internal(&reply, "reserve");
}

/// Makes a call during a step of another call, and once more afterwards. Returns both replies, or `None` if the step may
/// have ended too early.
async fn during_another(limit: &str, pause_ms: u64, mut call: Call) -> Option<[Reply; 2]> {
    let files = Files::new();
    let config = files.write("config.toml", &format!("[limits]\n{limit}\n"));
    let ledger = files.write("ledger", "");
    let instance = Serve::new().config(&config).ledger(&ledger).start().await;
    let client = Client::new(instance.address);
    let echo = json!({"text": "at work", "pause_ms": pause_ms});
    let (other, mut echo) = (client.clone(), Call::new("echo_task", echo));
    let begun = Instant::now();
    let other = tokio::spawn(async move { other.round(&mut echo).await });
    Ledger::at(&ledger).wait_for("attempt", 1).await;
    let reply = client.round(&mut call.clone()).await;
    if begun.elapsed() >= Duration::from_millis(pause_ms) {
        return None;
    }
    let other = other.await.expect("no panic");
    assert_eq!(other, Reply::Done("Echo: at work".into()));
    // Without the other call it is accepted.
    Some([reply, client.round(&mut call).await])
}

#[tokio::test]
async fn concurrent_calls_limits_calls_in_flight() {
    in_the_middle(async |pause_ms| {
        let call = Call::weather("Oslo");
        let [during, after] = during_another("concurrent_calls = 1", pause_ms, call).await?;
        assert!(
            matches!(during, Reply::Refused { status: 503, .. }),
            "{during:?}"
        );
        assert_eq!(after, asked("github_login"));
        Some(())
    })
    .await;
}

#[tokio::test]
async fn shed_above_hands_flows_on() {
    in_the_middle(async |pause_ms| {
        let [during, after] = during_another("shed_above = 1", pause_ms, Call::sum(5, 0)).await?;
        assert_eq!(during, Reply::HandedOn);
        assert_eq!(after, Reply::Done("The sum of 1 to 5 is 15.".into()));
        Some(())
    })
    .await;
}

#[tokio::test]
async fn round_seconds_limits_a_round() {
    let (_instance, client) = with_limit("round_seconds = 1").await;
    let begun = Instant::now();
    // The default is a minute, and the sum takes even longer.
    let reply = client.round(&mut Call::sum(100, 1000)).await;
    assert_internal(&reply, "time limit of a round");
    assert!(begun.elapsed() >= Duration::from_millis(900));
}

#[tokio::test]
async fn rounds_limits_the_rounds_of_a_flow() {
    let (_instance, client) = with_limit("rounds = 2").await;
    let fields = json!({"workItemId": 1, "fields": {"System.State": "Resolved"}});
    let finished = client.finish(Call::new("update_work_item", fields)).await;
    assert_internal(&finished.reply, "limit is 2 rounds");
    let finished = client.finish(Call::weather("Oslo")).await;
    assert!(matches!(finished.reply, Reply::Done(_)), "{finished:?}");
}

#[tokio::test]
async fn asks_limits_the_asks_of_a_round() {
    let (_instance, client) = with_limit("asks = 1").await;
    let reply = client.round(&mut Call::new("accounts", json!({}))).await;
    assert_internal(&reply, "limit of a round is 1");
    let one = client.round(&mut Call::weather("Oslo")).await;
    assert_eq!(one, asked("github_login"));
}

#[tokio::test]
async fn entries_limits_the_journal() {
    let (_instance, client) = with_limit("entries = 2").await;
    let finished = client.finish(Call::order("lamp")).await;
    assert_internal(&finished.reply, "2 entries");
    assert_internal(&finished.reply, "charge");
}

#[tokio::test]
async fn retries_limits_invalid_answers() {
    let (_instance, client) = with_limit("retries = 1").await;
    let mut call = Call::order("lamp");
    for _ in 0..2 {
        assert_eq!(client.round(&mut call).await, asked("confirm_order"));
        call.answer("confirm_order", &json!({"confirm": "perhaps"}));
    }
    let reply = client.round(&mut call).await;
    let Reply::Failed(text) = &reply else {
        panic!("{reply:?}");
    };
    assert!(text.contains("confirm_order"), "{text}");
}

#[tokio::test]
async fn sheds_limits_hand_overs() {
    let (_instance, client) = with_limit("shed_above = 0\nsheds = 1").await;
    let finished = client.finish(Call::sum(8, 0)).await;
    assert_eq!(finished.handed_on, 1, "{finished:?}");
}

#[tokio::test]
async fn discard_bytes_limits_discarded_bodies() {
    let (instance, _) = with_limit("body_bytes = 1000\ndiscard_bytes = 2000").await;
    // The first request is answered before its body was sent, the second one afterwards.
    for (length, body) in [(2001, 0), (2000, 2000)] {
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
            instance.address
        );
        let mut connection = Connection::open(instance.address).await;
        connection.write(head.as_bytes()).await;
        connection.write(&vec![b'x'; body]).await;
        assert_eq!(connection.head().await.status, 413);
    }
}

#[tokio::test]
async fn idle_seconds_closes_idle_connections() {
    let (instance, _) = with_limit("idle_seconds = 1").await;
    // The default is a minute.
    Connection::open(instance.address).await.closed().await;
}

/// A draining instance is not ready but still answers, until the grace period ends.
#[tokio::test]
async fn drain_grace_ms_keeps_serving_while_not_ready() {
    in_the_middle(async |pause_ms| {
        let grace = Duration::from_millis(3 * pause_ms);
        let (mut instance, client) =
            with_limit(&format!("drain_grace_ms = {}", grace.as_millis())).await;
        assert_eq!(status_of(instance.address, "/readyz").await.unwrap(), 200);
        let begun = Instant::now();
        instance.signal(Signal::TERM);
        instance.log.wait_for("draining", 1).await;
        let ready = status_of(instance.address, "/readyz").await;
        let healthy = status_of(instance.address, "/healthz").await;
        let sum = client.try_round(&mut Call::sum(5, 0)).await;
        let asking = client.try_round(&mut Call::weather("Oslo")).await;
        if begun.elapsed() >= grace {
            return None;
        }
        assert_eq!((ready.unwrap(), healthy.unwrap()), (503, 200));
        assert_eq!(sum.unwrap().reply, Reply::HandedOn);
        assert_eq!(asking.unwrap().reply, asked("github_login"));
        let status = instance.ended().await;
        assert!(status.success(), "{status}");
        assert!(begun.elapsed() >= grace);
        assert!(status_of(instance.address, "/readyz").await.is_err());
        Some(())
    })
    .await;
}

/// The instance waits for a running call, which is handed on at its next checkpoint.
#[tokio::test]
async fn drain_seconds_wait_for_a_checkpoint() {
    let (mut instance, client) = with_limit("drain_grace_ms = 0").await;
    let mut running = sum_at_work(&client, &Call::sum(50, 300)).await;
    instance.stop().await;
    let rest = within("the stream to end", running.rest()).await.unwrap();
    let last = rest.trim_end().lines().next_back().unwrap();
    assert!(last.contains("requestState"), "{rest}");
    assert_eq!(instance.log.count("dropped"), 0, "{:?}", instance.log);
}

#[tokio::test]
async fn drain_seconds_limit_the_wait() {
    let (mut instance, client) = with_limit("drain_grace_ms = 0\ndrain_seconds = 0").await;
    let mut running = sum_at_work(&client, &Call::sum(50, 1000)).await;
    instance.stop().await;
    assert!(
        within("the stream to end", running.rest()).await.is_err(),
        "the stream was cut"
    );
    instance.log.wait_for("running calls dropped", 1).await;
}

#[tokio::test]
async fn token_and_flow_ttl_expire_tokens() {
    for setting in ["token_ttl_seconds = 1", "flow_ttl_seconds = 1"] {
        let (instance, client) = with(&format!("{setting}\nclock_skew_seconds = 0\n")).await;
        let mut call = Call::weather("Oslo");
        assert_eq!(client.round(&mut call).await, asked("github_login"));
        call.answer("github_login", &json!({"name": "octocat"}));
        // Lifetimes are rounded to seconds.
        tokio::time::sleep(Duration::from_millis(2100)).await;
        let reply = client.round(&mut call).await;
        assert!(
            matches!(reply, Reply::Refused { code: -32602, .. }),
            "{reply:?}"
        );
        instance.log.wait_for("expired", 1).await;
    }
    // With clock skew allowed, a token of the same age is valid.
    let (_instance, client) = with("token_ttl_seconds = 1\nclock_skew_seconds = 60\n").await;
    let mut call = Call::weather("Oslo");
    assert_eq!(client.round(&mut call).await, asked("github_login"));
    call.answer("github_login", &json!({"name": "octocat"}));
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert!(matches!(client.round(&mut call).await, Reply::Done(_)));
}
