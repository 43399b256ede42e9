//! Three instances behind nginx and HAProxy, with the configuration that `docs/operate/load-balancers.md` recommends.
//!
//! Time limits are a thirtieth of the recommended ones.

use crate::relay::free_addresses;
use crate::support::reverse_proxy::Recipe;
use crate::support::{
    Call, Certificate, Client, Files, Instance, Ledger, Load, Output, Process, Reply, Request,
    Serve, http, within,
};
use refrain_testkit::net::Connection;
use refrain_testkit::net::legacy::{Session, call, filled_in, initialize};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::process::Command;

/// The time limits of a stream without data in the recipes, and here.
const TIMEOUT: (&str, &str) = ("90s", "3s");
/// The settings of the instances. Keep-alives are sent at a sixth of the time limit, as by default.
const SETTINGS: &str = "allowed_hosts = [\"127.0.0.1\", \"mcp.example.com\"]\n\
    [limits]\nkeep_alive_ms = 500\n[tasks]\nlook_ms = 50\n";
/// The number of keep-alives in a time that is longer than the time limit.
const KEEP_ALIVES: usize = 9;

const HOST: &str = "mcp.example.com";

/// A balancer: the port with TLS of its recipe, and one without.
struct Proxy {
    tls: SocketAddr,
    plain: SocketAddr,
    certificate: Certificate,
    _process: Process,
}

struct Fleet {
    files: Files,
    keys: PathBuf,
    ledger: PathBuf,
    store: PathBuf,
    config: PathBuf,
    addresses: [SocketAddr; 3],
    instances: Vec<Instance>,
}

impl Fleet {
    async fn start() -> Self {
        let files = Files::new();
        let mut fleet = Self {
            keys: files.keys("fleet.keys"),
            ledger: files.write("ledger", ""),
            store: files.path("tasks.db"),
            config: files.write("config.toml", SETTINGS),
            files,
            addresses: free_addresses(),
            instances: Vec::new(),
        };
        for at in 0..fleet.addresses.len() {
            let instance = fleet.instance(at, 1).await;
            fleet.instances.push(instance);
        }
        fleet
    }

    async fn instance(&self, at: usize, generation: usize) -> Instance {
        let address = self.addresses[at].to_string();
        let url = format!("http://{address}/mcp");
        Serve::without_address()
            .args(["--listen", &address, "--advertise", &url])
            .keys(&self.keys)
            .ledger(&self.ledger)
            .store(&self.store)
            .config(&self.config)
            .named(&format!("{at}.{generation}"))
            .start()
            .await
    }

    /// Inserts the addresses of the instances and the short time limits.
    fn adapt(&self, mut recipe: Recipe) -> Recipe {
        for (at, address) in self.addresses.iter().enumerate() {
            let documented = format!("10.0.0.{}:8080", at + 7);
            recipe = recipe.with(&documented, &address.to_string());
        }
        recipe.with(TIMEOUT.0, TIMEOUT.1)
    }

    async fn nginx(&self) -> Proxy {
        let [tls, plain] = free_addresses();
        let certificate = self.files.certificate(HOST);
        let listen = format!("listen {tls} ssl;\n        listen {plain};");
        let recipe = Recipe::of("nginx")
            .with("listen 443 ssl;", &listen)
            .with_file("/etc/ssl/mcp.example.com.pem", &certificate.cert)
            .with_file("/etc/ssl/mcp.example.com.key", &certificate.key);
        Proxy {
            _process: self.adapt(recipe).start_nginx(&self.files).await,
            tls,
            plain,
            certificate,
        }
    }

    async fn haproxy(&self) -> Proxy {
        let [tls, plain] = free_addresses();
        let certificate = self.files.certificate(HOST);
        let recipe = Recipe::of("haproxy")
            .with("bind :443 ", &format!("bind {plain}\n    bind {tls} "))
            .with_file("/etc/ssl/mcp.example.com.pem", &certificate.both);
        Proxy {
            _process: self.adapt(recipe).start_haproxy(&self.files, plain).await,
            tls,
            plain,
            certificate,
        }
    }

    async fn check(&mut self, proxy: &Proxy) {
        proxy.initialize_over_tls().await;
        proxy.asks().await;
        proxy.idle_subscriptions().await;
        self.restart(proxy).await;
        proxy.asks().await;
    }

    /// Restarts one instance after the other under load.
    async fn restart(&mut self, proxy: &Proxy) {
        let mut load = Load::start(proxy.plain, 6);
        load.add_legacy(2);
        for generation in 1..=2 {
            for at in 0..self.addresses.len() {
                if generation > 1 {
                    self.instances[at].stop().await;
                    let log = &self.instances[at].log;
                    assert_eq!(log.count("dropped"), 0, "{log:?}");
                    self.instances[at] = self.instance(at, generation).await;
                }
                load.served_by(&format!("{at}.{generation}")).await;
            }
        }
        load.stop(&Ledger::at(&self.ledger)).await;
    }
}

