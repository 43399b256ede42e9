//! Random handlers run as tasks: resumed, crashed, answered, handed on and suspended at random points.
//!
//! Invariants:
//!
//! - The history of a run starts with the history of the last write.
//! - A step that had ended at the last write does not run again. Each step has one idempotency key.
//! - No key is published twice, and no ask under two keys unless its answer was rejected.
//! - At rest no work runs, and exactly the awaited asks are published.
//! - Every task ends. Without races, its result is that of plain code.
//!
//! The cases are deterministic. `PROPTEST_CASES` sets their number, `RANDOM_SEED` selects others.

use crate::support::dice::runner;
use crate::support::program::{Node, Trace, expected_result, task_programs};
use crate::support::random_case::{History, RandomCase, Trouble, check_history, path};
use crate::support::store::{Stop, Store, WakeFlag, decode, encode, env};
use crate::support::{NOON, answers_to, many_threads, num, one_thread};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use refrain_core::{AfterWrite, ErrorKind, Event, Flow, FlowId, PendingWrite, Snapshot, Start};
use refrain_wire::Ask;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The home of the flow between two runs.
enum Home {
    /// The client, which will send these answers.
    Client(Vec<u8>, Value),
    Store(Store),
}

/// The end of a run.
enum RunEnd {
    /// It ended regularly; the task continues in another run.
    Regular,
    /// It crashed: its history may be shorter than that of the run before.
    Crashed,
    Complete(Value),
}

/// Counters over all cases.
#[derive(Default)]
struct Tally {
    runs: AtomicU64,
    writes: AtomicU64,
    crashes: AtomicU64,
    retries: AtomicU64,
    detached: AtomicU64,
    repeated: AtomicU64,
}

impl Tally {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

struct Case<'a> {
    base: RandomCase,
    now: u64,
    threads: bool,
    /// Whether the program has races, and spawned tasks on other threads. Such a task may still ask
    /// after it lost its race.
    overtakes: bool,
    tally: &'a Tally,
    home: Home,
    /// When the task must be resumed, with or without answers.
    wake: Option<SystemTime>,
    /// Steps that had ended at the last write.
    ended: BTreeSet<String>,
    /// Steps that were started in any run.
    started: BTreeSet<String>,
    /// The idempotency key of each step.
    keys: BTreeMap<String, String>,
}

impl<'a> Case<'a> {
    fn new(program: &Node, seed: u64, trouble: Trouble, threads: bool, tally: &'a Tally) -> Self {
        let first = Snapshot::first(FlowId::from_bytes([7; 16]), u64::MAX);
        let detaches = program.any(|node| matches!(node, Node::Detach));
        let home = if detaches {
            Home::Client(encode(&first), json!({}))
        } else {
            Home::Store(Store::of(&first))
        };
        Self {
            base: RandomCase::new(program, seed, trouble),
            overtakes: threads && program.is_racing() && program.any(spawns),
            now: NOON,
            threads,
            tally,
            home,
            wake: None,
            ended: BTreeSet::new(),
            started: BTreeSet::new(),
            keys: BTreeMap::new(),
        }
    }

    fn set_clock(&mut self, at: u64) {
        self.now = self.now.max(at);
        self.base.world.clock.set(self.now);
    }

    fn store(&mut self) -> Option<&mut Store> {
        match &mut self.home {
            Home::Store(store) => Some(store),
            Home::Client(..) => None,
        }
    }

    /// Plays the task to its end and returns the result.
    async fn play(&mut self) -> Result<Value, String> {
        for _ in 0..3000 {
            let trace = Arc::new(Trace::default());
            if self.base.trouble == Trouble::Much {
                trace
                    .mood
                    .store(1 + self.base.dice.throw(1 << 40), Ordering::SeqCst);
            }
            Tally::count(&self.tally.runs);
            let before = (self.base.before.clone(), self.ended.clone());
            let end = self.run_instance(&trace).await?;
            self.check(&before.0, &before.1, &trace, matches!(end, RunEnd::Crashed))?;
            if let RunEnd::Complete(value) = end {
                return Ok(value);
            }
            self.between_runs()?;
        }
        Err("the task does not end".into())
    }

