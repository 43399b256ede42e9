//! Answers for instances that cannot be reached: they have ended, or have another store. None is acknowledged.

use crate::support::legacy::{Session, Stream, call, filled_in, request};
use crate::support::{Instance, MetricsPort, Request, Response, greet, names, start, within};
use refrain_core::{Cx, KeyRing, Result, SystemSource};
use refrain_server::{Server, Tool};
use refrain_store::{
    MemoryStore, NewNote, Room, SessionStore, SqliteStore, StoreError, StoreFuture,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::broadcast;

/// A store in memory that takes its time to note that an instance is there, or cannot.
#[derive(Default)]
struct Slow {
    store: MemoryStore,
    /// Nothing is noted of instances.
    fails: AtomicBool,
    /// How often it was looked whether an instance is there.
    looked: AtomicUsize,
    /// How often it was asked for anything.
    asked: AtomicUsize,
}

impl Slow {
    fn looked(&self) -> usize {
        self.looked.load(Ordering::SeqCst)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn count(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
    }
}

/// Is this where an instance is noted?
fn is_presence(place: &str) -> bool {
    place.starts_with("here-")
}

impl SessionStore for Slow {
    fn note<'a>(&'a self, note: NewNote<'a>) -> StoreFuture<'a, bool> {
        self.count();
        if !is_presence(note.place) {
            return self.store.note(note);
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            if self.fails.load(Ordering::SeqCst) {
                return Err(StoreError::Unavailable("slow".to_owned()));
            }
            self.store.note(note).await
        })
    }

    fn take_note<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, bool> {
        self.count();
        self.store.take_note(place, name)
    }

    fn notes<'a>(&'a self, place: &'a str) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        self.count();
        self.store.notes(place)
    }

    fn note_names<'a>(&'a self, places: &'a [String]) -> StoreFuture<'a, Vec<(String, String)>> {
        self.count();
        self.store.note_names(places)
    }

    fn note_value<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.count();
        self.looked
            .fetch_add(usize::from(is_presence(place)), Ordering::SeqCst);
        self.store.note_value(place, name)
    }

    fn noted(&self) -> broadcast::Receiver<String> {
        self.store.noted()
    }
}

async fn roots(cx: Cx) -> Result<String> {
    Ok(cx.roots("roots").await?.len().to_string())
}

async fn instance(keys: &KeyRing, store: Arc<impl SessionStore>) -> Instance {
    let builder = Server::builder("older", "1")
        .keys(keys.clone())
        .tool(Tool::new("greet", greet))
        .tool(Tool::new("roots", roots))
        .sessions(store);
    start(builder).await
}

fn keys() -> KeyRing {
    KeyRing::generate(&SystemSource::new())
}

/// Calls, and is asked.
async fn ask(session: &Session) -> (Stream, Value) {
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    assert_eq!(asked["method"], "elicitation/create");
    (stream, asked)
}

/// The instance that has asked, by its name in the store.
fn asked_by(asked: &Value) -> &str {
    let id = asked["id"].as_str().expect("a text");
    id.split('-').next().expect("an instance")
}

async fn greets(stream: &mut Stream) {
    let reply = stream.next().await;
    assert_eq!(reply["result"]["content"][0]["text"], "Hello, Ann!");
}

/// It says what is wrong, and what to do.
const NOT_HERE: [&str; 4] = ["was not taken", "ended", "another store", "send the answer"];

#[track_caller]
fn assert_not_here(refused: &Response) {
    names(&refused.error(400, -32600), &NOT_HERE);
}

#[tokio::test]
async fn an_answer_at_an_instance_with_another_store_is_refused_and_not_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = async |name: &str| {
        let store = SqliteStore::open(directory.path().join(name)).await;
        Arc::new(store.expect("a store"))
    };
    let (keys, elsewhere) = (keys(), open("other.db").await);
    let one = instance(&keys, open("one.db").await).await;
    let other = instance(&keys, elsewhere.clone()).await;
    let port = MetricsPort::start(&other.server).await;
    let session = Session::open(&one).await;
    let (mut stream, asked) = ask(&session).await;
    let answer = filled_in(&asked, "Ann");
    for _ in 0..2 {
        assert_not_here(&session.at(&other).post(&answer).await);
    }
    let mailbox = [format!("to-{}", asked_by(&asked))];
    assert_eq!(elsewhere.note_names(&mailbox).await, Ok(Vec::new()));
    let refused = port.scrape().await;
    let refused = refused.all("refrain_requests_refused_total");
    assert_eq!(refused, [("{reason=\"elsewhere\"}", 2.0)]);
    // What a client made up is no answer to anything.
    let made_up = json!({"jsonrpc": "2.0", "id": "0123456789abcdef-1-AAAA", "result": {}});
    let refused = session.at(&other).post(&made_up).await;
    names(&refused.error(400, -32600), &["nothing was asked"]);
    assert_eq!(session.post(&answer).await.status, 202);
    greets(&mut stream).await;
}

