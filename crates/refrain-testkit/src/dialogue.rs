//! A call round by round: requests, deliveries, faults and answers.

use crate::call::{Faults, KeepResponse, TestCall};
use crate::fleet::{Fleet, parse};
use crate::outcome::{CallOutcome, CrashPoint, RoundReport, parse_note};
use crate::script::{Player, ReceivedAsk, Script};
use crate::task::{TestTask, final_reply};
use refrain::runtime::server::Status;
use serde_json::{Map, Value, json};

/// A call made round by round. Between two rounds a test may let time pass, change the request or the caller.
#[derive(Debug)]
pub struct Dialogue<'f> {
    fleet: &'f Fleet,
    player: Player,
    faults: Faults,
    request: Value,
    /// Counts deliveries, from the first version on: version `turn % versions` serves the next request.
    turn: usize,
    rounds: Vec<RoundReport>,
    /// The crash that has happened.
    crash: Option<CrashPoint>,
    /// The task that the call has become.
    task: Option<TestTask>,
    /// The reply that ended the call.
    end: Option<Value>,
}

/// The report of one delivery, and its reply; `None` if the instance crashed.
type Delivery = (RoundReport, Option<Value>);

impl<'f> Dialogue<'f> {
    pub(crate) fn new(call: &TestCall<'f>, run: usize) -> Self {
        let mut params = call.params.clone();
        params["_meta"] = call.script.meta(run);
        Self {
            fleet: call.fleet,
            player: Player::new(call.script.clone()),
            faults: call.faults.clone(),
            request: json!({"jsonrpc": "2.0", "id": 1, "method": call.method, "params": params}),
            turn: call.first_version,
            rounds: Vec::new(),
            crash: None,
            task: None,
            end: None,
        }
    }

    /// The next request. It may be changed.
    pub fn request(&mut self) -> &mut Value {
        &mut self.request
    }

    /// Continues with another script: other answers, or another caller. The `_meta` of the request stays as it is.
    pub fn set_script(&mut self, script: Script) {
        self.player = Player::new(script);
    }

    /// Plays the next round. `None` if the call is over.
    ///
    /// If the call becomes a task, the round ends when the task asks or ends, and further rounds send answers to the task.
    /// While the task sleeps, the clock advances to the time at which it wakes.
    ///
    /// # Panics
    ///
    /// If the script has no answer to an ask, or a task was cancelled or makes no progress for a minute.
    pub async fn next(&mut self) -> Option<&RoundReport> {
        if self.is_over() {
            return None;
        }
        let (mut round, reply) = self.deliver().await;
        let reply = reply.unwrap_or_default();
        assert_eq!(
            reply["id"], self.request["id"],
            "the reply {reply} has another id than the request"
        );
        let result = &reply["result"];
        if let Some(id) = result["taskId"].as_str().filter(|_| is_task(result)) {
            let meta = &self.request["params"]["_meta"];
            self.task = Some(TestTask::new(id, meta, &self.player.script));
        }
        match &self.task {
            Some(task) if reply.get("error").is_none() => {
                let task = task.settle(self.fleet, &mut self.turn).await;
                self.end = final_reply(&self.request, &task);
                self.answer(&task, &mut round);
            }
            None if result["resultType"] == "input_required" => self.answer(result, &mut round),
            _ => self.end = Some(reply),
        }
        self.rounds.push(round);
        self.rounds.last()
    }

    /// Whether the call has ended.
    pub fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// The rounds so far.
    pub fn rounds(&self) -> &[RoundReport] {
        &self.rounds
    }

    /// The outcome of the call.
    ///
    /// # Panics
    ///
    /// If the call is not over.
    #[track_caller]
    pub fn into_outcome(self) -> CallOutcome {
        CallOutcome {
            rounds: self.rounds,
            reply: self.end.expect("the call is not over"),
            crash: self.crash,
            task_id: self.task.map(|task| task.id),
        }
    }

