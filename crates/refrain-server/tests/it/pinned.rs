//! Pinned calls: the caller or a sealed handle determines the instance that runs them.

use crate::support::legacy::{self, Session};
use crate::support::{
    Clock, Instance, Login, Request, accept, asked, assert_contains, keys, result, start, start_on,
    tampered, text, token, url_of, within,
};
use refrain_core::{Cx, KeyRing, Principal, Result};
use refrain_server::{
    AllowedHosts, BearerTokens, BuildError, HandleError, Prompt, Resource, Server, ServerBuilder,
    ServerLimits, State, Tool,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::Duration;
use tokio::net::TcpListener;

/// The number of an instance, as the state of its handlers.
struct Number(usize);

async fn where_am_i(_: Cx, number: State<Number>) -> Result<String> {
    Ok(number.0.to_string())
}

/// Reports progress before the result.
async fn reports(cx: Cx, number: State<Number>) -> Result<String> {
    cx.progress(1.0, None, "working");
    Ok(number.0.to_string())
}

/// Names the instances of both rounds.
async fn two_rounds(cx: Cx, number: State<Number>) -> Result<String> {
    let first = cx
        .step("first", async { refrain_core::ok(number.0) })
        .await?;
    let login: Login = cx.elicit("name", "Who?").await?;
    Ok(format!("{} {first} {}", login.name, number.0))
}

#[derive(Deserialize, JsonSchema)]
struct InSession {
    session: Option<String>,
}

/// Opens a session and returns its handle.
async fn open(cx: Cx, server: State<Server>, number: State<Number>) -> Result<String> {
    let payload = format!("state of {}", number.0);
    let hour = Duration::from_secs(3600);
    Ok(server.seal_handle(cx.principal(), &payload, hour)?)
}

/// Returns the payload of the handle.
async fn within_session(
    cx: Cx,
    server: State<Server>,
    number: State<Number>,
    args: InSession,
) -> Result<String> {
    let Some(handle) = args.session else {
        return Ok(format!("no session at {}", number.0));
    };
    let payload = server.open_handle(cx.principal(), &handle)?;
    Ok(format!("{payload} at {}", number.0))
}

/// Many callers: the instance of each depends on the random ports, so a test searches for a suitable caller.
fn callers() -> impl Iterator<Item = String> {
    (0..200).map(|number| format!("caller-{number}"))
}

/// The access token of a caller.
fn access(caller: &str) -> String {
    format!("{caller}-0123456789abcdef")
}

fn builder(keys: &KeyRing, number: usize) -> ServerBuilder {
    let limits = ServerLimits {
        drain_grace: Duration::ZERO,
        ..ServerLimits::default()
    };
    let users = ["ada", "ben"].map(str::to_owned);
    let tokens = users.into_iter().chain(callers());
    let tokens = tokens.fold(BearerTokens::new(), |tokens, caller| {
        tokens.with(&caller, &access(&caller))
    });
    Server::builder("pinned", "1")
        .keys(keys.clone())
        .limits(limits)
        .authenticator(tokens)
        .state(Number(number))
        .tool(Tool::new("anywhere", where_am_i))
        .tool(Tool::new("pinned", where_am_i).pin_to_caller())
        .tool(Tool::new("reports", reports).pin_to_caller())
        .tool(Tool::new("rounds", two_rounds).pin_to_caller())
        .prompt(Prompt::new("pinned", where_am_i).pin_to_caller())
        .resource(Resource::new("x://pinned", "pinned", where_am_i).pin_to_caller())
        .tool(Tool::new("open", open))
        .tool(Tool::new("use", within_session).pin_by_handle("session"))
}

async fn listeners() -> [TcpListener; 3] {
    let listen = || async { TcpListener::bind("127.0.0.1:0").await.expect("a port") };
    [listen().await, listen().await, listen().await]
}

/// Three instances that know each other.
async fn fleet(keys: &KeyRing) -> Vec<Option<Instance>> {
    let listeners = listeners().await;
    let urls: Vec<String> = listeners.iter().map(url_of).collect();
    let start = |(number, listener): (usize, TcpListener)| {
        let builder = builder(keys, number)
            .advertise(url_of(&listener))
            .peers(urls.clone());
        Some(start_on(listener, builder, AllowedHosts::local()))
    };
    listeners.into_iter().enumerate().map(start).collect()
}

fn call(tool: &str, caller: &str, arguments: Value) -> Request {
    Request::tool(tool, arguments).bearer(&access(caller))
}

async fn run(instance: &Instance, request: &Request) -> String {
    text(&instance.send(request).await.reply()).to_owned()
}

/// The text of a tool error.
async fn tool_error(instance: &Instance, request: &Request) -> String {
    let reply = instance.send(request).await.reply();
    assert_eq!(result(&reply)["isError"], true, "{reply}");
    text(&reply).to_owned()
}

fn running(fleet: &[Option<Instance>]) -> Vec<&Instance> {
    fleet.iter().flatten().collect()
}

/// The instance that runs the calls of a caller. All instances must agree.
async fn owner(fleet: &[Option<Instance>], caller: &str) -> usize {
    let mut owners = HashSet::new();
    for instance in running(fleet) {
        owners.insert(run(instance, &call("pinned", caller, json!({}))).await);
    }
    assert_eq!(owners.len(), 1, "{caller}: {owners:?}");
    let owner = owners.into_iter().next();
    owner
        .and_then(|owner| owner.parse().ok())
        .expect("a number")
}

#[tokio::test]
async fn calls_of_one_caller_run_on_one_instance() {
    let fleet = fleet(&keys()).await;
    let mut owners = HashSet::new();
    for caller in callers().take(30) {
        let caller = caller.as_str();
        let owner = owner(&fleet, caller).await;
        owners.insert(owner);
        for (number, instance) in running(&fleet).into_iter().enumerate() {
            let here = run(instance, &call("anywhere", caller, json!({}))).await;
            assert_eq!(here, number.to_string());
            let prompt = Request::prompt("pinned", json!({})).bearer(&access(caller));
            let reply = instance.send(&prompt).await.reply();
            let text = &result(&reply)["messages"][0]["content"]["text"];
            assert_eq!(*text, owner.to_string());
            let read = Request::read("x://pinned").bearer(&access(caller));
            let reply = instance.send(&read).await.reply();
            assert_eq!(result(&reply)["contents"][0]["text"], owner.to_string());
        }
    }
    assert!(owners.len() > 1, "all callers share one instance");
}

#[tokio::test]
async fn streams_and_rounds_of_a_pinned_call_are_relayed() {
    let fleet = fleet(&keys()).await;
    let owner = owner(&fleet, "ada").await;
    for instance in running(&fleet) {
        let request = call("reports", "ada", json!({})).meta("progressToken", json!("p"));
        let mut connection = instance.connect().await;
        connection.send(&request).await;
        let head = connection.head().await;
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        let progress = connection.event().await.expect("progress");
        assert_eq!(progress["method"], "notifications/progress");
        let reply = connection.event().await.expect("the reply");
        assert_eq!(text(&reply), owner.to_string());
    }
    let (a, b) = (running(&fleet)[0], running(&fleet)[1]);
    let first = a.send(&call("rounds", "ada", json!({}))).await.reply();
    assert_eq!(asked(&first), ["name"]);
    let answer = json!({"name": accept("Ada")});
    let second = call("rounds", "ada", json!({})).again(&token(&first), answer);
    assert_eq!(run(b, &second).await, format!("Ada {owner} {owner}"));
}

#[tokio::test]
async fn next_instance_takes_over_if_one_is_gone() {
    let mut fleet = fleet(&keys()).await;
    let first = owner(&fleet, "ada").await;
    fleet[first].take().expect("it runs").stopped_now().await;
    let second = owner(&fleet, "ada").await;
    assert_ne!(first, second);
    fleet[second].take().expect("it runs").stopped_now().await;
    let third = owner(&fleet, "ada").await;
    assert!(third != first && third != second);
}

#[tokio::test]
async fn relayed_call_is_not_relayed_again() {
    let keys = keys();
    let [a, b, c] = listeners().await;
    let urls = [url_of(&a), url_of(&b), url_of(&c)];
    // The instances disagree: A knows only A and B, and B only B and C.
    let pair = |number: usize, listener: TcpListener, other: usize| {
        let own = url_of(&listener);
        let builder = builder(&keys, number).advertise(own.clone());
        let builder = builder.peers([own, urls[other].clone()]);
        start_on(listener, builder, AllowedHosts::local())
    };
    let (a, b, c) = (pair(0, a, 1), pair(1, b, 2), pair(2, c, 1));
    for caller in callers() {
        let request = call("pinned", &caller, json!({}));
        let (from_a, from_b) = (run(&a, &request).await, run(&b, &request).await);
        if from_b == "2" && from_a != "0" {
            assert_eq!(from_a, "1", "B runs what A relayed, although it prefers C");
            drop(c);
            return;
        }
    }
    panic!("no caller has the order B before A and C before B");
}

#[tokio::test]
async fn call_with_a_handle_runs_on_the_instance_that_made_it() {
    let fleet = fleet(&keys()).await;
    for (made, instance) in running(&fleet).into_iter().enumerate() {
        let handle = run(instance, &call("open", "ada", json!({}))).await;
        for other in running(&fleet) {
            let request = call("use", "ada", json!({"session": handle}));
            let expected = format!("state of {made} at {made}");
            assert_eq!(run(other, &request).await, expected);
        }
        let without = call("use", "ada", json!({}));
        assert_eq!(
            run(instance, &without).await,
            format!("no session at {made}")
        );
    }
}

#[tokio::test]
async fn foreign_forged_and_expired_handles_get_the_same_error() {
    let (keys, clock) = (keys(), Clock::new());
    let instance = start(builder(&keys, 0).source(clock.clone())).await;
    let handle = run(&instance, &call("open", "ada", json!({}))).await;
    let using = |caller: &str, handle: &str| call("use", caller, json!({"session": handle}));
    let forged = tampered(&handle, 40);
    let mut errors = HashSet::new();
    for (caller, handle) in [
        ("ben", handle.as_str()),
        ("ada", &forged),
        ("ada", ""),
        ("ada", "no handle"),
        ("ada", &"A".repeat(100_000)),
    ] {
        errors.insert(tool_error(&instance, &using(caller, handle)).await);
    }
    assert_eq!(
        run(&instance, &using("ada", &handle)).await,
        "state of 0 at 0"
    );
    clock.forward(3600 + 31);
    errors.insert(tool_error(&instance, &using("ada", &handle)).await);
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = errors.into_iter().next().expect("an error");
    assert_contains(&error, &["use", "session", "invalid or expired handle"]);
    // A server with another audience rejects it too.
    let other = start(builder(&keys, 1).source(clock).audience("other")).await;
    assert_eq!(tool_error(&other, &using("ada", &handle)).await, error);
}

#[tokio::test]
async fn state_of_a_handle_is_lost_with_its_instance() {
    let keys = keys();
    let mut fleet = fleet(&keys).await;
    let made = fleet[0].take().expect("it runs");
    let (address, url) = (made.address, made.url());
    let handle = run(&made, &call("open", "ada", json!({}))).await;
    let request = call("use", "ada", json!({"session": handle}));
    made.stopped_now().await;
    let others = running(&fleet);
    let lost = tool_error(others[0], &request).await;
    assert_contains(&lost, &["state behind this handle is lost"]);
    // Another process at the same URL does not have the state either.
    let listener = within("the port", async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    let again = builder(&keys, 0).advertise(url);
    let again = start_on(listener, again, AllowedHosts::local());
    for instance in [others[0], &again] {
        assert_eq!(tool_error(instance, &request).await, lost);
    }
}

#[tokio::test]
async fn calls_of_a_legacy_session_run_on_its_holder() {
    let fleet = fleet(&keys()).await;
    let authorization = format!("Bearer {}", access("ada"));
    let headers = [("Authorization", authorization.as_str())];
    let foreign = run(running(&fleet)[1], &call("open", "ada", json!({}))).await;
    let (address, none) = (running(&fleet)[0].address, json!({}));
    let session = Session::open_with(address, "2025-11-25", &none, &headers).await;
    let call_text = async |id, tool: &str, arguments: Value| {
        let result = session.result(&legacy::call(id, tool, arguments)).await;
        let text = result["content"][0]["text"].as_str();
        text.expect("text").to_owned()
    };
    assert_eq!(call_text(1, "pinned", json!({})).await, "0");
    let handle = call_text(2, "open", json!({})).await;
    let used = call_text(3, "use", json!({"session": handle})).await;
    assert_eq!(used, "state of 0 at 0");
    let lost = call_text(4, "use", json!({"session": foreign})).await;
    assert_contains(&lost, &["state behind this handle is lost"]);
}

#[tokio::test]
async fn pinned_calls_run_on_a_server_without_peers() {
    let instance = start(builder(&keys(), 7)).await;
    assert_eq!(run(&instance, &call("pinned", "ada", json!({}))).await, "7");
    let handle = run(&instance, &call("open", "ada", json!({}))).await;
    let request = call("use", "ada", json!({"session": handle}));
    assert_eq!(run(&instance, &request).await, "state of 7 at 7");
}

#[tokio::test]
async fn handles_have_limits() {
    let server = Server::builder("handles", "1").build().expect("a server");
    let (ada, hour) = (Principal::new("ada"), Duration::from_secs(3600));
    let large = server.seal_handle(&ada, &"x".repeat(1025), hour);
    assert!(matches!(
        large,
        Err(HandleError::TooLarge { size: 1025, .. })
    ));
    let handle = server.seal_handle(&ada, &"x".repeat(1024), hour);
    let opened = server.open_handle(&ada, &handle.expect("a handle"));
    assert_eq!(opened, Ok("x".repeat(1024)));
    // Anonymous callers are one principal, and no named one.
    let anonymous = Principal::anonymous();
    let handle = server.seal_handle(&anonymous, "p", Duration::MAX);
    let handle = handle.expect("a handle");
    assert_eq!(server.open_handle(&anonymous, &handle), Ok("p".to_owned()));
    for other in [ada, Principal::new("")] {
        let opened = server.open_handle(&other, &handle);
        assert_eq!(opened, Err(HandleError::Invalid));
    }
}

#[test]
fn peers_must_contain_the_advertised_url() {
    let keys = keys();
    let with = |peers: &[&str]| {
        let builder = Server::builder("peers", "1").keys(keys.clone());
        let builder = builder.advertise("http://10.0.0.1/mcp");
        builder.peers(peers.iter().copied()).build()
    };
    assert!(with(&["http://10.0.0.1/mcp", "http://10.0.0.2/mcp"]).is_ok());
    assert!(matches!(
        with(&["http://10.0.0.2/mcp"]),
        Err(BuildError::NotAmongPeers)
    ));
    assert!(matches!(
        with(&["http://10.0.0.1/mcp", "10.0.0.2"]),
        Err(BuildError::Peer { .. })
    ));
    let unadvertised = Server::builder("peers", "1").peers(["http://10.0.0.1/mcp"]);
    assert!(matches!(
        unadvertised.build(),
        Err(BuildError::NotAmongPeers)
    ));
}
