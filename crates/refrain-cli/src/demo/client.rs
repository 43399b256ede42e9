//! Callers that answer by a script, and their calls, made with `refrain-client`.
//!
//! Which instance served a round comes from the balancer, its questions and result from the client.

use super::balancer::{Balancer, Exchange};
use crate::Failure;
use refrain::server::Draft;
use refrain_client::wire::{AskKind, Implementation};
use refrain_client::{AskAnswer, Bearer, CallSpec, Client, ErrorKind, PendingCall, RpcFailure};
use serde::Serialize;
use serde_json::{Map, Value};

/// Today's clients give up after ten rounds.
const ROUNDS_MAX: u32 = 10;

/// The answers of a caller, by the key of the ask.
pub(super) type Script<'a> = &'a [(&'a str, Value)];

/// The result of a call, if it is done, or an error of the protocol.
type Reply = Result<Option<Value>, RpcFailure>;

/// A caller that is connected through the balancer.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) principal: &'static str,
    client: Client,
    secret: String,
    balancer: Balancer,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Round {
    #[serde(rename = "round")]
    pub(super) number: u32,
    pub(super) answers: Map<String, Value>,
    pub(super) sent_token_bytes: usize,
    #[serde(flatten)]
    pub(super) did: Option<Did>,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    #[serde(flatten)]
    pub(super) exchange: Exchange,
}

/// The work of an instance in a round, by its own account.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Did {
    /// Journal entries that were replayed.
    pub(super) replayed: u32,
    pub(super) steps: u32,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(super) enum Outcome {
    /// More is needed. Without asks, the rest of the work is handed on.
    #[serde(rename_all = "camelCase")]
    Incomplete {
        asks: Map<String, Value>,
        token_bytes: usize,
    },
    #[serde(rename_all = "camelCase")]
    Complete {
        text: String,
        is_error: bool,
    },
    Refused {
        code: i64,
        message: String,
    },
}

/// A request about a task, and its reply.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Look {
    pub(super) request: String,
    #[serde(flatten)]
    pub(super) exchange: Exchange,
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

/// A call on its way through its rounds.
#[derive(Clone)]
pub(super) struct Dialogue {
    pub(super) caller: Caller,
    pub(super) pending: PendingCall,
    rounds: u32,
}

impl Caller {
    /// Connects a caller with this bearer token, which speaks a draft if one is given.
    pub(super) async fn connect(
        principal: &'static str,
        secret: &str,
        balancer: &Balancer,
        draft: Option<Draft>,
    ) -> Result<Self, Failure> {
        let info = Implementation {
            name: "refrain-demo".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..Implementation::default()
        };
        let mut builder = Client::builder()
            .info(info)
            .answer_manually([
                AskKind::Form,
                AskKind::Url,
                AskKind::Sampling,
                AskKind::Roots,
            ])
            .authorize(Bearer::new(secret)?);
        if let Some(draft) = draft {
            builder = builder.dialect(draft);
        }
        let path = draft.map_or("/mcp", Draft::path);
        Ok(Self {
            principal,
            client: builder
                .connect(&format!("http://{}{path}", balancer.address))
                .await?,
            secret: secret.to_owned(),
            balancer: balancer.clone(),
        })
    }

    pub(super) async fn speaking(&self, draft: Draft) -> Result<Self, Failure> {
        Self::connect(self.principal, &self.secret, &self.balancer, Some(draft)).await
    }
}

/// A call of a tool. `arguments` is an object.
pub(super) fn tool(name: &str, arguments: &Value) -> CallSpec {
    CallSpec::tool(name).with_arguments(object(arguments))
}

impl Dialogue {
    pub(super) fn new(caller: &Caller, name: &str, arguments: &Value) -> Self {
        Self {
            pending: caller.client.prepare(tool(name, arguments)),
            caller: caller.clone(),
            rounds: 0,
        }
    }

    /// The length of the token that the next round sends back.
    pub(super) fn token_bytes(&self) -> usize {
        let stored = stored(&self.pending);
        stored
            .get("state")
            .and_then(Value::as_str)
            .map_or(0, str::len)
    }

    /// The call as its first round, with the asks but without the state: for a dialect that has no state.
    pub(super) fn restarted(mut self) -> Result<Self, Failure> {
        self.rounds = 0;
        self.tampered(|stored| drop(stored.remove("state")))
    }

    pub(super) fn with_token(self, replace: impl Fn(&str) -> String) -> Result<Self, Failure> {
        self.tampered(|stored| {
            if let Some(Value::String(token)) = stored.get_mut("state") {
                *token = replace(token);
            }
        })
    }

    pub(super) fn with_call(self, call: &CallSpec) -> Result<Self, Failure> {
        let call = serde_json::to_value(call)?;
        self.tampered(|stored| drop(stored.insert("call".into(), call)))
    }

    /// Changes the call in its stored form.
    fn tampered(self, change: impl FnOnce(&mut Map<String, Value>)) -> Result<Self, Failure> {
        let mut stored = stored(&self.pending);
        change(&mut stored);
        Ok(Self {
            pending: serde_json::from_value(stored.into())?,
            ..self
        })
    }

    /// Answers all open asks from the script. Returns the answers.
    fn answer(&mut self, script: Script<'_>) -> Result<Map<String, Value>, Failure> {
        let mut answers = Map::new();
        for ask in self.pending.unanswered() {
            let key = ask.key();
            let answer = script.iter().find(|(name, _)| *name == key);
            let (_, answer) =
                answer.ok_or_else(|| format!("the story has no answer to `{key}`"))?;
            let kind = ask
                .kind()
                .ok_or_else(|| format!("the ask `{key}` is of an unknown kind"))?;
            self.pending.answer(key, AskAnswer::read(kind, answer)?)?;
            answers.insert(key.to_owned(), answer.clone());
        }
        Ok(answers)
    }

    /// Sends one request, or several while a task is polled. Returns the reply, which may be an error of the protocol, and
    /// the recorded exchanges.
    async fn send(&mut self) -> Result<(Reply, Vec<Exchange>), Failure> {
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
        match self.caller.balancer.take_exchanges() {
            exchanges if exchanges.is_empty() => Err("no instance served the request".into()),
            exchanges => Ok((reply, exchanges)),
        }
    }

    /// Sends the next round, with the answers to the last one's asks.
    pub(super) async fn next(&mut self, script: Script<'_>) -> Result<Round, Failure> {
        let tool = self.pending.call().target().to_owned();
        if self.rounds == ROUNDS_MAX {
            return Err(format!("{tool} is not done after {ROUNDS_MAX} rounds").into());
        }
        self.rounds += 1;
        let number = self.rounds;
        let context = |error: Failure| format!("round {number} of {tool}: {error}");
        let answers = self.answer(script)?;
        let sent_token_bytes = self.token_bytes();
        let (reply, exchanges) = self.send().await.map_err(context)?;
        let outcome = match reply {
            Ok(Some(result)) => complete(&result),
            Ok(None) => Outcome::Incomplete {
                asks: object(stored(&self.pending).get("asks").unwrap_or(&Value::Null)),
                token_bytes: self.token_bytes(),
            },
            Err(RpcFailure { code, message, .. }) => Outcome::Refused { code, message },
        };
        let exchange = exchanges.into_iter().next_back();
        let exchange = exchange.ok_or("no instance served the request")?;
        let did = exchange.check(number, &outcome).map_err(context)?;
        Ok(Round {
            number,
            answers,
            sent_token_bytes,
            did,
            outcome,
            exchange,
        })
    }

    /// Makes the call, asks for the task's status or, with a script, answers the task's asks.
    pub(super) async fn look(&mut self, script: Script<'_>) -> Result<Look, Failure> {
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
        Ok(Look {
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

/// The members of an object; none for any other value.
fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn stored(pending: &PendingCall) -> Map<String, Value> {
    object(&serde_json::to_value(pending).unwrap_or_default())
}

fn complete(result: &Value) -> Outcome {
    let content = result["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = content.filter_map(|part| part["text"].as_str()).collect();
    Outcome::Complete {
        text: texts.join("\n"),
        is_error: result["isError"] == true,
    }
}

impl Round {
    pub(super) fn text(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Complete { text, .. } => Some(text),
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
        match &self.outcome {
            Outcome::Incomplete { asks, .. } => asks.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

impl Look {
    pub(super) fn has_status(&self, status: &str) -> bool {
        self.status.as_deref() == Some(status)
    }

    pub(super) fn instance(&self) -> &'static str {
        self.exchange.instance
    }
}

impl Exchange {
    /// Reads the `refrain-round` header, which must agree with what the client saw.
    fn check(&self, number: u32, outcome: &Outcome) -> Result<Option<Did>, Failure> {
        let instance = self.instance;
        let Some(explained) = &self.explained else {
            return match outcome {
                Outcome::Refused { .. } => Ok(None),
                _ => Err(
                    format!("the reply of instance {instance} has no refrain-round header").into(),
                ),
            };
        };
        let field = |name: &str| {
            let mut pairs = explained
                .split("; ")
                .filter_map(|pair| pair.split_once('='));
            let pair = pairs.find(|(key, _)| *key == name);
            pair.map(|(_, value)| value).ok_or_else(|| {
                format!("there is no `{name}` in the refrain-round header {explained:?}")
            })
        };
        let token = match outcome {
            Outcome::Incomplete { token_bytes, .. } => *token_bytes,
            _ => 0,
        };
        let said = (
            field("instance")?,
            field("round")?.parse()?,
            field("token")?.parse()?,
        );
        let seen: (&str, u32, usize) = (instance, number, token);
        if said != seen {
            return Err(format!(
                "the instance says (name, round, token bytes) {said:?}, the client saw {seen:?}"
            )
            .into());
        }
        Ok(Some(Did {
            replayed: field("replayed")?.parse()?,
            steps: field("steps")?.parse()?,
        }))
    }
}
