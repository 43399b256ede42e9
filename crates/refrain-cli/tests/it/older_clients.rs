//! Clients of 2025-11-25 that others wrote: they open a session, and are asked while their calls go on.
//!
//! `scripts/tools` installs them. Where it cannot, these tests fail: clients that did not run have shown nothing.

use crate::support::{Balancer, Files, Serve, run_tool};
use refrain_store::cluster::Cluster;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// What each client checks, in its order.
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
/// Time for a client's checks, in seconds. They take two; the client itself gives up after 180.
const CLIENT_TIME: &str = "240";

const PYTHON: [&str; 2] = [".tools/bin/python-older", "tests/clients/older_python.py"];
const NPM: [&str; 2] = [".tools/bin/node", "tests/clients/older_npm.mjs"];

async fn check(client: [&str; 2], args: &[&OsStr]) {
    assert_eq!(run_tool(CLIENT_TIME, &client, args).await, CHECKS);
}

async fn over_http(client: [&str; 2]) {
    let instance = Serve::new().start().await;
    check(client, &[instance.url().as_ref()]).await;
}

/// Every request goes to the other one of two instances, so that answers come where nothing was asked: the database
/// carries them.
async fn over_two_instances(client: [&str; 2]) {
    let cluster = Cluster::shared().expect("a Postgres");
    let url = cluster.database().await.expect("a database");
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let mut instances = Vec::new();
    for name in ["a", "b"] {
        let serve = Serve::new().keys(&keys).named(name);
        let serve = serve.env("RUST_LOG", "info,refrain_server::older=debug");
        instances.push(serve.env("REFRAIN_STORE", &url).start().await);
    }
    let balancer = Balancer::start(instances.iter().map(|instance| instance.address)).await;
    check(client, &[balancer.url().as_ref()]).await;
    let mut carried = 0;
    for instance in &mut instances {
        instance.stop().await;
        assert_eq!(instance.log.count("refused"), 0, "{:?}", instance.log);
        carried += instance
            .log
            .count("an answer was carried here by the store");
    }
    assert_ne!(carried, 0, "every answer came where nothing was asked");
}

/// The client starts the server itself.
async fn over_stdio(client: [&str; 2]) {
    let files = Files::new();
    let binary = Path::new(env!("CARGO_BIN_EXE_refrain"));
    let command = ["--stdio".as_ref(), binary.as_os_str(), "serve".as_ref()];
    let store = format!("sqlite:{}", files.path("refrain.db").display());
    let flags = ["--stdio".as_ref(), "--store".as_ref(), store.as_ref()];
    check(client, &[&command[..], &flags].concat()).await;
}

const TOO_LONG: Duration = Duration::from_secs(1800);

macro_rules! tests {
    ($($name:ident: $way:ident with $client:ident,)*) => {$(
        #[tokio::test]
        async fn $name() {
            let done = tokio::time::timeout(TOO_LONG, $way($client)).await;
            done.expect("the test ends by itself");
        }
    )*};
}

tests! {
    python_over_http: over_http with PYTHON,
    python_over_two_instances: over_two_instances with PYTHON,
    python_over_stdio: over_stdio with PYTHON,
    npm_over_http: over_http with NPM,
    npm_over_two_instances: over_two_instances with NPM,
    npm_over_stdio: over_stdio with NPM,
}
