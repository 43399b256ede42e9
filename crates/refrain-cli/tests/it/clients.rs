//! Clients of other projects, which run the rounds by themselves.
//!
//! `scripts/tools` installs them. Without them, these tests fail.

use crate::support::issuer::{self, AUDIENCE as RESOURCE, ISSUER};
use crate::support::{BackendLedger, Balancer, Files, Serve, Signer, run_tool, tool_fails};
use refrain::prelude::*;
use refrain::server::{AllowedHosts, ServerLimits, serve};
use refrain_testkit::net::proxy::{CALL, Fault, FaultProxy, Plan};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::future::pending;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpListener;

/// The checks of each client, in their order.
const CHECKS: &str = "ok discover
ok tools/list
ok get_weather
ok update_work_item
ok get_weather declined
ok analyze_data
";
/// The time limit for a client in seconds. The checks take two; the client itself gives up after 180.
pub(crate) const CLIENT_TIME: &str = "240";

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
        assert_eq!(instance.log.count("rejected"), 0, "{:?}", instance.log);
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
    let output = format!("{without}{wrong}");
    // Python reports the server's message, TypeScript the status.
    let expected = if client == PYTHON {
        "FAIL connect: MCPError: missing bearer token: send an Authorization header\n\
         FAIL connect: MCPError: the token cannot be verified\n"
    } else {
        "FAIL connect: Version negotiation failed: the server requires authorization (HTTP 401)\n\
         FAIL connect: Unauthorized\n"
    };
    assert_eq!(output, expected);
}

/// The tasks of a client that leaves out `Mcp-Name`.
#[tokio::test]
async fn fastmcp_drives_tasks() {
    let instance = Serve::new().start().await;
    let client = [".tools/bin/python", "tests/clients/fastmcp_client.py"];
    let printed = run_tool(CLIENT_TIME, &client, &[instance.url().as_ref()]).await;
    assert_eq!(printed, "ok completed\nok driven\nok cancelled\n");
}

/// A backend's tool of 10 seconds, and a client whose requests time out after 2.
#[tokio::test]
async fn impatient_client_completes_a_long_call_as_a_task() {
    let files = Files::new();
    let command = BackendLedger::new(&files).command(&[]);
    let config = format!(
        "[backends.tested]\ncommand = {command}\ntask_after_seconds = 1\nallow = [\"slow\"]\n\
         [backends.never]\ncommand = {command}\ntask_after_seconds = 0\nallow = [\"slow\"]\nprefix = \"never_\"\n"
    );
    let config = files.write("gateway.toml", &config);
    let gateway = Serve::gateway().args(["--listen", "127.0.0.1:0"]);
    let gateway = gateway.config(&config).start().await;
    let client = [".tools/bin/python", "tests/clients/impatient_client.py"];
    let printed = run_tool(
        CLIENT_TIME,
        &client,
        &[gateway.url().as_ref(), "10".as_ref()],
    )
    .await;
    assert_eq!(printed, "ok as a task\nok timeout without a task\n");
}

/// Web pages of an allowed origin read responses; those of others do not.
#[tokio::test]
async fn web_page_calls_with_a_compressed_body() {
    let page = [".tools/bin/node", "tests/clients/fetch_page.mjs"];
    let origin = "https://app.example.com";
    let instance = Serve::new().args(["--allow-origin", origin]).start().await;
    let url = instance.url();
    let printed = run_tool(CLIENT_TIME, &page, &[url.as_ref(), origin.as_ref()]).await;
    assert_eq!(printed, "ok preflight\nok call\n");
    let other = ["https://evil.example".as_ref()];
    let blocked = tool_fails(CLIENT_TIME, &page, &[&[url.as_ref()], &other[..]].concat()).await;
    assert_eq!(
        blocked,
        "FAIL blocked by CORS policy: 403, allowed origin null\n"
    );
}

const AJV: [&str; 2] = [".tools/bin/node", "tests/clients/ajv_schemas.mjs"];

/// Ajv in strict mode rejects formats that it does not know.
#[tokio::test]
async fn ajv_compiles_the_schemas_of_the_demo() {
    let instance = Serve::new().start().await;
    let printed = run_tool(CLIENT_TIME, &AJV, &[instance.url().as_ref()]).await;
    for name in ["create_vm input", "sum input", "change_seat form seat"] {
        assert!(printed.contains(&format!("ok {name}\n")), "{printed}");
    }
}

