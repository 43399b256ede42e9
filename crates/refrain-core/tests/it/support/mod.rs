//! Plays calls round by round, each round on a new instance that shares only the keys.

pub(crate) mod dice;
pub(crate) mod program;
pub(crate) mod random_case;
pub(crate) mod store;

use refrain_core::{
    Binding, Cx, Elicit, End, Env, Error, Event, Fault, Field, Flow, Form, HandlerFuture, KeyRing,
    Limits, Note, Outcome, Pressure, Principal, ReplayLog, Result, Sealer, SealerOptions, Source,
    Start, StartError, Stats,
};
use refrain_wire::{Answers, Ask, CallKind, Capabilities, LogLevel, ResultBody};
use serde::Serialize;
use serde_json::{Value, json};
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The start time of every test, in the year 2027.
pub(crate) const NOON: u64 = 1_800_000_000;

/// A manual clock, and a deterministic random source.
pub(crate) struct Clock {
    seconds: AtomicU64,
    drawn: AtomicU64,
}

impl Clock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            seconds: AtomicU64::new(NOON),
            drawn: AtomicU64::new(0),
        })
    }

    pub(crate) fn set(&self, seconds: u64) {
        self.seconds.store(seconds, Ordering::SeqCst);
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Source for Clock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.seconds.load(Ordering::SeqCst))
    }

    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = mix(self.drawn.fetch_add(1, Ordering::SeqCst));
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Splitmix64.
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A pressure that can be switched.
#[derive(Default)]
pub(crate) struct Switch(pub(crate) AtomicBool);

impl Pressure for Switch {
    fn should_hand_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Lines that a handler writes, across rounds.
#[derive(Clone, Default)]
pub(crate) struct Book(Arc<Mutex<Vec<String>>>);

impl Book {
    pub(crate) fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|l| *l == line).count()
    }
}

/// A form with an integer `v` from 0 to 1000.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub(crate) struct Num {
    pub(crate) v: i64,
}

impl Elicit for Num {
    fn form() -> &'static Form {
        static FORM: OnceLock<Form> = OnceLock::new();
        FORM.get_or_init(|| Form::new([Field::integer("v").min(0.0).max(1000.0)]))
    }
}

/// Like [`Num`], with a maximum of ten.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Small {
    pub(crate) v: i64,
}

impl Elicit for Small {
    fn form() -> &'static Form {
        static FORM: OnceLock<Form> = OnceLock::new();
        FORM.get_or_init(|| Form::new([Field::integer("v").min(0.0).max(10.0)]))
    }
}

/// A form with a string `name`.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub(crate) struct Name {
    pub(crate) name: String,
}

impl Elicit for Name {
    fn form() -> &'static Form {
        static FORM: OnceLock<Form> = OnceLock::new();
        FORM.get_or_init(|| Form::new([Field::string("name")]))
    }
}

/// An accepted form on the wire.
pub(crate) fn accept(content: &Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// An accepted [`Num`].
pub(crate) fn num(v: i64) -> Value {
    accept(&json!({ "v": v }))
}

/// The message of an ask.
pub(crate) fn message(ask: &Ask) -> String {
    match ask {
        Ask::Form { message, .. } | Ask::Url { message, .. } => message.clone(),
        Ask::Sampling(_) | Ask::Roots => String::new(),
    }
}

/// Makes a handler whose return value becomes the member `out` of the result.
pub(crate) fn handler<T, F, Fut>(run: F) -> impl Fn(Cx) -> HandlerFuture
where
    F: Fn(Cx) -> Fut,
    Fut: Future<Output = Result<T>> + Send + 'static,
    T: Serialize,
{
    move |cx| {
        let work = run(cx);
        Box::pin(async move {
            let out = work.await?;
            let body = ResultBody::from_members(json!({ "out": out }));
            body.map(Outcome::Complete)
                .map_err(|error| Error::msg(format!("{error:?}")))
        })
    }
}

/// Makes a [`handler`] that gets a clone of `state` in each run.
pub(crate) fn handler_with<S, T, F, Fut>(state: S, run: F) -> impl Fn(Cx) -> HandlerFuture
where
    S: Clone,
    F: Fn(Cx, S) -> Fut,
    Fut: Future<Output = Result<T>> + Send + 'static,
    T: Serialize,
{
    handler(move |cx| run(cx, state.clone()))
}

/// The value that a [`handler`] returned.
pub(crate) fn value_of(body: &ResultBody) -> Value {
    let mut members: Value = serde_json::from_str(&format!("{{{}}}", body.members())).unwrap();
    members["out"].take()
}

/// Asserts that a message contains all these parts.
#[track_caller]
pub(crate) fn assert_contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

/// Asserts that the handler, which is in the caller's file, caused a fault whose message has these parts and no path.
#[track_caller]
pub(crate) fn assert_fault(round: &Round, parts: &[&str]) {
    let fault = round.fault();
    assert_contains(&fault.message, parts);
    assert!(!fault.message.contains(".rs"), "{:?}", fault.message);
    let file = fault.location.map(Location::file);
    assert_eq!(file, Some(Location::caller().file()));
}

/// The end of a round, from the client's view.
#[derive(Debug)]
pub(crate) enum RoundEnd {
    Asked {
        asks: Vec<(String, Ask)>,
        token: String,
        shed: bool,
    },
    Done(Result<Value>),
    Fault(Fault),
    Panicked(String),
    Crashed,
    Rejected(StartError),
}

/// A round that has ended.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) end: RoundEnd,
    pub(crate) notes: Vec<Note>,
    pub(crate) stats: Stats,
    /// The number of [`Event::Settle`] events.
    pub(crate) settles: u32,
}