    /// Puts the answers to the asks of a reply, and its token, into the next request.
    fn answer(&mut self, result: &Value, round: &mut RoundReport) {
        let asks = result["inputRequests"].as_object().into_iter().flatten();
        let mut asks: Vec<_> = asks.collect();
        asks.sort_by_key(|&(key, _)| key);
        let mut answers = Map::new();
        for (key, request) in asks {
            let mut asked = ReceivedAsk {
                key: key.clone(),
                request: request.clone(),
                answer: None,
            };
            asked.answer = self.player.answer(&asked);
            answers.extend(asked.answer.clone().map(|answer| (key.clone(), answer)));
            round.asks.push(asked);
        }
        let id = self.request["id"].as_u64().unwrap_or_default() + 1;
        if let Some(task) = &mut self.task {
            let unanswered = round.asks.iter().filter(|asked| asked.answer.is_none());
            let keys = unanswered.map(|asked| asked.key.clone());
            task.unanswered.extend(keys);
            self.request = task.update(id, &answers);
            return;
        }
        round.token = result["requestState"].as_str().map(str::to_owned);
        self.request["id"] = json!(id);
        let Some(params) = self.request["params"].as_object_mut() else {
            return;
        };
        params.remove("inputResponses");
        params.remove("requestState");
        if !round.asks.is_empty() {
            params.insert("inputResponses".into(), answers.into());
        }
        if let Some(token) = &round.token {
            params.insert("requestState".into(), json!(token));
        }
    }

    /// Delivers the request, with the faults of this round.
    async fn deliver(&mut self) -> Delivery {
        let round = self.rounds.len() + 1;
        // A lost request skips the instance that it was meant for.
        self.turn += usize::from(self.faults.lost_requests.contains(&round));
        let before = self.turn;
        if let Some(point) = self.faults.crash.filter(|point| point.round == round) {
            let (mut report, reply) = self.send(point.operation).await;
            // The round ended before the crash point.
            if point.operation.is_some() && reply.is_some() {
                report.deliveries = 1;
                return (report, reply);
            }
            self.crash = Some(point);
        }
        if self.faults.loses_every_response || self.faults.lost_responses.contains(&round) {
            self.send(None).await;
        }
        let first = self.send(None);
        let (mut report, reply) = match self.faults.duplicated {
            None => first.await,
            Some(keep) => {
                let second = self.send(None);
                let (first, second) = if self.faults.is_concurrent {
                    futures_util::join!(first, second)
                } else {
                    (first.await, second.await)
                };
                match keep {
                    KeepResponse::First => first,
                    KeepResponse::Second => second,
                }
            }
        };
        report.deliveries = self.turn - before;
        (report, reply)
    }

    /// Sends the request to the next instance, once the future is polled.
    fn send(&mut self, crash_after: Option<u32>) -> impl Future<Output = Delivery> + use<'f> {
        let version = self.turn % self.fleet.versions();
        self.turn += 1;
        let server = self.fleet.instance(version);
        if self.faults.draining.contains(&(self.rounds.len() + 1)) {
            server.start_draining();
        }
        let message = self.request.to_string();
        let caller = self.player.script.caller.clone();
        let fleet = self.fleet;
        async move {
            let mut report = RoundReport {
                version,
                ..RoundReport::default()
            };
            let mut reply = None;
            let mut outgoing = server.handle(message.as_bytes(), caller).await;
            assert_ne!(
                *outgoing.status(),
                Status::Accepted,
                "the request has become a notification, which has no reply: {message}"
            );
            if let (Some(polls), Some(round)) = (crash_after, outgoing.round()) {
                round.crash_after(polls);
            }
            while let Some(message) = outgoing.next().await {
                let message = parse(&message);
                if message.get("method").is_some() {
                    report.notes.extend(parse_note(&message));
                } else {
                    reply = Some(message);
                }
            }
            if let Some(round) = outgoing.round() {
                let stats = round.stats();
                (report.replayed, report.steps) = (stats.replayed, stats.steps);
            }
            if server.running_tasks() > 0 {
                fleet.running.lock().push(server);
            }
            (report, reply)
        }
    }
}

fn is_task(result: &Value) -> bool {
    result["resultType"] == "task"
}
