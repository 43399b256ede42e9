//! Authentication: access tokens, proxies, and invalid configurations.

use crate::support::issuer::{
    self, AUDIENCE as RESOURCE, ISSUER, KeyResponse, KeyServer, authority,
};
use crate::support::{Call, Client, Files, Instance, Reply, Serve, Signer, config_check, until};
use refrain_testkit::net::http;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::path::Path;
use tokio::net::unix::pipe::{OpenOptions, Sender};

const SECRET: &str = "correct horse battery staple";

fn jwt(jwks: impl std::fmt::Display) -> String {
    format!(
        "[auth]\nresource = \"{RESOURCE}\"\nscopes = [\"tools\"]\nimplies = {{ admin = [\"tools\"] }}\n\
         [auth.jwt]\nissuer = \"{ISSUER}\"\njwks = \"{jwks}\"\n"
    )
}

/// Calls `echo`, and returns the status and the `WWW-Authenticate` header.
async fn challenge(instance: &Instance, bearer: Option<&str>) -> (u16, String) {
    let mut client = Client::new(instance.address);
    client.bearer = bearer.map(str::to_owned);
    let request = client.request(&Call::new("echo", json!({"text": "x"})));
    let response = http::send(instance.address, &request).await;
    let challenge = response.header("www-authenticate").unwrap_or_default();
    (response.status, challenge.to_owned())
}

async fn metadata(instance: &Instance) -> Value {
    let page = "/.well-known/oauth-protected-resource/mcp";
    let text = http::text_of(instance.address, page).await;
    serde_json::from_str(&text).expect("valid JSON")
}

/// Checks that another caller cannot use the token of a call.
pub(crate) async fn assert_bound_to_caller(alice: &Client, bob: &Client) {
    let mut call = Call::weather("Oslo");
    assert!(matches!(alice.round(&mut call).await, Reply::Asked(_)));
    call.answer("github_login", &json!({"name": "octocat"}));
    let stolen = bob.round(&mut call.clone()).await;
    assert!(
        matches!(stolen, Reply::Refused { code: -32602, .. }),
        "{stolen:?}"
    );
    assert!(matches!(alice.round(&mut call).await, Reply::Done(_)));
}

/// Checks the behaviour of an instance with access tokens.
async fn tokens_are_checked(instance: &Instance, issuer: &Signer) {
    let known = "scope=\"tools\", resource_metadata=\
                 \"https://mcp.example.com/.well-known/oauth-protected-resource/mcp\"";
    let missing = challenge(instance, None).await;
    assert_eq!(missing, (401, format!("Bearer {known}")));
    let (status, text) = challenge(instance, Some("nonsense")).await;
    assert_eq!(status, 401);
    assert!(text.starts_with("Bearer error=\"invalid_token\""), "{text}");
    let (status, text) = challenge(instance, Some(&issuer.token_for("alice", "other"))).await;
    assert_eq!(status, 403);
    assert!(
        text.starts_with("Bearer error=\"insufficient_scope\", scope=\"tools\""),
        "{text}"
    );

    let client = Client::new(instance.address);
    let alice = client
        .clone()
        .with_bearer(&issuer.token_for("alice", "openid admin"));
    let bob = client.with_bearer(&issuer.token_for("bob", "tools"));
    assert_bound_to_caller(&alice, &bob).await;
    assert_eq!(
        metadata(instance).await,
        json!({
            "resource": RESOURCE,
            "authorization_servers": [ISSUER],
            "scopes_supported": ["tools"],
            "bearer_methods_supported": ["header"],
        })
    );
}

#[tokio::test]
async fn access_tokens_are_checked_with_keys_from_a_file() {
    let (files, issuer) = (Files::new(), Signer::ed25519("1"));
    let jwks = files.write("jwks.json", &issuer::jwks(&[&issuer]));
    let config = files.write("config.toml", &jwt(jwks.display()));
    let instance = Serve::new().config(&config).start().await;
    tokens_are_checked(&instance, &issuer).await;
}

#[tokio::test]
async fn access_tokens_are_checked_with_keys_over_tls() {
    let (files, issuer) = (Files::new(), Signer::ed25519("1"));
    let keys = KeyServer::start_tls(KeyResponse::Keys(issuer::jwks(&[&issuer]))).await;
    let url = keys.url();
    let config = files.write("config.toml", &jwt(url));
    let trusting = Serve::new()
        .env("SSL_CERT_FILE", &authority("ca.pem"))
        .config(&config);
    tokens_are_checked(&trusting.start().await, &issuer).await;

    // Without the authority, the certificate of the key server is rejected.
    let wary = Serve::new()
        .env("SSL_CERT_FILE", &authority("other-ca.pem"))
        .config(&config);
    let wary = wary.start().await;
    let token = issuer.token_for("alice", "tools");
    assert_eq!(challenge(&wary, Some(&token)).await, (503, String::new()));
    wary.log.wait_for("UnknownIssuer", 1).await;
}

