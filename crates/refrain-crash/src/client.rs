//! The client of one task: creates it, answers its asks, and waits for its end.
//!
//! It misbehaves as far as the protocol allows: it repeats requests, and answers late, one ask at a time, twice, with
//! wrong types and under keys that do not exist.

use crate::clock::PATIENCE;
use crate::error::CrashError;
use crate::plan::{Effect, TaskPlan};
use crate::random::{about, millis_below, percent, random_stream};
use crate::run::CrashRun;
use crate::worker::TASK_TOOL;
use fastrand::Rng;
use refrain::auth::Principal;
use refrain_testkit::net::{CAPABILITIES_KEY, Request, TASKS_EXTENSION};
use refrain_wire::CALL_ID_KEY;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The random stream of the clients.
const RANDOM_STREAM: u64 = 0x63_6c_69_65;
/// The mean interval between `tasks/get` requests.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The maximum delay of an answer, in milliseconds.
const MAX_ANSWER_DELAY: u64 = 1500;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ClientCounts {
    pub(crate) answers: u64,
    /// Asks answered with a value of the wrong type.
    pub(crate) answers_wrong: u64,
    /// Asks answered again, with another value.
    pub(crate) answers_duplicated: u64,
    /// Answers to keys that do not exist.
    pub(crate) answers_unknown: u64,
    /// Calls retried because no reply came.
    pub(crate) calls_repeated: u64,
    /// Calls sent twice on purpose.
    pub(crate) calls_duplicated: u64,
    /// Requests about tasks retried because the store was unavailable.
    pub(crate) requests_repeated: u64,
}

/// The end of a task, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskEnd {
    pub(crate) plan: TaskPlan,
    pub(crate) id: String,
    pub(crate) status: String,
    /// The text of the result, or an error.
    pub(crate) outcome: String,
    /// Violations of the protocol that the client saw.
    pub(crate) faults: Vec<String>,
}

pub(crate) struct TaskClient<'a> {
    run: &'a CrashRun,
    plan: TaskPlan,
    random: Rng,
    faults: Vec<String>,
}

/// An ask, and when it will be answered.
struct PlannedAnswer {
    part: u8,
    ask: u8,
    due: Instant,
}

impl<'a> TaskClient<'a> {
    pub(crate) fn new(run: &'a CrashRun, number: u32) -> Self {
        Self {
            run,
            plan: TaskPlan::new(run.seed, number),
            random: random_stream(run.seed, RANDOM_STREAM ^ (u64::from(number) << 32)),
            faults: Vec::new(),
        }
    }

    /// Runs the task to its end.
    pub(crate) async fn run(mut self) -> Result<TaskEnd, CrashError> {
        let id = self.create().await?;
        let number = self.plan.number;
        self.run.in_flight.lock().insert(number, id.clone());
        if percent(&mut self.random, 10) {
            self.run.counts.lock().calls_duplicated += 1;
            if self.create().await? != id {
                let fault = "a repeated call created a second task";
                self.faults.push(fault.to_owned());
            }
        }
        let mut planned: HashMap<String, PlannedAnswer> = HashMap::new();
        let mut answered: HashSet<String> = HashSet::new();
        let mut answered_wrong: HashSet<(u8, u8)> = HashSet::new();
        loop {
            let task = self
                .task_request("tasks/get", json!({"taskId": id}))
                .await?;
            let status = task["status"].as_str().unwrap_or_default();
            if ["completed", "failed", "cancelled"].contains(&status) {
                self.run.in_flight.lock().remove(&number);
                return Ok(self.into_end(id, &task));
            }
            let open = task["inputRequests"].as_object().cloned();
            let open = open.unwrap_or_default();
            planned.retain(|key, _| open.contains_key(key));
            for (key, ask) in &open {
                if answered.contains(key) {
                    let fault = format!("{key:?} was asked again after its answer");
                    self.faults.push(fault);
                } else if !planned.contains_key(key) {
                    planned.insert(key.clone(), self.plan_answer(ask)?);
                }
            }
            let now = Instant::now();
            let due = planned.extract_if(|_, answer| answer.due <= now);
            let due: Vec<(String, PlannedAnswer)> = due.collect();
            for (key, answer) in due {
                let is_wrong = percent(&mut self.random, 7)
                    && answered_wrong.insert((answer.part, answer.ask));
                self.answer(&id, &key, &answer, is_wrong).await?;
                answered.insert(key);
            }
            let wait = about(&mut self.random, POLL_INTERVAL);
            tokio::time::sleep(wait).await;
        }
    }

    /// Creates the task. Retries use the same call id, so only one task is created.
    async fn create(&self) -> Result<String, CrashError> {
        let call_id = json!(format!("task {}", self.plan.number));
        let call = Request::tool(TASK_TOOL, json!(self.plan)).meta(CALL_ID_KEY, call_id);
        let count_retry = |counts: &mut ClientCounts| counts.calls_repeated += 1;
        let send = |request| async move { self.run.fleet.request(&request).await };
        let result = self.request("tools/call", call, count_retry, send).await?;
        let id = result["taskId"].as_str().map(ToOwned::to_owned);
        id.ok_or_else(|| self.unexpected_reply("tools/call", &result))
    }

