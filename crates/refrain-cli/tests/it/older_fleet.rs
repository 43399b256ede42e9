//! The answer of an older client at another instance than the one that asked: that finds it by the store they share, or the
//! client is told that it does not. Whoever comes back there for a call that was lost is told so, too.

use crate::support::http::send;
use crate::support::{Files, Instance, Serve, in_time, sqlite};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use refrain_store::cluster::Cluster;
use refrain_store::{SessionStore, SqliteStore};
use serde_json::{Value, json};
use std::path::Path;

/// Two instances that share their keys, with a store each.
async fn fleet(keys: &Path, stores: [&str; 2]) -> [Instance; 2] {
    let start = |store: &str| Serve::new().keys(keys).args(["--store", store]).start();
    [start(stores[0]).await, start(stores[1]).await]
}

/// Posts a message of a session, if there is one yet.
async fn post(instance: &Instance, session: Option<&str>, body: &Value) -> Response<Incoming> {
    let mut request = Request::post("/mcp")
        .header("host", instance.address.to_string())
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    let request = request.body(Full::<Bytes>::from(body.to_string()));
    let sent = send(instance.address, request.expect("a valid request"));
    in_time("a response", sent).await.expect("a response")
}

/// A call that waits for its answer.
struct Asked {
    session: String,
    /// The stream that it was asked on.
    stream: Incoming,
    read: String,
    /// The id of the last event.
    last: String,
    id: String,
}

impl Asked {
    /// Opens a session at this instance, calls, and is asked.
    async fn by(instance: &Instance) -> Self {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "older", "version": "1"},
        });
        let initialize =
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let opened = post(instance, None, &initialize).await;
        let session = opened.headers()["mcp-session-id"].to_str();
        let session = session.expect("a session").to_owned();
        let params = json!({"name": "get_weather", "arguments": {"location": "Oslo"}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let stream = post(instance, Some(&session), &call).await.into_body();
        let mut asked = Self {
            session,
            stream,
            read: String::new(),
            last: String::new(),
            id: String::new(),
        };
        let message = asked.next().await.expect("an ask");
        assert_eq!(message["method"], "elicitation/create");
        let id = message["id"].as_str();
        asked.id = id.expect("an id").to_owned();
        asked
    }

    /// The next message on the stream. `None`: it has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let line = |name| event.lines().find_map(|line| line.strip_prefix(name));
                let message = line("data: ").and_then(|data| serde_json::from_str(data).ok());
                if let Some(last) = line("id: ") {
                    self.last = last.to_owned();
                }
                self.read = rest.to_owned();
                if message.is_some() {
                    return message;
                }
                continue;
            }
            let frame = in_time("more of the stream", self.stream.frame()).await?;
            let frame = frame.ok()?.into_data().unwrap_or_default();
            self.read.push_str(&String::from_utf8_lossy(&frame));
        }
    }

    /// Comes back for the rest of the stream, to this instance. Gives the status; if it is the right one, the rest is the
    /// stream from now on.
    async fn come_back_to(&mut self, instance: &Instance) -> u16 {
        let request = Request::get("/mcp")
            .header("host", instance.address.to_string())
            .header("accept", "text/event-stream")
            .header("mcp-session-id", &self.session)
            .header("last-event-id", &self.last)
            .body(Full::default());
        let sent = send(instance.address, request.expect("a valid request"));
        let response = in_time("a response", sent).await.expect("a response");
        let status = response.status().as_u16();
        if status == 200 {
            self.stream = response.into_body();
        }
        status
    }

    /// Answers at this instance. Gives the status, and what is said to it.
    async fn answer_at(&self, instance: &Instance) -> (u16, String) {
        let result = json!({"action": "accept", "content": {"name": "octocat"}});
        let answer = json!({"jsonrpc": "2.0", "id": self.id, "result": result});
        let response = post(instance, Some(&self.session), &answer).await;
        let status = response.status().as_u16();
        let body = in_time("the whole response", response.into_body().collect()).await;
        let body = body.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    async fn is_taken_at(&self, instance: &Instance) {
        assert_eq!(self.answer_at(instance).await, (202, String::new()));
    }

    async fn is_refused_at(&self, instance: &Instance) {
        let (status, said) = self.answer_at(instance).await;
        assert_eq!(status, 400, "{said}");
        for word in ["-32600", "was not taken", "ended", "another store"] {
            assert!(said.contains(word), "{word:?} is not in {said:?}");
        }
    }

    /// Waits for the weather.
    async fn ends(&mut self) {
        let reply = self.next().await.expect("a reply");
        let text = reply["result"]["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("no text in {reply}"));
        assert!(text.contains("Oslo"), "{text}");
    }

    /// The instance that has asked, by its name in the store.
    fn instance(&self) -> &str {
        self.id.split('-').next().expect("an instance")
    }
}

/// How it is logged that an answer was refused.
const REFUSED: &str = "an instance that is not in this store";

#[tokio::test]
async fn with_two_stores_the_answer_is_refused_and_not_lost() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let stores = ["a.db", "b.db"].map(|name| sqlite(&files.path(name)));
    let [a, mut b] = fleet(&keys, stores.each_ref().map(String::as_str)).await;
    let mut asked = Asked::by(&a).await;
    for _ in 0..5 {
        asked.is_refused_at(&b).await;
    }
    asked.is_taken_at(&a).await;
    asked.ends().await;
    b.stop().await;
    // Not every time, but once in a minute.
    let warnings = b.log.count(REFUSED);
    assert!((1..5).contains(&warnings), "{:?}", b.log);
}

