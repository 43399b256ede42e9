//! An instance that is there, or not, by a clock that the tests put forward.

use super::*;
use crate::legacy::{Purpose, RequestId, Session};
use crate::limits::ServerLimits;
use refrain_core::{Principal, Source, SystemSource};
use refrain_store::{MemoryStore, SessionStore, StoreFuture};
use refrain_wire::decode_initialize;
use serde_json::json;
use serde_json::value::to_raw_value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// How long streams are kept: for longer than a note.
const RESUMES: Duration = Duration::from_secs(3600);

/// The clock of the runtime, which the tests put forward.
struct Clock(Instant);

impl Source for Clock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + self.0.elapsed()
    }

    fn fill(&self, bytes: &mut [u8]) {
        SystemSource::new().fill(bytes);
    }
}

/// A store whose parts can be out of order.
struct Frail {
    store: MemoryStore,
    /// Notes are not kept.
    fails: AtomicBool,
    /// It is never done with keeping a note, or with taking one back.
    hangs: AtomicBool,
    /// It never says what is noted.
    mute: AtomicBool,
    /// Notes that it was to keep.
    notes: AtomicUsize,
}

impl Frail {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::with_source(Arc::new(Clock(Instant::now()))),
            fails: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            notes: AtomicUsize::new(0),
        })
    }

    fn notes(&self) -> usize {
        self.notes.load(Ordering::SeqCst)
    }
}

impl SessionStore for Frail {
    fn note<'a>(&'a self, note: NewNote<'a>) -> StoreFuture<'a, bool> {
        self.notes.fetch_add(1, Ordering::SeqCst);
        if self.hangs.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        if self.fails.load(Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::Unavailable("frail".to_owned())) });
        }
        self.store.note(note)
    }

    fn take_note<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, bool> {
        if self.hangs.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        self.store.take_note(place, name)
    }

    fn notes<'a>(&'a self, place: &'a str) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
        self.store.notes(place)
    }

    fn note_names<'a>(&'a self, places: &'a [String]) -> StoreFuture<'a, Vec<(String, String)>> {
        if self.mute.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        self.store.note_names(places)
    }

    fn note_value<'a>(&'a self, place: &'a str, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.store.note_value(place, name)
    }

    fn noted(&self) -> broadcast::Receiver<String> {
        self.store.noted()
    }
}

fn server(store: &Arc<Frail>) -> (Server, Session) {
    let limits = ServerLimits {
        resume_time: RESUMES,
        ..ServerLimits::default()
    };
    let builder = Server::builder("older", "1").limits(limits);
    let builder = builder.sessions(store.clone());
    let server = builder.build().expect("a usable server");
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    let params = to_raw_value(&params).expect("JSON");
    let initialize = decode_initialize(Some(&params)).expect("a greeting");
    let (session, _) = server.open_session(&initialize, &Principal::anonymous());
    (server, session)
}