    /// Chooses when to answer an ask.
    fn plan_answer(&mut self, ask: &Value) -> Result<PlannedAnswer, CrashError> {
        // After an answer of the wrong type, the second line states the reason.
        let message = ask["params"]["message"].as_str().unwrap_or_default();
        let first = message.lines().next().unwrap_or_default();
        let Some(asked) = Effect::parse(first).filter(|ask| ask.number == self.plan.number) else {
            return Err(self.unexpected_reply("tasks/get", ask));
        };
        let wait = match percent(&mut self.random, 30) {
            true => Duration::ZERO,
            false => millis_below(&mut self.random, MAX_ANSWER_DELAY),
        };
        Ok(PlannedAnswer {
            part: asked.part,
            ask: asked.step,
            due: Instant::now() + wait,
        })
    }

    async fn answer(
        &mut self,
        id: &str,
        key: &str,
        answer: &PlannedAnswer,
        is_wrong: bool,
    ) -> Result<(), CrashError> {
        let number = self.plan.answer(answer.part, answer.ask);
        let mut answers = json!({key: accept(&json!(number))});
        if is_wrong {
            self.run.counts.lock().answers_wrong += 1;
            answers[key] = accept(&json!("many"));
        }
        if percent(&mut self.random, 15) {
            self.run.counts.lock().answers_unknown += 1;
            answers["unknown-key"] = accept(&json!(-1));
        }
        let params = json!({"taskId": id, "inputResponses": answers});
        self.task_request("tasks/update", params).await?;
        self.run.counts.lock().answers += 1;
        if !is_wrong && percent(&mut self.random, 20) {
            // The first answer counts.
            self.run.counts.lock().answers_duplicated += 1;
            let answers = json!({key: accept(&json!(-2))});
            let params = json!({"taskId": id, "inputResponses": answers});
            self.task_request("tasks/update", params).await?;
        }
        Ok(())
    }

    /// Sends a request about a task to the instance that runs no tasks, if there is one, or to the workers.
    async fn task_request(&self, method: &'static str, params: Value) -> Result<Value, CrashError> {
        let id = params["taskId"].as_str().unwrap_or_default().to_owned();
        let request = Request::rpc(method, params).header("Mcp-Name", &id);
        let count_retry = |counts: &mut ClientCounts| counts.requests_repeated += 1;
        let send = |request: Request| async move {
            let Some(server) = &self.run.server else {
                return self.run.fleet.request(&request).await;
            };
            let caller = Principal::anonymous();
            let mut response = server.handle(&request.message(), caller).await;
            let reply = response.next().await.unwrap_or_default();
            Some(serde_json::from_slice(&reply).unwrap_or_default())
        };
        self.request(method, request, count_retry, send).await
    }

    /// Sends a request, with retries while there is no reply or the store is unavailable. Returns its result.
    async fn request<F: Future<Output = Option<Value>>>(
        &self,
        method: &'static str,
        request: Request,
        count_retry: fn(&mut ClientCounts),
        send: impl Fn(Request) -> F,
    ) -> Result<Value, CrashError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);

        let capabilities =
            json!({"elicitation": {"form": {}}, "extensions": {TASKS_EXTENSION: {}}});
        let request = request.meta(CAPABILITIES_KEY, capabilities);
        let begun = Instant::now();
        let mut last = Value::Null;
        while begun.elapsed() < PATIENCE {
            let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
            if let Some(mut reply) = send(request.clone().id(json!(id))).await {
                if reply["result"].is_object() {
                    return Ok(reply["result"].take());
                }
                // The errors of an unavailable store and of an exceeded limit say so.
                let message = reply["error"]["message"].as_str();
                if !message.is_some_and(|message| message.contains("try again")) {
                    return Err(self.unexpected_reply(method, &reply));
                }
                last = reply;
            }
            count_retry(&mut self.run.counts.lock());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let seconds = PATIENCE.as_secs();
        let problem = format!("not answered within {seconds} seconds; the last error: {last}");
        Err(self.failed(method, &problem))
    }

    fn into_end(self, id: String, task: &Value) -> TaskEnd {
        let status = task["status"].as_str().unwrap_or_default();
        let result = &task["result"];
        let failed = result["isError"].as_bool().unwrap_or(false);
        let text = result["content"][0]["text"].as_str();
        let outcome = match text.filter(|_| status == "completed" && !failed) {
            Some(text) => text.to_owned(),
            None => task.to_string(),
        };
        TaskEnd {
            plan: self.plan,
            id,
            status: status.to_owned(),
            outcome,
            faults: self.faults,
        }
    }

    fn unexpected_reply(&self, method: &'static str, reply: &Value) -> CrashError {
        self.failed(method, &format!("answered with {reply}"))
    }

    fn failed(&self, method: &'static str, problem: &str) -> CrashError {
        format!("task {}: {method} was {problem}", self.plan.number).into()
    }
}

pub(crate) fn accept(number: &Value) -> Value {
    json!({"action": "accept", "content": {"number": number}})
}
