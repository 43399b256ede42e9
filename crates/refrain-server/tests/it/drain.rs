//! Shutdown and overload: flows move to other instances.

use crate::support::{
    Connection, Instance, Request, Signals, expect_signal, keys, result, signals, start, text,
    token, within,
};
use refrain_core::{Cx, KeyRing, Limits, Result};
use refrain_server::{Server, ServerBuilder, ServerLimits, State, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

#[derive(Debug, Deserialize, JsonSchema)]
struct Upto {
    upto: u64,
    /// The number at which to wait for the gate.
    gate: u64,
}

/// Sums the numbers up to a limit, with a checkpoint after each.
async fn sum(cx: Cx, signals: State<Arc<Signals>>, args: Upto) -> Result<String> {
    let (mut next, mut total) = cx.resume::<(u64, u64)>("sum")?.unwrap_or((1, 0));
    while next <= args.upto {
        if next == args.gate {
            signals.say("at the gate");
            signals.pass().await;
        }
        signals.say("added");
        total += next;
        next += 1;
        cx.checkpoint("sum", &(next, total)).await?;
    }
    Ok(format!("{total}"))
}

/// Five steps, each with a signal.
async fn steps(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let mut total = 0;
    for n in 1..=5_u32 {
        let work = async {
            signals.say("added");
            Ok::<_, refrain_core::Error>(n)
        };
        total += cx.step("add", work).await?;
    }
    Ok(format!("{total}"))
}

async fn hang(_: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = crate::support::Guard(Arc::clone(&signals));
    signals.say("started");
    pending().await
}

fn builder(keys: &KeyRing, signals: &Arc<Signals>, limits: ServerLimits) -> ServerBuilder {
    Server::builder("drain", "1")
        .tool(Tool::new("sum", sum))
        .tool(Tool::new("steps", steps))
        .tool(Tool::new("hang", hang))
        .state(signals.clone())
        .keys(keys.clone())
        .limits(limits)
}

/// The token of a round without asks, as sent when a flow is shed.
#[track_caller]
fn shed_token(reply: &Value) -> String {
    assert_eq!(result(reply).get("inputRequests"), None, "{reply}");
    token(reply)
}

/// Sends a call and repeats it while its flow is shed. Returns the last reply and the number of repeated rounds.
async fn follow_sheds(instance: &Instance, call: &Request) -> (Value, u32) {
    let mut reply = instance.send(call).await.reply();
    let mut rounds = 0;
    while reply["result"]["resultType"] == "input_required" {
        rounds += 1;
        let state = json!(shed_token(&reply));
        let again = call.clone().param("requestState", state);
        reply = instance.send(&again).await.reply();
    }
    (reply, rounds)
}

async fn ready(instance: &Instance) -> u16 {
    instance.get("/readyz").await.status
}

#[tokio::test]
async fn draining_instance_is_healthy_but_not_ready() {
    let (signals, _received) = signals();
    let instance = start(builder(&keys(), &signals, ServerLimits::default())).await;
    assert_eq!(
        (
            instance.get("/healthz").await.status,
            ready(&instance).await
        ),
        (200, 200)
    );
    // The application may drain the server, and stop it later.
    instance.server.start_draining();
    for _ in 0..10 {
        assert_eq!(
            (
                instance.get("/healthz").await.status,
                ready(&instance).await
            ),
            (200, 503)
        );
    }
}

#[tokio::test]
async fn flow_of_a_draining_instance_continues_at_another() {
    let ((signals, mut received), keys) = (signals(), keys());
    let limits = ServerLimits {
        drain_grace: Duration::from_secs(2),
        ..ServerLimits::default()
    };
    let mut first = start(builder(&keys, &signals, limits.clone())).await;
    let second = start(builder(&keys, &signals, limits)).await;

    let request = Request::tool("sum", json!({"upto": 10, "gate": 4}));
    let mut connection = first.connect().await;
    connection.send(&request).await;
    for _ in 0..3 {
        expect_signal(&mut received, "added").await;
    }
    expect_signal(&mut received, "at the gate").await;

    first.stop();
    let draining = async {
        while ready(&first).await != 503 {
            tokio::task::yield_now().await;
        }
    };
    within("the instance to be draining", draining).await;
    assert_eq!(first.get("/healthz").await.status, 200);
    signals.open();
    let token = shed_token(&connection.response().await.reply());
    assert_eq!(received.recv().await, Some("added"));

    // The port is closed.
    let address = first.address;
    first.stopped().await;
    assert!(TcpStream::connect(address).await.is_err());

    let reply = second
        .send(&request.param("requestState", json!(token)))
        .await
        .reply();
    assert_eq!(text(&reply), "55");
    for _ in 5..=10 {
        assert_eq!(received.try_recv(), Ok("added"));
    }
    assert!(received.try_recv().is_err(), "no number was added twice");
}

#[tokio::test]
async fn flow_is_shed_a_limited_number_of_times() {
    for (sheds, upto) in [(0, 6), (1, 6), (2, 6), (3, 6), (8, 6)] {
        let (signals, mut received) = signals();
        let limits = ServerLimits {
            shed_above: 0,
            flow: Limits {
                sheds,
                ..Limits::default()
            },
            ..ServerLimits::default()
        };
        let instance = start(builder(&keys(), &signals, limits)).await;
        let plain = Request::tool("sum", json!({"upto": upto, "gate": 0}));
        let (reply, rounds) = follow_sheds(&instance, &plain).await;
        assert_eq!((text(&reply), rounds), ("21", sheds.min(6)), "{sheds}");
        let added = std::iter::from_fn(|| received.try_recv().ok()).count();
        assert_eq!(added, 6);
    }
}

#[tokio::test]
async fn flow_is_shed_after_a_step_which_does_not_run_again() {
    let (signals, mut received) = signals();
    let limits = ServerLimits {
        shed_above: 0,
        ..ServerLimits::default()
    };
    let instance = start(builder(&keys(), &signals, limits)).await;
    let plain = Request::tool("steps", json!({}));
    let (reply, rounds) = follow_sheds(&instance, &plain).await;
    assert_eq!((text(&reply), rounds), ("15", 2));
    assert_eq!(std::iter::from_fn(|| received.try_recv().ok()).count(), 5);
}

#[tokio::test]
async fn no_flow_is_shed_below_the_limit() {
    let (signals, _received) = signals();
    let limits = ServerLimits {
        shed_above: 1,
        ..ServerLimits::default()
    };
    let instance = start(builder(&keys(), &signals, limits)).await;
    let plain = Request::tool("sum", json!({"upto": 6, "gate": 0}));
    assert_eq!(text(&instance.send(&plain).await.reply()), "21");
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let (signals, _received) = signals();
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        drain_time: Duration::from_secs(3600),
        ..ServerLimits::default()
    };
    let mut instance = start(builder(&keys(), &signals, limits)).await;
    let mut silent = Connection::open(instance.address).await;
    let mut used = instance.connect().await;
    let plain = Request::tool("sum", json!({"upto": 3, "gate": 0}));
    assert_eq!(text(&used.exchange(&plain).await.reply()), "6");
    instance.stop();
    instance.stopped().await;
    silent.closed().await;
    used.closed().await;
}

#[tokio::test]
async fn shutdown_waits_for_a_running_call() {
    let (signals, mut received) = signals();
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        flow: Limits {
            sheds: 0,
            ..Limits::default()
        },
        ..ServerLimits::default()
    };
    let mut instance = start(builder(&keys(), &signals, limits)).await;
    let mut connection = instance.connect().await;
    connection
        .send(&Request::tool("sum", json!({"upto": 3, "gate": 1})))
        .await;
    expect_signal(&mut received, "at the gate").await;
    instance.stop();
    let address = instance.address;
    let closed = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the port to be closed", closed).await;
    signals.open();
    assert_eq!(text(&connection.response().await.reply()), "6");
    instance.stopped().await;
}

#[tokio::test]
async fn call_is_dropped_when_the_drain_time_elapses() {
    let (signals, mut received) = signals();
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        drain_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let mut instance = start(builder(&keys(), &signals, limits)).await;
    let mut connection = instance.connect().await;
    connection.send(&Request::tool("hang", json!({}))).await;
    expect_signal(&mut received, "started").await;
    instance.stop();
    instance.stopped().await;
    expect_signal(&mut received, "dropped").await;
}
