//! `refrain login` and `refrain logout`, with an authorization server.

use super::{assert_prints, assert_says};
use crate::relay::free_addresses;
use crate::support::issuer::{claims, jwks};
use crate::support::{Files, Instance, Output, Serve, Signer, ended, http, program, until, within};
use refrain_testkit::net::Request;
use refrain_testkit::net::oauth::OAuthServer;
use refrain_testkit::net::process::Log;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use url::Url;

/// A server that accepts the access tokens of an authorization server, and the state directory of a user.
struct World {
    issuer: OAuthServer,
    instance: Instance,
    files: Files,
}

impl World {
    async fn start() -> Self {
        let (issuer, files) = (OAuthServer::start().await, Files::new());
        let [address] = free_addresses();
        let resource = format!("http://{address}/mcp");
        let signer = Signer::ed25519("1");
        let keys = files.write("jwks.json", &jwks(&[&signer]));
        let mut claims = claims("ada");
        (claims["iss"], claims["aud"]) = (json!(issuer.origin), json!(resource));
        issuer.change(|behaviour| {
            let count = std::sync::atomic::AtomicUsize::new(0);
            behaviour.mint = Some(Arc::new(move |_| {
                let mut claims = claims.clone();
                // Makes each token different.
                claims["jti"] = json!(count.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
                signer.token(&claims)
            }));
        });
        let (address, keys) = (address.to_string(), keys.display().to_string());
        let flags = [
            ["--listen", &address],
            ["--issuer", &issuer.origin],
            ["--jwks", &keys],
            ["--resource", &resource],
        ];
        let instance = Serve::without_address().args(flags.concat()).start().await;
        Self {
            issuer,
            instance,
            files,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        command
            .args(args)
            .env("XDG_STATE_HOME", self.files.path("state"))
            .env_remove("HOME");
        command
    }

    async fn run(&self, args: &[&str]) -> Output {
        within("the end of a command", Output::of(self.command(args))).await
    }

    async fn call(&self) -> Output {
        let url = self.instance.url();
        self.run(&["call", &url, "echo", "text=hi"]).await
    }

    /// Starts a login. Returns its standard error, and the redirect of the authorization server to this machine.
    async fn begin_login(&self) -> (Child, Log, Url) {
        let url = self.instance.url();
        let mut command = self.command(&["login", &url, "--no-browser"]);
        command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("the binary starts");
        let log = Log::default();
        log.read(child.stderr.take().expect("stderr is a pipe"));
        let page = log.wait_for("/authorize?", 1).await;
        let page = Url::parse(page.trim()).expect("a URL");
        let response = http::send(address(&page), &Request::get(&target(&page))).await;
        let redirect = response.header("location").expect("a redirect");
        (child, log, Url::parse(redirect).expect("a URL"))
    }

    async fn log_in(&self) -> Log {
        let (mut child, log, redirect) = self.begin_login().await;
        let page = http::text_of(address(&redirect), &target(&redirect)).await;
        assert!(page.contains("close this window"), "{page}");
        assert!(ended(&mut child).await.success(), "{:?}", log.lines());
        log
    }

    /// The only file with a login.
    fn login_file(&self) -> PathBuf {
        let dir = self.files.path("state").join("refrain/logins");
        let files = fs::read_dir(dir).expect("a directory of logins");
        let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        files.retain(|file| file.extension().is_some_and(|it| it != "lock"));
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    /// Changes the stored grant.
    fn change_login(&self, change: impl FnOnce(&mut Value)) {
        let file = self.login_file();
        let grant = fs::read(&file).expect("the file is readable");
        let mut grant = serde_json::from_slice(&grant).expect("the file is JSON");
        change(&mut grant);
        fs::write(&file, grant.to_string()).expect("the file is writable");
    }
}

fn expire(grant: &mut Value) {
    (grant["obtained"], grant["expires"]) = (json!(1000), json!(2000));
}

fn address(url: &Url) -> std::net::SocketAddr {
    url.socket_addrs(|| None).expect("an address")[0]
}

fn target(url: &Url) -> String {
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

#[tokio::test]
async fn login_is_used_by_later_commands_until_logout() {
    let world = World::start().await;
    let url = world.instance.url();
    let output = world.call().await;
    assert_says(
        &output,
        5,
        &["requires an access token", "refrain login URL"],
    );

    let log = world.log_in().await;
    let file = world.login_file();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);
    let token = world.issuer.stolen_token();
    assert!(fs::read_to_string(&file).unwrap().contains(&token));
    assert!(!log.text().contains(&token), "{}", log.text());

    assert_prints(&world.call().await, "Echo: hi\n");
    let traced = world
        .run(&["call", &url, "echo", "text=hi", "--trace=9"])
        .await;
    assert!(!traced.err.contains(&token), "{}", traced.err);
    // The login is for this URL only.
    let other = url.replace("127.0.0.1", "localhost");
    let output = world.run(&["call", &other, "echo", "text=hi"]).await;
    assert_says(&output, 5, &["requires an access token"]);
    assert_prints(&world.run(&["login", "--list"]).await, &format!("{url}\n"));

    assert_eq!(world.run(&["logout", &url]).await.code, 0);
    assert!(!file.exists());
    assert_says(&world.call().await, 5, &["requires an access token"]);
    assert_says(&world.run(&["logout", &url]).await, 1, &["no login for"]);
}

#[tokio::test]
async fn expired_login_is_renewed_or_asks_for_a_new_one() {
    let world = World::start().await;
    world.log_in().await;
    world.change_login(expire);
    assert_prints(&world.call().await, "Echo: hi\n");
    let renewals = world.issuer.requests_to("/token");
    let renewals = renewals
        .iter()
        .filter(|one| one.params["grant_type"] == "refresh_token");
    assert_eq!(renewals.count(), 1);
    // The renewed token is stored.
    assert_prints(&world.call().await, "Echo: hi\n");
    assert_eq!(world.issuer.requests_to("/token").len(), 2);

    world.change_login(|grant| {
        expire(grant);
        grant["access_token"] = json!("revoked");
    });
    world
        .issuer
        .change(|behaviour| behaviour.refresh_tokens.clear());
    let url = world.instance.url();
    let output = world.call().await;
    let hint = format!("hint: log in with `refrain login {url}`");
    assert_says(&output, 5, &["expired or revoked", &hint]);
}

#[tokio::test]
async fn redirect_can_be_pasted() {
    let world = World::start().await;
    let (mut child, log, redirect) = world.begin_login().await;
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let typed = format!("\nhttp://example.com/\n {redirect} \n");
    stdin
        .write_all(typed.as_bytes())
        .await
        .expect("stdin is open");
    assert!(ended(&mut child).await.success(), "{:?}", log.lines());
    log.wait_for("expected an address that starts with", 1)
        .await;
    assert_prints(&world.call().await, "Echo: hi\n");
}

#[tokio::test]
async fn server_without_authorization_needs_no_login() {
    let instance = Serve::new().start().await;
    let files = Files::new();
    let mut command = program();
    command
        .args(["login", &instance.url(), "--no-browser"])
        .env("XDG_STATE_HOME", files.path("state"));
    let output = Output::of(command).await;
    assert_says(&output, 1, &["does not ask for a login"]);
    assert!(!files.path("state").exists());
}

#[tokio::test]
async fn browser_gets_the_page_and_no_secrets() {
    let world = World::start().await;
    let script =
        "#!/bin/sh\nenv > \"$0.env\"\necho \"$1\" > \"$0.part\"\nmv \"$0.part\" \"$0.page\"\n";
    let browser = world.files.write("xdg-open", script);
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o700)).expect("a program");
    let path = format!("{}:/usr/bin:/bin", world.files.path("").display());
    let mut command = world.command(&["login", &world.instance.url()]);
    command
        .env("PATH", path)
        .env("REFRAIN_TOKEN", "secret-of-the-user")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("the binary starts");
    let page = world.files.path("xdg-open.page");
    until("the browser to start", || page.exists()).await;
    let page = fs::read_to_string(page).expect("a page");
    let expected = format!("{}/authorize?", world.issuer.origin);
    assert!(page.starts_with(&expected), "{page}");
    let variables = fs::read_to_string(world.files.path("xdg-open.env")).expect("variables");
    assert!(variables.contains("PATH="), "{variables}");
    assert!(!variables.contains("secret-of-the-user"), "{variables}");
    child.kill().await.expect("the command waits for the login");
}
