//! Three gateways with the same keys and store, in front of a backend over stdio. Every round goes to another gateway.

use crate::relay::free_addresses;
use crate::support::tasks::shared_store;
use crate::support::{BackendLedger, Call, Client, Files, Instance, Reply, Serve, until};
use futures_util::future::join_all;
use serde_json::json;
use std::time::{Duration, Instant};

struct Fleet {
    gateways: Vec<Instance>,
    ledger: BackendLedger,
    _files: Files,
}

impl Fleet {
    /// Starts the gateways with these settings of the backend.
    async fn start(settings: &str) -> Self {
        let files = Files::new();
        let ledger = BackendLedger::new(&files);
        let (keys, store) = (files.keys("fleet.keys"), shared_store(&files));
        let command = ledger.command(&[]);
        let config = format!(
            "[tasks]\nlook_ms = 50\nlease_ms = 4000\n[backends.tested]\ncommand = {command}\n{settings}"
        );
        let config = files.write("gateway.toml", &config);
        let start = |address: std::net::SocketAddr| {
            let serve = Serve::gateway().args(["--listen", &address.to_string()]);
            let serve = serve.args(["--advertise", &format!("http://{address}/mcp")]);
            serve.keys(&keys).store(&store).config(&config).start()
        };
        let gateways = join_all(free_addresses::<3>().map(start)).await;
        Self {
            gateways,
            ledger,
            _files: files,
        }
    }

    fn client(&self, at: usize) -> Client {
        Client::new(self.gateways[at].address)
    }

    /// Sends a round to a gateway, whose reply must be one ask. Answers the ask with this name.
    async fn asked(&self, at: usize, call: &mut Call, name: &str) {
        let reply = self.client(at).round(call).await;
        let Reply::Asked(keys) = &reply else {
            panic!("gateway {at} did not ask: {reply:?}");
        };
        let [key] = &keys[..] else {
            panic!("expected one ask: {keys:?}");
        };
        call.answer(key, &json!({"name": name}));
    }
}

fn ask_twice() -> Call {
    Call::new("ask_twice", json!({}))
}

#[tokio::test]
async fn live_call_completes_with_each_round_at_another_gateway() {
    let fleet = Fleet::start("").await;
    let mut call = ask_twice();
    fleet.asked(0, &mut call, "Ada").await;
    fleet.asked(1, &mut call, "Bob").await;
    let done = fleet.client(2).round(&mut call).await;
    assert_eq!(done, Reply::Done("Ada, Bob".into()));
    assert_eq!(
        fleet.ledger.count("ask"),
        1,
        "the backend ran the call once"
    );
}

#[tokio::test]
async fn live_call_of_a_killed_gateway_is_reported_as_lost() {
    let mut fleet = Fleet::start("").await;
    let mut call = ask_twice();
    fleet.asked(0, &mut call, "Ada").await;
    fleet.gateways[0].kill().await;
    let begun = Instant::now();
    let reply = fleet.client(1).round(&mut call).await;
    let time = begun.elapsed();
    println!("reported as lost after {time:?}");
    let Reply::Refused { code, message, .. } = &reply else {
        panic!("{reply:?}");
    };
    assert_eq!(*code, -32603);
    assert!(message.contains("does not respond"), "{message}");
    assert!(time < Duration::from_secs(10), "{time:?}");
    assert_eq!(fleet.ledger.count("ask"), 1, "the call was not repeated");
}

#[tokio::test]
async fn replayed_call_continues_after_its_gateways_are_killed() {
    let mut fleet = Fleet::start("tools.ask_twice.home = \"replay\"\n").await;
    let mut call = ask_twice();
    fleet.asked(0, &mut call, "Ada").await;
    fleet.gateways[0].kill().await;
    fleet.asked(1, &mut call, "Bob").await;
    fleet.gateways[1].kill().await;
    let done = fleet.client(2).round(&mut call).await;
    assert_eq!(done, Reply::Done("Ada, Bob".into()));
    assert_eq!(fleet.ledger.count("ask"), 3, "each round ran the call");
}

#[tokio::test]
async fn task_of_a_killed_gateway_fails_as_outcome_unknown() {
    let mut fleet = Fleet::start("task_after_seconds = 1\n").await;
    let slow = Call::new("slow", json!({"seconds": 300}));
    let id = fleet.client(0).create(slow).await;
    until("the backend to work", || fleet.ledger.count("slow") == 1).await;
    fleet.gateways[0].kill().await;
    let ended = fleet.client(1).ended(&id).await;
    assert_eq!(ended.status(), "failed", "{ended:?}");
    assert!(ended.0.to_string().contains("outcome unknown"), "{ended:?}");
    assert_eq!(fleet.ledger.count("slow"), 1, "the call was not repeated");
}

#[tokio::test]
async fn process_that_is_being_started_ends_with_the_gateway() {
    let files = Files::new();
    let ledger = BackendLedger::new(&files);
    let command = ledger.command(&["--two-starts"]);
    let config = files.write(
        "gateway.toml",
        &format!("[backends.tested]\ncommand = {command}\n"),
    );
    let mut gateway = Serve::gateway().config(&config).start().await;
    let client = Client::new(gateway.address);
    client
        .round(&mut Call::new("echo", json!({"text": "hi"})))
        .await;
    // One process watches the lists, one has served the call, and one never finishes its start.
    until("the prewarmed process", || ledger.processes() == 3).await;
    gateway.stop().await;
    until("the end of all processes", || ledger.processes() == 0).await;
}
