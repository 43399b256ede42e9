//! Callers that answer by a script, and their calls, made with `refrain-client`.
//!
//! What served a round comes from the balancer, what it asked or returned from the client.

use super::balancer::{Balancer, Exchange, Exchanges};
use crate::Failure;
use refrain::server::Draft;
use refrain_client::wire::{AskKind, Implementation};
use refrain_client::{Answer, Bearer, Client, ErrorKind, PendingCall};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// Today's clients give up after ten rounds.
const ROUNDS_MAX: u32 = 10;

/// What the caller would answer, by the key of the ask.
pub(super) type Script<'a> = &'a [(&'a str, Value)];

/// Somebody who calls through the balancer.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) principal: &'static str,
    pub(super) client: Client,
    pub(super) exchanges: Exchanges,
    secret: String,
    balancer: SocketAddr,
}

/// One thing that is asked of the fleet.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) tool: &'static str,
    pub(super) arguments: Value,
}

/// One round, as the caller saw it.
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

/// What the instance says it did in a round.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Did {
    /// Journal entries that were replayed.
    pub(super) replayed: u32,
    /// Steps that were run.
    pub(super) steps: u32,
}

/// How a round ended.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(super) enum Outcome {
    /// More is needed. Without asks, the rest of the work is handed on.
    #[serde(rename_all = "camelCase")]
    Incomplete {
        asks: Map<String, Value>,
        token_bytes: usize,
    },
    /// The call is over.
    #[serde(rename_all = "camelCase")]
    Complete { text: String, is_error: bool },
    /// An error of the protocol.
    Refused { code: i64, message: String },
}

/// A call on its way through its rounds.
#[derive(Clone)]
pub(super) struct Dialogue {
    pub(super) caller: Caller,
    pub(super) call: Call,
    pending: PendingCall,
    rounds: u32,
}

impl Caller {
    /// Connects a caller with this bearer token.
    pub(super) async fn connect(
        principal: &'static str,
        secret: &str,
        balancer: &Balancer,
    ) -> Result<Self, Failure> {
        let (address, exchanges) = (balancer.address(), balancer.exchanges());
        Ok(Self {
            principal,
            client: connect(address, secret, None).await?,
            exchanges,
            secret: secret.to_owned(),
            balancer: address,
        })
    }

    /// The same caller, speaking a draft.
    pub(super) async fn speaking(&self, draft: Draft) -> Result<Self, Failure> {
        let client = connect(self.balancer, &self.secret, Some(draft)).await?;
        Ok(Self {
            client,
            ..self.clone()
        })
    }
}

async fn connect(
    balancer: SocketAddr,
    secret: &str,
    draft: Option<Draft>,
) -> Result<Client, Failure> {
    let info = Implementation {
        name: "refrain-demo".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..Implementation::default()
    };
    let kinds = [
        AskKind::Form,
        AskKind::Url,
        AskKind::Sampling,
        AskKind::Roots,
    ];
    let builder = Client::builder()
        .info(info)
        .by_hand(kinds)
        .authorize(Bearer::new(secret)?);
    let client = match draft {
        Some(draft) => {
            let url = format!("http://{balancer}{}", draft.path());
            builder.dialect(draft).connect(&url).await?
        }
        None => builder.connect(&format!("http://{balancer}/mcp")).await?,
    };
    Ok(client)
}

impl Call {
    pub(super) fn prepare(&self, client: &Client) -> PendingCall {
        let arguments = self.arguments.as_object().cloned().unwrap_or_default();
        client.prepare(refrain_client::Call::tool(self.tool).with_arguments(arguments))
    }
}

impl Dialogue {
    pub(super) fn new(caller: &Caller, tool: &'static str, arguments: Value) -> Self {
        let call = Call { tool, arguments };
        Self {
            pending: call.prepare(&caller.client),
            caller: caller.clone(),
            call,
            rounds: 0,
        }
    }

    /// Whether the last round gave out a token.
    pub(super) fn has_token(&self) -> bool {
        token(&self.pending).is_some()
    }

    /// The same call as if it were a new one, but for what it has asked: for a dialect without state.
    pub(super) fn anew(mut self) -> Result<Self, Failure> {
        self.rounds = 0;
        self.tampered(|stored| drop(stored.remove("state")))
    }

    /// The same call with its token replaced.
    pub(super) fn with_token(self, replace: impl Fn(&str) -> String) -> Result<Self, Failure> {
        self.tampered(|stored| {
            if let Some(Value::String(token)) = stored.get_mut("state") {
                *token = replace(token);
            }
        })
    }

    /// The same token and answers for another call.
    pub(super) fn with_call(mut self, call: Call) -> Result<Self, Failure> {
        let other = serde_json::to_value(call.prepare(&self.caller.client))?;
        self.call = call;
        self.tampered(|stored| drop(stored.insert("call".into(), other["call"].clone())))
    }

    /// Changes the call in the form in which it would be stored.
    fn tampered(self, change: impl FnOnce(&mut Map<String, Value>)) -> Result<Self, Failure> {
        let mut stored = stored(&self.pending);
        change(&mut stored);
        Ok(Self {
            pending: serde_json::from_value(stored.into())?,
            ..self
        })
    }