#[tokio::test]
async fn auth_flags_work_without_a_file_and_override_it() {
    let (files, issuer) = (Files::new(), Signer::ed25519("1"));
    let jwks = files.write("jwks.json", &issuer::jwks(&[&issuer]));
    let jwks = jwks.display().to_string();
    let flags = ["--issuer", ISSUER, "--jwks", &jwks, "--resource", RESOURCE];
    // The flags override the invalid values in the file.
    let file = "[auth]\nresource = \"x\"\n[auth.jwt]\nissuer = \"a#b\"\njwks = \"/no/such/file\"\n";
    let config = files.write("config.toml", file);
    for serve in [Serve::new(), Serve::new().config(&config)] {
        let instance = serve.args(flags).start().await;
        assert_eq!(challenge(&instance, None).await.0, 401);
        let token = issuer.token_for("alice", "");
        assert_eq!(challenge(&instance, Some(&token)).await.0, 200);
        assert_eq!(metadata(&instance).await["resource"], RESOURCE);
    }
}

#[tokio::test]
async fn trusted_proxy_identifies_callers() {
    let files = Files::new();
    let secret = files.write("proxy.secret", &format!("{SECRET}\n"));
    let config = format!(
        "[auth]\nscopes = [\"tools\"]\n[auth.proxy]\nsecret_file = {secret:?}\n\
         secret_header = \"x-gate\"\nuser_header = \"remote-user\"\nscopes_header = \"remote-scopes\"\n"
    );
    let config = files.write("config.toml", &config);
    let instance = Serve::new().config(&config).start().await;
    let status = async |headers: &[(&'static str, &str)]| {
        let client = Client::new(instance.address);
        let mut request = client.request(&Call::new("echo", json!({"text": "x"})));
        for (name, value) in headers {
            request = request.second_header(name, value);
        }
        http::send(instance.address, &request).await.status
    };
    let (gate, user) = (("x-gate", SECRET), ("remote-user", "alice"));
    let scopes = ("remote-scopes", "tools");
    assert_eq!(status(&[gate, user, scopes]).await, 200);
    assert_eq!(status(&[user, scopes]).await, 403);
    assert_eq!(status(&[("x-gate", "wrong"), user, scopes]).await, 403);
    assert_eq!(status(&[gate, user]).await, 403);
    assert_eq!(status(&[gate, scopes]).await, 401);
    assert_eq!(status(&[gate, user, user, scopes]).await, 400);
}

#[tokio::test]
async fn token_file_can_grant_scopes() {
    let files = Files::new();
    let callers = "alice alice-alice-alice tools\nbob bob-bob-bob-bob-bob\n";
    let callers = files.write("callers.txt", callers);
    let config = files.write("config.toml", "[auth]\nscopes = [\"tools\"]\n");
    let serve = Serve::new().config(&config).tokens(&callers);
    let instance = serve.start().await;
    assert_eq!(challenge(&instance, Some("alice-alice-alice")).await.0, 200);
    assert_eq!(
        challenge(&instance, Some("bob-bob-bob-bob-bob")).await.0,
        403
    );
}

/// The error of `serve`. Without a token file, `config check` must print the same.
async fn config_error(files: &Files, text: &str, tokens: Option<&Path>) -> String {
    let config = files.write("config.toml", text);
    let serve = Serve::new().config(&config);
    match tokens {
        Some(tokens) => serve.tokens(tokens).fails().await,
        None => {
            let error = serve.fails().await;
            let check = config_check(&config, &[]);
            assert_eq!((check.code, &error), (1, &check.err));
            check.err
        }
    }
}

#[tokio::test]
async fn auth_errors_are_reported_with_their_positions() {
    let files = Files::new();
    let text = "[auth]\nresource = \"ftp://x\"\nscopes = [\"a b\"]\n[auth.jwt]\nissuer = \"a#b\"\n\
                audiences = []\n[auth.proxy]\nsecret_file = \"/no/such\"\n";
    let error = config_error(&files, text, None).await;
    let error = error.replace(&*files.path("config.toml").to_string_lossy(), "config.toml");
    let heads: Vec<&str> = error
        .lines()
        .filter_map(|line| line.strip_prefix("error: "))
        .collect();
    for (head, expected) in heads.iter().zip([
        "config.toml:2:12: auth.resource: invalid URL \"ftp://x\" in the resource metadata: ",
        "config.toml:3:10: auth.scopes: invalid scope \"a b\" of the server: ",
        "config.toml:4:7: auth.jwt.jwks is missing: ",
        "config.toml:6:1: unknown setting \"audiences\" in [auth.jwt]; did you mean \"audience\"?",
        "config.toml:7:7: auth.proxy: cannot be combined with auth.jwt: choose one of them",
        "config.toml:8:15: auth.proxy.secret_file: cannot read /no/such: ",
    ]) {
        assert!(head.starts_with(expected), "{expected}\n{error}");
    }
    assert_eq!(heads.len(), 6, "{error}");
}

#[test]
fn config_check_prints_auth_settings_without_secrets() {
    let files = Files::new();
    let secret = files.write("proxy.secret", SECRET);
    let config = format!(
        "[auth]\nscopes = [\"tools\"]\nimplies = {{ admin = [\"tools\"] }}\n[auth.proxy]\nsecret_file = {secret:?}\n"
    );
    let config = files.write("config.toml", &config);
    let check = config_check(&config, &["--json"]);
    assert!(check.ok, "{check:?}");
    let report: Value = serde_json::from_str(&check.out).expect("valid JSON");
    let settings = report["settings"].as_array().expect("settings");
    for (name, value, line) in [
        ("auth.resource", json!(null), json!(null)),
        ("auth.scopes", json!(["tools"]), json!(2)),
        ("auth.implies", json!({"admin": ["tools"]}), json!(3)),
        ("auth.jwt.leeway_seconds", json!(null), json!(null)),
        ("auth.proxy.secret_file", json!(secret), json!(5)),
    ] {
        let from = if line.is_null() { "default" } else { "file" };
        let shown = json!({"name": name, "value": value, "from": from, "line": line});
        assert!(settings.contains(&shown), "{shown}\n{report}");
    }
    assert!(!check.out.contains(SECRET));
}

#[tokio::test]
async fn auth_error_names_its_setting() {
    let (files, issuer) = (Files::new(), Signer::ed25519("1"));
    let jwks = files.write("jwks.json", &issuer::jwks(&[&issuer]));
    let garbage = files.write("garbage.json", "{");
    let short = files.write("short", "short");
    let good = jwt(jwks.display());
    for (text, key) in [
        ("[auth]\nscope = []\n".into(), "scope"),
        ("[auth.jwt]\nissuers = 5\n".into(), "issuers"),
        ("[auth.jwt]\n".into(), "auth.jwt.issuer is missing"),
        (
            format!("[auth.jwt]\nissuer = \"{ISSUER}\"\n"),
            "auth.jwt.jwks is missing",
        ),
        (good.replace(ISSUER, "a#b"), "auth.jwt.issuer:"),
        (good.replace("resource = ", "#"), "auth.resource is missing"),
        (
            format!("{good}audience = []\n"),
            "auth.jwt.audience: it is empty",
        ),
        (format!("{good}audience = \"\"\n"), "auth.jwt.audience must"),
        (jwt("http://example.com/jwks"), "auth.jwt.jwks:"),
        (jwt("/no/such/jwks.json"), "auth.jwt.jwks:"),
        (jwt(garbage.display()), "auth.jwt.jwks:"),
        (good.replace("https://mcp", "http://mcp"), "auth.resource:"),
        (
            good.replace("[\"tools\"]\ni", "[\"offline_access\"]\ni"),
            "auth.scopes:",
        ),
        ("[auth]\nscopes = [\"x\"]\n".into(), "auth.scopes:"),
        (
            "[auth]\nresource = \"https://x\"\n".into(),
            "auth.resource:",
        ),
        (
            "[auth]\nauthorization_servers = []\n".into(),
            "auth.authorization_servers:",
        ),
        (
            "[auth]\nresource = \"https://x\"\nauthorization_servers = [\"https://y\"]\n".into(),
            "auth.resource: access tokens would not be checked",
        ),
        (
            good.replace("admin = ", "\"two words\" = "),
            "auth.implies: invalid scope \"two words\" of the server",
        ),
        (
            good.replace("admin = [", "admin = [\"quo\\\"te\", "),
            "auth.implies:",
        ),
        ("[auth.proxy]\n".into(), "auth.proxy.secret_file is missing"),
        (
            "[auth.proxy]\nsecret_file = \"/no/such\"\n".into(),
            "auth.proxy.secret_file:",
        ),
        (
            format!("[auth.proxy]\nsecret_file = {short:?}\n"),
            "auth.proxy.secret_file:",
        ),
        (format!("{good}[auth.proxy]\n"), "auth.proxy:"),
    ] {
        let error = config_error(&files, &text, None).await;
        assert!(error.contains(key), "{text}: no {key:?} in {error}");
    }
    let secret = files.write("secret", SECRET);
    let proxy = format!("[auth.proxy]\nsecret_file = {secret:?}\nuser_header = \"a b\"\n");
    let error = config_error(&files, &proxy, None).await;
    assert!(error.contains("auth.proxy.user_header:"), "{error}");
    let tokens = files.write("callers.txt", "alice alice-alice-alice\n");
    for (text, key) in [(&good, "auth.jwt:"), (&proxy, "auth.proxy:")] {
        let error = config_error(&files, text, Some(&tokens)).await;
        assert!(
            error.contains(key) && error.contains("choose one"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn access_tokens_are_not_logged() {
    let (files, issuer) = (Files::new(), Signer::ed25519("1"));
    let keys = KeyServer::start_tls(KeyResponse::Keys(issuer::jwks(&[&issuer]))).await;
    let url = keys.url();
    let config = files.write("config.toml", &jwt(url));
    let serve = Serve::new()
        .config(&config)
        .env("SSL_CERT_FILE", &authority("ca.pem"));
    let mut instance = serve.env("RUST_LOG", "trace").start().await;
    let good = issuer.token_for("alice", "tools");
    let expired = json!({"iss": ISSUER, "aud": RESOURCE, "sub": "alice", "exp": 5});
    let expired = issuer.token(&expired);
    assert_eq!(challenge(&instance, Some(&good)).await.0, 200);
    for bad in [&expired, &format!("{good}A"), &good.replace('.', ".x")] {
        assert_eq!(challenge(&instance, Some(bad)).await.0, 401);
    }
    instance.stop().await;
    assert_eq!(instance.log.count("access token rejected"), 3);
    for line in instance.log.lines() {
        for token in [&good, &expired] {
            let (message, signature) = token.rsplit_once('.').expect("three parts");
            let (_, claims) = message.split_once('.').expect("three parts");
            for part in [claims, signature] {
                assert!(!line.contains(part), "a token is in the log: {line}");
            }
        }
    }
}

#[tokio::test]
async fn token_file_is_reloaded() {
    let files = Files::new();
    let callers = files.write("callers.txt", "alice alice-alice-alice\n");
    let instance = Serve::new().tokens(&callers).start().await;
    let status = async |token| challenge(&instance, Some(token)).await.0;
    assert_eq!(status("alice-alice-alice").await, 200);
    // An unusable file does not replace the callers.
    files.write("callers.txt", "bob short\n");
    instance.reload("failed to reload the token file").await;
    assert_eq!(status("alice-alice-alice").await, 200);
    files.write("callers.txt", "bob bob-bob-bob-bob-bob\n");
    instance.reload("token file reloaded").await;
    assert_eq!(status("alice-alice-alice").await, 401);
    assert_eq!(status("bob-bob-bob-bob-bob").await, 200);
}

/// Replaces a file by a pipe.
fn replace_by_pipe(file: &Path) {
    std::fs::remove_file(file).expect("the file exists");
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, file, FileType::Fifo, mode, 0).expect("a pipe");
}

/// Waits until the pipe is read. The reader blocks as long as the sender is open.
async fn block_reader(pipe: &Path) -> Sender {
    let sender = OnceCell::new();
    until("the pipe is read", || {
        let opened = OpenOptions::new().open_sender(pipe);
        opened.is_ok_and(|opened| sender.set(opened).is_ok())
    })
    .await;
    sender.into_inner().expect("an open pipe")
}

#[tokio::test]
async fn instance_runs_on_while_reloaded_files_block() {
    const TOKEN: &str = "alice-alice-alice";
    let files = Files::new();
    let callers = files.write("callers.txt", &format!("alice {TOKEN}\n"));
    let keys = files.keys("fleet.keys");
    let key_text = std::fs::read_to_string(&keys).expect("a key file");
    let mut instance = Serve::new().keys(&keys).tokens(&callers).start().await;
    for file in [&keys, &callers] {
        replace_by_pipe(file);
    }
    instance.signal(Signal::HUP);
    let _senders = [block_reader(&keys).await, block_reader(&callers).await];
    assert_eq!(challenge(&instance, Some(TOKEN)).await.0, 200);

    // A later SIGHUP reads the files again.
    for file in [&keys, &callers] {
        std::fs::remove_file(file).expect("a pipe");
    }
    files.write("fleet.keys", &key_text);
    files.write("callers.txt", "bob bob-bob-bob-bob-bob\n");
    instance.reload("token file reloaded").await;
    instance.log.wait_for("keys reloaded", 1).await;
    assert_eq!(challenge(&instance, Some(TOKEN)).await.0, 401);
    instance.stop().await;
}
