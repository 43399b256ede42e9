//! The well-behaved clients: callers of the three homes, subscribers, and the clients of tasks.
//!
//! Each user makes one call at a time and pauses between calls, which bounds the load.

use super::check::{CallEnd, CallHome, CallOutcome, KILL_GRACE};
use super::{RANDOM_STREAM, Soak};
use crate::client::{TaskClient, TaskEnd};
use crate::clock::micros;
use crate::error::CrashError;
use crate::plan::{Effect, TaskPlan};
use crate::random::{about, millis_below, percent, random_stream};
use crate::worker::{CALL_TOOL, LIVE_TOOL, RESOURCE};
use fastrand::Rng;
use parking_lot::Mutex;
use refrain::client::wire::legacy::Revision;
use refrain::client::{
    AskAnswer, CallSpec, Client, ClientLimits, Dialect, Error, ErrorKind, Filter, ServerChange,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The number of users of each home.
const CALLERS: [(CallHome, u64); 3] = [
    (CallHome::Client, 8),
    (CallHome::Live, 5),
    (CallHome::Legacy, 5),
];
const SUBSCRIBERS: u64 = 6;
const TASK_USERS: u64 = 5;
/// The mean pause between two calls of a user.
const PAUSE: Duration = Duration::from_millis(400);
/// The maximum delays of a quick and of a late answer, in milliseconds.
const MAX_QUICK_DELAY: u64 = 200;
const MAX_LATE_DELAY: u64 = 2500;
/// The time limit of a call. Far above any delay of a client or a kill.
const DEADLINE: Duration = Duration::from_secs(50);
/// A subscription that lives this long receives an update.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts all users.
pub(super) fn start(soak: &Arc<Soak>, clients: &mut JoinSet<Result<Vec<TaskEnd>, CrashError>>) {
    // Each kind of user has a range of numbers, which select their random streams.
    let homes = CALLERS.iter();
    let callers = homes.flat_map(|(home, users)| (0..*users).map(move |_| *home));
    for (number, home) in (0..).zip(callers) {
        let user = User::new(soak, number);
        clients.spawn(async move {
            user.make_calls(home).await;
            Ok(Vec::new())
        });
    }
    for number in 0..SUBSCRIBERS {
        let user = User::new(soak, 1000 + number);
        clients.spawn(async move {
            user.subscribe().await;
            Ok(Vec::new())
        });
    }
    for number in 0..TASK_USERS {
        let user = User::new(soak, 2000 + number);
        clients.spawn(async move { user.run_tasks().await });
    }
}

struct User {
    soak: Arc<Soak>,
    random: Arc<Mutex<Rng>>,
}

impl User {
    fn new(soak: &Arc<Soak>, number: u64) -> Self {
        let random = random_stream(soak.run.seed, RANDOM_STREAM ^ ((number + 1) << 32));
        Self {
            soak: soak.clone(),
            random: Arc::new(Mutex::new(random)),
        }
    }

    async fn pause(&self) {
        let pause = about(&mut self.random.lock(), PAUSE);
        tokio::time::sleep(pause).await;
    }

    /// Creates tasks, one after the other.
    async fn run_tasks(self) -> Result<Vec<TaskEnd>, CrashError> {
        let mut ended = Vec::new();
        while !self.soak.is_over() {
            let number = self.soak.next_task.fetch_add(1, Ordering::Relaxed);
            ended.push(TaskClient::new(&self.soak.run, number).run().await?);
            self.pause().await;
        }
        Ok(ended)
    }

    /// Connects, makes some calls, and connects again.
    async fn make_calls(self, home: CallHome) {
        while !self.soak.is_over() {
            let Some(client) = self.connect(home).await else {
                continue;
            };
            let calls = self.random.lock().u8(1..=10);
            for _ in 0..calls {
                if !self.soak.is_over() {
                    self.call(home, &client).await;
                    self.pause().await;
                }
            }
            client.close().await;
        }
    }

    /// Connects to the balancer. A failure without a kill is a fault.
    async fn connect(&self, home: CallHome) -> Option<Client> {
        let limits = ClientLimits {
            silence: DEADLINE,
            deadline: Some(DEADLINE),
            ..ClientLimits::default()
        };
        let random = self.random.clone();
        let mut builder = Client::builder().limits(limits).on_form(move |ask| {
            let random = random.clone();
            async move {
                let asked = Effect::parse(ask.message.lines().next().unwrap_or_default());
                let asked = asked.ok_or("unexpected ask")?;
                let delay = answer_delay(&mut random.lock());
                tokio::time::sleep(delay).await;
                let number = TaskPlan::call(asked.number).answer(asked.part, asked.step);
                Ok(AskAnswer::accept(json!({"number": number}))?)
            }
        });
        if home == CallHome::Legacy {
            builder = builder.dialect(Dialect::Revision(Revision::V2025_11_25));
        }
        let begun = micros();
        match builder.connect(&self.soak.url).await {
            Ok(client) => Some(client),
            Err(error) => {
                self.count_disconnect(
                    begun,
                    &format!("{home:?} client could not connect: {error}"),
                );
                self.pause().await;
                None
            }
        }
    }

    /// Counts a lost connection. Without a kill since `begun` it is a fault.
    fn count_disconnect(&self, begun: u64, error: &str) {
        match self.soak.was_killed_since(begun) {
            true => self.soak.counts.lock().reconnects += 1,
            false => self
                .soak
                .fault(format!("no instance was killed, but a {error}")),
        }
    }

    async fn call(&self, home: CallHome, client: &Client) {
        let number = self.soak.next_call.fetch_add(1, Ordering::Relaxed);
        let tool = match home {
            CallHome::Live => LIVE_TOOL,
            CallHome::Client | CallHome::Legacy => CALL_TOOL,
        };
        let Value::Object(arguments) = json!(TaskPlan::call(number)) else {
            return;
        };
        let from = micros();
        let called = client
            .call(CallSpec::tool(tool).with_arguments(arguments))
            .await;
        let outcome = match called {
            Ok(result) if result["isError"] == true => CallOutcome::Failed(result.to_string()),
            Ok(result) => match result["content"][0]["text"].as_str() {
                Some(text) => CallOutcome::Completed(text.to_owned()),
                None => CallOutcome::Failed(result.to_string()),
            },
            Err(error) if is_lost(&error) => CallOutcome::Lost(error.to_string()),
            Err(error) => CallOutcome::Failed(error.to_string()),
        };
        self.soak.calls.lock().push(CallEnd {
            number,
            home,
            outcome,
            from,
            to: micros(),
        });
    }

    /// Subscribes to the resource for a while, again and again.
    async fn subscribe(self) {
        let uris = vec![RESOURCE.to_owned()];
        let filter = Filter {
            uris,
            ..Filter::default()
        };
        while !self.soak.is_over() {
            let Some(client) = self.connect(CallHome::Client).await else {
                continue;
            };
            let begun = micros();
            let time = about(&mut self.random.lock(), UPDATE_TIMEOUT * 2);
            let until = (Instant::now() + time).min(self.soak.end);
            if let Err(error) = self.listen(&client, &filter, until).await {
                self.count_disconnect(begun, &format!("subscription ended: {error}"));
            }
            client.close().await;
        }
    }

    async fn listen(&self, client: &Client, filter: &Filter, until: Instant) -> Result<(), Error> {
        let mut changes = client.listen(filter).await?;
        self.soak.counts.lock().subscriptions += 1;
        while Instant::now() < until {
            let limit = until.min(Instant::now() + UPDATE_TIMEOUT);
            match tokio::time::timeout_at(limit.into(), changes.next()).await {
                Ok(Ok(Some(ServerChange::Resource(uri)))) if uri == RESOURCE => {
                    self.soak.counts.lock().updates += 1;
                }
                Ok(Ok(Some(change))) => self.soak.fault(format!("unexpected change {change:?}")),
                Ok(Ok(None)) => return Err(ErrorKind::Stopped.into()),
                Ok(Err(error)) => return Err(error),
                Err(_) if limit < until => {
                    let seconds = UPDATE_TIMEOUT.as_secs();
                    self.soak.fault(format!("no update within {seconds} s"));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Soak {
    /// Whether an instance was killed after this time, or shortly before.
    fn was_killed_since(&self, begun: u64) -> bool {
        let last = self.run.fleet.disruptions.lock().kills.last().copied();
        last.is_some_and(|kill| kill.at + KILL_GRACE >= begun)
    }
}

/// Most answers are quick. Late ones make calls wait while instances are killed.
fn answer_delay(random: &mut Rng) -> Duration {
    match percent(random, 30) {
        true => millis_below(random, MAX_LATE_DELAY),
        false => millis_below(random, MAX_QUICK_DELAY),
    }
}

/// Whether the error reports a call that was lost with its instance.
fn is_lost(error: &Error) -> bool {
    match &error.kind {
        ErrorKind::ConnectionLost(_) | ErrorKind::Unreachable { .. } => true,
        ErrorKind::Rpc(failure) => {
            let lost = [
                "another instance holds this call",
                // The call's first response was lost with its instance.
                "a call with this call id already started",
            ];
            failure.is_call_over() || lost.iter().any(|text| failure.message.starts_with(text))
        }
        // The answer did not reach the call.
        ErrorKind::Unanswered(asks) => asks.iter().any(|ask| ask.why.contains("the call was lost")),
        _ => false,
    }
}