/// Each memory is a store of its own.
#[tokio::test]
async fn in_a_batch_it_is_refused_as_well() {
    let keys = keys();
    let one = instance(&keys, Arc::new(MemoryStore::new())).await;
    let other = instance(&keys, Arc::new(MemoryStore::new())).await;
    let port = MetricsPort::start(&other.server).await;
    let roots = json!({"roots": {}});
    let session = Session::open_with(&one, "2025-03-26", &roots, &[]).await;
    let mut stream = session.stream(&call(1, "roots", json!({}))).await;
    let asked = stream.next().await;
    let result = json!({"roots": [{"uri": "file:///a"}]});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
    let there = session.at(&other);
    assert_not_here(&there.post(&json!([answer])).await);
    let ping = request(2, "ping", json!({}));
    let replies = there.stream(&json!([answer, ping])).await.rest().await;
    let refused = replies.iter().find(|reply| reply["error"].is_object());
    let refused = refused.expect("an error")["error"]["message"].as_str();
    names(refused.expect("a message"), &NOT_HERE);
    assert!(replies.iter().any(|reply| reply["id"] == 2), "{replies:?}");
    let refused = port.scrape().await;
    let refused = refused.all("refrain_requests_refused_total");
    assert_eq!(refused, [("{reason=\"elsewhere\"}", 2.0)]);
    assert_eq!(session.post(&json!([answer])).await.status, 202);
    let reply = stream.next().await;
    assert_eq!(reply["result"]["content"][0]["text"], "1");
}

#[tokio::test]
async fn an_instance_is_there_before_it_asks() {
    let (keys, store) = (keys(), Arc::new(Slow::default()));
    let one = instance(&keys, store.clone()).await;
    let other = instance(&keys, store.clone()).await;
    let session = Session::open(&one).await;
    let (mut stream, asked) = ask(&session).await;
    let place = format!("here-{}", asked_by(&asked));
    let noted = store.store.note_value(&place, "here").await;
    assert_eq!(noted, Ok(Some(Vec::new())));
    let answered = session.at(&other).post(&filled_in(&asked, "Ann")).await;
    assert_eq!(answered.status, 202);
    greets(&mut stream).await;
}

#[tokio::test]
async fn an_answer_is_refused_at_once_when_its_instance_was_stopped() {
    let (keys, store) = (keys(), Arc::new(MemoryStore::new()));
    let one = instance(&keys, store.clone()).await;
    let other = instance(&keys, store).await;
    let session = Session::open(&one).await;
    let (mut stream, asked) = ask(&session).await;
    one.stopped_now().await;
    // The client is told by the stream, too.
    let told = stream.rest().await;
    assert!(told.iter().any(|m| m["error"].is_object()), "{told:?}");
    let refused = session.at(&other).post(&filled_in(&asked, "Ann")).await;
    assert_not_here(&refused);
}

/// A client comes back to this stream, and is sent on.
async fn is_sent_on(session: &Session, last: &str) {
    let session = session.clone().header("Last-Event-ID", last);
    let refused = session.refused("GET").await;
    names(
        &refused.error(503, -32603),
        &["another instance", "try again"],
    );
}