/// Types with a format that only schemars defines, and types with a standard format.
#[derive(Deserialize, Serialize, JsonSchema)]
struct Formats {
    bytes: Vec<u8>,
    short: u16,
    word: u32,
    long: Option<u64>,
    signed: i64,
    huge: i128,
    size: usize,
    ratio: f32,
    number: f64,
    letter: char,
    wait: Duration,
    nested: BTreeMap<String, NonZeroU64>,
    address: IpAddr,
    #[schemars(url)]
    link: String,
}

async fn formats(_: Cx, formats: Formats) -> Result<Json<Formats>> {
    Ok(Json(formats))
}

/// A form with a field of every kind.
#[derive(Deserialize, Elicit)]
#[expect(dead_code, reason = "only its form is used")]
struct Fields {
    text: String,
    #[elicit(format = "email")]
    email: String,
    #[elicit(format = "date-time")]
    at: Option<String>,
    count: u64,
    small: Option<i32>,
    ratio: f64,
    agreed: bool,
}

async fn fields(cx: Cx) -> Result<&'static str> {
    let _: Fields = cx.elicit("fields", "Everything?").await?;
    Ok("thanks")
}

/// Serves a server in this process while the client runs.
async fn run_against(
    server: Server,
    client: [&str; 2],
    args: &[&str],
    cut: Option<Duration>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let plan = match cut {
        Some(limit) => Plan::default().fault(CALL, 1, Fault::CutSilence(limit)),
        None => Plan::default(),
    };
    let proxy = FaultProxy::start(vec![address], plan).await;
    let args = [&[proxy.url.as_str()], args].concat();
    let args: Vec<&OsStr> = args.into_iter().map(OsStr::new).collect();
    tokio::select! {
        printed = run_tool(CLIENT_TIME, &client, &args) => printed,
        served = serve(listener, server, AllowedHosts::local(), pending()) => panic!("{served:?}"),
    }
}

#[tokio::test]
async fn ajv_compiles_schemas_of_every_type() {
    let server = Server::builder("formats", "1")
        .tool(Tool::new("formats", formats))
        .tool(Tool::new("fields", fields));
    let printed = run_against(server.build().expect("a server"), AJV, &[], None).await;
    let expected = "ok formats input\nok formats output\nok fields input\nok fields form fields\n";
    assert_eq!(printed, expected);
}

/// The time after which the proxy closes a silent connection.
const SILENCE: Duration = Duration::from_secs(2);

async fn slow(_: Cx) -> Result<&'static str> {
    tokio::time::sleep(SILENCE * 2).await;
    Ok("done")
}

/// For longer than the proxy allows silence, the call sends only keep-alives.
#[tokio::test]
async fn silent_call_survives_a_proxy_that_closes_silent_connections() {
    let limits = ServerLimits {
        keep_alive: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let server = Server::builder("slow", "1")
        .limits(limits)
        .tool(Tool::new("slow", slow));
    let client = [".tools/bin/node", "tests/clients/npm_call.mjs"];
    let server = server.build().expect("a server");
    let printed = run_against(server, client, &["slow"], Some(SILENCE)).await;
    assert_eq!(printed, "done\n");
}

/// The time limit of a test, including the installation of the clients.
pub(crate) const TEST_TIME: Duration = Duration::from_secs(1800);

macro_rules! client_tests {
    ($($name:ident: $check:ident with $client:ident,)*) => {$(
        #[tokio::test]
        async fn $name() {
            let done = tokio::time::timeout(crate::clients::TEST_TIME, $check($client)).await;
            done.expect("the test ends by itself");
        }
    )*};
}
pub(crate) use client_tests;

client_tests! {
    python_over_http: over_http with PYTHON,
    python_over_a_fleet: over_a_fleet with PYTHON,
    python_over_stdio: over_stdio with PYTHON,
    python_with_an_access_token: with_an_access_token with PYTHON,
    npm_over_http: over_http with NPM,
    npm_over_a_fleet: over_a_fleet with NPM,
    npm_over_stdio: over_stdio with NPM,
    npm_with_an_access_token: with_an_access_token with NPM,
}
