//! The client of one task: it has it made, answers what it asks, and looks after it until it is over.
//!
//! It is as bad a client as the protocol allows: it repeats itself, answers late, one thing at a time, twice, wrongly, and
//! what nobody has asked.

use crate::error::Error;
use crate::fleet::Fleet;
use crate::plan::{Effect, Plan};
use crate::random::Random;
use crate::worker::TOOL;
use refrain::auth::Principal;
use refrain::runtime::PROTOCOL_VERSION;
use refrain::server::Server;
use refrain_wire::{
    CALL_ID_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, PROTOCOL_VERSION_KEY, TASKS_EXTENSION,
};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a worker has for a reply before another one is asked.
const REPLY: Duration = Duration::from_secs(5);
/// How long a request is repeated before the run has failed.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a task is looked at.
const LOOK: Duration = Duration::from_millis(300);
/// The latest that an ask is answered.
const LATE: u64 = 1500;

/// What clients did, in all.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    /// Requests to make a task that were sent again, since no reply came.
    pub(crate) calls_repeated: AtomicU64,
    /// Requests to make a task that were sent again for no reason.
    pub(crate) calls_doubled: AtomicU64,
    /// Asks answered.
    pub(crate) answers: AtomicU64,
    /// Asks answered again, with something else.
    pub(crate) answers_doubled: AtomicU64,
    /// Asks answered with what does not fit.
    pub(crate) answers_wrong: AtomicU64,
    /// Answers to keys that nobody has asked for.
    pub(crate) answers_unknown: AtomicU64,
    /// Requests about tasks that had to be sent again, since the store could not be reached.
    pub(crate) requests_repeated: AtomicU64,
    next_id: AtomicU64,
}

fn count(deed: &AtomicU64) {
    deed.fetch_add(1, Ordering::Relaxed);
}

/// How a task ended, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) plan: Plan,
    pub(crate) id: String,
    pub(crate) status: String,
    /// What it came to: a text, or an error.
    pub(crate) outcome: String,
    /// What the client has to complain of.
    pub(crate) complaints: Vec<String>,
}

/// The client of one task.
pub(crate) struct Client<'a> {
    pub(crate) fleet: &'a Fleet,
    /// An instance that runs no tasks, and is asked about them.
    pub(crate) server: &'a Server,
    pub(crate) deeds: &'a Deeds,
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) complaints: Vec<String>,
}

/// An ask as it is dealt with.
struct Asked {
    part: u8,
    ask: u8,
    due: Instant,
}

