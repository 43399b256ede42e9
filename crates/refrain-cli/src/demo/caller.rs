//! Callers that answer asks from a script, and their calls.
//!
//! The balancer reports which instance served a round; `refrain-client` reports the asks and the result.

use super::balancer::{DemoBalancer, RecordedExchange};
use crate::AppError;
use refrain_client::wire::{AskKind, Implementation};
use refrain_client::{
    AskAnswer, Bearer, CallSpec, Client, ClientBuilder, ErrorKind, PendingCall, RpcFailure,
};
use serde::Serialize;
use serde_json::{Map, Value};

/// The demo stays within ten rounds, the limit of common clients.
const ROUNDS_MAX: u32 = 10;

/// The answers of a caller, by the key of the ask.
pub(super) type DemoScript<'a> = &'a [(&'a str, Value)];

/// The result of a call if it is done, or a JSON-RPC error.
type DemoReply = Result<Option<Value>, RpcFailure>;

/// A caller that is connected through the balancer.
#[derive(Clone)]
pub(super) struct DemoCaller {
    pub(super) principal: &'static str,
    client: Client,
    builder: ClientBuilder,
    balancer: DemoBalancer,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DemoRound {
    #[serde(rename = "round")]
    pub(super) number: u32,
    pub(super) answers: Map<String, Value>,
    pub(super) sent_token_bytes: usize,
    #[serde(flatten)]
    pub(super) cost: Option<RoundCost>,
    #[serde(flatten)]
    pub(super) reply: RoundReply,
    #[serde(flatten)]
    pub(super) exchange: RecordedExchange,
}

/// The work of an instance in a round, from its `refrain-round` header.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RoundCost {
    /// Journal entries that were replayed.
    pub(super) replayed: u32,
    pub(super) steps: u32,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(super) enum RoundReply {
    /// The call needs another round. Without asks, the instance hands the rest of the work on.
    #[serde(rename_all = "camelCase")]
    Incomplete {
        asks: Map<String, Value>,
        token_bytes: usize,
    },
    #[serde(rename_all = "camelCase")]
    Complete { text: String, is_error: bool },
    #[serde(rename = "refused")]
    Rejected { code: i64, message: String },
}

/// A request about a task, and its reply.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DemoTaskReply {
    pub(super) request: String,
    #[serde(flatten)]
    pub(super) exchange: RecordedExchange,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) answers: Map<String, Value>,
    pub(super) task_id: String,
    /// The task's status, if the reply has it.
    pub(super) status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) asks: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
}

/// A call of a caller, and the number of its rounds so far.
#[derive(Clone)]
pub(super) struct DemoDialogue {
    pub(super) caller: DemoCaller,
    pub(super) pending: PendingCall,
    rounds: u32,
}

impl DemoCaller {
    /// Connects a caller with this bearer token.
    pub(super) async fn connect(
        principal: &'static str,
        secret: &str,
        balancer: &DemoBalancer,
    ) -> Result<Self, AppError> {
        let info = Implementation {
            name: "refrain-demo".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..Implementation::default()
        };
        let builder = Client::builder()
            .info(info)
            .answer_manually([
                AskKind::Form,
                AskKind::Url,
                AskKind::Sampling,
                AskKind::Roots,
            ])
            .authorize(Bearer::new(secret)?);
        let url = format!("http://{}/mcp", balancer.address);
        Ok(Self {
            principal,
            client: builder.clone().connect(&url).await?,
            builder,
            balancer: balancer.clone(),
        })
    }

    /// The same caller at another path, with another configuration of the client.
    pub(super) async fn reconnected(
        &self,
        path: &str,
        configure: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Self, AppError> {
        let url = format!("http://{}{path}", self.balancer.address);
        Ok(Self {
            client: configure(self.builder.clone()).connect(&url).await?,
            ..self.clone()
        })
    }
}

/// A call of a tool. `arguments` is an object.
pub(super) fn tool(name: &str, arguments: &Value) -> CallSpec {
    CallSpec::tool(name).with_arguments(object(arguments))
}

impl DemoDialogue {
    pub(super) fn new(caller: &DemoCaller, name: &str, arguments: &Value) -> Self {
        Self {
            pending: caller.client.prepare(tool(name, arguments)),
            caller: caller.clone(),
            rounds: 0,
        }
    }

