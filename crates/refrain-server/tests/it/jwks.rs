//! The keys of an authorization server: fetching, caching, rotation and outages.

use crate::support::issuer::{AUDIENCE, ISSUER, KeyResponse, KeyServer, Signer, claims, jwks};
use crate::support::{Instance, Request, echo, echo_call, start, within};
use refrain_server::{Jwks, JwtVerifier, JwtVerifierBuilder, Server, Tool};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

const NEVER: Duration = Duration::from_secs(3600);
const ALWAYS: Duration = Duration::ZERO;

fn verifier(url: String) -> JwtVerifierBuilder {
    JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::Url(url))
}

async fn serve(verifier: JwtVerifierBuilder) -> Instance {
    let verifier = verifier.build().expect("a valid verifier");
    let echo = Tool::new("echo", echo);
    start(
        Server::builder("jwks", "1")
            .tool(echo)
            .authenticator(verifier),
    )
    .await
}

fn call(signer: &Signer) -> Request {
    echo_call().bearer(&signer.token(&claims("alice")))
}

async fn status(instance: &Instance, signer: &Signer) -> u16 {
    instance.send(&call(signer)).await.status
}

/// Waits until a call has this status. Keys are refreshed in the background.
async fn wait_for_status(instance: &Instance, signer: &Signer, expected: u16) {
    let calls = async { while status(instance, signer).await != expected {} };
    within("the keys to be read again", calls).await;
}

/// Asserts that a call gets 503. Returns its `Retry-After`.
async fn assert_unavailable(instance: &Instance, signer: &Signer) -> String {
    let response = instance.send(&call(signer)).await;
    let message = response.error(503, -32603);
    assert!(message.contains("keys"), "{message}");
    assert_eq!(response.header("www-authenticate"), None);
    let after = response.header("retry-after").expect("a Retry-After");
    after.to_owned()
}

#[tokio::test]
async fn keys_are_fetched_once_and_kept() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(KeyResponse::Keys(jwks(&[&signer]))).await;
    let instance = serve(verifier(server.url())).await;
    assert_eq!(server.fetches(), 0);
    for _ in 0..5 {
        assert_eq!(status(&instance, &signer).await, 200);
    }
    assert_eq!(server.fetches(), 1);
}

#[tokio::test]
async fn rotated_keys_are_used_without_a_restart() {
    let (old, new) = (Signer::p256("old"), Signer::ed25519("new"));
    let server = KeyServer::start(KeyResponse::Keys(jwks(&[&old]))).await;
    let instance = serve(verifier(server.url()).min_interval(ALWAYS).max_age(NEVER)).await;
    assert_eq!(status(&instance, &old).await, 200);
    server.respond_with(KeyResponse::Keys(jwks(&[&old, &new])));
    assert_eq!(status(&instance, &new).await, 200);
    assert_eq!(status(&instance, &old).await, 200);
    assert_eq!(server.fetches(), 2);
    server.respond_with(KeyResponse::Keys(jwks(&[&new])));
    // An unknown key causes a fetch, which removes the old key.
    assert_eq!(status(&instance, &Signer::p256("unknown")).await, 401);
    assert_eq!(status(&instance, &old).await, 401);
    assert_eq!(status(&instance, &new).await, 200);
}

#[tokio::test]
async fn unknown_keys_do_not_cause_many_fetches() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(KeyResponse::Keys(jwks(&[&signer]))).await;
    let instance = serve(verifier(server.url()).min_interval(NEVER)).await;
    assert_eq!(status(&instance, &signer).await, 200);
    for _ in 0..10 {
        assert_eq!(status(&instance, &Signer::p256("unknown")).await, 401);
    }
    assert_eq!(server.fetches(), 1);
    assert_eq!(status(&instance, &signer).await, 200);
    // Malformed tokens cause no fetch either.
    let garbage = Request::tool("echo", json!({})).header("Authorization", "Bearer x.y.z");
    let eager = serve(verifier(server.url()).min_interval(ALWAYS)).await;
    eager.send(&garbage).await.error(401, -32600);
    assert_eq!(server.fetches(), 1);
}

#[tokio::test]
async fn concurrent_requests_cause_one_fetch() {
    let signer = Signer::p256("1");
    let gate = Arc::new(Semaphore::new(0));
    let keys = jwks(&[&signer]);
    let server = KeyServer::start(KeyResponse::Gate(gate.clone(), keys)).await;
    let instance = serve(verifier(server.url()).min_interval(ALWAYS).max_age(NEVER)).await;
    let request = call(&signer);
    let calls =
        async { futures_util::future::join_all((0..8).map(|_| instance.send(&request))).await };
    let open = async {
        server.fetched(1).await;
        // Permits for all, although only one fetch must occur.
        gate.add_permits(8);
    };
    let (responses, ()) = tokio::join!(calls, open);
    assert!(responses.iter().all(|response| response.status == 200));
    assert_eq!(server.fetches(), 1);
}

