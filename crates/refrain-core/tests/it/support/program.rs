//! Random handlers: programs, their generation, their execution through a [`Cx`], and their expected results.

use super::{Num, mix};
use futures_util::future::{BoxFuture, FutureExt, join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use proptest::prelude::*;
use refrain_core::{AskError, Cx, Error};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A handler as a tree. The value of a node combines the values of its children.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Ask {
        name: String,
    },
    Step {
        name: String,
        yields: u8,
        fails: bool,
    },
    /// A future that is not an operation of `cx`. It yields this number of times.
    Foreign(u8),
    /// Draws a random number.
    Random,
    /// A sleep of this many seconds.
    Sleep {
        name: String,
        seconds: u8,
    },
    /// Detaches the call.
    Detach,
    /// Counts, with a checkpoint after each number.
    Count {
        name: String,
        to: u8,
    },
    Seq(Vec<Node>),
    /// Runs the first node, then the second if its value is even, otherwise the third.
    Branch(Box<[Node; 3]>),
    Loop {
        times: u8,
        body: Box<Node>,
    },
    Scope {
        name: String,
        body: Box<Node>,
    },
    Join(Vec<Node>),
    Select(Vec<Node>),
    Unordered(Vec<Node>),
    Spawn {
        scoped: bool,
        tasks: Vec<Node>,
    },
}

use Node::*;

/// Programs of a few dozen nodes at most.
pub(crate) fn programs() -> impl Strategy<Value = Node> {
    trees(leaves())
}

/// The same, with sleeps and detaches.
pub(crate) fn task_programs() -> impl Strategy<Value = Node> {
    let sleep = (0..5u8).prop_map(|seconds| Sleep {
        name: String::new(),
        seconds,
    });
    trees(prop_oneof![
        14 => leaves(),
        2 => sleep,
        1 => Just(Detach),
    ])
}

fn leaves() -> impl Strategy<Value = Node> {
    let name = String::new;
    prop_oneof![
        6 => Just(Ask { name: name() }),
        5 => (0..4u8, prop::bool::weighted(0.25))
            .prop_map(move |(yields, fails)| Step { name: name(), yields, fails }),
        1 => (1..5u8).prop_map(Foreign),
        1 => Just(Random),
        1 => (1..4u8).prop_map(move |to| Count { name: name(), to }),
    ]
}

fn trees(leaf: impl Strategy<Value = Node> + 'static) -> impl Strategy<Value = Node> {
    let name = String::new;
    let tree = leaf.prop_recursive(4, 28, 4, move |inner| {
        let some = |least: usize| prop::collection::vec(inner.clone(), least..4);
        let one = inner.clone();
        prop_oneof![
            4 => some(1).prop_map(Seq),
            2 => (one.clone(), one.clone(), one.clone()).prop_map(|(a, b, c)| Branch(Box::new([a, b, c]))),
            2 => (1..4u8, one.clone()).prop_map(|(times, body)| Loop { times, body: Box::new(body) }),
            1 => one.prop_map(move |body| Scope { name: name(), body: Box::new(body) }),
            3 => some(2).prop_map(Join),
            2 => some(2).prop_map(Select),
            1 => some(2).prop_map(Unordered),
            2 => (any::<bool>(), some(1)).prop_map(|(scoped, tasks)| Spawn { scoped, tasks }),
        ]
    });
    tree.prop_map(|mut tree| {
        tree.remove_foreign_races(false);
        tree.name(&mut 0, &mut 0);
        tree
    })
}