#[tokio::test]
async fn whoever_comes_back_for_a_call_that_was_lost_with_its_instance_is_told_so() {
    let (keys, store) = (keys(), Arc::new(MemoryStore::new()));
    let one = instance(&keys, store.clone()).await;
    let other = instance(&keys, store).await;
    let stranger = instance(&keys, Arc::new(MemoryStore::new())).await;
    let alone = start(Server::builder("older", "1").keys(keys)).await;
    let session = Session::open(&one).await;
    let begin = async |id: Value| {
        let mut message = call(0, "greet", json!({}));
        message["id"] = id;
        let mut stream = session.stream(&message).await;
        stream.event().await.expect("where the stream begins").id
    };
    let ids = [json!(7), json!("a \"b\" ‖")];
    let lost = [begin(ids[0].clone()).await, begin(ids[1].clone()).await];
    let long = begin(json!("x".repeat(100))).await;
    let (mut stream, asked) = ask(&session).await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    let done = within("the reply", stream.event()).await;
    let done = done.expect("the reply");
    assert!(
        done.message
            .is_some_and(|reply| reply["result"].is_object())
    );

    let there = session.at(&other);
    for last in &lost {
        is_sent_on(&there, last).await;
    }
    one.stopped_now().await;
    for (id, last) in ids.iter().zip(&lost) {
        // As often as it comes.
        for _ in 0..2 {
            let told = there.resume(last).await.rest().await;
            let [told] = &told[..] else {
                panic!("one message, and not {told:?}");
            };
            assert_eq!(told["id"], *id);
            assert_eq!(told["error"]["code"], -32603);
            let why = told["error"]["message"].as_str().expect("a message");
            names(why, &["lost with the instance", "done", "call again"]);
        }
        // One with another store, or without one, does not know.
        is_sent_on(&session.at(&stranger), last).await;
        is_sent_on(&session.at(&alone), last).await;
        // Nobody is told of what another has called.
        is_sent_on(&Session::open(&other).await, last).await;
    }
    is_sent_on(&there, &long).await;
    is_sent_on(&there, &done.id).await;
}

#[tokio::test]
async fn a_call_of_an_instance_that_could_not_be_noted_is_not_said_to_be_lost() {
    let (keys, store) = (keys(), Arc::new(Slow::default()));
    let one = instance(&keys, store.clone()).await;
    let other = instance(&keys, store.clone()).await;
    store.fails.store(true, Ordering::SeqCst);
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let begins = stream.event().await.expect("where the stream begins").id;
    // As if it had been there before.
    let was = NewNote {
        place: &format!("here-{}", begins.split('-').next().expect("an instance")),
        name: "was",
        value: Vec::new(),
        keep: Duration::from_secs(3600),
        room: Room::ANY,
    };
    assert_eq!(store.store.note(was).await, Ok(true));
    is_sent_on(&session.at(&other), &begins).await;
    let asked = stream.next().await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    greets(&mut stream).await;
}

#[tokio::test]
async fn what_could_not_be_noted_is_answered_where_it_was_asked_or_later() {
    let (keys, store) = (keys(), Arc::new(Slow::default()));
    let one = instance(&keys, store.clone()).await;
    let other = instance(&keys, store.clone()).await;
    store.fails.store(true, Ordering::SeqCst);
    let session = Session::open(&one).await;
    let (mut first, first_asked) = ask(&session).await;
    let mut second = session.stream(&call(2, "greet", json!({}))).await;
    let second_asked = second.next().await;
    let (here, there) = (&session, session.at(&other));
    assert_not_here(&there.post(&filled_in(&first_asked, "Ann")).await);
    assert_eq!(here.post(&filled_in(&first_asked, "Ann")).await.status, 202);
    greets(&mut first).await;
    store.fails.store(false, Ordering::SeqCst);
    let carried = async {
        let answer = filled_in(&second_asked, "Ann");
        loop {
            let answered = there.post(&answer).await;
            if answered.status == 202 {
                return;
            }
            assert_not_here(&answered);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within("the answer to be taken", carried).await;
    greets(&mut second).await;
}

#[tokio::test]
async fn nobody_looks_for_an_instance_but_for_an_answer_to_another() {
    let (keys, store) = (keys(), Arc::new(Slow::default()));
    let one = instance(&keys, store.clone()).await;
    let other = instance(&keys, store.clone()).await;
    for _ in 0..3 {
        let modern = Request::tool("greet", json!({}));
        assert_eq!(one.send(&modern).await.status, 200);
    }
    assert_eq!(store.asked(), 0);
    let session = Session::open(&one).await;
    let (mut stream, asked) = ask(&session).await;
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    greets(&mut stream).await;
    assert_eq!(store.looked(), 0);
    let (mut stream, asked) = ask(&session).await;
    let answered = session.at(&other).post(&filled_in(&asked, "Ann")).await;
    assert_eq!(answered.status, 202);
    greets(&mut stream).await;
    assert_eq!(store.looked(), 1);
}
