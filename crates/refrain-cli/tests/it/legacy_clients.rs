//! Clients of 2025-11-25 of other projects: they open a session, and are asked during their calls.
//!
//! `scripts/tools` installs them. Without them, these tests fail.

use crate::clients::{CLIENT_TIME, client_tests};
use crate::relay::free_addresses;
use crate::support::{Balancer, Files, Serve, run_tool, within};
use refrain::runtime::SystemSource;
use refrain::server::{AllowedHosts, Changes, KeyRing, Resource, Server, Tool, serve};
use refrain::{Cx, Result, State};
use std::ffi::OsStr;
use std::future::pending;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// The checks of each client, in their order.
const CHECKS: &str = "ok initialize
ok ping
ok tools/list
ok get_weather
ok update_work_item
ok weather_and_capital
ok analyze_data
ok project_roots
ok get_weather declined
";

const PYTHON: [&str; 2] = [".tools/bin/python-legacy", "tests/clients/legacy_python.py"];
const NPM: [&str; 2] = [".tools/bin/node", "tests/clients/legacy_npm.mjs"];

async fn check(client: [&str; 2], args: &[&OsStr]) {
    assert_eq!(run_tool(CLIENT_TIME, &client, args).await, CHECKS);
}

async fn over_http(client: [&str; 2]) {
    let instance = Serve::new().start().await;
    check(client, &[instance.url().as_ref()]).await;
}

/// Requests alternate between two instances, so that answers have to be relayed.
async fn over_two_instances(client: [&str; 2]) {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let mut instances = Vec::new();
    for address in free_addresses::<2>() {
        let address = address.to_string();
        let url = format!("http://{address}/mcp");
        let flags = ["--listen", &address, "--advertise", &url];
        let serve = Serve::without_address().args(flags).keys(&keys);
        instances.push(serve.start().await);
    }
    let balancer = Balancer::start(instances.iter().map(|instance| instance.address)).await;
    check(client, &[balancer.url().as_ref()]).await;
    for instance in &mut instances {
        instance.stop().await;
        // Only a relay that fails is logged.
        assert_eq!(instance.log.count("relay"), 0, "{:?}", instance.log);
    }
}

/// The client starts the server.
async fn over_stdio(client: [&str; 2]) {
    let files = Files::new();
    let binary = Path::new(env!("CARGO_BIN_EXE_refrain"));
    let command = ["--stdio".as_ref(), binary.as_os_str(), "serve".as_ref()];
    let store = format!("sqlite:{}", files.path("refrain.db").display());
    let flags = ["--stdio".as_ref(), "--store".as_ref(), store.as_ref()];
    check(client, &[&command[..], &flags].concat()).await;
}

/// The client has no callbacks for asks.
async fn without_capabilities(client: [&str; 2]) {
    let instance = Serve::new().start().await;
    let url = instance.url();
    let args = ["--without-capabilities".as_ref(), url.as_ref()];
    let printed = run_tool(CLIENT_TIME, &client, &args).await;
    assert_eq!(printed, "ok get_weather without elicitation\n");
}

const NOTE: &str = "notes://today";

async fn note(_: Cx) -> Result<String> {
    Ok("a note".into())
}

/// The client calls this tool after it has subscribed, and after it got the notification.
async fn subscribed(_: Cx, notify: State<Arc<Notify>>) -> Result<&'static str> {
    notify.notify_one();
    Ok("good")
}

/// Waits for a subscription.
async fn wait_for_subscription(server: &Server) {
    let listens = async {
        while server.subscriptions() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("a subscription", listens).await;
}

/// The server is replaced by another one with the same keys while the client is subscribed.
async fn over_a_restart(client: [&str; 2]) {
    let keys = KeyRing::generate(&SystemSource::new());
    let notify = Arc::new(Notify::new());
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket.set_nonblocking(true).expect("a socket");
    let url = format!(
        "http://{}/mcp",
        socket.local_addr().expect("a bound socket")
    );
    let server = || {
        let server = Server::builder("refrain", "1")
            .keys(keys.clone())
            .state(notify.clone())
            .tool(Tool::new("subscribed", subscribed))
            .resource(Resource::new(NOTE, "today", note));
        server.build().expect("the server is valid")
    };
    // Both servers use the same socket, so that no connection is refused in between.
    let serving = async |server: &Server, until: &mut (dyn Future<Output = ()> + Unpin)| {
        let socket = socket.try_clone().expect("the same socket");
        let listener = TcpListener::from_std(socket).expect("a listener");
        let served = serve(listener, server.clone(), AllowedHosts::local(), until).await;
        served.expect("serving succeeds");
    };
    let restart = async {
        let before = server();
        let until = async {
            notify.notified().await;
            wait_for_subscription(&before).await;
            before.resource_updated(NOTE);
            // The client got the notification.
            notify.notified().await;
        };
        serving(&before, &mut pin!(until)).await;
        let after = server();
        let until = async {
            wait_for_subscription(&after).await;
            let more = Changes::new().tool(Tool::new("more", note));
            after.change(more).expect("a change");
            pending::<()>().await;
        };
        serving(&after, &mut pin!(until)).await;
    };
    let args: [&OsStr; 3] = ["--listen".as_ref(), NOTE.as_ref(), url.as_ref()];
    let printed = tokio::select! {
        printed = run_tool(CLIENT_TIME, &client, &args) => printed,
        () = restart => unreachable!("it is served for as long as the client needs"),
    };
    assert_eq!(
        printed,
        "ok resources/updated\nok tools/list_changed\nok ping\n"
    );
}

client_tests! {
    python_over_http: over_http with PYTHON,
    python_over_two_instances: over_two_instances with PYTHON,
    python_over_stdio: over_stdio with PYTHON,
    python_over_a_restart: over_a_restart with PYTHON,
    python_without_capabilities: without_capabilities with PYTHON,
    npm_over_http: over_http with NPM,
    npm_over_two_instances: over_two_instances with NPM,
    npm_over_stdio: over_stdio with NPM,
    npm_over_a_restart: over_a_restart with NPM,
}
