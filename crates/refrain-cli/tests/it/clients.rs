//! Clients of other projects, which run the rounds by themselves.
//!
//! `scripts/tools` installs them. Without them, these tests fail.

use crate::support::issuer::{self, AUDIENCE as RESOURCE, ISSUER};
use crate::support::{Balancer, Files, Serve, Signer, run_tool, tool_fails};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// The checks of each client, in their order.
const CHECKS: &str = "ok discover
ok tools/list
ok get_weather
ok update_work_item
ok get_weather declined
ok analyze_data
";
/// The time limit for a client in seconds. The checks take two; the client itself gives up after 180.
const CLIENT_TIME: &str = "240";

const PYTHON: [&str; 2] = [".tools/bin/python", "tests/clients/python_client.py"];
const NPM: [&str; 2] = [".tools/bin/node", "tests/clients/npm_client.mjs"];

async fn check(client: [&str; 2], args: &[&OsStr]) {
    assert_eq!(run_tool(CLIENT_TIME, &client, args).await, CHECKS);
}

async fn over_http(client: [&str; 2]) {
    let instance = Serve::new().start().await;
    check(client, &[instance.url().as_ref()]).await;
}

/// Every round goes to another one of three instances that share only their keys.
async fn over_a_fleet(client: [&str; 2]) {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let mut instances = Vec::new();
    for name in ["a", "b", "c"] {
        let serve = Serve::new().keys(&keys).named(name);
        instances.push(serve.start().await);
    }
    let balancer = Balancer::start(instances.iter().map(|instance| instance.address)).await;
    check(client, &[balancer.url().as_ref()]).await;
    for instance in &mut instances {
        instance.stop().await;
        assert_eq!(instance.log.count("refused"), 0, "{:?}", instance.log);
    }
}

/// The client starts the server with flags.
async fn over_stdio(client: [&str; 2]) {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let binary = Path::new(env!("CARGO_BIN_EXE_refrain"));
    let command = ["--stdio".as_ref(), binary.as_os_str(), "serve".as_ref()];
    let flags = ["--stdio".as_ref(), "--keys".as_ref(), keys.as_os_str()];
    let store = format!("sqlite:{}", files.path("refrain.db").display());
    let store = ["--store".as_ref(), store.as_ref()];
    check(client, &[&command[..], &flags, &store].concat()).await;
}

/// With an access token the checks pass; without one, or with a wrong one, the client reports an error.
async fn with_an_access_token(client: [&str; 2]) {
    let (files, issuer) = (Files::new(), Signer::ed25519("1"));
    let jwks = files.write("jwks.json", &issuer::jwks(&[&issuer]));
    let jwks = jwks.display().to_string();
    let flags = ["--issuer", ISSUER, "--jwks", &jwks, "--resource", RESOURCE];
    let instance = Serve::new().args(flags).start().await;
    let url = instance.url();
    let token = issuer.token_for("alice", "");
    check(client, &["--token".as_ref(), token.as_ref(), url.as_ref()]).await;

    let without = tool_fails(CLIENT_TIME, &client, &[url.as_ref()]).await;
    let stranger = Signer::ed25519("1").token_for("alice", "");
    let with = ["--token".as_ref(), stranger.as_ref(), url.as_ref()];
    let wrong = tool_fails(CLIENT_TIME, &client, &with).await;
    let said = format!("{without}{wrong}");
    // Python reports the server's message, TypeScript the status.
    let wanted = if client == PYTHON {
        "FAIL connect: MCPError: missing bearer token: send an Authorization header\n\
         FAIL connect: MCPError: the token cannot be verified\n"
    } else {
        "FAIL connect: Version negotiation failed: the server requires authorization (HTTP 401)\n\
         FAIL connect: Unauthorized\n"
    };
    assert_eq!(said, wanted);
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
    python_over_a_fleet: over_a_fleet with PYTHON,
    python_over_stdio: over_stdio with PYTHON,
    python_with_an_access_token: with_an_access_token with PYTHON,
    npm_over_http: over_http with NPM,
    npm_over_a_fleet: over_a_fleet with NPM,
    npm_over_stdio: over_stdio with NPM,
    npm_with_an_access_token: with_an_access_token with NPM,
}
