//! The keys of an authorization server: fetched, kept, read again, and missed.

use crate::support::issuer::{AUDIENCE, Answer, ISSUER, KeyServer, Signer, claims, jwks};
use crate::support::{Instance, Request, echo, start, within};
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
    let verifier = verifier.build().expect("a usable verifier");
    let echo = Tool::new("echo", echo);
    start(
        Server::builder("jwks", "1")
            .tool(echo)
            .authenticator(verifier),
    )
    .await
}

fn call(signer: &Signer) -> Request {
    let bearer = format!("Bearer {}", signer.token(&claims("alice")));
    Request::tool("echo", json!({"text": "x"})).header("Authorization", &bearer)
}

async fn status(instance: &Instance, signer: &Signer) -> u16 {
    instance.send(&call(signer)).await.status
}

/// Waits until a call is answered so: old keys are read again behind the backs of those who have one.
async fn becomes(instance: &Instance, signer: &Signer, expected: u16) {
    let calls = async { while status(instance, signer).await != expected {} };
    within("the keys to be read again", calls).await;
}

/// Checks that a call is answered with 503, and says when to come back.
async fn unavailable(instance: &Instance, signer: &Signer) -> String {
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
    let server = KeyServer::start(Answer::Keys(jwks(&[&signer]))).await;
    let instance = serve(verifier(server.url())).await;
    assert_eq!(server.fetches(), 0);
    for _ in 0..5 {
        assert_eq!(status(&instance, &signer).await, 200);
    }
    assert_eq!(server.fetches(), 1);
}

#[tokio::test]
async fn keys_are_rotated_without_a_restart() {
    let (old, new) = (Signer::p256("old"), Signer::ed25519("new"));
    let server = KeyServer::start(Answer::Keys(jwks(&[&old]))).await;
    let instance = serve(verifier(server.url()).min_interval(ALWAYS).max_age(NEVER)).await;
    assert_eq!(status(&instance, &old).await, 200);
    server.answer(Answer::Keys(jwks(&[&old, &new])));
    assert_eq!(status(&instance, &new).await, 200);
    assert_eq!(status(&instance, &old).await, 200);
    assert_eq!(server.fetches(), 2);
    server.answer(Answer::Keys(jwks(&[&new])));
    // A key that nobody knows has the keys read again, and with that the old one is gone.
    assert_eq!(status(&instance, &Signer::p256("unknown")).await, 401);
    assert_eq!(status(&instance, &old).await, 401);
    assert_eq!(status(&instance, &new).await, 200);
}

#[tokio::test]
async fn unknown_keys_do_not_make_for_many_fetches() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(Answer::Keys(jwks(&[&signer]))).await;
    let instance = serve(verifier(server.url()).min_interval(NEVER)).await;
    assert_eq!(status(&instance, &signer).await, 200);
    for _ in 0..10 {
        assert_eq!(status(&instance, &Signer::p256("unknown")).await, 401);
    }
    assert_eq!(server.fetches(), 1);
    assert_eq!(status(&instance, &signer).await, 200);
    // Nor do tokens that cannot be of anybody.
    let garbage = Request::tool("echo", json!({})).header("Authorization", "Bearer x.y.z");
    let eager = serve(verifier(server.url()).min_interval(ALWAYS)).await;
    eager.send(&garbage).await.error(401, -32600);
    assert_eq!(server.fetches(), 1);
}

#[tokio::test]
async fn many_requests_at_once_make_for_one_fetch() {
    let signer = Signer::p256("1");
    let gate = Arc::new(Semaphore::new(0));
    let keys = jwks(&[&signer]);
    let server = KeyServer::start(Answer::Gate(gate.clone(), keys)).await;
    let instance = serve(verifier(server.url()).min_interval(ALWAYS).max_age(NEVER)).await;
    let request = call(&signer);
    let calls =
        async { futures_util::future::join_all((0..8).map(|_| instance.send(&request))).await };
    let open = async {
        server.fetched(1).await;
        // As many as want to pass: there must be one.
        gate.add_permits(8);
    };
    let (responses, ()) = tokio::join!(calls, open);
    assert!(responses.iter().all(|response| response.status == 200));
    assert_eq!(server.fetches(), 1);
}

/// Whoever has the keys fetched may go away: they are for the others too.
#[tokio::test]
async fn a_client_that_goes_away_does_not_take_the_fetch_with_it() {
    let signer = Signer::p256("1");
    let gate = Arc::new(Semaphore::new(0));
    let keys = jwks(&[&signer]);
    let server = KeyServer::start(Answer::Gate(gate.clone(), keys)).await;
    let instance = serve(verifier(server.url()).min_interval(NEVER)).await;
    let mut hasty = instance.connect().await;
    hasty.send(&call(&signer)).await;
    server.fetched(1).await;
    drop(hasty);
    // Time for the server to see that.
    assert_eq!(instance.get("/healthz").await.status, 200);
    gate.add_permits(1);
    assert_eq!(status(&instance, &signer).await, 200);
    assert_eq!(server.fetches(), 1);
}