    /// The length of the token that the next round sends.
    pub(super) fn token_bytes(&self) -> usize {
        let stored = stored(&self.pending);
        stored
            .get("state")
            .and_then(Value::as_str)
            .map_or(0, str::len)
    }

    /// The same call without its state, to make its first round again.
    pub(super) fn restarted(mut self) -> Result<Self, AppError> {
        self.rounds = 0;
        self.tampered(|stored| drop(stored.remove("state")))
    }

    pub(super) fn with_token(self, replace: impl Fn(&str) -> String) -> Result<Self, AppError> {
        self.tampered(|stored| {
            if let Some(Value::String(token)) = stored.get_mut("state") {
                *token = replace(token);
            }
        })
    }

    pub(super) fn with_call(self, call: &CallSpec) -> Result<Self, AppError> {
        let call = serde_json::to_value(call)?;
        self.tampered(|stored| drop(stored.insert("call".into(), call)))
    }

    fn tampered(self, change: impl FnOnce(&mut Map<String, Value>)) -> Result<Self, AppError> {
        let mut stored = stored(&self.pending);
        change(&mut stored);
        Ok(Self {
            pending: serde_json::from_value(stored.into())?,
            ..self
        })
    }

    /// Answers all open asks from the script, and returns the answers.
    fn answer(&mut self, script: DemoScript<'_>) -> Result<Map<String, Value>, AppError> {
        let mut answers = Map::new();
        for ask in self.pending.unanswered() {
            let key = ask.key();
            let answer = script.iter().find(|(name, _)| *name == key);
            let (_, answer) =
                answer.ok_or_else(|| format!("the script has no answer to `{key}`"))?;
            let kind = ask
                .kind()
                .ok_or_else(|| format!("the ask `{key}` has an unknown kind"))?;
            self.pending.answer(key, AskAnswer::read(kind, answer)?)?;
            answers.insert(key.to_owned(), answer.clone());
        }
        Ok(answers)
    }

    /// Sends one request, or several while a task is polled. Returns the reply and the recorded exchanges.
    async fn send(&mut self) -> Result<(DemoReply, Vec<RecordedExchange>), AppError> {
        self.caller.balancer.take_exchanges();
        let reply = match self.caller.client.resume(self.pending.clone()).await {
            Ok(refrain_client::RoundOutcome::Complete(result)) => Ok(Some(result)),
            Ok(refrain_client::RoundOutcome::Pending(pending)) => {
                self.pending = pending;
                Ok(None)
            }
            Err(error) => match &error.kind {
                ErrorKind::Rpc(failure) => Err(failure.clone()),
                _ => return Err(error.into()),
            },
        };
        Ok((reply, self.caller.balancer.take_exchanges()))
    }

    /// Sends the next round, with the answers to the asks of the last one.
    pub(super) async fn next(&mut self, script: DemoScript<'_>) -> Result<DemoRound, AppError> {
        let tool = self.pending.call().target().to_owned();
        if self.rounds == ROUNDS_MAX {
            return Err(format!("{tool} is not done after {ROUNDS_MAX} rounds").into());
        }
        self.rounds += 1;
        let number = self.rounds;
        let context = |error: AppError| format!("round {number} of {tool}: {error}");
        let answers = self.answer(script)?;
        let sent_token_bytes = self.token_bytes();
        let (reply, exchanges) = self.send().await.map_err(context)?;
        let reply = match reply {
            Ok(Some(result)) => complete(&result),
            Ok(None) => RoundReply::Incomplete {
                asks: object(stored(&self.pending).get("asks").unwrap_or(&Value::Null)),
                token_bytes: self.token_bytes(),
            },
            Err(RpcFailure { code, message, .. }) => RoundReply::Rejected { code, message },
        };
        let exchange = exchanges.into_iter().next_back();
        let exchange = exchange.ok_or("no instance served the request")?;
        let cost = exchange.check(number, &reply).map_err(context)?;
        Ok(DemoRound {
            number,
            answers,
            sent_token_bytes,
            cost,
            reply,
            exchange,
        })
    }