    /// Sends the next round, with the answers to what the last one asked.
    pub(super) async fn next(&mut self, script: Script<'_>) -> Result<Round, Failure> {
        if self.rounds == ROUNDS_MAX {
            return Err(format!("{} is not done after {ROUNDS_MAX} rounds", self.call.tool).into());
        }
        let mut pending = self.pending.clone();
        let answers = answer(&mut pending, script)?;
        let sent_token_bytes = token(&pending).map_or(0, |token| token.len());
        self.rounds += 1;
        let number = self.rounds;
        self.caller.exchanges.take();
        let replied = self.caller.client.resume(pending).await;
        let context = |error: &dyn std::fmt::Display| {
            format!("round {number} of {}: {error}", self.call.tool)
        };
        let outcome = match replied {
            Ok(refrain_client::Outcome::Complete(result)) => complete(&result),
            Ok(refrain_client::Outcome::Pending(pending)) => {
                let asks = stored(&pending).remove("asks");
                let token_bytes = token(&pending).map_or(0, |token| token.len());
                self.pending = pending;
                Outcome::Incomplete {
                    asks: asks
                        .and_then(|asks| asks.as_object().cloned())
                        .unwrap_or_default(),
                    token_bytes,
                }
            }
            Err(error) => match &error.kind {
                ErrorKind::Refused(refusal) => Outcome::Refused {
                    code: refusal.code,
                    message: refusal.message.clone(),
                },
                _ => return Err(context(&error).into()),
            },
        };
        let exchange = self.caller.exchanges.take().pop();
        let exchange = exchange.ok_or_else(|| context(&"no instance served it"))?;
        let did = exchange
            .check(number, &outcome)
            .map_err(|error| context(&error))?;
        Ok(Round {
            number,
            answers,
            sent_token_bytes,
            did,
            outcome,
            exchange,
        })
    }
}

/// Answers everything that is asked from the script. Returns the answers.
pub(super) fn answer(
    pending: &mut PendingCall,
    script: Script<'_>,
) -> Result<Map<String, Value>, Failure> {
    let mut answers = Map::new();
    for ask in pending.unanswered() {
        let key = ask.key();
        let answer = script.iter().find(|(name, _)| *name == key);
        let (_, answer) = answer.ok_or_else(|| format!("the story has no answer to `{key}`"))?;
        let kind = ask.kind();
        let kind = kind.ok_or_else(|| format!("the kind of the ask `{key}` is not known"))?;
        pending.answer(key, Answer::read(kind, answer)?)?;
        answers.insert(key.to_owned(), answer.clone());
    }
    Ok(answers)
}

/// A pending call in the form in which it is stored.
fn stored(pending: &PendingCall) -> Map<String, Value> {
    let stored = serde_json::to_value(pending).unwrap_or_default();
    stored.as_object().cloned().unwrap_or_default()
}

/// The token that the next round sends back.
fn token(pending: &PendingCall) -> Option<String> {
    Some(stored(pending).get("state")?.as_str()?.to_owned())
}

fn complete(result: &Value) -> Outcome {
    let content = result["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = content.filter_map(|part| part["text"].as_str()).collect();
    Outcome::Complete {
        text: texts.join("\n"),
        is_error: result["isError"] == json!(true),
    }
}

impl Round {
    /// The text of the result, if there is one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Complete { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(super) fn instance(&self) -> &'static str {
        self.exchange.instance
    }

    /// The members of the response, as it was on the wire.
    pub(super) fn members(&self) -> Vec<String> {
        let reply: Map<String, Value> = self
            .exchange
            .json()
            .as_object()
            .cloned()
            .unwrap_or_default();
        let mut members: Vec<String> = reply.keys().cloned().collect();
        members.sort_unstable();
        members
    }

    /// The keys that the round asked for.
    pub(super) fn asked(&self) -> Vec<&str> {
        match &self.outcome {
            Outcome::Incomplete { asks, .. } => asks.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

impl Exchange {
    /// What the instance says it did, if that agrees with what the client saw.
    fn check(&self, number: u32, outcome: &Outcome) -> Result<Option<Did>, Failure> {
        let instance = self.instance;
        let Some(explained) = &self.explained else {
            return match outcome {
                Outcome::Refused { .. } => Ok(None),
                _ => Err(format!("instance {instance} does not say what it did").into()),
            };
        };
        let field = |name: &str| {
            let pairs = explained
                .split("; ")
                .filter_map(|pair| pair.split_once('='));
            let mut named = pairs.filter(|(key, _)| *key == name);
            let value = named.next().map(|(_, value)| value);
            value.ok_or_else(|| {
                format!("there is no `{name}` in the refrain-round header {explained:?}")
            })
        };
        let token: usize = match outcome {
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
            let problem = format!(
                "the instance says (name, round, token bytes) {said:?}, the client saw {seen:?}"
            );
            return Err(problem.into());
        }
        Ok(Some(Did {
            replayed: field("replayed")?.parse()?,
            steps: field("steps")?.parse()?,
        }))
    }
}
