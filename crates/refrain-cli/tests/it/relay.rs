//! Relaying: a live tool runs once on its holder, whichever instance gets its rounds.

use crate::support::{Balancer, Call, Client, Files, Instance, Reply, Serve, config_check};
use serde_json::json;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The files of two instances, and whether they advertise their URLs.
struct Fleet {
    _files: Files,
    keys: PathBuf,
    ledger: PathBuf,
    advertise: bool,
}

impl Fleet {
    fn new(advertise: bool) -> Self {
        let files = Files::new();
        let keys = files.keys("fleet.keys");
        let ledger = files.write("ledger", "");
        Self {
            _files: files,
            keys,
            ledger,
            advertise,
        }
    }

    async fn start(&self, name: &str, address: SocketAddr) -> Instance {
        let mut serve = Serve::without_address()
            .args(["--listen", &address.to_string()])
            .keys(&self.keys)
            .ledger(&self.ledger)
            .named(name);
        if self.advertise {
            serve = serve.args(["--advertise", &format!("http://{address}/mcp")]);
        }
        serve.start().await
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.ledger).expect("the ledger is readable");
        text.lines().map(ToOwned::to_owned).collect()
    }
}

/// Addresses with free ports outside of the ephemeral range, so that no other process gets one of
/// them during a restart.
pub(crate) fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    const PORTS: Range<u32> = 20_000..30_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let next = || {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + (std::process::id() + tried) % PORTS.len() as u32;
        let address = format!("127.0.0.1:{port}").parse().expect("an address");
        TcpListener::bind::<SocketAddr>(address)
            .ok()
            .map(|_| address)
    };
    [(); N].map(|()| PORTS.into_iter().find_map(|_| next()).expect("a free port"))
}

fn asked() -> Reply {
    Reply::Asked(vec!["seat".into()])
}

fn change_seat() -> Call {
    Call::new("change_seat", json!({}))
}

fn answered(mut call: Call) -> Call {
    call.answer("seat", &json!({"seat": "12A"}));
    call
}

fn done() -> Reply {
    Reply::Done("You have seat 12A now.".into())
}

/// The message of an error reply.
#[track_caller]
fn refused(reply: Reply) -> String {
    match reply {
        Reply::Refused {
            status: 200,
            code: -32603,
            message,
        } => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn request_is_relayed_to_the_holder_of_its_call() {
    let addresses = free_addresses::<2>();
    let fleet = Fleet::new(true);
    let mut a = fleet.start("a", addresses[0]).await;
    let b = fleet.start("b", addresses[1]).await;
    let balancer = Balancer::start(addresses).await;
    let client = Client::new(balancer.address);
    // The second round of each call goes to the other instance.
    let mut calls = [change_seat(), change_seat(), change_seat()];
    for call in &mut calls {
        assert_eq!(client.round(call).await, asked());
        let mut call = answered(call.clone());
        assert_eq!(client.round(&mut call).await, done());
    }
    let once = ["seat given back", "seat 12A taken"];
    assert_eq!(fleet.lines(), [once, once, once].concat());

    let (at_a, at_b) = (Client::new(a.address), Client::new(b.address));
    let mut lost = change_seat();
    assert_eq!(at_a.round(&mut lost).await, asked());
    a.kill().await;
    let error = refused(at_b.round(&mut answered(lost.clone())).await);
    assert!(error.contains("does not respond"), "{error}");
    assert!(error.contains("this request had no effect"), "{error}");
    // After its restart, `a` does not hold the call.
    let _a = fleet.start("a", addresses[0]).await;
    let error = refused(at_b.round(&mut answered(lost)).await);
    assert!(error.contains("no longer in memory"), "{error}");
    assert_eq!(fleet.lines().len(), 7, "the first part of it, once");
}

#[tokio::test]
async fn without_an_advertised_url_nothing_is_relayed() {
    let addresses = free_addresses::<2>();
    let fleet = Fleet::new(false);
    let a = fleet.start("a", addresses[0]).await;
    let b = fleet.start("b", addresses[1]).await;
    let (at_a, at_b) = (Client::new(a.address), Client::new(b.address));
    let mut call = change_seat();
    assert_eq!(at_a.round(&mut call).await, asked());
    let error = refused(at_b.round(&mut answered(call.clone())).await);
    assert!(error.contains("--advertise"), "{error}");
    assert_eq!(fleet.lines(), ["seat given back"]);
    assert_eq!(at_a.round(&mut answered(call)).await, done());
    assert_eq!(fleet.lines(), ["seat given back", "seat 12A taken"]);
}

#[tokio::test]
async fn invalid_advertised_url_is_rejected_at_start() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let fails = async |text: &str, keys: Option<&Path>, flags: &[&str]| {
        let config = files.write("fleet.toml", text);
        let serve = Serve::new().config(&config).args(flags);
        let serve = match keys {
            Some(keys) => serve.keys(keys),
            None => serve,
        };
        serve.fails().await
    };
    let valid = "advertise = \"http://127.0.0.1:1/mcp\"\n";
    for (text, keys, flags, expected) in [
        (
            valid,
            None,
            &[][..],
            "--advertise (or `advertise` in the configuration) needs keys",
        ),
        (
            "advertise = \"10.0.0.8\"\n",
            Some(&*keys),
            &[],
            "fleet.toml:1:13: advertise must be the http or https URL",
        ),
        (
            valid,
            Some(&*keys),
            &["--advertise", "http://user@a/mcp"],
            "invalid advertised URL \"http://user@a/mcp\"",
        ),
    ] {
        let error = fails(text, keys, flags).await;
        assert!(error.contains(expected), "{expected:?} is not in {error}");
    }
}

#[test]
fn advertised_url_is_shown_by_config_check() {
    let files = Files::new();
    let file = files.write("fleet.toml", "advertise = \"http://10.0.0.7:8080/mcp\"\n");
    let checked = config_check(&file, &[]);
    assert!(checked.ok, "{checked:?}");
    let line = checked
        .out
        .lines()
        .find(|line| line.starts_with("advertise"));
    assert!(
        line.is_some_and(|line| line.contains("http://10.0.0.7:8080/mcp")),
        "{checked:?}"
    );
}
