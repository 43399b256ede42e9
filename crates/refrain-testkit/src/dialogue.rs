//! A call at work, round by round: what is sent, delivered, lost and answered.

use crate::call::{Call, Doubled, Faults, Keep};
use crate::fleet::{Fleet, read};
use crate::outcome::{CrashPoint, Outcome, RoundReport, note};
use crate::script::{Asked, Player, Script};
use refrain::runtime::server::Status;
use refrain_core::Note;
use serde_json::{Map, Value, json};

/// A call made round by round. Between two rounds a test may let time pass, change the request or become another
/// caller.
#[derive(Debug)]
pub struct Dialogue<'f> {
    fleet: &'f Fleet,
    player: Player,
    faults: Faults,
    request: Value,
    /// The version that serves the next request.
    turn: usize,
    rounds: Vec<RoundReport>,
    crash: Option<CrashPoint>,
    end: Option<Value>,
}

/// What came of one delivery of a request.
struct Delivery {
    version: usize,
    /// `None`: the instance crashed.
    reply: Option<Value>,
    notes: Vec<Note>,
    replayed: u32,
    steps: u32,
}

impl<'f> Dialogue<'f> {
    pub(crate) fn new(call: &Call<'f>, run: usize) -> Self {
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
            end: None,
        }
    }

    /// The next request, as it is about to be sent. It may be changed.
    pub fn request(&mut self) -> &mut Value {
        &mut self.request
    }

    /// Goes on with another script: other answers, or another caller. What the request declares stays as it is.
    pub fn set_script(&mut self, script: Script) {
        self.player = Player::new(script);
    }

    /// Plays the next round. `None` if the call is over.
    ///
    /// # Panics
    ///
    /// If something is asked that the script has no answer to.
    pub async fn next(&mut self) -> Option<&RoundReport> {
        if self.is_over() {
            return None;
        }
        let (delivery, deliveries) = self.deliver().await;
        let reply = delivery.reply.unwrap_or_default();
        assert_eq!(
            reply["id"], self.request["id"],
            "the reply {reply} is not to this request"
        );
        let mut round = RoundReport {
            asks: Vec::new(),
            token: None,
            notes: delivery.notes,
            version: delivery.version,
            deliveries,
            replayed: delivery.replayed,
            steps: delivery.steps,
        };
        if reply["result"]["resultType"] == "input_required" {
            self.answer(&reply["result"], &mut round);
        } else {
            self.end = Some(reply);
        }
        self.rounds.push(round);
        self.rounds.last()
    }

    /// Has the call come to its end?
    pub fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// The rounds so far.
    pub fn rounds(&self) -> &[RoundReport] {
        &self.rounds
    }

    /// What came of the call.
    ///
    /// # Panics
    ///
    /// If the call is not over.
    #[track_caller]
    pub fn into_outcome(self) -> Outcome {
        Outcome {
            rounds: self.rounds,
            reply: self.end.expect("the call is not over"),
            crash: self.crash,
        }
    }

    /// Answers what a reply asks, in the next request.
    fn answer(&mut self, result: &Value, round: &mut RoundReport) {
        let asks = result["inputRequests"].as_object().into_iter().flatten();
        round.asks = asks
            .map(|(key, request)| Asked {
                key: key.clone(),
                request: request.clone(),
                answer: None,
            })
            .collect();
        round.asks.sort_by(|one, other| one.key.cmp(&other.key));
        let mut answers = Map::new();
        for asked in &mut round.asks {
            asked.answer = self.player.answer(asked);
            if let Some(answer) = &asked.answer {
                answers.insert(asked.key.clone(), answer.clone());
            }
        }
        round.token = result["requestState"].as_str().map(str::to_owned);
        let id = self.request["id"].as_u64().unwrap_or_default();
        self.request["id"] = json!(id + 1);
        if let Some(params) = self.request["params"].as_object_mut() {
            match round.asks.is_empty() {
                true => params.remove("inputResponses"),
                false => params.insert("inputResponses".into(), answers.into()),
            };
            match &round.token {
                Some(token) => params.insert("requestState".into(), json!(token)),
                None => params.remove("requestState"),
            };
        }
    }

    /// Has the request served, with all that goes wrong in this round. Also says how often it was delivered.
    async fn deliver(&mut self) -> (Delivery, usize) {
        let round = self.rounds.len() + 1;
        let mut deliveries = 0;
        if self.faults.lost_requests.has(round) {
            self.turn += 1;
        }
        if let Some(point) = self.faults.crash.filter(|point| point.round == round) {
            deliveries += 1;
            let delivery = self.attempt(point.operation).await;
            if point.operation.is_some() && delivery.reply.is_some() {
                return (delivery, deliveries);
            }
            self.crash = Some(point);
        }
        if self.faults.lost_responses.has(round) {
            deliveries += 1;
            self.attempt(None).await;
        }
        let delivery = match self.faults.doubled {
            None => {
                deliveries += 1;
                self.attempt(None).await
            }
            Some(Doubled { keep, together }) => {
                deliveries += 2;
                let (first, second) = (self.prepare(None), self.prepare(None));
                let (first, second) = if together {
                    futures_util::join!(first, second)
                } else {
                    (first.await, second.await)
                };
                match keep {
                    Keep::First => first,
                    Keep::Second => second,
                }
            }
        };
        (delivery, deliveries)
    }

    async fn attempt(&mut self, crash_after: Option<u32>) -> Delivery {
        self.prepare(crash_after).await
    }

    /// Hands the request to the next instance. Nothing is served until the future is polled.
    fn prepare(&mut self, crash_after: Option<u32>) -> impl Future<Output = Delivery> + use<'f> {
        let version = self.turn % self.fleet.versions();
        self.turn += 1;
        let server = self.fleet.instance(version);
        if self.faults.draining.has(self.rounds.len() + 1) {
            server.start_draining();
        }
        let message = self.request.to_string();
        let caller = self.player.script.who();
        async move {
            let mut delivery = Delivery {
                version,
                reply: None,
                notes: Vec::new(),
                replayed: 0,
                steps: 0,
            };
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
                let message = read(&message);
                if message.get("method").is_some() {
                    delivery.notes.extend(note(&message));
                } else {
                    delivery.reply = Some(message);
                }
            }
            if let Some(round) = outgoing.round() {
                let stats = round.stats();
                (delivery.replayed, delivery.steps) = (stats.replayed, stats.steps);
            }
            delivery
        }
    }
}