#[tokio::test]
async fn fetch_survives_a_disconnected_client() {
    let signer = Signer::p256("1");
    let gate = Arc::new(Semaphore::new(0));
    let keys = jwks(&[&signer]);
    let server = KeyServer::start(KeyResponse::Gate(gate.clone(), keys)).await;
    let instance = serve(verifier(server.url()).min_interval(NEVER)).await;
    let mut first = instance.connect().await;
    first.send(&call(&signer)).await;
    server.fetched(1).await;
    drop(first);
    // Gives the server time to notice.
    assert_eq!(instance.get("/healthz").await.status, 200);
    gate.add_permits(1);
    assert_eq!(status(&instance, &signer).await, 200);
    assert_eq!(server.fetches(), 1);
}

#[tokio::test]
async fn requests_get_503_until_keys_are_available() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(KeyResponse::Status(500)).await;
    let instance = serve(verifier(server.url()).min_interval(ALWAYS)).await;
    assert_eq!(assert_unavailable(&instance, &signer).await, "1");
    server.respond_with(KeyResponse::Status(404));
    assert_unavailable(&instance, &signer).await;
    // Malformed and missing tokens get 401 without keys.
    let garbage = Request::tool("echo", json!({})).header("Authorization", "Bearer x");
    instance.send(&garbage).await.error(401, -32600);
    let nothing = Request::tool("echo", json!({}));
    instance.send(&nothing).await.error(401, -32600);
    server.respond_with(KeyResponse::Keys(jwks(&[&signer])));
    assert_eq!(status(&instance, &signer).await, 200);

    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = closed.local_addr().expect("an address");
    drop(closed);
    let nowhere = verifier(format!("http://{address}/"));
    let instance = serve(nowhere.min_interval(Duration::from_secs(7))).await;
    assert_eq!(assert_unavailable(&instance, &signer).await, "7");
}

#[tokio::test]
async fn cached_keys_survive_an_outage_of_their_server() {
    let (signer, new) = (Signer::p256("1"), Signer::p256("2"));
    let server = KeyServer::start(KeyResponse::Keys(jwks(&[&signer]))).await;
    let instance = serve(verifier(server.url()).max_age(ALWAYS).min_interval(ALWAYS)).await;
    assert_eq!(status(&instance, &signer).await, 200);
    for down in [
        KeyResponse::Status(500),
        KeyResponse::Keys("<html>".into()),
        KeyResponse::Keys("{\"keys\":5}".into()),
    ] {
        let before = server.fetches();
        server.respond_with(down);
        assert_eq!(status(&instance, &signer).await, 200);
        server.fetched(before + 1).await;
        // Unknown keys are still rejected.
        assert_eq!(status(&instance, &new).await, 401);
    }
    server.respond_with(KeyResponse::Keys(jwks(&[&new])));
    wait_for_status(&instance, &new, 200).await;
    assert_eq!(status(&instance, &signer).await, 401);
}

#[tokio::test]
async fn keys_past_their_maximum_age_are_fetched_again() {
    let (old, new) = (Signer::p256("1"), Signer::p256("2"));
    let server = KeyServer::start(KeyResponse::Keys(jwks(&[&old]))).await;
    let instance = serve(verifier(server.url()).max_age(ALWAYS).min_interval(ALWAYS)).await;
    assert_eq!(status(&instance, &old).await, 200);
    server.respond_with(KeyResponse::Keys(jwks(&[&new])));
    // The age alone causes the fetch: no request here has an unknown key.
    wait_for_status(&instance, &old, 401).await;
    // An empty key set replaces the keys. Then every token gets 503, not 401.
    server.respond_with(KeyResponse::Keys("{\"keys\":[]}".into()));
    wait_for_status(&instance, &new, 503).await;
    assert_unavailable(&instance, &new).await;
}