    /// Makes the call, gets the task's status or, with a script, answers the task's asks.
    pub(super) async fn task(&mut self, script: DemoScript<'_>) -> Result<DemoTaskReply, AppError> {
        let answers = match script {
            [] => Map::new(),
            script => self.answer(script)?,
        };
        let (reply, exchanges) = self.send().await?;
        reply.map_err(|failure| failure.to_string())?;
        let id = self
            .pending
            .task_id()
            .ok_or("the call did not become a task")?;
        let first = exchanges.into_iter().next();
        let exchange = first.ok_or("no instance served the request")?;
        let reply = exchange.json();
        let result = &reply["result"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Ok(DemoTaskReply {
            request: exchange.method.clone(),
            answers,
            task_id: id.to_owned(),
            status: text(&result["status"]),
            message: text(&result["statusMessage"]),
            asks: object(&result["inputRequests"]),
            text: text(&result["result"]["content"][0]["text"]),
            exchange,
        })
    }
}

/// The members of an object; empty for any other value.
fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn stored(pending: &PendingCall) -> Map<String, Value> {
    object(&serde_json::to_value(pending).unwrap_or_default())
}

fn complete(result: &Value) -> RoundReply {
    let content = result["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = content.filter_map(|part| part["text"].as_str()).collect();
    RoundReply::Complete {
        text: texts.join("\n"),
        is_error: result["isError"] == true,
    }
}

impl DemoRound {
    pub(super) fn text(&self) -> Option<&str> {
        match &self.reply {
            RoundReply::Complete { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(super) fn instance(&self) -> &'static str {
        self.exchange.instance
    }

    /// The members of the response on the wire, sorted.
    pub(super) fn members(&self) -> Vec<String> {
        let mut members: Vec<String> = object(&self.exchange.json()).keys().cloned().collect();
        members.sort_unstable();
        members
    }

    pub(super) fn asked(&self) -> Vec<&str> {
        match &self.reply {
            RoundReply::Incomplete { asks, .. } => asks.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

impl DemoTaskReply {
    pub(super) fn has_status(&self, status: &str) -> bool {
        self.status.as_deref() == Some(status)
    }

    pub(super) fn instance(&self) -> &'static str {
        self.exchange.instance
    }
}

impl RecordedExchange {
    /// Reads the `refrain-round` header, and checks it against the client's view.
    fn check(&self, number: u32, reply: &RoundReply) -> Result<Option<RoundCost>, AppError> {
        let instance = self.instance;
        let Some(round_header) = &self.round_header else {
            return match reply {
                RoundReply::Rejected { .. } => Ok(None),
                _ => Err(
                    format!("the reply of instance {instance} has no refrain-round header").into(),
                ),
            };
        };
        let field = |name: &str| {
            let mut pairs = round_header
                .split("; ")
                .filter_map(|pair| pair.split_once('='));
            let pair = pairs.find(|(key, _)| *key == name);
            pair.map(|(_, value)| value).ok_or_else(|| {
                format!("missing `{name}` in the refrain-round header {round_header:?}")
            })
        };
        let token = match reply {
            RoundReply::Incomplete { token_bytes, .. } => *token_bytes,
            _ => 0,
        };
        let reported = (
            field("instance")?,
            field("round")?.parse()?,
            field("token")?.parse()?,
        );
        let seen: (&str, u32, usize) = (instance, number, token);
        if reported != seen {
            return Err(format!(
                "the instance reports (name, round, token bytes) {reported:?}, the client saw {seen:?}"
            )
            .into());
        }
        Ok(Some(RoundCost {
            replayed: field("replayed")?.parse()?,
            steps: field("steps")?.parse()?,
        }))
    }
}