    /// Runs the flow on one instance until it leaves the instance.
    async fn run_instance(&mut self, trace: &Arc<Trace>) -> Result<RunEnd, String> {
        let handler = self.base.handler(trace);
        let start = match &self.home {
            Home::Store(store) => store.start(),
            Home::Client(token, answers) => {
                let answers = answers.to_string();
                let answers = serde_json::from_str(&answers).unwrap();
                Start::resumed(decode(token), Some(&answers)).unwrap()
            }
        };
        let mut flow = Flow::new(env(&self.base.world), start, &handler);
        if self.base.one_in(4) {
            flow.crash_after(self.base.dice.throw(25) as u32);
        }
        let begun = Instant::now();
        let woken = Arc::new(WakeFlag::default());
        let waker = Waker::from(woken.clone());
        // The polls until the flow leaves memory, if it is at rest.
        let mut polls_left: Option<u64> = None;
        let mut idle_polls = 0;
        while begun.elapsed() < Duration::from_secs(20) {
            self.deliver_answers(&mut flow)?;
            if self.base.one_in(40) {
                self.set_clock(self.now + 1);
            }
            woken.forget();
            let event = match flow.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(event) => event,
                Poll::Pending => {
                    if !woken.is_woken() {
                        self.check_published_asks(trace)?;
                    }
                    idle_polls += 1;
                    if self.threads && idle_polls > 10 {
                        // Spawned tasks need the time of this thread if the machine is busy.
                        std::thread::sleep(Duration::from_micros(50));
                    }
                    // Only among the first idle polls: a task that waits longer would otherwise
                    // always crash.
                    if idle_polls <= 60 && self.base.one_in(60) {
                        Tally::count(&self.tally.crashes);
                        return Ok(RunEnd::Crashed);
                    }
                    match &mut polls_left {
                        Some(0) => return self.drop_at_rest(flow, trace),
                        Some(left) => *left -= 1,
                        None => {}
                    }
                    if idle_polls > 30
                        && (self.store().is_none() || polls_left.is_some())
                        && let Some(at) = flow.wake_at()
                    {
                        self.set_clock(at.duration_since(UNIX_EPOCH).unwrap().as_secs());
                    }
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            idle_polls = 0;
            match event {
                Event::Settle => tokio::task::yield_now().await,
                Event::Notes(_) => {}
                Event::Detach => {
                    Tally::count(&self.tally.detached);
                    if self.base.one_in(5) {
                        return Ok(RunEnd::Crashed);
                    }
                    let detachment = flow.detachment();
                    let stored = decode(&encode(detachment.snapshot()));
                    self.home = Home::Store(Store::of(&stored));
                    self.remember(trace);
                    if self.base.one_in(5) {
                        return Ok(RunEnd::Crashed);
                    }
                    flow.become_task(&detachment, u64::MAX);
                }
                Event::Suspended(cut) => {
                    // The response may be lost, and the client repeats the request.
                    if !self.base.one_in(6) {
                        let answers = answers_to(&cut.asks, |_, ask| self.base.answer(path(ask)));
                        self.home = Home::Client(encode(&cut.snapshot), answers);
                        self.remember(trace);
                    }
                    return Ok(RunEnd::Regular);
                }
                Event::Write(write) => {
                    if let Some(end) = self.write(&mut flow, &write, trace)? {
                        return Ok(end);
                    }
                    polls_left = match write.then {
                        AfterWrite::Continue => None,
                        AfterWrite::HandOn => return Ok(RunEnd::Regular),
                        AfterWrite::Rest { wake, may_progress } => {
                            self.wake = wake;
                            self.check_rest(trace, may_progress)?;
                            // Gives futures that are not operations of `cx` time.
                            let least = if may_progress { 60 } else { 0 };
                            let stay =
                                self.base.trouble == Trouble::Much && self.base.dice.throw(2) == 0;
                            let more = if stay { self.base.dice.throw(60) } else { 0 };
                            if least + more == 0 {
                                return Ok(RunEnd::Regular);
                            }
                            Some(least + more)
                        }
                    };
                }
                event => return self.handle_end(event),
            }
        }
        Err("the flow hangs".into())
    }

    /// Handles the end of the flow or of the attempt.
    fn handle_end(&mut self, event: Event) -> Result<RunEnd, String> {
        match Stop::of(event) {
            Stop::Crashed => {
                Tally::count(&self.tally.crashes);
                Ok(RunEnd::Crashed)
            }
            Stop::Done(Err(error)) if matches!(error.kind(), ErrorKind::Retry) => {
                Tally::count(&self.tally.retries);
                Ok(RunEnd::Crashed)
            }
            // The instance crashes before the end is written.
            Stop::Done(Ok(_)) if self.base.one_in(8) => {
                Tally::count(&self.tally.crashes);
                Ok(RunEnd::Crashed)
            }
            Stop::Done(Ok(value)) => Ok(RunEnd::Complete(value)),
            other => Err(format!("ended with {other:?}")),
        }
    }

    /// Writes the progress of the task. `Some`: the instance crashed before or after the write.
    fn write(
        &mut self,
        flow: &mut Flow,
        write: &PendingWrite,
        trace: &Trace,
    ) -> Result<Option<RunEnd>, String> {
        Tally::count(&self.tally.writes);
        if self.base.one_in(10) {
            Tally::count(&self.tally.crashes);
            return Ok(Some(RunEnd::Crashed));
        }
        self.commit(write, trace)?;
        if self.base.one_in(10) {
            Tally::count(&self.tally.crashes);
            return Ok(Some(RunEnd::Crashed));
        }
        self.deliver_answers(flow)?;
        flow.confirm_write();
        Ok(None)
    }

    fn commit(&mut self, write: &PendingWrite, trace: &Trace) -> Result<(), String> {
        let Some(store) = self.store() else {
            return Err("a flow that is not a task was written".into());
        };
        store.commit(write)?;
        let asked: Vec<String> = store.published.iter().map(|(_, ask)| path(ask)).collect();
        for (_, ask) in &write.asks {
            let path = path(ask);
            if self.base.answered.contains(&path) {
                return Err(format!("{path} was answered and asked again"));
            }
            let times = asked.iter().filter(|asked| **asked == path).count();
            if times > 1 + usize::from(self.base.answered_wrongly.contains(&path))
                && !self.overtakes
            {
                return Err(format!("{path} was asked under {times} keys"));
            }
        }
        self.remember(trace);
        Ok(())
    }

    /// Drops a flow at rest.
    fn drop_at_rest(&mut self, mut flow: Flow, trace: &Trace) -> Result<RunEnd, String> {
        // Spawned tasks on other threads may be about to ask; the last write is sufficient.
        if !self.threads && self.base.one_in(2) {
            let write = flow.suspend();
            self.commit(&write, trace)?;
        }
        Ok(RunEnd::Regular)
    }

    /// Records the history and the ended steps of a write.
    fn remember(&mut self, trace: &Trace) {
        self.base.record_history(trace);
        let ended = if self.threads {
            // On another thread a step may have ended and not be journaled yet.
            &trace.got
        } else if self.base.program.depends_on_polls() {
            // A step that races with a ready future is started and dropped in every run.
            &trace.finished
        } else {
            &trace.ended
        };
        self.ended.extend(ended.lock().unwrap().iter().cloned());
    }

    /// Answers some of the open asks.
    fn answer_some(&mut self, all: bool) {
        let Some(store) = self.store() else { return };
        let open: Vec<(String, Ask)> = store.open.clone().into_iter().collect();
        for (key, ask) in open {
            if (all || self.base.one_in(3))
                && let Some(answer) = self.base.answer(path(&ask))
                && let Some(store) = self.store()
            {
                store.answer(&key, &answer);
            }
        }
    }

    /// Delivers answers while the flow is in memory; some twice, the second time with another value.
    fn deliver_answers(&mut self, flow: &mut Flow) -> Result<(), String> {
        if self.base.one_in(8) {
            self.answer_some(false);
        }
        if self.base.one_in(4) {
            let Some(store) = self.store() else {
                return Ok(());
            };
            let answers = store.answers.clone();
            for (key, answer) in answers {
                flow.answer(&key, &answer);
                if self.base.one_in(3) {
                    flow.answer(&key, &num(1000).to_string());
                }
            }
        }
        Ok(())
    }

    /// Handles the time while no instance has the task in memory.
    fn between_runs(&mut self) -> Result<(), String> {
        let wake = self.wake.take();
        self.answer_some(self.base.trouble == Trouble::None || self.base.dice.throw(2) == 0);
        let Some(store) = self.store() else {
            return Ok(());
        };
        let waits = store.answers.is_empty();
        if let Some(at) = wake
            && (waits || self.base.one_in(3))
        {
            self.set_clock(at.duration_since(UNIX_EPOCH).unwrap().as_secs());
        }
        Ok(())
    }

    /// Checks that at rest no step runs, and that the published asks are the awaited ones.
    fn check_rest(&mut self, trace: &Trace, may_progress: bool) -> Result<(), String> {
        if self.threads || may_progress {
            return Ok(());
        }
        let at_work = trace.at_work.load(Ordering::SeqCst);
        if at_work > 0 {
            return Err(format!("at rest, but {at_work} operations run"));
        }
        let asked = self.open_keys();
        let asking = trace.asking.lock().unwrap();
        if asked != *asking {
            return Err(format!(
                "at rest, it awaits {asking:?} but published {asked:?}"
            ));
        }
        Ok(())
    }

    /// The asks that are open in the store, or whose answers were not taken yet.
    fn open_keys(&mut self) -> BTreeSet<String> {
        let Some(store) = self.store() else {
            return BTreeSet::new();
        };
        let is_asked = |key: &str| {
            store.open.contains_key(key)
                || store.answers.iter().any(|(answered, _)| answered == key)
        };
        let asked = store.published.iter().filter(|(key, _)| is_asked(key));
        asked.map(|(_, ask)| path(ask)).collect()
    }

    /// Checks that all asks of a waiting task are published.
    fn check_published_asks(&mut self, trace: &Trace) -> Result<(), String> {
        if self.store().is_none() || self.base.program.any(spawns) {
            return Ok(());
        }
        let mut asked = self.open_keys();
        // The answer to an awaited ask may be journaled and not delivered, because the task is
        // about to be handed on.
        asked.extend(
            self.base
                .answered
                .union(&self.base.answered_wrongly)
                .cloned(),
        );
        let asking = trace.asking.lock().unwrap();
        match asking.iter().find(|path| !asked.contains(*path)) {
            Some(path) => Err(format!(
                "it awaits {path}, which is not published: {asked:?}"
            )),
            None => Ok(()),
        }
    }

    fn check(
        &mut self,
        before: &History,
        ended: &BTreeSet<String>,
        trace: &Trace,
        crashed: bool,
    ) -> Result<(), String> {
        // Spawned tasks on other threads may lag.
        let ended_early = crashed || (self.threads && self.base.program.any(spawns));
        check_history(before, trace, ended_early)?;
        let mut here = BTreeSet::new();
        for step in trace.started.lock().unwrap().iter() {
            if ended.contains(step) {
                return Err(format!("step {step} had ended and ran again"));
            }
            if !here.insert(step.clone()) {
                return Err(format!("step {step} ran twice in one run"));
            }
            if !self.started.insert(step.clone()) {
                Tally::count(&self.tally.repeated);
            }
        }
        for (step, key) in trace.keys.lock().unwrap().iter() {
            let first = self.keys.entry(step.clone()).or_insert_with(|| key.clone());
            if first != key {
                return Err(format!("step {step} has the keys {first} and {key}"));
            }
        }
        let distinct: BTreeSet<&String> = self.keys.values().collect();
        if distinct.len() < self.keys.len() {
            return Err("two steps have one key".into());
        }
        let finished = trace.finished.lock().unwrap();
        self.base.effects.extend(finished.iter().cloned());
        Ok(())
    }
}

fn spawns(node: &Node) -> bool {
    matches!(node, Node::Spawn { .. })
}

async fn check_program(
    program: &Node,
    seed: u64,
    threads: bool,
    tally: &Tally,
) -> Result<(), String> {
    let mut expected = BTreeSet::new();
    let value = (!program.is_racing()).then(|| expected_result(program, "p", &mut expected));
    for trouble in [Trouble::None, Trouble::Much] {
        let mut case = Case::new(program, seed, trouble, threads, tally);
        let result = case.play().await;
        let result = result.map_err(|why| format!("{trouble:?}: {why}"))?;
        if let Some(value) = value {
            if result != json!(value) {
                return Err(format!("{trouble:?}: the result is {result}, not {value}"));
            }
            if case.base.effects != expected {
                let effects = &case.base.effects;
                return Err(format!("{trouble:?}: did {effects:?}, not {expected:?}"));
            }
        }
        if trouble == Trouble::None && case.started.len() < case.base.effects.len() {
            return Err("a step finished that was not started".into());
        }
    }
    Ok(())
}

fn random_tasks(cases: u32, runtime: &tokio::runtime::Runtime, threads: bool) -> Tally {
    let tally = Tally::default();
    let outcome = runner(cases).run(&(task_programs(), any::<u64>()), |(program, seed)| {
        let checked = runtime.block_on(check_program(&program, seed, threads, &tally));
        checked.map_err(TestCaseError::fail)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let figures = [
        ("runs", &tally.runs),
        ("writes", &tally.writes),
        ("crashes", &tally.crashes),
        ("retries", &tally.retries),
        ("detached", &tally.detached),
        ("steps run again", &tally.repeated),
    ];
    for (name, counter) in figures {
        let count = counter.load(Ordering::Relaxed);
        println!("{name}: {count}");
        assert!(count > 0, "no case had {name}");
    }
    tally
}

#[test]
fn random_tasks_on_one_thread() {
    random_tasks(3000, &one_thread(), false);
}

#[test]
fn random_tasks_on_many_threads() {
    random_tasks(800, &many_threads(), true);
}