impl Proxy {
    /// Clients of 2026-07-28 are asked, with event streams and without, and then one of 2025-11-25.
    async fn asks(&self) {
        let client = Client::new(self.plain);
        for progress in [false, true] {
            let client = client.clone().with_progress(progress);
            let finished = client.finish(Call::weather("Oslo")).await;
            assert!(matches!(finished.reply, Reply::Done(_)), "{finished:?}");
        }
        let capabilities = json!({"elicitation": {"form": {}}});
        let session = Session::open_with(self.plain, "2025-11-25", &capabilities, &[]).await;
        // Each request goes to another instance.
        for id in 1..=3 {
            let weather = call(id, "get_weather", json!({"location": "Oslo"}));
            let mut events = session.stream(&weather).await;
            let ask = events.next().await;
            assert_eq!(ask["method"], "elicitation/create", "{ask}");
            let answer = session.post(&filled_in(&ask, "octocat")).await;
            assert_eq!(answer.status, 202, "{answer:?}");
            let reply = events.next().await;
            assert!(reply["result"]["content"][0]["text"].is_string(), "{reply}");
        }
    }

    /// A request over TLS, with the host name that clients use.
    async fn initialize_over_tls(&self) {
        let at = format!("{HOST}:{}:127.0.0.1", self.tls.port());
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30", "--resolve", &at, "--cacert"])
            .arg(&self.certificate.cert)
            .args(["-H", "content-type: application/json"])
            .args(["-H", "accept: application/json, text/event-stream"])
            .args(["-d", &initialize("2025-11-25", &json!({})).to_string()])
            .arg(format!("https://{HOST}:{}/mcp", self.tls.port()));
        let output = Output::of(curl).await;
        let reply: Value =
            serde_json::from_str(&output.out).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(reply["result"]["protocolVersion"], "2025-11-25", "{reply}");
    }

    /// Streams without events stay open for longer than the proxy's time limit.
    async fn idle_subscriptions(&self) {
        let client = Client::new(self.plain);
        let task = client.create(Call::new("echo_task", json!({}))).await;
        client.asked(&task, &["echo_input"]).await;
        let listen = Request::rpc("subscriptions/listen", json!({}))
            .declares_tasks()
            .param("notifications", json!({"taskIds": [task]}));
        let begun = within("a subscription", http::try_begin(self.plain, &listen)).await;
        let (mut modern, head) = begun.expect("a response");
        assert_eq!(head.status, 200);
        let session = Session::open_with(self.plain, "2025-11-25", &json!({}), &[]).await;
        let mut legacy = session.get().await;
        for stream in [&mut modern, &mut legacy.0] {
            for _ in 0..KEEP_ALIVES {
                keep_alive(stream).await;
            }
        }
        client
            .update(&task, "echo_input", &json!({"input": "hello"}))
            .await;
        let done = async {
            loop {
                let event = modern.block().await.expect("the stream is open");
                if event.contains("Echo: hello") {
                    return;
                }
            }
        };
        within("a notification", done).await;
    }
}

/// Reads a stream up to a keep-alive.
async fn keep_alive(stream: &mut Connection) {
    let next = async { while stream.block().await.expect("the stream is open") != ":" {} };
    within("a keep-alive", next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_behind_nginx_loses_no_call() {
    let mut fleet = Fleet::start().await;
    let proxy = fleet.nginx().await;
    fleet.check(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_behind_haproxy_loses_no_call() {
    let mut fleet = Fleet::start().await;
    let proxy = fleet.haproxy().await;
    fleet.check(&proxy).await;
}

/// Without `proxy_set_header`, nginx sends the name of its upstream as the host.
#[tokio::test]
async fn rejected_host_of_a_plain_proxy_pass_is_named_and_logged() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let [address] = free_addresses::<1>();
    let config = format!(
        "events {{ }}\nhttp {{\n    upstream backend {{ server {}; }}\n    \
         server {{ listen {address}; location / {{ proxy_pass http://backend; }} }}\n}}\n",
        instance.address
    );
    let _proxy = Recipe::from(config.as_str()).start_nginx(&files).await;
    let response = http::send(address, &Request::tool("echo", json!({"text": "x"}))).await;
    let reason = response.error(403, -32600);
    for expected in ["\"backend\"", "allowed_hosts"] {
        assert!(reason.contains(expected), "{reason}");
    }
    let line = instance.log.wait_for("request rejected", 1).await;
    for expected in ["WARN", "backend", "allowed_hosts"] {
        assert!(line.contains(expected), "{line}");
    }
}
