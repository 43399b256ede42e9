//! A store for one task, and instances that resume, run and lose it.

use super::{Book, NOON, World, message, value_of};
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

/// The number of polls without progress after which a flow counts as waiting.
const MAX_IDLE_POLLS: u32 = 40;

/// The stored state of a task.
#[derive(Default)]
pub(crate) struct Store {
    journal: Vec<u8>,
    /// Published asks without an answer.
    pub(crate) open: BTreeMap<String, Ask>,
    /// Received answers that are not in the journal.
    pub(crate) answers: Vec<(String, String)>,
    /// All asks that were published, in order.
    pub(crate) published: Vec<(String, Ask)>,
    pub(crate) withdrawn: Vec<String>,
    keys: BTreeSet<String>,
}

impl Store {
    /// A new task.
    pub(crate) fn new() -> Self {
        let flow = FlowId::from_bytes([7; 16]);
        Self::of(&Snapshot::first(flow, u64::MAX))
    }

    /// A task with this snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        Self {
            journal: encode(snapshot),
            ..Self::default()
        }
    }

    /// The stored snapshot.
    pub(crate) fn snapshot(&self) -> Snapshot {
        decode(&self.journal)
    }

    /// The start for an instance that resumes the task.
    pub(crate) fn start(&self) -> Start {
        Start::task(self.snapshot(), &self.answers)
    }

    /// Applies a write.
    pub(crate) fn commit(&mut self, write: &PendingWrite) -> Result<(), String> {
        for key in &write.taken {
            let answered = self.answers.iter().any(|(answered, _)| answered == key);
            if !answered {
                return Err(format!("{key} was taken but has no answer"));
            }
        }
        self.answers.retain(|(key, _)| !write.taken.contains(key));
        for key in &write.withdrawn {
            // The client may have answered meanwhile.
            let answered = self.answers.iter().any(|(answered, _)| answered == key);
            if self.open.remove(key).is_none() && !answered {
                return Err(format!(
                    "{key} was withdrawn but was neither open nor answered"
                ));
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

    /// Stores the client's answer. `false`: no ask is open under this key.
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

    /// All published keys, in order.
    pub(crate) fn all_keys(&self) -> Vec<&str> {
        self.published.iter().map(|(key, _)| key.as_str()).collect()
    }

    /// The message of the ask that is open under this key.
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
    let (_, snapshot) = Snapshot::decode(bytes).expect("the encoded snapshot decodes");
    snapshot
}

/// The summary of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriteSummary {
    pub(crate) asks: Vec<String>,
    pub(crate) taken: Vec<String>,
    pub(crate) withdrawn: Vec<String>,
    pub(crate) entries: usize,
    pub(crate) then: AfterWrite,
}

impl WriteSummary {
    fn of(write: &PendingWrite) -> Self {
        Self {
            asks: write.asks.iter().map(|(key, _)| key.clone()).collect(),
            taken: write.taken.clone(),
            withdrawn: write.withdrawn.clone(),
            entries: write.snapshot.entry_count(),
            then: write.then,
        }
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(self.then, AfterWrite::Rest { .. })
    }
}

/// Why an instance stopped running a task.
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
    /// It waits in memory, for example for a step or a foreign future.
    Waits,
}

impl Stop {
    /// The return value of the handler.
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

    /// Asserts that the task rests and awaits only operations of `cx`.
    #[track_caller]
    pub(crate) fn assert_at_rest(&self) {
        let rests = matches!(
            self,
            Self::Rests {
                may_progress: false,
                ..
            }
        );
        assert!(rests, "expected rest, got {self:?}");
    }

    /// Converts the final event of a flow.
    pub(crate) fn of(event: Event) -> Self {
        match event {
            Event::Ended(End::Complete(body)) => Self::Done(Ok(value_of(&body))),
            Event::Ended(End::Failed(error)) => Self::Done(Err(error)),
            Event::Ended(End::Fault(fault)) => Self::Fault(fault),
            Event::Ended(End::Panicked(message)) => Self::Panicked(message),
            Event::Crashed => Self::Crashed,
            other => panic!("this does not end a task: {other:?}"),
        }
    }
}

/// An instance that runs a task.
pub(crate) struct Instance {
    pub(crate) flow: Flow,
    pub(crate) writes: Vec<WriteSummary>,
    pub(crate) notes: Vec<Note>,
}

impl Instance {
    /// Resumes a task.
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

    /// Polls until the next event. `None`: the flow waits.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        let begun = Instant::now();
        let woken = Arc::new(WakeFlag::default());
        let mut idle_polls = 0;
        while idle_polls < MAX_IDLE_POLLS {
            assert!(begun.elapsed() < Duration::from_secs(20), "the flow hangs");
            let waker = Waker::from(woken.clone());
            match self.flow.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(Event::Settle) => {}
                Poll::Ready(Event::Notes(notes)) => self.notes.extend(notes),
                Poll::Ready(event) => return Some(event),
                Poll::Pending => idle_polls += 1,
            }
            tokio::task::yield_now().await;
            if woken.is_woken() {
                woken.forget();
                idle_polls = 0;
            }
        }
        None
    }

    /// Writes to the store and confirms the write.
    pub(crate) fn write(&mut self, store: &mut Store, write: &PendingWrite) -> WriteSummary {
        store.commit(write).expect("the store accepts the write");
        let written = WriteSummary::of(write);
        self.writes.push(written.clone());
        assert!(self.writes.len() < 1000, "the flow does not stop writing");
        self.flow.confirm_write();
        written
    }

    /// Polls until the next write. `None`: the flow waits.
    pub(crate) async fn next_write(&mut self, store: &mut Store) -> Option<WriteSummary> {
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

    /// Delivers the client's answer while the flow is in memory.
    pub(crate) fn answer(&mut self, store: &mut Store, key: &str, answer: &Value) {
        assert!(store.answer(key, answer), "{key} is not open");
        self.flow.answer(key, &answer.to_string());
    }
}

/// A waker that records a wake.
#[derive(Default)]
pub(crate) struct WakeFlag(AtomicBool);

impl WakeFlag {
    pub(crate) fn is_woken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The environment of tasks.
pub(crate) fn env(world: &World) -> Env {
    Env {
        can_detach: true,
        ..world.env()
    }
}

/// Resumes a task on a new instance, and runs it until it leaves memory or waits.
pub(crate) async fn run(
    world: &World,
    store: &mut Store,
    handler: &impl Fn(Cx) -> HandlerFuture,
) -> Stop {
    Instance::new(world, store, handler).run(store).await
}

/// Writes a line and returns its length.
pub(crate) async fn write_line(book: &Book, line: &str) -> Result<usize> {
    book.write(line);
    ok(line.len())
}

/// A gate that blocks work until it is opened.
pub(crate) fn gate() -> (watch::Sender<bool>, watch::Receiver<bool>) {
    watch::channel(false)
}

/// Waits until the gate is open.
pub(crate) async fn pass(gate: &watch::Receiver<bool>) {
    gate.clone().wait_for(|open| *open).await.unwrap();
}

/// The time this many seconds after the start of the test.
pub(crate) fn at_second(after: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOON + after)
}