#[tokio::test]
async fn without_keys_the_answer_is_503_until_there_are_some() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(Answer::Status(500)).await;
    let instance = serve(verifier(server.url()).min_interval(ALWAYS)).await;
    assert_eq!(unavailable(&instance, &signer).await, "1");
    server.answer(Answer::Status(404));
    unavailable(&instance, &signer).await;
    // What needs no keys to be seen through is not let in meanwhile, and a caller without a token is told to get one.
    let garbage = Request::tool("echo", json!({})).header("Authorization", "Bearer x");
    instance.send(&garbage).await.error(401, -32600);
    let nothing = Request::tool("echo", json!({}));
    instance.send(&nothing).await.error(401, -32600);
    server.answer(Answer::Keys(jwks(&[&signer])));
    assert_eq!(status(&instance, &signer).await, 200);

    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = closed.local_addr().expect("an address");
    drop(closed);
    let nowhere = verifier(format!("http://{address}/"));
    let instance = serve(nowhere.min_interval(Duration::from_secs(7))).await;
    assert_eq!(unavailable(&instance, &signer).await, "7");
}

#[tokio::test]
async fn known_keys_outlive_their_server() {
    let (signer, new) = (Signer::p256("1"), Signer::p256("2"));
    let server = KeyServer::start(Answer::Keys(jwks(&[&signer]))).await;
    let instance = serve(verifier(server.url()).max_age(ALWAYS).min_interval(ALWAYS)).await;
    assert_eq!(status(&instance, &signer).await, 200);
    for down in [
        Answer::Status(500),
        Answer::Keys("<html>".into()),
        Answer::Keys("{\"keys\":5}".into()),
    ] {
        let before = server.fetches();
        server.answer(down);
        assert_eq!(status(&instance, &signer).await, 200);
        server.fetched(before + 1).await;
        // Nobody else is let in for that.
        assert_eq!(status(&instance, &new).await, 401);
    }
    server.answer(Answer::Keys(jwks(&[&new])));
    becomes(&instance, &new, 200).await;
    assert_eq!(status(&instance, &signer).await, 401);
}

#[tokio::test]
async fn old_keys_are_fetched_again() {
    let (old, new) = (Signer::p256("1"), Signer::p256("2"));
    let server = KeyServer::start(Answer::Keys(jwks(&[&old]))).await;
    let instance = serve(verifier(server.url()).max_age(ALWAYS).min_interval(ALWAYS)).await;
    assert_eq!(status(&instance, &old).await, 200);
    server.answer(Answer::Keys(jwks(&[&new])));
    // Without anybody having asked for an unknown key.
    becomes(&instance, &old, 401).await;
    // No keys at all is an answer too: then nobody can be known.
    server.answer(Answer::Keys("{\"keys\":[]}".into()));
    becomes(&instance, &new, 503).await;
    unavailable(&instance, &new).await;
}

#[tokio::test]
async fn documents_that_cannot_be_are_not_taken() {
    let signer = Signer::p256("1");
    let keys = jwks(&[&signer]);
    let elsewhere = KeyServer::start(Answer::Keys(keys.clone())).await;
    let server = KeyServer::start(Answer::Status(500)).await;
    let instance = serve(verifier(server.url()).min_interval(ALWAYS)).await;
    let oversized = format!("{}{keys}", " ".repeat(600 * 1024));
    for answer in [
        Answer::Keys(oversized),
        Answer::Keys(String::new()),
        Answer::Keys("[]".into()),
        Answer::Keys("[".repeat(100_000)),
        Answer::Redirect(elsewhere.url()),
        Answer::Status(204),
    ] {
        server.answer(answer);
        unavailable(&instance, &signer).await;
    }
    assert_eq!(elsewhere.fetches(), 0, "a redirect was followed");
    server.answer(Answer::Keys(keys));
    assert_eq!(status(&instance, &signer).await, 200);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(Answer::Silence).await;
    let instance = serve(verifier(server.url())).await;
    within("the fetch to be given up", unavailable(&instance, &signer)).await;
}

/// Whoever has a known key is not made to wait for keys that may be newer.
#[tokio::test]
async fn callers_with_a_known_key_do_not_wait_for_a_fetch() {
    let signer = Signer::p256("1");
    let server = KeyServer::start(Answer::Keys(jwks(&[&signer]))).await;
    let instance = serve(verifier(server.url()).max_age(ALWAYS).min_interval(ALWAYS)).await;
    assert_eq!(status(&instance, &signer).await, 200);
    server.answer(Answer::Silence);
    assert_eq!(status(&instance, &signer).await, 200);
    server.fetched(2).await;
    // That fetch is not given up yet, or one of these would have made another.
    for _ in 0..3 {
        assert_eq!(status(&instance, &signer).await, 200);
    }
    assert_eq!(server.fetches(), 2);
}

#[tokio::test]
async fn a_file_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("jwks.json");
    let (old, new) = (Signer::p256("old"), Signer::p256("new"));
    let mut turn = 0;
    let mut write = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        // Two writes may be too close for the clock of the file system.
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
    becomes(&instance, &old, 401).await;
    assert_eq!(status(&instance, &new).await, 200);
    // What cannot be used leaves the keys as they are.
    write("{");
    assert_eq!(status(&instance, &new).await, 200);
    std::fs::remove_file(&path).expect("a file");
    assert_eq!(status(&instance, &new).await, 200);
    assert_eq!(status(&instance, &old).await, 401);
    write(&jwks(&[&old, &new]));
    becomes(&instance, &old, 200).await;
}

/// A token of an unknown key has the file read, whatever its time of change says.
#[tokio::test]
async fn an_unknown_key_has_the_file_read() {
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
