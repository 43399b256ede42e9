//! An instance that is told to stop, or has too much to do, hands its flows on.

use crate::support::{
    Connection, Instance, Request, Signals, result, signals, start, text, token, within,
};
use refrain_core::{Cx, KeyRing, Limits, Result, SystemSource};
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
    /// Where to wait to be let through.
    gate: u64,
}

/// Adds up to a number, a checkpoint after each.
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

/// A few steps, each counted.
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
    signals.say("begun");
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

fn keys() -> KeyRing {
    KeyRing::generate(&SystemSource::new())
}

/// A round without asks: a token to be sent back, and nothing to be answered.
#[track_caller]
fn handed_on(reply: &Value) -> String {
    assert_eq!(result(reply).get("inputRequests"), None, "{reply}");
    token(reply)
}

async fn ready(instance: &Instance) -> u16 {
    instance.get("/readyz").await.status
}

#[tokio::test]
async fn health_and_readiness_are_told_apart() {
    let (signals, _heard) = signals();
    let instance = start(builder(&keys(), &signals, ServerLimits::default())).await;
    assert_eq!(
        (
            instance.get("/healthz").await.status,
            ready(&instance).await
        ),
        (200, 200)
    );
    // Told by hand, as under axum: not ready any more, but alive and serving until it is to stop.
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
async fn a_draining_instance_hands_a_running_flow_on_and_another_finishes_it() {
    let ((signals, mut heard), keys) = (signals(), keys());
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
        assert_eq!(within("the sum", heard.recv()).await, Some("added"));
    }
    assert_eq!(within("the gate", heard.recv()).await, Some("at the gate"));

    first.stop();
    let draining = async {
        while ready(&first).await != 503 {
            tokio::task::yield_now().await;
        }
    };
    within("the instance to be draining", draining).await;
    assert_eq!(first.get("/healthz").await.status, 200);
    signals.open();
    let token = handed_on(&connection.response().await.reply());
    assert_eq!(heard.recv().await, Some("added"));

    // The instance is gone, and with it the port.
    let address = first.address;
    first.stopped().await;
    assert!(TcpStream::connect(address).await.is_err());

    let reply = second
        .send(&request.param("requestState", json!(token)))
        .await
        .reply();
    assert_eq!(text(&reply), "55");
    for _ in 5..=10 {
        assert_eq!(heard.try_recv(), Ok("added"));
    }
    assert!(heard.try_recv().is_err(), "nothing was added twice");
}

#[tokio::test]
async fn a_flow_is_handed_on_a_limited_number_of_times() {
    for (sheds, upto) in [(0, 6), (1, 6), (2, 6), (3, 6), (8, 6)] {
        let (signals, mut heard) = signals();
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
        let mut reply = instance.send(&plain).await.reply();
        let mut rounds = 0;
        while reply["result"]["resultType"] == "input_required" {
            rounds += 1;
            let again = plain
                .clone()
                .param("requestState", json!(handed_on(&reply)));
            reply = instance.send(&again).await.reply();
        }
        assert_eq!((text(&reply), rounds), ("21", sheds.min(6)), "{sheds}");
        let added = std::iter::from_fn(|| heard.try_recv().ok()).count();
        assert_eq!(added, 6);
    }
}

#[tokio::test]
async fn a_finished_step_is_a_place_to_hand_on_and_is_not_done_again() {
    let (signals, mut heard) = signals();
    let limits = ServerLimits {
        shed_above: 0,
        ..ServerLimits::default()
    };
    let instance = start(builder(&keys(), &signals, limits)).await;
    let plain = Request::tool("steps", json!({}));
    let mut reply = instance.send(&plain).await.reply();
    let mut rounds = 0;
    while reply["result"]["resultType"] == "input_required" {
        rounds += 1;
        let again = plain
            .clone()
            .param("requestState", json!(handed_on(&reply)));
        reply = instance.send(&again).await.reply();
    }
    assert_eq!((text(&reply), rounds), ("15", 2));
    assert_eq!(std::iter::from_fn(|| heard.try_recv().ok()).count(), 5);
}

#[tokio::test]
async fn below_the_limit_nothing_is_handed_on() {
    let (signals, _heard) = signals();
    let limits = ServerLimits {
        shed_above: 1,
        ..ServerLimits::default()
    };
    let instance = start(builder(&keys(), &signals, limits)).await;
    let plain = Request::tool("sum", json!({"upto": 6, "gate": 0}));
    assert_eq!(text(&instance.send(&plain).await.reply()), "21");
}

#[tokio::test]
async fn idle_connections_do_not_keep_an_instance_from_stopping() {
    let (signals, _heard) = signals();
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
async fn a_running_call_is_waited_for_when_an_instance_stops() {
    let (signals, mut heard) = signals();
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
    assert_eq!(within("the gate", heard.recv()).await, Some("at the gate"));
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
async fn a_call_that_does_not_end_is_dropped_when_the_drain_time_is_over() {
    let (signals, mut heard) = signals();
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        drain_time: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let mut instance = start(builder(&keys(), &signals, limits)).await;
    let mut connection = instance.connect().await;
    connection.send(&Request::tool("hang", json!({}))).await;
    assert_eq!(
        within("the handler to begin", heard.recv()).await,
        Some("begun")
    );
    instance.stop();
    instance.stopped().await;
    assert_eq!(
        within("the handler to be dropped", heard.recv()).await,
        Some("dropped")
    );
}