impl Round {
    /// The wire keys that were asked, in order.
    pub(crate) fn keys(&self) -> Vec<&str> {
        match &self.end {
            RoundEnd::Asked { asks, .. } => asks.iter().map(|(key, _)| key.as_str()).collect(),
            other => panic!("expected asks, got {other:?}"),
        }
    }

    pub(crate) fn token(&self) -> String {
        match &self.end {
            RoundEnd::Asked { token, .. } => token.clone(),
            other => panic!("expected a token, got {other:?}"),
        }
    }

    /// The message of the ask with this wire key.
    pub(crate) fn message(&self, key: &str) -> String {
        match &self.end {
            RoundEnd::Asked { asks, .. } => {
                let ask = asks.iter().find(|(k, _)| k == key);
                message(&ask.unwrap_or_else(|| panic!("{key} was not asked")).1)
            }
            other => panic!("expected asks, got {other:?}"),
        }
    }

    pub(crate) fn is_handed_on(&self) -> bool {
        matches!(&self.end, RoundEnd::Asked { shed: true, .. })
    }

    /// The return value of the handler.
    pub(crate) fn out(&self) -> Value {
        match &self.end {
            RoundEnd::Done(Ok(value)) => value.clone(),
            other => panic!("expected a result, got {other:?}"),
        }
    }

    pub(crate) fn error(&self) -> &Error {
        match &self.end {
            RoundEnd::Done(Err(error)) => error,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    pub(crate) fn fault(&self) -> &Fault {
        match &self.end {
            RoundEnd::Fault(fault) => fault,
            other => panic!("expected a fault, got {other:?}"),
        }
    }
}

/// The environment of a test's calls.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) keys: KeyRing,
    pub(crate) clock: Arc<Clock>,
    pub(crate) options: SealerOptions,
    pub(crate) limits: Limits,
    pub(crate) capabilities: Capabilities,
    pub(crate) pressure: Option<Arc<dyn Pressure>>,
    pub(crate) replay_log: Option<Arc<dyn ReplayLog>>,
    pub(crate) log_level: Option<LogLevel>,
    pub(crate) wants_progress: bool,
    pub(crate) principal: Principal,
    /// The client's id of the call: a repeated first request is the same flow.
    pub(crate) call_id: &'static str,
    /// Whether a first request has the call id.
    pub(crate) has_call_id: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Clock::new();
        Self {
            keys: KeyRing::generate(&*clock),
            clock,
            options: SealerOptions::default(),
            limits: Limits::default(),
            capabilities: Capabilities {
                form: true,
                url: true,
                sampling: true,
                sampling_tools: true,
                sampling_context: true,
                roots: true,
                tasks: true,
            },
            pressure: None,
            replay_log: None,
            log_level: None,
            wants_progress: false,
            principal: Principal::new("alice"),
            call_id: "the call",
            has_call_id: true,
        }
    }

    /// The sealer of a new instance.
    pub(crate) fn sealer(&self) -> Sealer {
        Sealer::new(self.keys.clone(), self.options.clone(), self.clock.clone())
    }

    pub(crate) fn env(&self) -> Env {
        Env {
            principal: self.principal.clone(),
            address: None,
            uri: None,
            capabilities: self.capabilities,
            extensions: None,
            meta: None,
            log_level: self.log_level,
            wants_progress: self.wants_progress,
            source: self.clock.clone(),
            limits: self.limits.clone(),
            pressure: self.pressure.clone(),
            replay_log: self.replay_log.clone(),
            can_detach: false,
        }
    }

    pub(crate) fn binding(&self, sealer: &Sealer) -> Binding {
        sealer.bind(&self.principal, CallKind::Tool, "tool", None)
    }

    /// The start of a new call without answers.
    pub(crate) fn start(&self) -> Start {
        let sealer = self.sealer();
        Start::first(sealer.first(&self.binding(&sealer), None), None)
    }

    /// The first request of a call.
    pub(crate) async fn first(&self, handler: &impl Fn(Cx) -> HandlerFuture) -> Round {
        self.request(handler, None, &json!({}), None).await
    }

    /// A first request with answers.
    pub(crate) async fn first_with(
        &self,
        handler: &impl Fn(Cx) -> HandlerFuture,
        answers: &Value,
    ) -> Round {
        self.request(handler, None, answers, None).await
    }

