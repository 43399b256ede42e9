//! Random handlers: small programs, how they are made up, run through a [`Cx`], and run in one's head.

use super::{Num, mix};
use futures_util::future::{BoxFuture, FutureExt, join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use proptest::prelude::*;
use refrain_core::{AskError, Cx, Error};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A handler. Every node has a value, and parents mix the values of their children.
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
    /// An await that Refrain knows nothing of.
    Foreign(u8),
    Random,
    /// A sleep of so many seconds.
    Sleep {
        name: String,
        seconds: u8,
    },
    /// From here on the call is a task.
    Detach,
    /// Counts with a checkpoint after each number.
    Count {
        name: String,
        to: u8,
    },
    Seq(Vec<Node>),
    /// Runs the first; if its value is even the second, else the third.
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

/// The same, with sleeps, and with places where the call becomes a task.
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
        tree.take_out_races(false);
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

    /// What races is seen only through a journal: awaits that no journal knows must not race.
    fn take_out_races(&mut self, racing: bool) {
        if racing {
            match self {
                Foreign(_) | Count { .. } | Random | Detach => *self = Seq(Vec::new()),
                Spawn { tasks, .. } => *self = Join(std::mem::take(tasks)),
                _ => {}
            }
        }
        let racing = racing || matches!(self, Select(_) | Unordered(_));
        for child in self.children_mut() {
            child.take_out_races(racing);
        }
    }

    /// Gives names: one of its own to each node of a scope, the same ones again in other scopes.
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

    /// Does it await things that no journal knows of?
    pub(crate) fn is_foreign(&self) -> bool {
        self.any(|n| matches!(n, Foreign(_) | Count { .. } | Spawn { .. } | Detach))
    }

    /// Does what it does depend on what is done first?
    pub(crate) fn is_racing(&self) -> bool {
        self.any(|n| matches!(n, Select(_) | Unordered(_)))
    }

    /// Are there racing futures that may be ready by themselves? Then the order of polls is the handler's own doing,
    /// and what it sees may depend on it.
    pub(crate) fn depends_on_polls(&self) -> bool {
        let idle = |node: &Node| match node {
            Select(nodes) | Unordered(nodes) => !nodes.iter().all(Node::surely_acts),
            _ => false,
        };
        self.any(idle)
    }

    /// Does it surely ask or do something, on every way through it?
    fn surely_acts(&self) -> bool {
        match self {
            Ask { .. } | Step { .. } | Sleep { .. } => true,
            Select(nodes) => nodes.iter().all(Self::surely_acts),
            Branch(nodes) => {
                let [first, even, odd] = &**nodes;
                first.surely_acts() || (even.surely_acts() && odd.surely_acts())
            }
            _ => self.children().into_iter().any(Self::surely_acts),
        }
    }

    /// Is every ask made at most once, under its plain name?
    pub(crate) fn is_plain(&self) -> bool {
        !self.any(|n| matches!(n, Loop { .. } | Scope { .. }))
    }

    /// The names of the asks and the paths they are made at.
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

/// What a client answers to the ask made at this path: now and then a no.
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

fn join(a: i64, b: i64) -> i64 {
    (a * 31 + b + 1) % 1009
}

/// What one round saw and did.
#[derive(Default)]
pub(crate) struct Trace {
    /// What each strand of the handler saw, in order.
    pub(crate) seen: Mutex<BTreeMap<String, Vec<String>>>,
    pub(crate) started: Mutex<Vec<String>>,
    pub(crate) finished: Mutex<Vec<String>>,
    /// Steps that are no longer at work, finished or dropped, but for those that are to be tried again.
    pub(crate) ended: Mutex<Vec<String>>,
    /// Steps whose values the handler got.
    pub(crate) got: Mutex<Vec<String>>,
    /// The idempotency keys of steps.
    pub(crate) keys: Mutex<Vec<(String, String)>>,
    /// Asks that the handler waits for.
    pub(crate) asking: Mutex<BTreeSet<String>>,
    /// How many steps, computations and foreign awaits are going on.
    pub(crate) at_work: AtomicUsize,
    /// Steps of a task fail now and then, to be tried again, where this is not 0.
    pub(crate) mood: AtomicU64,
}

impl Trace {
    fn fails_for_now(&self) -> bool {
        let mood = self.mood.load(Ordering::SeqCst);
        mood != 0 && mix(self.mood.fetch_add(1, Ordering::SeqCst)).is_multiple_of(12)
    }
}

/// Something that goes on in a handler, until this is dropped.
struct AtWork {
    trace: Arc<Trace>,
    cx: Cx,
    step: Option<String>,
}

impl AtWork {
    fn new(trace: &Arc<Trace>, cx: &Cx, step: Option<String>) -> Self {
        trace.at_work.fetch_add(1, Ordering::SeqCst);
        Self {
            trace: trace.clone(),
            cx: cx.clone(),
            step,
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.trace.at_work.fetch_sub(1, Ordering::SeqCst);
        // What is dropped with the whole handler is not at its end.
        if self.cx.cancelled().now_or_never().is_none() {
            self.trace.ended.lock().unwrap().extend(self.step.take());
        }
    }
}

/// An ask that the handler waits for, until this is dropped.
struct Asking<'a>(&'a Place);

impl<'a> Asking<'a> {
    fn new(at: &'a Place) -> Self {
        at.trace.asking.lock().unwrap().insert(at.path.clone());
        Self(at)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.trace.asking.lock().unwrap().remove(&self.0.path);
    }
}

/// A place in a running program.
#[derive(Clone)]
pub(crate) struct Place {
    cx: Cx,
    path: String,
    strand: String,
    trace: Arc<Trace>,
    /// Each branch of a join sees a history of its own.
    strands: bool,
    /// Turns the order in which racing futures are polled.
    turn: usize,
}

impl Place {
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
}

impl Place {
    /// The children, numbered, in an order that differs from round to round as it does in `select!`.
    fn racing(&self, nodes: &[Node]) -> Vec<(usize, BoxFuture<'static, i64>)> {
        let mut racing: Vec<_> = self.children(nodes).into_iter().enumerate().collect();
        racing.rotate_left(self.turn % nodes.len());
        racing
    }
}

/// Runs a program through its place's [`Cx`].
pub(crate) fn run(node: Node, at: Place) -> BoxFuture<'static, i64> {
    async move {
        match node {
            Ask { name } => ask(name, &at).await,
            Step {
                name,
                yields,
                fails,
            } => step(name, yields, fails, &at).await,
            Foreign(yields) => {
                let _at_work = AtWork::new(&at.trace, &at.cx, None);
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
                1
            }
            Random => {
                // The order of uses is all that tells them apart.
                if !at.strands {
                    at.saw(at.cx.random());
                }
                2
            }
            Sleep { name, seconds } => {
                // The order of uses is all that tells sleeps of one scope apart.
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
                    value = join(value, run(node, at.child(i)).await);
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
                    value = join(
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
                .fold(0, join),
            Select(nodes) => {
                let racing = at.racing(&nodes);
                let racing = racing
                    .into_iter()
                    .map(|(i, f)| f.map(move |v| (i, v)).boxed());
                let ((winner, value), _, losers) = select_all(racing).await;
                drop(losers);
                at.saw(format!("won by {winner}"));
                join(winner as i64, value)
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
                    value = join(value, one);
                }
                value
            }
            Spawn { scoped, tasks } => spawn(scoped, tasks, &at).await,
        }
    }
    .boxed()
}

async fn ask(name: String, at: &Place) -> i64 {
    let asking = Asking::new(at);
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

async fn step(name: String, yields: u8, fails: bool, at: &Place) -> i64 {
    let (trace, path, cx) = (at.trace.clone(), at.path.clone(), at.cx.clone());
    let work = |key| async move {
        trace.keys.lock().unwrap().push((path.clone(), key));
        trace.started.lock().unwrap().push(path.clone());
        let mut at_work = AtWork::new(&trace, &cx, Some(path.clone()));
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        if cx.is_task() && trace.fails_for_now() {
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

async fn count(name: String, to: u8, at: &Place) -> i64 {
    let _at_work = AtWork::new(&at.trace, &at.cx, None);
    let from: u8 = at.cx.resume(&name).unwrap().unwrap_or(0);
    for i in from..to {
        at.cx.checkpoint(name.clone(), &(i + 1)).await.unwrap();
    }
    i64::from(to)
}

async fn spawn(scoped: bool, tasks: Vec<Node>, at: &Place) -> i64 {
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
            // The call is over, and so is everything here.
            return std::future::pending().await;
        };
        values.insert(i, value);
    }
    values.into_values().fold(0, join)
}

/// The value and the effects of a program in which nothing races, without any Refrain.
pub(crate) fn in_ones_head(node: &Node, path: &str, effects: &mut BTreeSet<String>) -> i64 {
    let mut all = |nodes: &[Node]| {
        let each = nodes.iter().enumerate();
        each.fold(0, |value, (i, node)| {
            join(value, in_ones_head(node, &format!("{path}.{i}"), effects))
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
            let value = in_ones_head(&nodes[0], &format!("{path}.0"), effects);
            let next = if value % 2 == 0 { 1 } else { 2 };
            in_ones_head(&nodes[next], &format!("{path}.{next}"), effects)
        }
        Loop { times, body } => (0..*times).fold(0, |value, i| {
            join(value, in_ones_head(body, &format!("{path}.0#{i}"), effects))
        }),
        Scope { body, .. } => in_ones_head(body, &format!("{path}.0"), effects),
        Select(_) | Unordered(_) => unreachable!("what races cannot be told beforehand"),
    }
}