impl Node {
    fn children(&self) -> Vec<&Node> {
        match self {
            Seq(nodes) | Join(nodes) | Select(nodes) | Unordered(nodes) => nodes.iter().collect(),
            Spawn { tasks, .. } => tasks.iter().collect(),
            Branch(nodes) => nodes.iter().collect(),
            Loop { body, .. } | Scope { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }

    fn children_mut(&mut self) -> Vec<&mut Node> {
        match self {
            Seq(nodes) | Join(nodes) | Select(nodes) | Unordered(nodes) => {
                nodes.iter_mut().collect()
            }
            Spawn { tasks, .. } => tasks.iter_mut().collect(),
            Branch(nodes) => nodes.iter_mut().collect(),
            Loop { body, .. } | Scope { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }

    /// Removes foreign futures from races, since their order is not journaled.
    fn remove_foreign_races(&mut self, racing: bool) {
        if racing {
            match self {
                Foreign(_) | Count { .. } | Random | Detach => *self = Seq(Vec::new()),
                Spawn { tasks, .. } => *self = Join(std::mem::take(tasks)),
                _ => {}
            }
        }
        let racing = racing || matches!(self, Select(_) | Unordered(_));
        for child in self.children_mut() {
            child.remove_foreign_races(racing);
        }
    }

    /// Assigns names that are unique within a scope and repeat in other scopes.
    fn name(&mut self, next: &mut u32, scopes: &mut u32) {
        let mut fresh = |prefix: &str| {
            *next += 1;
            format!("{prefix}{next}")
        };
        match self {
            Ask { name } | Step { name, .. } => *name = fresh("n"),
            Sleep { name, .. } => *name = fresh("z"),
            Count { name, .. } => *name = fresh("c"),
            Scope { name, body } => {
                *scopes += 1;
                *name = format!("s{scopes}");
                return body.name(&mut 0, scopes);
            }
            _ => {}
        }
        for child in self.children_mut() {
            child.name(next, scopes);
        }
    }

    pub(crate) fn any(&self, is: fn(&Node) -> bool) -> bool {
        is(self) || self.children().into_iter().any(|child| child.any(is))
    }

    /// Returns whether the end of some of its waits is not in the journal. Its strands then have
    /// separate histories.
    pub(crate) fn is_foreign(&self) -> bool {
        self.any(|n| matches!(n, Foreign(_) | Count { .. } | Spawn { .. } | Detach))
    }

    /// Returns whether it contains a race.
    pub(crate) fn is_racing(&self) -> bool {
        self.any(|n| matches!(n, Select(_) | Unordered(_)))
    }

    /// Returns whether racing futures may be ready immediately. Then the winner depends on the order of polls,
    /// and the history may differ.
    pub(crate) fn depends_on_polls(&self) -> bool {
        let idle = |node: &Node| match node {
            Select(nodes) | Unordered(nodes) => !nodes.iter().all(Node::always_acts),
            _ => false,
        };
        self.any(idle)
    }

    /// Returns whether every path through it has an operation.
    fn always_acts(&self) -> bool {
        match self {
            Ask { .. } | Step { .. } | Sleep { .. } => true,
            Select(nodes) => nodes.iter().all(Self::always_acts),
            Branch(nodes) => {
                let [first, even, odd] = &**nodes;
                first.always_acts() || (even.always_acts() && odd.always_acts())
            }
            _ => self.children().into_iter().any(Self::always_acts),
        }
    }

    /// Returns whether every ask is made at most once, under its plain name.
    pub(crate) fn is_plain(&self) -> bool {
        !self.any(|n| matches!(n, Loop { .. } | Scope { .. }))
    }

    /// The names of the asks, and their paths.
    pub(crate) fn asks(&self, path: &str) -> Vec<(String, String)> {
        if let Ask { name } = self {
            return vec![(name.clone(), path.to_owned())];
        }
        let children = self.children().into_iter().enumerate();
        children
            .flat_map(|(i, child)| child.asks(&format!("{path}.{i}")))
            .collect()
    }
}

/// The client's answer to the ask at this path; `None` is a decline.
pub(crate) fn answer_at(path: &str) -> Option<i64> {
    let seed = path
        .bytes()
        .fold(7, |seed, byte| mix(seed ^ u64::from(byte)));
    (seed % 10 != 0).then_some((seed >> 8) as i64 % 1000)
}

const DECLINED: i64 = 501;
const FAILED: i64 = 502;

fn step_value(path: &str, fails: bool) -> i64 {
    if fails {
        FAILED
    } else {
        answer_at(&format!("step {path}")).unwrap_or(3)
    }
}

fn combine(a: i64, b: i64) -> i64 {
    (a * 31 + b + 1) % 1009
}

/// The history of one run of a handler. A strand is a spawned task, a branch of a join if these
/// have separate histories, or the rest of the handler.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// The values that each strand saw, in order.
    pub(crate) seen: Mutex<BTreeMap<String, Vec<String>>>,
    pub(crate) started: Mutex<Vec<String>>,
    pub(crate) finished: Mutex<Vec<String>>,
    /// Steps that ended or were dropped, except those that will be retried.
    pub(crate) ended: Mutex<Vec<String>>,
    /// Steps whose values were delivered.
    pub(crate) got: Mutex<Vec<String>>,
    /// The idempotency keys of steps.
    pub(crate) keys: Mutex<Vec<(String, String)>>,
    /// Asks that the handler awaits.
    pub(crate) asking: Mutex<BTreeSet<String>>,
    /// The number of running steps, computations and foreign futures.
    pub(crate) at_work: AtomicUsize,
    /// If not 0, steps of a task sometimes fail with a retryable error.
    pub(crate) mood: AtomicU64,
}

impl Trace {
    fn fails_retryably(&self) -> bool {
        let mood = self.mood.load(Ordering::SeqCst);
        mood != 0 && mix(self.mood.fetch_add(1, Ordering::SeqCst)).is_multiple_of(12)
    }
}

/// Counts running work until it is dropped.
struct RunningWork {
    trace: Arc<Trace>,
    cx: Cx,
    step: Option<String>,
}

impl RunningWork {
    fn new(trace: &Arc<Trace>, cx: &Cx, step: Option<String>) -> Self {
        trace.at_work.fetch_add(1, Ordering::SeqCst);
        Self {
            trace: trace.clone(),
            cx: cx.clone(),
            step,
        }
    }
}

impl Drop for RunningWork {
    fn drop(&mut self) {
        self.trace.at_work.fetch_sub(1, Ordering::SeqCst);
        // Work that is dropped with the handler has not ended.
        if self.cx.cancelled().now_or_never().is_none() {
            self.trace.ended.lock().unwrap().extend(self.step.take());
        }
    }
}

/// Records an awaited ask until it is dropped.
struct AwaitedAsk<'a>(&'a Position);

impl<'a> AwaitedAsk<'a> {
    fn new(at: &'a Position) -> Self {
        at.trace.asking.lock().unwrap().insert(at.path.clone());
        Self(at)
    }
}

impl Drop for AwaitedAsk<'_> {
    fn drop(&mut self) {
        self.0.trace.asking.lock().unwrap().remove(&self.0.path);
    }
}

/// A position in a running program.
#[derive(Clone)]
pub(crate) struct Position {
    cx: Cx,
    path: String,
    strand: String,
    trace: Arc<Trace>,
    /// Whether each branch of a join has a separate history.
    strands: bool,
    /// Rotates the order in which racing futures are polled.
    turn: usize,
}

impl Position {
    pub(crate) fn new(cx: Cx, trace: Arc<Trace>, strands: bool, turn: usize) -> Self {
        Self {
            cx,
            path: "p".into(),
            strand: String::new(),
            trace,
            strands,
            turn,
        }
    }