/// Does the other one find it in the store?
async fn found(other: &Server, one: &Server) -> bool {
    let found = other.is_here(&one.0.legacy.instance).await;
    found.expect("a store")
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_there_from_its_first_ask_until_some_time_after_its_last_call() {
    let store = Frail::new();
    let ((one, session), (other, _)) = (server(&store), server(&store));
    let call = one.begin_call(&session, RequestId::read("1"));
    tokio::time::sleep(2 * ANEW).await;
    assert!(!found(&other, &one).await, "nothing was asked");
    assert_eq!(store.notes(), 0, "those who do not ask need no note");
    one.be_here().await;
    for _ in 0..60 {
        assert!(found(&other, &one).await);
        tokio::time::sleep(ANEW).await;
    }
    assert!(!found(&one, &other).await);
    drop(call);
    tokio::time::sleep(KEPT - 2 * ANEW).await;
    assert!(found(&other, &one).await, "an answer may be late");
    tokio::time::sleep(2 * ANEW).await;
    assert!(!found(&other, &one).await);
    let _call = one.begin_call(&session, RequestId::read("2"));
    one.be_here().await;
    assert!(found(&other, &one).await);
}

#[tokio::test(start_paused = true)]
async fn asks_that_follow_one_another_need_no_note_of_their_own() {
    let store = Frail::new();
    let (one, session) = server(&store);
    let _call = one.begin_call(&session, RequestId::read("1"));
    let asking = (0..100).map(|_| {
        let one = one.clone();
        tokio::spawn(async move { one.be_here().await })
    });
    for asking in asking.collect::<Vec<_>>() {
        asking.await.expect("no panic");
    }
    for _ in 0..100 {
        one.be_here().await;
    }
    assert_eq!(store.notes(), 2, "that it is there, and that it was");
}

#[tokio::test(start_paused = true)]
async fn an_instance_stays_there_while_its_store_fails_for_a_time() {
    let store = Frail::new();
    let ((one, session), (other, _)) = (server(&store), server(&store));
    let _call = one.begin_call(&session, RequestId::read("1"));
    one.be_here().await;
    for broken in [&store.fails, &store.hangs] {
        broken.store(true, Ordering::SeqCst);
        tokio::time::sleep(KEPT - 2 * ANEW).await;
        broken.store(false, Ordering::SeqCst);
        for _ in 0..2 * KEPT.as_secs() {
            assert!(found(&other, &one).await);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    // However long it takes to take in what was noted.
    store.mute.store(true, Ordering::SeqCst);
    tokio::time::sleep(10 * KEPT).await;
    assert!(found(&other, &one).await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_at_first_holds_up_nobody_and_is_asked_again() {
    for broken in [|s: &Frail| &s.fails, |s: &Frail| &s.hangs] as [fn(&Frail) -> &AtomicBool; 2] {
        let store = Frail::new();
        let ((one, session), (other, _)) = (server(&store), server(&store));
        let _call = one.begin_call(&session, RequestId::read("1"));
        broken(&store).store(true, Ordering::SeqCst);
        let asking = tokio::time::timeout(2 * PATIENCE, one.be_here()).await;
        assert!(asking.is_ok());
        assert!(!found(&other, &one).await);
        broken(&store).store(false, Ordering::SeqCst);
        tokio::time::sleep(PATIENCE + 3 * AGAIN).await;
        assert!(found(&other, &one).await);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_is_not_there_and_does_not_come_back() {
    let store = Frail::new();
    let ((one, session), (other, _)) = (server(&store), server(&store));
    let _call = one.begin_call(&session, RequestId::read("1"));
    one.be_here().await;
    one.close_live();
    one.leave().await;
    assert!(!found(&other, &one).await);
    one.be_here().await;
    assert!(!found(&other, &one).await);
    tokio::time::sleep(2 * ANEW).await;
    assert!(!found(&other, &one).await);
}

/// Those who serve it in a way of their own need not say it twice.
#[tokio::test(start_paused = true)]
async fn whoever_gives_up_its_calls_leaves() {
    let store = Frail::new();
    let ((one, session), (other, _)) = (server(&store), server(&store));
    let call = one.begin_call(&session, RequestId::read("1"));
    one.be_here().await;
    one.close_live();
    drop(call);
    tokio::time::sleep(2 * AGAIN).await;
    assert!(!found(&other, &one).await);
}

#[tokio::test(start_paused = true)]
async fn whoever_is_held_up_as_they_leave_is_not_forgotten() {
    let store = Frail::new();
    let ((one, session), (other, _)) = (server(&store), server(&store));
    let call = one.begin_call(&session, RequestId::read("1"));
    one.be_here().await;
    drop(call);
    one.close_live();
    store.hangs.store(true, Ordering::SeqCst);
    let dropped = tokio::time::timeout(AGAIN / 4, one.leave()).await;
    assert!(dropped.is_err());
    store.hangs.store(false, Ordering::SeqCst);
    one.leave().await;
    assert!(!found(&other, &one).await);
}

/// The note may be kept or not: it is noted again.
#[tokio::test(start_paused = true)]
async fn a_call_that_ends_while_it_is_noted_spoils_nothing() {
    let store = Frail::new();
    let ((one, session), (other, _)) = (server(&store), server(&store));
    let _call = one.begin_call(&session, RequestId::read("1"));
    store.hangs.store(true, Ordering::SeqCst);
    let dropped = tokio::time::timeout(AGAIN / 2, one.be_here()).await;
    assert!(dropped.is_err());
    store.hangs.store(false, Ordering::SeqCst);
    one.be_here().await;
    assert!(found(&other, &one).await);
}

/// Has it ended, as far as the other one knows?
async fn ended(other: &Server, one: &Server) -> bool {
    let ended = other.has_ended(&one.0.legacy.instance).await;
    ended.expect("a store")
}

#[tokio::test(start_paused = true)]
async fn an_instance_has_ended_that_was_there_and_is_not() {
    let store = Frail::new();
    let ((one, session), (other, _)) = (server(&store), server(&store));
    let (stranger, _) = server(&Frail::new());
    assert!(!ended(&other, &one).await, "it is not known");
    // It is killed.
    assert!(one.be_here().await);
    tokio::time::sleep(KEPT - ANEW).await;
    assert!(!ended(&other, &one).await);
    tokio::time::sleep(ANEW).await;
    assert!(ended(&other, &one).await);
    assert!(!ended(&stranger, &one).await, "it has another store");
    // It was only late.
    let call = one.begin_call(&session, RequestId::read("1"));
    assert!(one.be_here().await);
    assert!(!ended(&other, &one).await);
    // It is stopped.
    drop(call);
    one.close_live();
    one.leave().await;
    assert!(ended(&other, &one).await);
    assert!(!one.be_here().await);
    tokio::time::sleep(REMEMBERED).await;
    assert!(!ended(&other, &one).await, "it is not known any more");
}

#[tokio::test(start_paused = true)]
async fn whoever_could_not_note_that_it_is_there_knows_so() {
    let store = Frail::new();
    let (one, session) = server(&store);
    let _call = one.begin_call(&session, RequestId::read("1"));
    store.fails.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert!(!one.be_here().await);
    }
    store.fails.store(false, Ordering::SeqCst);
    tokio::time::sleep(2 * AGAIN).await;
    for _ in 0..2 {
        assert!(one.be_here().await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_there_for_as_long_as_it_keeps_the_stream_of_a_call() {
    let store = Frail::new();
    let ((one, session), (other, _)) = (server(&store), server(&store));
    let call = one.begin_call(&session, RequestId::read("1"));
    let stream = one.0.legacy.streams.begin(&session, 100);
    assert!(one.be_here().await);
    one.seal_stream(&stream, &Purpose::Call("1".to_owned()));
    drop(call);
    let began = Instant::now();
    let ending = {
        let one = one.clone();
        tokio::spawn(async move { one.end_call_stream(&stream).await })
    };
    while began.elapsed() < RESUMES {
        assert!(!ended(&other, &one).await, "after {:?}", began.elapsed());
        tokio::time::sleep(ANEW / 2).await;
    }
    ending.await.expect("no panic");
    tokio::time::sleep(KEPT).await;
    assert!(ended(&other, &one).await);
}

/// Nobody asks for it by such a stream.
#[tokio::test(start_paused = true)]
async fn a_stream_that_says_nothing_of_its_call_needs_no_note() {
    let store = Frail::new();
    let (one, session) = server(&store);
    let stream = one.0.legacy.streams.begin(&session, 100);
    let long = format!("{:?}", "x".repeat(100));
    one.seal_stream(&stream, &Purpose::Call(long));
    assert!(!stream.is_sealed());
    one.end_call_stream(&stream).await;
    assert_eq!(store.notes(), 0);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_logged_now_and_then() {
    let presence = Presence::default();
    assert!(presence.logs_refusal());
    assert!(!presence.logs_refusal());
    tokio::time::sleep(LOGGED).await;
    assert!(presence.logs_refusal());
    assert!(!presence.logs_refusal());
}