impl Client<'_> {
    /// Sees the task through to its end. `made` is told its id.
    pub(crate) async fn run(mut self, made: impl FnOnce(&str)) -> Result<Ended, Error> {
        let id = self.create().await?;
        made(&id);
        if self.random.percent(10) {
            count(&self.deeds.calls_doubled);
            let again = self.create().await?;
            if again != id {
                self.complaints
                    .push("a call that was repeated became another task".to_owned());
            }
        }
        let mut asked: HashMap<String, Asked> = HashMap::new();
        let mut answered: HashSet<String> = HashSet::new();
        let mut wronged: HashSet<(u8, u8)> = HashSet::new();
        loop {
            let task = self.about("tasks/get", json!({"taskId": id})).await?;
            let status = task["status"].as_str().unwrap_or_default().to_owned();
            if ["completed", "failed", "cancelled"].contains(&&*status) {
                return Ok(self.ended(id, status, &task));
            }
            let open = task["inputRequests"].as_object().cloned();
            let open = open.unwrap_or_default();
            asked.retain(|key, _| open.contains_key(key));
            for (key, ask) in &open {
                if answered.contains(key) {
                    let complaint = format!("{key:?} was answered, and is asked for again");
                    self.complaints.push(complaint);
                } else if !asked.contains_key(key) {
                    asked.insert(key.clone(), self.plan_answer(ask)?);
                }
            }
            let now = Instant::now();
            let due = asked.extract_if(|_, asked| asked.due <= now);
            let due: Vec<(String, Asked)> = due.collect();
            for (key, asked) in due {
                let wrong = self.random.percent(7) && wronged.insert((asked.part, asked.ask));
                self.answer(&id, &key, &asked, wrong).await?;
                answered.insert(key);
            }
            let wait = self.random.about(LOOK);
            tokio::time::sleep(wait).await;
        }
    }

    /// Has a worker make the task. Every repetition has the same call id, so there is one task of it.
    async fn create(&mut self) -> Result<String, Error> {
        let number = self.plan.number;
        let begun = Instant::now();
        let mut last = Value::Null;
        while begun.elapsed() < PATIENCE {
            let params = json!({
                "name": TOOL,
                "arguments": self.plan,
                "_meta": meta(Some(number)),
            });
            let (id, line) = self.line("tools/call", &params);
            if let Some(reply) = self.fleet.request(id, line, REPLY).await {
                if let Some(task) = reply["result"]["taskId"].as_str() {
                    return Ok(task.to_owned());
                }
                if !is_unreachable(&reply) {
                    return Err(self.wrong_reply("tools/call", &reply));
                }
                last = reply;
            }
            count(&self.deeds.calls_repeated);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(self.no_reply("tools/call", &last))
    }

    /// When and how an ask will be answered.
    fn plan_answer(&mut self, ask: &Value) -> Result<Asked, Error> {
        // Where the last answer did not fit, the reason follows.
        let message = ask["params"]["message"].as_str().unwrap_or_default();
        let first = message.lines().next().unwrap_or_default();
        let Some(asked) = Effect::parse(first).filter(|it| it.number == self.plan.number) else {
            return Err(self.wrong_reply("tasks/get", ask));
        };
        let wait = match self.random.percent(30) {
            true => Duration::ZERO,
            false => self.random.millis_below(LATE),
        };
        Ok(Asked {
            part: asked.place.part,
            ask: asked.place.step,
            due: Instant::now() + wait,
        })
    }

    async fn answer(
        &mut self,
        id: &str,
        key: &str,
        asked: &Asked,
        wrong: bool,
    ) -> Result<(), Error> {
        let number = self.plan.answer(asked.part, asked.ask);
        let mut answers = json!({key: accept(&json!(number))});
        if wrong {
            count(&self.deeds.answers_wrong);
            answers[key] = accept(&json!("many"));
        }
        if self.random.percent(15) {
            count(&self.deeds.answers_unknown);
            answers["nobody-asked"] = accept(&json!(-1));
        }
        let params = json!({"taskId": id, "inputResponses": answers});
        self.about("tasks/update", params).await?;
        count(&self.deeds.answers);
        if !wrong && self.random.percent(20) {
            // The first one counts, whatever comes after it.
            count(&self.deeds.answers_doubled);
            let answers = json!({key: accept(&json!(-2))});
            let params = json!({"taskId": id, "inputResponses": answers});
            self.about("tasks/update", params).await?;
        }
        Ok(())
    }

    /// A request about a task, sent again for as long as the store cannot be reached.
    async fn about(&self, method: &'static str, mut params: Value) -> Result<Value, Error> {
        params["_meta"] = meta(None);
        let begun = Instant::now();
        let mut last = Value::Null;
        while begun.elapsed() < PATIENCE {
            let (_, line) = self.line(method, &params);
            let mut response = self.server.handle(&line, Principal::anonymous()).await;
            let reply = response.next().await.unwrap_or_default();
            let mut reply: Value = serde_json::from_slice(&reply).unwrap_or_default();
            if reply["result"].is_object() {
                return Ok(reply["result"].take());
            }
            if !is_unreachable(&reply) {
                return Err(self.wrong_reply(method, &reply));
            }
            last = reply;
            count(&self.deeds.requests_repeated);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(self.no_reply(method, &last))
    }

    fn line(&self, method: &str, params: &Value) -> (u64, Vec<u8>) {
        let id = self.deeds.next_id.fetch_add(1, Ordering::Relaxed);
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        (id, request.to_string().into_bytes())
    }

    fn ended(self, id: String, status: String, task: &Value) -> Ended {
        let result = &task["result"];
        let failed = result["isError"].as_bool().unwrap_or(false);
        let text = result["content"][0]["text"].as_str();
        let outcome = match text.filter(|_| status == "completed" && !failed) {
            Some(text) => text.to_owned(),
            None => task.to_string(),
        };
        Ended {
            plan: self.plan,
            id,
            status,
            outcome,
            complaints: self.complaints,
        }
    }

    fn wrong_reply(&self, method: &'static str, reply: &Value) -> Error {
        Error::Reply {
            number: self.plan.number,
            method,
            reply: reply.to_string(),
        }
    }

    fn no_reply(&self, method: &'static str, last: &Value) -> Error {
        Error::NoReply {
            number: self.plan.number,
            method,
            seconds: PATIENCE.as_secs(),
            last: last.to_string(),
        }
    }
}

/// Is it worth trying again?
fn is_unreachable(reply: &Value) -> bool {
    let message = reply["error"]["message"].as_str();
    message.is_some_and(|message| message.contains("try again"))
}

fn accept(number: &Value) -> Value {
    json!({"action": "accept", "content": {"number": number}})
}

fn meta(call: Option<u32>) -> Value {
    let mut meta = json!({
        PROTOCOL_VERSION_KEY: PROTOCOL_VERSION,
        CLIENT_INFO_KEY: {"name": "refrain-crash", "version": env!("CARGO_PKG_VERSION")},
        CLIENT_CAPABILITIES_KEY: {
            "elicitation": {"form": {}},
            "extensions": {TASKS_EXTENSION: {}},
        },
    });
    if let Some(call) = call {
        meta[CALL_ID_KEY] = json!(format!("task {call}"));
    }
    meta
}