    fn child(&self, part: impl std::fmt::Display) -> Self {
        let mut child = self.clone();
        child.path = format!("{}.{part}", self.path);
        child
    }

    fn strand(mut self) -> Self {
        self.strand = self.path.clone();
        self
    }

    fn saw(&self, what: impl std::fmt::Display) {
        let mut seen = self.trace.seen.lock().unwrap();
        let line = format!("{}={what}", self.path);
        seen.entry(self.strand.clone()).or_default().push(line);
    }

    fn children(&self, nodes: &[Node]) -> Vec<BoxFuture<'static, i64>> {
        let each = nodes.iter().enumerate().map(|(i, node)| {
            let child = self.child(i);
            let child = if self.strands { child.strand() } else { child };
            run(node.clone(), child)
        });
        each.collect()
    }

    /// The numbered children, in an order that differs between rounds as in `select!`.
    fn racing(&self, nodes: &[Node]) -> Vec<(usize, BoxFuture<'static, i64>)> {
        let mut racing: Vec<_> = self.children(nodes).into_iter().enumerate().collect();
        racing.rotate_left(self.turn % nodes.len());
        racing
    }
}

/// Runs a program through a [`Cx`].
pub(crate) fn run(node: Node, at: Position) -> BoxFuture<'static, i64> {
    async move {
        match node {
            Ask { name } => ask(name, &at).await,
            Step {
                name,
                yields,
                fails,
            } => step(name, yields, fails, &at).await,
            Foreign(yields) => {
                let _at_work = RunningWork::new(&at.trace, &at.cx, None);
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
                1
            }
            Random => {
                // Only the order of uses distinguishes random numbers.
                if !at.strands {
                    at.saw(at.cx.random());
                }
                2
            }
            Sleep { name, seconds } => {
                // Only the order of uses distinguishes the sleeps of one scope.
                let cx = at.cx.scope(name);
                cx.sleep(Duration::from_secs(seconds.into())).await;
                at.saw("slept");
                4
            }
            Detach => {
                at.cx.detach().await.unwrap();
                5
            }
            Count { name, to } => count(name, to, &at).await,
            Seq(nodes) => {
                let mut value = 0;
                for (i, node) in nodes.into_iter().enumerate() {
                    value = combine(value, run(node, at.child(i)).await);
                }
                value
            }
            Branch(nodes) => {
                let [first, even, odd] = *nodes;
                let value = run(first, at.child(0)).await;
                if value % 2 == 0 {
                    run(even, at.child(1)).await
                } else {
                    run(odd, at.child(2)).await
                }
            }
            Loop { times, body } => {
                let mut value = 0;
                for i in 0..times {
                    value = combine(
                        value,
                        run((*body).clone(), at.child(format!("0#{i}"))).await,
                    );
                }
                value
            }
            Scope { name, body } => {
                let mut inner = at.child(0);
                inner.cx = at.cx.scope(name);
                run(*body, inner).await
            }
            Join(nodes) => join_all(at.children(&nodes))
                .await
                .into_iter()
                .fold(0, combine),
            Select(nodes) => {
                let racing = at.racing(&nodes);
                let racing = racing
                    .into_iter()
                    .map(|(i, f)| f.map(move |v| (i, v)).boxed());
                let ((winner, value), _, losers) = select_all(racing).await;
                drop(losers);
                at.saw(format!("won by {winner}"));
                combine(winner as i64, value)
            }
            Unordered(nodes) => {
                let racing = at.racing(&nodes);
                let mut racing: FuturesUnordered<_> = racing
                    .into_iter()
                    .map(|(i, f)| f.map(move |v| (i, v)))
                    .collect();
                let mut value = 0;
                while let Some((i, one)) = racing.next().await {
                    at.saw(format!("next is {i}"));
                    value = combine(value, one);
                }
                value
            }
            Spawn { scoped, tasks } => spawn(scoped, tasks, &at).await,
        }
    }
    .boxed()
}

