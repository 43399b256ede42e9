//! What one instance carries to another for older clients, by the store that they share.

use crate::support::legacy::{Session, call, filled_in, request};
use crate::support::{Clock, Instance, Request, greet, names, start, within};
use refrain_core::{KeyRing, SystemSource};
use refrain_server::{Server, ServerLimits, Tool};
use refrain_store::{MemoryStore, NewNote, SessionStore, StoreError, StoreFuture};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, broadcast};

/// A store in memory that is not always at its best.
struct Odd {
    store: MemoryStore,
    /// What is said of its notes.
    said: broadcast::Sender<String>,
    taking: Taking,
    /// How often it may be looked what is noted for calls.
    looks: Semaphore,
    down: AtomicBool,
    /// Notes of sessions and calls that were kept.
    kept: AtomicUsize,
    /// The most bytes that were read of a session at a time.
    read: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq)]
enum Taking {
    Works,
    Fails,
    /// Notes are gone, and nobody is told so.
    Hangs,
}

impl Odd {
    /// Says nothing of what is noted.
    fn silent(taking: Taking) -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(),
            said: broadcast::Sender::new(64),
            taking,
            looks: Semaphore::new(Semaphore::MAX_PERMITS),
            down: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
        })
    }

    fn kept(&self) -> usize {
        self.kept.load(Ordering::SeqCst)
    }
}

impl SessionStore for Odd {
    fn note<'a>(&'a self, note: NewNote<'a>) -> StoreFuture<'a, bool> {
        // That an instance is there is noted again and again.
        if !note.place.starts_with("here-") {
            self.kept.fetch_add(1, Ordering::SeqCst);
        }
        self.store.note(note)
    }

    fn take_note<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, bool> {
        match self.taking {
            Taking::Works => self.store.take_note(place, name),
            Taking::Fails => Box::pin(async { Err(StoreError::Unavailable("odd".to_owned())) }),
            Taking::Hangs => Box::pin(async move {
                self.store.take_note(place, name).await?;
                std::future::pending().await
            }),
        }
    }

    fn notes<'a>(&'a self, place: &'a str) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        Box::pin(async move {
            if self.down.load(Ordering::SeqCst) {
                return Err(StoreError::Unavailable("odd".to_owned()));
            }
            let notes = self.store.notes(place).await?;
            let bytes = notes.iter().map(|(name, value)| name.len() + value.len());
            self.read.fetch_max(bytes.sum(), Ordering::SeqCst);
            Ok(notes)
        })
    }

    fn note_names<'a>(&'a self, places: &'a [String]) -> StoreFuture<'a, Vec<(String, String)>> {
        Box::pin(async move {
            let look = self.looks.acquire().await.expect("it is not closed");
            look.forget();
            self.store.note_names(places).await
        })
    }

    fn note_value<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.store.note_value(place, name)
    }

    fn noted(&self) -> broadcast::Receiver<String> {
        self.said.subscribe()
    }
}

async fn instance(
    keys: &KeyRing,
    store: &Arc<impl SessionStore>,
    limits: &ServerLimits,
) -> Instance {
    let builder = Server::builder("older", "1")
        .keys(keys.clone())
        .limits(limits.clone())
        .tool(Tool::new("greet", greet))
        .sessions(store.clone());
    start(builder).await
}

/// Two instances that share this store.
async fn two(store: &Arc<impl SessionStore>, limits: &ServerLimits) -> [Instance; 2] {
    let keys = KeyRing::generate(&SystemSource::new());
    [
        instance(&keys, store, limits).await,
        instance(&keys, store, limits).await,
    ]
}

/// Calls at one instance, and answers at the other.
async fn answered_elsewhere(one: &Instance, other: &Instance) {
    let session = Session::open(one).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    let answered = session.at(other).post(&filled_in(&asked, "Ann")).await;
    assert_eq!(answered.status, 202);
    let reply = stream.next().await;
    assert_eq!(reply["result"]["content"][0]["text"], "Hello, Ann!");
}

#[tokio::test]
async fn an_answer_is_found_without_a_word_of_it() {
    let store = Odd::silent(Taking::Works);
    let [one, other] = two(&store, &ServerLimits::default()).await;
    answered_elsewhere(&one, &other).await;
}