    /// The request after this round.
    pub(crate) async fn next(
        &self,
        handler: &impl Fn(Cx) -> HandlerFuture,
        round: &Round,
        answers: &Value,
    ) -> Round {
        self.present(handler, &round.token(), answers).await
    }

    /// A later request with this token.
    pub(crate) async fn present(
        &self,
        handler: &impl Fn(Cx) -> HandlerFuture,
        token: &str,
        answers: &Value,
    ) -> Round {
        self.request(handler, Some(token), answers, None).await
    }

    /// A request to a new instance, which may crash.
    pub(crate) async fn request(
        &self,
        handler: &impl Fn(Cx) -> HandlerFuture,
        token: Option<&str>,
        answers: &Value,
        crash_after: Option<u32>,
    ) -> Round {
        self.request_text(handler, token, &answers.to_string(), crash_after)
            .await
    }

    /// The same, with the answers as JSON text.
    pub(crate) async fn request_text(
        &self,
        handler: &impl Fn(Cx) -> HandlerFuture,
        token: Option<&str>,
        answers: &str,
        crash_after: Option<u32>,
    ) -> Round {
        let sealer = self.sealer();
        let binding = self.binding(&sealer);
        let answers: Answers<'_> = serde_json::from_str(answers).unwrap();
        let start = match token {
            None => {
                let call_id = self.has_call_id.then_some(self.call_id);
                let start = Start::first(sealer.first(&binding, call_id), Some(&answers));
                Ok(match self.has_call_id {
                    true => start,
                    false => start.unrepeatable(),
                })
            }
            Some(token) => {
                let snapshot = sealer.open(&binding, token).expect("the token opens");
                Start::resumed(snapshot, Some(&answers))
            }
        };
        let start = match start {
            Ok(start) => start,
            Err(error) => {
                return Round {
                    end: RoundEnd::Rejected(error),
                    notes: Vec::new(),
                    stats: Stats::default(),
                    settles: 0,
                };
            }
        };
        let mut flow = Flow::new(self.env(), start, handler);
        if let Some(polls) = crash_after {
            flow.crash_after(polls);
        }
        let mut notes = Vec::new();
        let (event, settles) = drive(&mut flow, &mut notes).await;
        notes.extend(flow.take_notes());
        let stats = flow.stats();
        let end = match event {
            Event::Suspended(cut) => RoundEnd::Asked {
                token: sealer
                    .seal(&binding, &cut.snapshot, "1")
                    .expect("it can be sealed"),
                asks: cut.asks,
                shed: cut.handed_on,
            },
            Event::Ended(End::Complete(body)) => RoundEnd::Done(Ok(value_of(&body))),
            Event::Ended(End::Failed(error)) => RoundEnd::Done(Err(error)),
            Event::Ended(End::Fault(fault)) => RoundEnd::Fault(fault),
            Event::Ended(End::Panicked(message)) => RoundEnd::Panicked(message),
            Event::Crashed => RoundEnd::Crashed,
            Event::Detach | Event::Write(_) => unreachable!("only tasks have these events"),
            Event::Notes(_) | Event::Settle => unreachable!("drive handles these events"),
        };
        Round {
            end,
            notes,
            stats,
            settles,
        }
    }

    /// Plays a call to its end, every round on a new instance.
    pub(crate) async fn play(
        &self,
        handler: &impl Fn(Cx) -> HandlerFuture,
        mut answer: impl FnMut(&str, &Ask) -> Option<Value>,
    ) -> Vec<Round> {
        let mut rounds = vec![self.first(handler).await];
        while let RoundEnd::Asked { asks, token, .. } = &rounds[rounds.len() - 1].end {
            assert!(rounds.len() < 200, "the call does not end");
            let answers = answers_to(asks, &mut answer);
            let round = self.present(handler, token, &answers).await;
            rounds.push(round);
        }
        rounds
    }
}

/// The answers to these asks as an object.
pub(crate) fn answers_to(
    asks: &[(String, Ask)],
    mut answer: impl FnMut(&str, &Ask) -> Option<Value>,
) -> Value {
    let asks = asks.iter();
    let answers = asks.filter_map(|(key, ask)| Some((key.clone(), answer(key, ask)?)));
    Value::Object(answers.collect())
}

/// Drives a flow until it ends. A flow that hangs fails the test.
pub(crate) async fn drive(flow: &mut Flow, notes: &mut Vec<Note>) -> (Event, u32) {
    let mut settles = 0;
    loop {
        let event = poll_fn(|cx| flow.poll(cx));
        let event = tokio::time::timeout(Duration::from_secs(20), event).await;
        match event.expect("the flow hangs") {
            Event::Settle => {
                settles += 1;
                tokio::task::yield_now().await;
            }
            Event::Notes(more) => notes.extend(more),
            event => return (event, settles),
        }
    }
}

/// A runtime of one thread.
pub(crate) fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

/// A runtime of three threads.
pub(crate) fn many_threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_time()
        .build()
        .unwrap()
}