async fn ask(name: String, at: &Position) -> i64 {
    let asking = AwaitedAsk::new(at);
    let answer = at.cx.elicit::<Num>(name, at.path.clone()).await;
    drop(asking);
    match answer {
        Ok(Num { v }) => {
            at.saw(v);
            v
        }
        Err(AskError::Declined { .. }) => {
            at.saw("declined");
            DECLINED
        }
        Err(other) => panic!("{}: {other}", at.path),
    }
}

async fn step(name: String, yields: u8, fails: bool, at: &Position) -> i64 {
    let (trace, path, cx) = (at.trace.clone(), at.path.clone(), at.cx.clone());
    let work = |key| async move {
        trace.keys.lock().unwrap().push((path.clone(), key));
        trace.started.lock().unwrap().push(path.clone());
        let mut at_work = RunningWork::new(&trace, &cx, Some(path.clone()));
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        if cx.is_task() && trace.fails_retryably() {
            at_work.step = None;
            return Err(Error::retry("not now"));
        }
        trace.finished.lock().unwrap().push(path.clone());
        if fails {
            Err(Error::msg("failed"))
        } else {
            Ok(step_value(&path, false))
        }
    };
    let done = at.cx.step_with_key(name, work).await;
    at.trace.got.lock().unwrap().push(at.path.clone());
    match done {
        Ok(value) => {
            at.saw(value);
            value
        }
        Err(error) => {
            at.saw(error);
            FAILED
        }
    }
}

async fn count(name: String, to: u8, at: &Position) -> i64 {
    let _at_work = RunningWork::new(&at.trace, &at.cx, None);
    let from: u8 = at.cx.resume(&name).unwrap().unwrap_or(0);
    for i in from..to {
        at.cx.checkpoint(name.clone(), &(i + 1)).await.unwrap();
    }
    i64::from(to)
}

async fn spawn(scoped: bool, tasks: Vec<Node>, at: &Position) -> i64 {
    let mut set = tokio::task::JoinSet::new();
    for (i, node) in tasks.into_iter().enumerate() {
        let mut task = at.child(i).strand();
        if scoped {
            task.cx = at.cx.scope(format!("{}.{i}", at.path));
        }
        set.spawn(async move { (i, run(node, task).await) });
    }
    let mut values = BTreeMap::new();
    while let Some(done) = set.join_next().await {
        let Ok((i, value)) = done else {
            // The call has ended.
            return std::future::pending().await;
        };
        values.insert(i, value);
    }
    values.into_values().fold(0, combine)
}

/// The value and the effects of a program without races, computed without Refrain.
pub(crate) fn expected_result(node: &Node, path: &str, effects: &mut BTreeSet<String>) -> i64 {
    let mut all = |nodes: &[Node]| {
        let each = nodes.iter().enumerate();
        each.fold(0, |value, (i, node)| {
            combine(
                value,
                expected_result(node, &format!("{path}.{i}"), effects),
            )
        })
    };
    match node {
        Ask { .. } => answer_at(path).unwrap_or(DECLINED),
        Step { fails, .. } => {
            effects.insert(path.to_owned());
            step_value(path, *fails)
        }
        Foreign(_) => 1,
        Random => 2,
        Sleep { .. } => 4,
        Detach => 5,
        Count { to, .. } => i64::from(*to),
        Seq(nodes) | Join(nodes) | Spawn { tasks: nodes, .. } => all(nodes),
        Branch(nodes) => {
            let value = expected_result(&nodes[0], &format!("{path}.0"), effects);
            let next = if value % 2 == 0 { 1 } else { 2 };
            expected_result(&nodes[next], &format!("{path}.{next}"), effects)
        }
        Loop { times, body } => (0..*times).fold(0, |value, i| {
            combine(
                value,
                expected_result(body, &format!("{path}.0#{i}"), effects),
            )
        }),
        Scope { body, .. } => expected_result(body, &format!("{path}.0"), effects),
        Select(_) | Unordered(_) => unreachable!("the result of a race is not known in advance"),
    }
}
