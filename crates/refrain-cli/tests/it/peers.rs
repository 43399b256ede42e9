//! A live tool on two instances: what it does is done once, wherever its rounds come in.

use crate::support::{Balancer, Call, Client, Files, Instance, Reply, Serve, refrain};
use serde_json::json;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two instances with one ledger, and whether they know each other.
struct Fleet {
    files: Files,
    keys: PathBuf,
    ledger: PathBuf,
    config: Option<PathBuf>,
}

impl Fleet {
    fn new() -> Self {
        let files = Files::new();
        let keys = files.keys("fleet.keys");
        let ledger = files.write("ledger", "");
        Self {
            files,
            keys,
            ledger,
            config: None,
        }
    }

    /// Has the instances at these addresses know each other.
    fn with_peers(mut self, [a, b]: [SocketAddr; 2]) -> Self {
        let urls = format!("a = \"http://{a}/mcp\", b = \"http://{b}/mcp\"");
        let config = format!("[peers]\nurls = {{ {urls} }}\n");
        self.config = Some(self.files.write("fleet.toml", &config));
        self
    }

    async fn start(&self, name: &str, address: SocketAddr) -> Instance {
        let mut serve = Serve::without_address()
            .args(["--listen", &address.to_string()])
            .keys(&self.keys)
            .ledger(&self.ledger)
            .named(name);
        if let Some(config) = &self.config {
            serve = serve.config(config).args(["--peer-name", name]);
        }
        serve.start().await
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.ledger).expect("the ledger");
        text.lines().map(ToOwned::to_owned).collect()
    }
}

/// Addresses that nobody listens on. They are not among those that systems hand out, since whoever asks for any, or
/// connects to somebody, could be given one of them before the instance has it, or while it is started again.
fn free() -> [SocketAddr; 2] {
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
    [(); 2].map(|()| PORTS.into_iter().find_map(|_| next()).expect("a port"))
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

/// The words of an error that a call was answered with.
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
async fn peers_hand_a_request_to_the_one_that_holds_the_call() {
    let addresses = free();
    let fleet = Fleet::new().with_peers(addresses);
    let mut a = fleet.start("a", addresses[0]).await;
    let b = fleet.start("b", addresses[1]).await;
    let balancer = Balancer::start(addresses).await;
    let client = Client::new(balancer.address);
    // One after the other: the second round of each call comes in where the first did not.
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
    let said = refused(at_b.round(&mut answered(lost.clone())).await);
    assert!(said.contains("does not answer"), "{said}");
    assert!(said.contains("nothing was done by this request"), "{said}");
    // Started again it does not know the call, and says so to its peer.
    let _a = fleet.start("a", addresses[0]).await;
    let said = refused(at_b.round(&mut answered(lost)).await);
    assert!(said.contains("not held here any more"), "{said}");
    assert_eq!(fleet.lines().len(), 7, "the first part of it, once");
}

#[tokio::test]
async fn without_peers_the_call_stays_where_it_is() {
    let addresses = free();
    let fleet = Fleet::new();
    let a = fleet.start("a", addresses[0]).await;
    let b = fleet.start("b", addresses[1]).await;
    let (at_a, at_b) = (Client::new(a.address), Client::new(b.address));
    let mut call = change_seat();
    assert_eq!(at_a.round(&mut call).await, asked());
    let said = refused(at_b.round(&mut answered(call.clone())).await);
    assert!(said.contains("name the peers"), "{said}");
    assert_eq!(fleet.lines(), ["seat given back"]);
    assert_eq!(at_a.round(&mut answered(call)).await, done());
    assert_eq!(fleet.lines(), ["seat given back", "seat 12A taken"]);
}

/// The instances share one file; each is named where it is started.
#[test]
fn a_file_that_names_no_instance_is_good_for_all() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let check = |urls: &str| {
        let text = format!("keys = {keys:?}\n\n[peers]\nurls = {urls}\n");
        let file = files.write("fleet.toml", &text);
        refrain(["config".as_ref(), "check".as_ref(), file.as_os_str()])
    };
    let good = check("{ a = \"http://127.0.0.1:1/mcp\", b = \"http://127.0.0.1:2/mcp\" }");
    assert!(good.ok, "{good:?}");
    let name = good.out.lines().find(|line| line.starts_with("peers.name"));
    assert!(
        name.is_some_and(|name| name.contains("not set")),
        "{good:?}"
    );
    let bad = check("{ a = \"http://127.0.0.1:1/mcp\", b = \"10.0.0.8\" }");
    assert!(!bad.ok, "{bad:?}");
    assert!(bad.err.contains("the peer \"b\" cannot be used"), "{bad:?}");
}

#[tokio::test]
async fn peers_that_cannot_be_are_refused_at_start() {
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
    let urls = "[peers]\nurls = { a = \"http://127.0.0.1:1/mcp\" }\n";
    for (text, keys, flags, expected) in [
        (
            urls,
            Some(&*keys),
            &[][..],
            "fleet.toml:2:8: peers.urls needs peers.name",
        ),
        (
            urls,
            None,
            &["--peer-name", "a"],
            "peers need keys that they share",
        ),
        (
            "[peers]\nname = \"a\"\nurls = { b = \"10.0.0.8\" }\n",
            Some(&*keys),
            &[],
            "fleet.toml:3:8: peers.urls is of no use: the peer \"b\" cannot be used",
        ),
        (
            urls,
            Some(&*keys),
            &["--peer-name", "b"],
            "peers.name is \"b\", which peers.urls does not name",
        ),
        (
            "[peers]\nurls = [\"a\"]\n",
            Some(&*keys),
            &[],
            "peers.urls must be a map, not sequence",
        ),
    ] {
        let said = fails(text, keys, flags).await;
        assert!(said.contains(expected), "{expected:?} is not in {said}");
    }
}