/// One look in several seconds would take longer than is waited for here.
#[tokio::test]
async fn it_is_looked_often_while_a_call_waits() {
    let store = Odd::silent(Taking::Works);
    let all = store.looks.available_permits();
    let [one, _other] = two(&store, &ServerLimits::default()).await;
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    stream.next().await;
    let looked = async {
        while all - store.looks.available_permits() < 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("many looks", looked).await;
}

#[tokio::test]
async fn words_of_other_sessions_hold_nothing_up() {
    let store = Odd::silent(Taking::Works);
    let [one, other] = two(&store, &ServerLimits::default()).await;
    let said = store.said.clone();
    let speaking = tokio::spawn(async move {
        loop {
            let _ = said.send("another session".to_owned());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    answered_elsewhere(&one, &other).await;
    speaking.abort();
}

#[tokio::test]
async fn an_answer_has_arrived_before_its_note_is_taken_back() {
    for taking in [Taking::Fails, Taking::Hangs] {
        let store = Odd::silent(taking);
        let limits = ServerLimits {
            round_time: Duration::from_secs(1),
            ..ServerLimits::default()
        };
        let [one, other] = two(&store, &limits).await;
        // The second arrives, whatever became of the first one's note.
        for _ in 0..2 {
            answered_elsewhere(&one, &other).await;
        }
    }
}

/// One listener for all calls, while there are some.
#[tokio::test]
async fn it_is_listened_once_for_all_calls_and_only_while_they_wait() {
    let store = Odd::silent(Taking::Works);
    let [one, other] = two(&store, &ServerLimits::default()).await;
    assert_eq!(store.said.receiver_count(), 0);
    let session = Session::open(&one).await;
    let mut calls = Vec::new();
    for id in 0..4 {
        let mut stream = session.stream(&call(id, "greet", json!({}))).await;
        let asked = stream.next().await;
        calls.push((stream, asked));
    }
    assert_eq!(store.said.receiver_count(), 1);
    for (stream, asked) in &mut calls {
        let answered = session.post(&filled_in(asked, "Ann")).await;
        assert_eq!(answered.status, 202);
        stream.rest().await;
    }
    let ended = async {
        while store.said.receiver_count() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("nobody to listen", ended).await;
    answered_elsewhere(&one, &other).await;
}

#[tokio::test]
async fn answers_of_several_calls_all_arrive() {
    let store = Arc::new(MemoryStore::new());
    let [one, other] = two(&store, &ServerLimits::default()).await;
    let session = Session::open(&one).await;
    let mut calls = Vec::new();
    for id in 0..8 {
        let mut stream = session.stream(&call(id, "greet", json!({}))).await;
        let asked = stream.next().await;
        calls.push((stream, asked));
    }
    // Each call ends while the answers of the others are on their way.
    for (_, asked) in &calls {
        let answered = session.at(&other).post(&filled_in(asked, "Ann")).await;
        assert_eq!(answered.status, 202);
    }
    for (stream, _) in &mut calls {
        let reply = stream.next().await;
        assert_eq!(reply["result"]["content"][0]["text"], "Hello, Ann!");
    }
    // Nothing is left of them, nor does anybody look for more.
    let mailbox = calls[0].1["id"]
        .as_str()
        .and_then(|id| id.split('-').next());
    let mailbox = [format!("to-{}", mailbox.expect("an instance"))];
    let gone = async {
        while !store.note_names(&mailbox).await.expect("names").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the notes to be taken back", gone).await;
}

#[tokio::test]
async fn an_answer_to_what_was_made_up_is_kept_nowhere() {
    let store = Odd::silent(Taking::Works);
    let [one, other] = two(&store, &ServerLimits::default()).await;
    let session = Session::open(&one).await;
    let mut stream = session.stream(&call(1, "greet", json!({}))).await;
    let asked = stream.next().await;
    let id = asked["id"].as_str().expect("a text");
    let parts: Vec<&str> = id.splitn(3, '-').collect();
    let [instance, number, seal] = parts[..] else {
        panic!("an id of three parts: {id}");
    };
    let before = store.kept();
    for made_up in [
        "0123456789abcdef-1".to_owned(),
        format!("0123456789abcdef-{number}-{seal}"),
        format!("{instance}-99-{seal}"),
        format!("{instance}-{number}-{}", "A".repeat(seal.len())),
        format!("{instance}-{number}"),
        format!("{id}{}", "A".repeat(4000)),
    ] {
        let answer = json!({"jsonrpc": "2.0", "id": made_up, "result": {}});
        for instance in [&one, &other] {
            let refused = session.at(instance).post(&answer).await;
            names(&refused.error(400, -32600), &["nothing was asked"]);
        }
    }
    // Nor is one to what another session was asked.
    let stranger = Session::open(&other).await;
    let refused = stranger.post(&filled_in(&asked, "Eve")).await;
    names(&refused.error(400, -32600), &["nothing was asked"]);
    assert_eq!(store.kept(), before);
}

#[tokio::test]
async fn what_waits_for_another_instance_is_bounded_and_read_only_there() {
    let store = Odd::silent(Taking::Works);
    store.looks.forget_permits(Semaphore::MAX_PERMITS);
    let limits = ServerLimits {
        carried_bytes: 40_000,
        ..ServerLimits::default()
    };
    let [one, other] = two(&store, &limits).await;
    let session = Session::open(&one).await;
    let mut first = session.stream(&call(1, "greet", json!({}))).await;
    let mut second = session.stream(&call(2, "greet", json!({}))).await;
    let (first_asked, second_asked) = (first.next().await, second.next().await);
    let long = "x".repeat(30_000);
    let there = session.at(&other);
    assert_eq!(
        there.post(&filled_in(&first_asked, &long)).await.status,
        202
    );
    let full = there.post(&filled_in(&second_asked, &long)).await;
    names(&full.error(503, -32603), &["40000 bytes", "try again"]);
    assert_eq!(full.header("retry-after"), Some("1"));
    // The same answer again is not one more.
    assert_eq!(
        there.post(&filled_in(&first_asked, &long)).await.status,
        202
    );
    for session in [&session, &there] {
        let pong = session.result(&request(3, "ping", json!({}))).await;
        assert_eq!(pong, json!({}));
    }
    store.looks.add_permits(Semaphore::MAX_PERMITS);
    let reply = first.next().await;
    let text = reply["result"]["content"][0]["text"].as_str();
    assert_eq!(text.map(str::len), Some(30_000 + "Hello, !".len()));
    assert_eq!(store.read.load(Ordering::SeqCst), 0, "no answer is read");
    // It was not lost.
    assert_eq!(
        there.post(&filled_in(&second_asked, "Bob")).await.status,
        202
    );
    let reply = second.next().await;
    assert_eq!(reply["result"]["content"][0]["text"], "Hello, Bob!");
}

#[tokio::test]
async fn only_calls_that_can_be_are_cancelled_elsewhere() {
    let store = Odd::silent(Taking::Works);
    let [one, _other] = two(&store, &ServerLimits::default()).await;
    let session = Session::open(&one).await;
    let cancel = |id: Value| {
        let params = json!({"requestId": id});
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    };
    let before = store.kept();
    for odd in [
        json!(null),
        json!({"a": ["b"]}),
        json!([1]),
        json!("x".repeat(5000)),
    ] {
        assert_eq!(session.post(&cancel(odd)).await.status, 202);
    }
    assert_eq!(store.kept(), before);
    assert_eq!(session.post(&cancel(json!("x"))).await.status, 202);
    assert_eq!(store.kept(), before + 1);
}

#[tokio::test]
async fn a_call_outlives_the_cancellation_of_one_before_that_had_its_id() {
    let store = Arc::new(MemoryStore::new());
    let (keys, clock) = (KeyRing::generate(&SystemSource::new()), Clock::new());
    let builder = || {
        let builder = Server::builder("older", "1").keys(keys.clone());
        let builder = builder.source(clock.clone()).sessions(store.clone());
        builder.tool(Tool::new("greet", greet))
    };
    let (one, other) = (start(builder()).await, start(builder()).await);
    let session = Session::open(&one).await;
    let cancel = |id: u32| {
        let params = json!({"requestId": id});
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    };
    for instance in [&one, &other] {
        let cancelled = session.at(instance).post(&cancel(1)).await;
        assert_eq!(cancelled.status, 202);
    }
    clock.forward(1);
    let mut first = session.stream(&call(1, "greet", json!({}))).await;
    let asked = first.next().await;
    let mut second = session.stream(&call(2, "greet", json!({}))).await;
    second.next().await;
    assert_eq!(session.at(&other).post(&cancel(2)).await.status, 202);
    // What was noted of the first has been looked at by then.
    assert!(second.rest().await.is_empty());
    assert_eq!(session.post(&filled_in(&asked, "Ann")).await.status, 202);
    let reply = first.next().await;
    assert_eq!(reply["result"]["content"][0]["text"], "Hello, Ann!");
}

#[tokio::test]
async fn while_the_store_is_down_sessions_wait() {
    let store = Odd::silent(Taking::Works);
    let [one, _other] = two(&store, &ServerLimits::default()).await;
    let session = Session::open(&one).await;
    store.down.store(true, Ordering::SeqCst);
    let ping = request(1, "ping", json!({}));
    let refused = session.post(&ping).await;
    names(&refused.error(503, -32603), &["try again"]);
    assert_eq!(refused.header("retry-after"), Some("1"));
    let modern = Request::rpc("tools/list", json!({}));
    assert_eq!(one.send(&modern).await.status, 200);
    store.down.store(false, Ordering::SeqCst);
    assert_eq!(session.result(&ping).await, json!({}));
}