#[tokio::test]
async fn with_one_file_the_answer_is_carried_until_its_instance_is_stopped() {
    let files = Files::new();
    let (keys, store) = (files.keys("fleet.keys"), sqlite(&files.path("fleet.db")));
    let [mut a, b] = fleet(&keys, [&store, &store]).await;
    let mut asked = Asked::by(&a).await;
    asked.is_taken_at(&b).await;
    asked.ends().await;
    let mut stopped = Asked::by(&a).await;
    a.stop().await;
    let told = stopped.next().await.expect("a reply");
    assert!(told.get("result").is_none(), "{told}");
    stopped.is_refused_at(&b).await;
    b.log.wait_for(REFUSED, 1).await;
}

#[tokio::test]
async fn with_one_postgres_the_answer_is_carried_until_its_instance_is_stopped() {
    let cluster = Cluster::shared().expect("a Postgres");
    let url = cluster.database().await.expect("a database");
    let files = Files::new();
    let [mut a, b] = fleet(&files.keys("fleet.keys"), [&url, &url]).await;
    let mut asked = Asked::by(&a).await;
    asked.is_taken_at(&b).await;
    asked.ends().await;
    let stopped = Asked::by(&a).await;
    a.stop().await;
    stopped.is_refused_at(&b).await;
}

/// It is noted for a minute at a time. That the note is over then is tested with a clock that can be put forward.
#[tokio::test]
async fn of_an_instance_that_was_killed_the_note_is_left_until_its_time_is_over() {
    let files = Files::new();
    let (keys, file) = (files.keys("fleet.keys"), files.path("fleet.db"));
    let store = sqlite(&file);
    let [mut a, b] = fleet(&keys, [&store, &store]).await;
    let mut asked = Asked::by(&a).await;
    a.kill().await;
    assert_eq!(asked.next().await, None, "the stream breaks");
    // As if its time were over.
    let opened = SqliteStore::open(&file).await.expect("the same store");
    let place = format!("here-{}", asked.instance());
    assert_eq!(asked.come_back_to(&b).await, 503);
    opened.take_note(&place, "here").await.expect("a store");
    asked.is_refused_at(&b).await;
    b.log.wait_for(REFUSED, 1).await;
    // Whoever comes back for the call learns that it is lost.
    assert_eq!(asked.come_back_to(&b).await, 200);
    let told = asked.next().await.expect("a reply");
    assert_eq!(told["id"], 1, "{told}");
    let why = told["error"]["message"].as_str().expect("a message");
    assert!(why.contains("lost with the instance"), "{why}");
    assert_eq!(asked.next().await, None, "that is all");
}
