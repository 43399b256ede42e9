//! Load shedding: overloaded instances hand flows on at checkpoints and steps.
//!
//! A flow stops right after its work was recorded in its token, so nothing runs twice unless a response is lost. A flow is
//! handed on at most twice, because clients limit their rounds.

use crate::metrics::metrics_address;
use crate::support::http::text_of;
use crate::support::{Balancer, Call, Client, Files, Instance, Ledger, Reply, Serve};
use std::sync::Arc;
use tokio::sync::Barrier;

const SUMS: usize = 24;
const ORDERS: usize = 12;
const SUM_TO: u64 = 20;
const HANDED_ON: &str = "flow handed on";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_hands_flows_on_and_runs_every_step_once() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let ledger = files.write("ledger", "");
    let config = "[limits]\nshed_above = 2\nconcurrent_calls = 64\ndrain_grace_ms = 0\n";
    let config = files.write("config.toml", config);
    let mut instances = Vec::new();
    for name in ["a", "b", "c"] {
        let serve = Serve::new().keys(&keys).ledger(&ledger);
        let serve = serve.args(["--metrics", "127.0.0.1:0"]);
        instances.push(serve.config(&config).named(name).start().await);
    }
    let balancer = Balancer::start(instances.iter().map(|i| i.address)).await;
    let together = Arc::new(Barrier::new(SUMS + ORDERS));
    let items: Vec<String> = (0..ORDERS).map(|number| format!("item {number}")).collect();
    let sums = (0..SUMS).map(|_| {
        (
            Call::sum(SUM_TO, 5),
            String::from("The sum of 1 to 20 is 210."),
        )
    });
    let orders = items
        .iter()
        .map(|item| (Call::order(item), format!("Ordered one {item}: ")));
    let callers: Vec<_> = sums
        .chain(orders)
        .enumerate()
        .map(|(number, (call, expected))| {
            let client = Client::new(balancer.address).with_progress(number % 2 == 0);
            let together = together.clone();
            tokio::spawn(async move {
                together.wait().await;
                (client.finish(call).await, expected)
            })
        })
        .collect();

    let mut handed_on = 0;
    for caller in callers {
        let (finished, expected) = caller.await.unwrap();
        let Reply::Done(text) = &finished.reply else {
            panic!("{finished:?}");
        };
        assert!(text.starts_with(&expected), "{text} is not {expected}");
        assert!(finished.handed_on <= 2, "{finished:?}");
        handed_on += finished.handed_on;
    }
    assert!(handed_on > 0, "no flow was handed on");
    let (mut counted, mut logged) = (0, 0);
    for instance in &mut instances {
        counted += handed_on_rounds(instance).await;
        instance.stop().await;
        logged += instance.log.count(HANDED_ON);
    }
    assert_eq!(handed_on, counted, "as many as the instances counted");
    // The rate of log events is limited.
    assert!((1..=handed_on).contains(&logged), "{logged}");
    let ledger = Ledger::at(&ledger);
    ledger.assert_added_once(SUMS, SUM_TO);
    ledger.assert_ordered_once(&items);
    println!("{} calls were handed on {handed_on} times", SUMS + ORDERS);
}

/// The number of rounds that an instance handed on, by its metrics.
async fn handed_on_rounds(instance: &Instance) -> usize {
    let text = text_of(metrics_address(&instance.log).await, "/metrics").await;
    let rounds = text
        .lines()
        .filter(|line| line.contains("outcome=\"handed_on\""));
    rounds
        .map(|line| line.rsplit(' ').next().expect("a value"))
        .map(|count| count.parse::<usize>().expect("a number"))
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_overload_nothing_is_handed_on() {
    let files = Files::new();
    let config = files.write("config.toml", "[limits]\nconcurrent_calls = 64\n");
    let mut instance = Serve::new().config(&config).start().await;
    let callers: Vec<_> = (0..SUMS)
        .map(|_| {
            let client = Client::new(instance.address);
            tokio::spawn(async move { client.finish(Call::sum(SUM_TO, 5)).await })
        })
        .collect();
    for caller in callers {
        let finished = caller.await.unwrap();
        assert_eq!(finished.handed_on, 0, "{finished:?}");
    }
    instance.stop().await;
    assert_eq!(instance.log.count(HANDED_ON), 0);
}

/// Without other instances, the flow returns to the same one.
#[tokio::test]
async fn single_overloaded_instance_completes_its_calls() {
    let files = Files::new();
    let ledger = files.write("ledger", "");
    for (sheds, expected) in [(0, 0), (1, 1), (5, 5)] {
        let config = format!("[limits]\nshed_above = 0\nsheds = {sheds}\n");
        let config = files.write("config.toml", &config);
        let instance = Serve::new().config(&config).ledger(&ledger).start().await;
        let finished = Client::new(instance.address).finish(Call::sum(8, 0)).await;
        let done = Reply::Done("The sum of 1 to 8 is 36.".into());
        assert_eq!((finished.reply, finished.handed_on), (done, expected));
    }
    Ledger::at(&ledger).assert_added_once(3, 8);
}
