//! A store for one task, and instances that take it up, run it and lose it.

use super::{Book, NOON, World, message};
use refrain_core::{
    AfterWrite, Claims, Cx, End, Env, Error, Event, Fault, Flow, FlowId, HandlerFuture, Note,
    PendingWrite, Result, Snapshot, Start, ok,
};
use refrain_wire::Ask;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Passes in which nothing moves, after which a flow counts as waiting.
const STILL: u32 = 40;

/// What of a task is kept outside of its flow.
#[derive(Default)]
pub(crate) struct Store {
    journal: Vec<u8>,
    /// Asks that are published and have no answer.
    pub(crate) open: BTreeMap<String, Ask>,
    /// Answers that came in and are not in the journal.
    pub(crate) answers: Vec<(String, String)>,
    /// Every ask that was ever published, in order.
    pub(crate) published: Vec<(String, Ask)>,
    pub(crate) withdrawn: Vec<String>,
    keys: BTreeSet<String>,
}

impl Store {
    /// A task that has not run yet.
    pub(crate) fn new() -> Self {
        let flow = FlowId::from_bytes([7; 16]);
        Self::of(&Snapshot::first(flow, u64::MAX))
    }

    /// A task made of this.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        Self {
            journal: encode(snapshot),
            ..Self::default()
        }
    }

    /// The task as it is written.
    pub(crate) fn snapshot(&self) -> Snapshot {
        decode(&self.journal)
    }

    /// Where an instance that takes the task up begins.
    pub(crate) fn start(&self) -> Start {
        Start::task(self.snapshot(), &self.answers)
    }

    /// Writes all of it.
    pub(crate) fn commit(&mut self, write: &PendingWrite) -> Result<(), String> {
        for key in &write.taken {
            let answered = self.answers.iter().any(|(answered, _)| answered == key);
            if !answered {
                return Err(format!("{key} was taken and has no answer"));
            }
        }
        self.answers.retain(|(key, _)| !write.taken.contains(key));
        for key in &write.withdrawn {
            // The client may have answered in the meantime.
            let answered = self.answers.iter().any(|(answered, _)| answered == key);
            if self.open.remove(key).is_none() && !answered {
                return Err(format!("{key} was withdrawn and is not open"));
            }
            self.answers.retain(|(answered, _)| answered != key);
            self.withdrawn.push(key.clone());
        }
        for (key, ask) in &write.asks {
            if !self.keys.insert(key.clone()) {
                return Err(format!("the key {key} was used before"));
            }
            self.open.insert(key.clone(), ask.clone());
            self.published.push((key.clone(), ask.clone()));
        }
        self.journal = encode(&write.snapshot);
        Ok(())
    }

    /// The client answers. `false`: nobody asks under this key.
    pub(crate) fn answer(&mut self, key: &str, answer: &Value) -> bool {
        let open = self.open.remove(key).is_some();
        if open {
            self.answers.push((key.to_owned(), answer.to_string()));
        }
        open
    }

    /// The keys that can be answered.
    pub(crate) fn open_keys(&self) -> Vec<&str> {
        self.open.keys().map(String::as_str).collect()
    }

    /// Every key that was published, in order.
    pub(crate) fn all_keys(&self) -> Vec<&str> {
        self.published.iter().map(|(key, _)| key.as_str()).collect()
    }

    /// The words of the ask that is open under this key.
    pub(crate) fn message(&self, key: &str) -> String {
        message(&self.open[key])
    }
}

pub(crate) fn encode(snapshot: &Snapshot) -> Vec<u8> {
    let claims = Claims {
        issued: 1,
        expires: 2,
        version: "1",
    };
    snapshot.encode(&claims, &[], 0)
}

pub(crate) fn decode(bytes: &[u8]) -> Snapshot {
    let (_, snapshot) = Snapshot::decode(bytes).expect("what was written is read");
    snapshot
}

/// A write, as its store saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) asks: Vec<String>,
    pub(crate) taken: Vec<String>,
    pub(crate) withdrawn: Vec<String>,
    pub(crate) entries: usize,
    pub(crate) then: AfterWrite,
}

impl Written {
    fn of(write: &PendingWrite) -> Self {
        Self {
            asks: write.asks.iter().map(|(key, _)| key.clone()).collect(),
            taken: write.taken.clone(),
            withdrawn: write.withdrawn.clone(),
            entries: write.snapshot.len(),
            then: write.then,
        }
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(self.then, AfterWrite::Rest { .. })
    }
}

/// How an instance came to let go of a task.
#[derive(Debug)]
pub(crate) enum Stop {
    Rests {
        wake: Option<SystemTime>,
        may_progress: bool,
    },
    HandedOn,
    Done(Result<Value>),
    Fault(Fault),
    Panicked(String),
    Crashed,
    /// It waits for something that is neither an answer nor a time.
    Waits,
}

impl Stop {
    /// What the handler returned.
    pub(crate) fn out(&self) -> Value {
        match self {
            Self::Done(Ok(value)) => value.clone(),
            other => panic!("expected a result, got {other:?}"),
        }
    }

