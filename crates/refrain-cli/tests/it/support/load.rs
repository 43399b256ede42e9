//! Clients that make calls of every kind during a rolling restart.

use super::{Call, Client, Finished, Ledger, Reply, within};
use refrain_testkit::net::legacy::{Session, call, request};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// The maximum number of calls of one client. A client stops earlier when the restart is done.
const CALLS_MAX: usize = 3000;
const SUM_TO: u64 = 30;
const SUM: &str = "The sum of 1 to 30 is 465.";

/// Running clients.
pub(crate) struct Load {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    served: Served,
    clients: JoinSet<Done>,
}

impl Load {
    /// Starts clients of 2026-07-28.
    pub(crate) fn start(address: SocketAddr, clients: usize) -> Self {
        let mut load = Self {
            address,
            stop: Arc::default(),
            served: Served::default(),
            clients: JoinSet::new(),
        };
        for number in 0..clients {
            let (stop, served) = (load.stop.clone(), load.served.clone());
            let client = Client::new(address);
            load.clients.spawn(call_on(client, number, stop, served));
        }
        load
    }

    /// Adds clients of 2025-11-25.
    pub(crate) fn add_legacy(&mut self, clients: usize) {
        for _ in 0..clients {
            let calling = call_in_sessions(self.address, self.stop.clone());
            self.clients.spawn(calling);
        }
    }

    /// Waits until the instance with this name has served a call.
    pub(crate) async fn served_by(&self, name: &str) {
        self.served.by(name).await;
    }

    /// Stops the clients. No call may have failed, and no step may have been repeated.
    pub(crate) async fn stop(mut self, ledger: &Ledger) {
        self.stop.store(true, Ordering::Release);
        let mut all = Done::default();
        while let Some(done) = self.clients.join_next().await {
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
                    assert_eq!(text, SUM);
                    done.sums += 1;
                }
            }
        }
    }
    done
}

/// Opens sessions, and makes a call with an event stream in each.
async fn call_in_sessions(address: SocketAddr, stop: Arc<AtomicBool>) -> Done {
    let mut done = Done::default();
    for _ in 0..CALLS_MAX {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let session = Session::open_with(address, "2025-11-25", &json!({}), &[]).await;
        let tools = session.result(&request(1, "tools/list", json!({}))).await;
        assert!(!tools["tools"].as_array().expect("a list").is_empty());
        let mut sum = call(2, "sum", json!({"to": SUM_TO, "pause_ms": 10}));
        sum["params"]["_meta"] = json!({"progressToken": "progress"});
        let events = session.stream(&sum).await.rest().await;
        let reply = events.last().expect("a reply");
        assert_eq!(reply["result"]["content"][0]["text"], SUM, "{reply}");
        done.sums += 1;
        assert_eq!(session.delete().await.status, 204);
    }
    done
}
