//! A rolling restart under load loses no call and repeats no step.

use crate::support::tasks::in_the_middle;
use crate::support::{
    Balancer, Call, Client, Files, Finished, Instance, Ledger, Reply, Serve, within,
};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const CLIENTS: usize = 9;
/// The maximum number of calls of one client; they stop when the restart is done.
const CALLS_MAX: usize = 3000;
const SUM_TO: u64 = 30;

/// The files that the instances share.
struct Shared {
    keys: PathBuf,
    ledger: PathBuf,
    config: PathBuf,
}

impl Shared {
    async fn start(&self, name: &str) -> Instance {
        let serve = Serve::new().keys(&self.keys).ledger(&self.ledger);
        serve.config(&self.config).named(name).start().await
    }
}

/// The names of the instances that served calls so far.
#[derive(Clone, Default)]
struct Served(Arc<Mutex<BTreeSet<String>>>);

impl Served {
    fn extend(&self, names: Vec<String>) {
        self.0.lock().expect("no panic").extend(names);
    }

    async fn by(&self, name: &str) {
        let served = async {
            while !self.0.lock().expect("no panic").contains(name) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within(&format!("{name} serves a call"), served).await;
    }
}

/// The results of a client.
#[derive(Default)]
struct Done {
    served: Served,
    weathers: usize,
    sums: usize,
    /// Ordered items, by receipt.
    orders: BTreeMap<String, String>,
    handed_on: usize,
    failures: Vec<String>,
}

impl Done {
    fn take(&mut self, what: &str, finished: Result<Finished, String>) -> Option<String> {
        let finished = match finished {
            Ok(finished) => finished,
            Err(reason) => {
                self.failures.push(format!("{what}: {reason}"));
                return None;
            }
        };
        self.handed_on += finished.handed_on;
        self.served.extend(finished.served_by);
        match finished.reply {
            Reply::Done(text) => Some(text),
            other => {
                self.failures.push(format!("{what}: {other:?}"));
                None
            }
        }
    }
}

/// Makes calls of each kind in turn.
async fn call_on(client: Client, number: usize, stop: Arc<AtomicBool>, served: Served) -> Done {
    let mut done = Done {
        served,
        ..Done::default()
    };
    for turn in number..number + CALLS_MAX {
        if stop.load(Ordering::Acquire) {
            break;
        }
        match turn % 3 {
            0 => {
                let city = format!("City {turn}");
                let finished = client.try_finish(Call::weather(&city)).await;
                if let Some(text) = done.take("get_weather", finished) {
                    let right = text.starts_with(&format!("Current weather in {city}:\n"));
                    assert!(right, "{text}");
                    done.weathers += 1;
                }
            }
            1 => {
                let item = format!("item {turn} of {number}");
                let finished = client.try_finish(Call::order(&item)).await;
                if let Some(text) = done.take("place_order", finished) {
                    let receipt = text.rsplit("receipt ").next().unwrap_or_default();
                    let receipt = receipt.trim_end_matches('.').to_owned();
                    let right = text.starts_with(&format!("Ordered one {item}: reservation "));
                    assert!(right, "{text}");
                    done.orders.insert(receipt, item);
                }
            }
            _ => {
                // Every second call requests progress, and gets an event stream.
                let client = client.clone().with_progress(turn % 2 == 0);
                let finished = client.try_finish(Call::sum(SUM_TO, 10)).await;
                if let Some(text) = done.take("sum", finished) {
                    assert_eq!(text, "The sum of 1 to 30 is 465.");
                    done.sums += 1;
                }
            }
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_loses_no_call() {
    in_the_middle(async |pause_ms| restart(Duration::from_millis(2 * pause_ms)).await).await;
}

/// A rolling restart with this grace period. `None` means that the balancer noticed a draining instance too late.
async fn restart(grace: Duration) -> Option<()> {
    let files = Files::new();
    let limits = format!("[limits]\ndrain_grace_ms = {}\n", grace.as_millis());
    let shared = Shared {
        keys: files.keys("fleet.keys"),
        ledger: files.write("ledger", ""),
        config: files.write("config.toml", &limits),
    };
    let mut instances = Vec::new();
    for name in ["a1", "b1", "c1"] {
        instances.push(shared.start(name).await);
    }
    let balancer = Balancer::start(instances.iter().map(|i| i.address)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let served = Served::default();
    let mut clients: JoinSet<Done> = (0..CLIENTS)
        .map(|number| {
            let client = Client::new(balancer.address);
            call_on(client, number, stop.clone(), served.clone())
        })
        .collect();

    for name in ["a1", "b1", "c1"] {
        served.by(name).await;
    }
    for (at, name) in ["a2", "b2", "c2"].into_iter().enumerate() {
        let begun = Instant::now();
        instances[at].signal(Signal::TERM);
        balancer.skips(at).await;
        // The other half is for requests in flight.
        if begun.elapsed() >= grace / 2 {
            return None;
        }
        let status = instances[at].ended().await;
        let log = &instances[at].log;
        assert!(status.success(), "{status}\n{log:?}");
        assert_eq!(log.count("dropped"), 0, "{log:?}");
        instances[at] = shared.start(name).await;
        balancer.put(at, instances[at].address);
        served.by(name).await;
    }
    stop.store(true, Ordering::Release);

    let mut all = Done::default();
    while let Some(done) = clients.join_next().await {
        let done = done.expect("no panic");
        all.weathers += done.weathers;
        all.sums += done.sums;
        all.handed_on += done.handed_on;
        all.orders.extend(done.orders);
        all.failures.extend(done.failures);
    }
    assert_eq!(all.failures, Vec::<String>::new());
    assert!(all.weathers > 0 && all.sums > 0 && !all.orders.is_empty());
    assert!(all.handed_on > 0, "no flow was at work when it was drained");

    let ledger = Ledger::at(&shared.ledger);
    ledger.assert_added_once(all.sums, SUM_TO);
    let items: Vec<String> = all.orders.values().cloned().collect();
    ledger.assert_ordered_once(&items);
    for (key, item) in ledger.effects("charge") {
        assert_eq!(
            all.orders.get(&key[..8]),
            Some(&item),
            "whose receipt is {key}"
        );
    }
    println!(
        "{} weathers, {} orders and {} sums, handed on {} times",
        all.weathers,
        all.orders.len(),
        all.sums,
        all.handed_on
    );
    Some(())
}

/// A supervisor may send a signal as soon as the instance reports that it listens.
#[tokio::test]
async fn signal_right_after_start_drains_the_instance() {
    let files = Files::new();
    let config = files.write("config.toml", "[limits]\ndrain_grace_ms = 0\n");
    for _ in 0..5 {
        let mut instance = Serve::new().config(&config).start().await;
        instance.stop().await;
        assert_eq!(instance.log.count("draining"), 1, "{:?}", instance.log);
    }
}