    pub(crate) fn error(&self) -> &Error {
        match self {
            Self::Done(Err(error)) => error,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    pub(crate) fn fault(&self) -> &Fault {
        match self {
            Self::Fault(fault) => fault,
            other => panic!("expected a fault, got {other:?}"),
        }
    }

    /// It rests, and nothing else can be at work.
    #[track_caller]
    pub(crate) fn is_at_rest(&self) {
        let rests = matches!(
            self,
            Self::Rests {
                may_progress: false,
                ..
            }
        );
        assert!(rests, "expected rest, got {self:?}");
    }

    /// What an event that ends a flow says.
    pub(crate) fn of(event: Event) -> Self {
        match event {
            Event::Ended(End::Complete(body)) => {
                let text = format!("{{{}}}", body.members());
                let mut members: Value = serde_json::from_str(&text).unwrap();
                Self::Done(Ok(members["out"].take()))
            }
            Event::Ended(End::Failed(error)) => Self::Done(Err(error)),
            Event::Ended(End::Fault(fault)) => Self::Fault(fault),
            Event::Ended(End::Panicked(message)) => Self::Panicked(message),
            Event::Crashed => Self::Crashed,
            other => panic!("this does not end a task: {other:?}"),
        }
    }
}

/// An instance at work on a task.
pub(crate) struct Instance {
    pub(crate) flow: Flow,
    pub(crate) writes: Vec<Written>,
    pub(crate) notes: Vec<Note>,
}

impl Instance {
    /// Takes a task up.
    pub(crate) fn new(
        world: &World,
        store: &Store,
        handler: &impl Fn(Cx) -> HandlerFuture,
    ) -> Self {
        Self::with(env(world), store.start(), handler)
    }

    pub(crate) fn with(env: Env, start: Start, handler: &impl Fn(Cx) -> HandlerFuture) -> Self {
        Self {
            flow: Flow::new(env, start, handler),
            writes: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Goes on to the next event that has to be dealt with. `None`: the flow waits.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        let begun = Instant::now();
        let woken = Arc::new(Woken::default());
        let mut still = 0;
        while still < STILL {
            assert!(begun.elapsed() < Duration::from_secs(20), "the flow hangs");
            let waker = Waker::from(woken.clone());
            match self.flow.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(Event::Settle) => {}
                Poll::Ready(Event::Notes(notes)) => self.notes.extend(notes),
                Poll::Ready(event) => return Some(event),
                Poll::Pending => still += 1,
            }
            tokio::task::yield_now().await;
            if woken.is_woken() {
                woken.forget();
                still = 0;
            }
        }
        None
    }

    /// Writes into the store, and lets the flow go on.
    pub(crate) fn write(&mut self, store: &mut Store, write: &PendingWrite) -> Written {
        store.commit(write).expect("a store takes this");
        let written = Written::of(write);
        self.writes.push(written.clone());
        assert!(self.writes.len() < 1000, "it writes without end");
        self.flow.confirm_write();
        written
    }

    /// Goes on to the next write. `None`: the flow waits.
    pub(crate) async fn next_write(&mut self, store: &mut Store) -> Option<Written> {
        match self.event().await? {
            Event::Write(write) => Some(self.write(store, &write)),
            other => panic!("expected a write, got {other:?}"),
        }
    }

    /// Runs until the task leaves memory or waits.
    pub(crate) async fn run(&mut self, store: &mut Store) -> Stop {
        loop {
            match self.event().await {
                None => return Stop::Waits,
                Some(Event::Write(write)) => match self.write(store, &write).then {
                    AfterWrite::Continue => {}
                    AfterWrite::HandOn => return Stop::HandedOn,
                    AfterWrite::Rest { wake, may_progress } => {
                        return Stop::Rests { wake, may_progress };
                    }
                },
                Some(event) => return Stop::of(event),
            }
        }
    }

    /// The client answers while the flow is in memory.
    pub(crate) fn answer(&mut self, store: &mut Store, key: &str, answer: &Value) {
        assert!(store.answer(key, answer), "{key} is not open");
        self.flow.answer(key, &answer.to_string());
    }
}

/// Remembers that it was woken.
#[derive(Default)]
pub(crate) struct Woken(AtomicBool);

impl Woken {
    pub(crate) fn is_woken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What tasks are run with.
pub(crate) fn env(world: &World) -> Env {
    Env {
        can_detach: true,
        ..world.env()
    }
}

/// Takes a task up on a fresh instance, and runs it until it leaves memory or waits.
pub(crate) async fn run(
    world: &World,
    store: &mut Store,
    handler: &impl Fn(Cx) -> HandlerFuture,
) -> Stop {
    Instance::new(world, store, handler).run(store).await
}

/// Work that writes a line and gives its length.
pub(crate) async fn noted(book: &Book, line: &str) -> Result<usize> {
    book.write(line);
    ok(line.len())
}

/// A gate that work can wait at.
pub(crate) fn gate() -> (watch::Sender<bool>, watch::Receiver<bool>) {
    watch::channel(false)
}

pub(crate) async fn pass(gate: &watch::Receiver<bool>) {
    gate.clone().wait_for(|open| *open).await.unwrap();
}

pub(crate) fn second(after: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOON + after)
}