#[tokio::test]
async fn invalid_jwks_responses_are_rejected() {
    let signer = Signer::p256("1");
    let keys = jwks(&[&signer]);
    let other_server = KeyServer::start(KeyResponse::Keys(keys.clone())).await;
    let server = KeyServer::start(KeyResponse::Status(500)).await;
    let instance = serve(verifier(server.url()).min_interval(ALWAYS)).await;
    let oversized = format!("{}{keys}", " ".repeat(600 * 1024));
    for answer in [
        KeyResponse::Keys(oversized),
        KeyResponse::Keys(String::new()),
        KeyResponse::Keys("[]".into()),
        KeyResponse::Keys("[".repeat(100_000)),
        KeyResponse::Redirect(other_server.url()),
        KeyResponse::Status(204),
    ] {
        server.respond_with(answer);
        assert_unavailable(&instance, &signer).await;
    }
    assert_eq!(other_server.fetches(), 0, "a redirect was followed");
    server.respond_with(KeyResponse::Keys(keys));
    assert_eq!(status(&instance, &signer).await, 200);
}

#[tokio::test]
async fn fetch_from_an_unresponsive_server_times_out() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(KeyResponse::Silence).await;
    let instance = serve(verifier(server.url())).await;
    within(
        "the fetch to time out",
        assert_unavailable(&instance, &signer),
    )
    .await;
}

#[tokio::test]
async fn callers_with_a_cached_key_do_not_wait_for_a_fetch() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(KeyResponse::Keys(jwks(&[&signer]))).await;
    let instance = serve(verifier(server.url()).max_age(ALWAYS).min_interval(ALWAYS)).await;
    assert_eq!(status(&instance, &signer).await, 200);
    server.respond_with(KeyResponse::Silence);
    assert_eq!(status(&instance, &signer).await, 200);
    server.fetched(2).await;
    // The fetch is still running, otherwise these calls would start another.
    for _ in 0..3 {
        assert_eq!(status(&instance, &signer).await, 200);
    }
    assert_eq!(server.fetches(), 2);
}

#[tokio::test]
async fn changed_file_is_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("jwks.json");
    let (old, new) = (Signer::p256("old"), Signer::p256("new"));
    let mut turn = 0;
    let mut write = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        // Two writes may have the same modification time.
        turn += 1;
        let changed = SystemTime::now() + Duration::from_secs(turn);
        let file = std::fs::File::options().write(true).open(&path);
        let set = file.expect("a file").set_modified(changed);
        set.expect("the time can be set");
    };
    write(&jwks(&[&old]));
    let verifier = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::File(path.clone()));
    let instance = serve(verifier.max_age(ALWAYS).min_interval(ALWAYS)).await;
    assert_eq!(status(&instance, &old).await, 200);
    assert_eq!(status(&instance, &new).await, 401);
    write(&jwks(&[&new]));
    wait_for_status(&instance, &old, 401).await;
    assert_eq!(status(&instance, &new).await, 200);
    // An invalid or missing file does not remove the keys.
    write("{");
    assert_eq!(status(&instance, &new).await, 200);
    std::fs::remove_file(&path).expect("a file");
    assert_eq!(status(&instance, &new).await, 200);
    assert_eq!(status(&instance, &old).await, 401);
    write(&jwks(&[&old, &new]));
    wait_for_status(&instance, &old, 200).await;
}

/// The length and the modification time of the file stay the same.
#[tokio::test]
async fn unknown_key_causes_the_file_to_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("jwks.json");
    let (old, new) = (Signer::p256("1"), Signer::p256("2"));
    std::fs::write(&path, jwks(&[&old])).expect("a file");
    let verifier = JwtVerifier::builder(ISSUER, AUDIENCE, Jwks::File(path.clone()));
    let instance = serve(verifier.max_age(NEVER).min_interval(ALWAYS)).await;
    let before = std::fs::metadata(&path).expect("a file");
    std::fs::write(&path, jwks(&[&new])).expect("a file");
    let file = std::fs::File::options().write(true).open(&path);
    let times = before.modified().expect("a time");
    file.expect("a file")
        .set_modified(times)
        .expect("the time can be set");
    let after = std::fs::metadata(&path).expect("a file");
    assert_eq!(
        (after.len(), after.modified().ok()),
        (before.len(), before.modified().ok())
    );
    assert_eq!(status(&instance, &new).await, 200);
    assert_eq!(status(&instance, &old).await, 401);
}

#[tokio::test]
async fn key_set_with_too_many_values_is_rejected() {
    let signer = Signer::p256("1");
    let more = |count: usize| {
        let zeros = vec!["0"; count].join(",");
        jwks(&[&signer]).replacen('{', &format!(r#"{{"more":[{zeros}],"#), 1)
    };
    let server = KeyServer::start(KeyResponse::Keys(more(10_000))).await;
    let instance = serve(verifier(server.url())).await;
    assert_eq!(status(&instance, &signer).await, 200);
    let server = KeyServer::start(KeyResponse::Keys(more(50_000))).await;
    let instance = serve(verifier(server.url())).await;
    assert_unavailable(&instance, &signer).await;
}
