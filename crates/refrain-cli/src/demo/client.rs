//! A small MCP client that answers by a script, and the dialogue it has with the fleet.
//!
//! It keeps what the protocol makes it keep between two rounds: the call, the asks and the token. It does not look
//! into the token.

use super::balancer::{PASSED_OVER, SERVED_BY};
use super::exchange::exchange;
use crate::Failure;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use hyper::{HeaderMap, Request, Response};
use refrain::{Draft, PROTOCOL_VERSION};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::time::Duration;

const ROUND: HeaderName = HeaderName::from_static("refrain-round");
const REQUEST_TIME: Duration = Duration::from_secs(40);
/// Today's clients give up after ten rounds.
const ROUNDS_MAX: u32 = 10;

/// What the caller would answer, by the key of the ask.
pub(super) type Script<'a> = &'a [(&'a str, Value)];

/// Somebody who calls.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) principal: &'static str,
    pub(super) secret: String,
    pub(super) balancer: SocketAddr,
    /// The draft that is spoken.
    pub(super) draft: Option<Draft>,
}

/// One thing that is asked of the fleet.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) tool: &'static str,
    pub(super) arguments: Value,
}

/// One round, as the client saw it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Round {
    #[serde(rename = "round")]
    pub(super) number: u32,
    pub(super) instance: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) passed_over: Vec<String>,
    pub(super) answers: Map<String, Value>,
    pub(super) sent_token_bytes: usize,
    #[serde(flatten)]
    pub(super) did: Option<Did>,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// Status and body: everything that the client can see.
    #[serde(skip)]
    pub(super) seen: (u16, Bytes),
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
        #[serde(rename = "tokenBytes", serialize_with = "length")]
        token: String,
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
    pub(super) client: Client,
    pub(super) call: Call,
    pub(super) token: Option<String>,
    asks: Map<String, Value>,
    rounds: u32,
}

impl Dialogue {
    pub(super) fn new(client: &Client, tool: &'static str, arguments: Value) -> Self {
        Self {
            client: client.clone(),
            call: Call { tool, arguments },
            token: None,
            asks: Map::new(),
            rounds: 0,
        }
    }

    /// The same call as if it were a new one, but for what it has asked: for a dialect without state.
    pub(super) fn anew(self) -> Self {
        Self {
            token: None,
            rounds: 0,
            ..self
        }
    }

    /// Sends the next round, with the answers to what the last one asked.
    pub(super) async fn next(&mut self, script: Script<'_>) -> Result<Round, Failure> {
        if self.rounds == ROUNDS_MAX {
            return Err(format!("{} is not done after {ROUNDS_MAX} rounds", self.call.tool).into());
        }
        let mut answers = Map::new();
        for key in self.asks.keys() {
            let answer = script.iter().find(|(name, _)| name == key);
            let (_, answer) =
                answer.ok_or_else(|| format!("the story has no answer to `{key}`"))?;
            answers.insert(key.clone(), answer.clone());
        }
        self.rounds += 1;
        let token = self.token.as_deref();
        let round = self
            .client
            .send(&self.call, self.rounds, answers, token)
            .await?;
        if let Outcome::Incomplete { asks, token } = &round.outcome {
            self.asks = asks.clone();
            self.token = Some(token.clone());
        }
        Ok(round)
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

    /// The members of the response, as it was on the wire.
    pub(super) fn members(&self) -> Vec<String> {
        let said: Map<String, Value> = serde_json::from_slice(&self.seen.1).unwrap_or_default();
        let mut members: Vec<String> = said.keys().cloned().collect();
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

impl Client {
    /// Sends one round of a call. Its request id is the number of the round.
    pub(super) async fn send(
        &self,
        call: &Call,
        number: u32,
        answers: Map<String, Value>,
        token: Option<&str>,
    ) -> Result<Round, Failure> {
        let mut params = json!({"name": call.tool, "arguments": call.arguments, "_meta": meta()});
        if !answers.is_empty() {
            params["inputResponses"] = answers.clone().into();
        }
        if let Some(token) = token {
            params["requestState"] = token.into();
        }
        let (response, said) = match self.draft {
            None => {
                let response = self.post("tools/call", call.tool, number, &params).await?;
                let said = response.body().clone();
                (response, said)
            }
            Some(draft) => self.post_in(draft, number, &params).await?,
        };
        let sent_token_bytes = token.map_or(0, str::len);
        read(&response, &said, number, answers, sent_token_bytes)
            .map_err(|error| format!("round {number} of {}: {error}", call.tool).into())
    }

    /// Sends a request with the headers that belong to it.
    pub(super) async fn post(
        &self,
        method: &str,
        name: &str,
        id: u32,
        params: &Value,
    ) -> Result<Response<Bytes>, Failure> {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let request = Request::post("/mcp")
            .header(HOST, self.balancer.to_string())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .header(AUTHORIZATION, format!("Bearer {}", self.secret))
            .header("mcp-protocol-version", PROTOCOL_VERSION)
            .header("mcp-method", method)
            .header("mcp-name", name)
            .body(Full::from(body.to_string()))?;
        Ok(exchange(self.balancer, request, REQUEST_TIME).await?)
    }
}

impl Client {
    /// The same client, speaking a draft.
    pub(super) fn speaking(&self, draft: Draft) -> Self {
        Self {
            draft: Some(draft),
            ..self.clone()
        }
    }

    /// Sends a round of a call in a draft. Gives what came back, and what it says.
    async fn post_in(
        &self,
        draft: Draft,
        id: u32,
        params: &Value,
    ) -> Result<(Response<Bytes>, Bytes), Failure> {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let (body, exchanged) = draft.write_request(&call.to_string())?;
        let request = Request::post(draft.path())
            .header(HOST, self.balancer.to_string())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .header(AUTHORIZATION, format!("Bearer {}", self.secret))
            .body(Full::from(body))?;
        let response = exchange(self.balancer, request, REQUEST_TIME).await?;
        let said = exchanged.read_reply(std::str::from_utf8(response.body())?);
        Ok((response, said.into()))
    }
}

/// What every request says of its client.
pub(super) fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientInfo": {
            "name": "refrain-demo",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {"form": {}, "url": {}},
            "sampling": {},
            "roots": {},
        },
    })
}

/// Makes sense of a response, and checks that all who had a hand in it say the same.
fn read(
    response: &Response<Bytes>,
    said: &Bytes,
    number: u32,
    answers: Map<String, Value>,
    sent_token_bytes: usize,
) -> Result<Round, Failure> {
    let headers = response.headers();
    let unexpected = || {
        let text = String::from_utf8_lossy(response.body());
        let start: String = text.chars().take(300).collect();
        format!("unexpected answer {}: {start}", response.status())
    };
    let instance = header(headers, &SERVED_BY).ok_or_else(unexpected)?;
    let reply: Value = serde_json::from_slice(said).map_err(|_| unexpected())?;
    let outcome = outcome(&reply).ok_or_else(unexpected)?;
    let did = header(headers, &ROUND).map(Explained::parse).transpose()?;
    if let Some(explained) = &did {
        let token = match &outcome {
            Outcome::Incomplete { token, .. } => token.len(),
            _ => 0,
        };
        let said = (
            explained.instance.as_str(),
            explained.round,
            explained.token,
        );
        if said != (instance, number, token) {
            return Err(format!(
                "the instance says (name, round, token bytes) {said:?}, the client saw {:?}",
                (instance, number, token)
            )
            .into());
        }
    } else if !matches!(outcome, Outcome::Refused { .. }) {
        return Err(format!("instance {instance} does not say what it did").into());
    }
    let passed_over = header(headers, &PASSED_OVER).unwrap_or_default();
    Ok(Round {
        number,
        instance: instance.to_owned(),
        passed_over: passed_over
            .split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
        answers,
        sent_token_bytes,
        did: did.map(|explained| explained.did),
        outcome,
        seen: (response.status().as_u16(), response.body().clone()),
    })
}

fn outcome(reply: &Value) -> Option<Outcome> {
    if let Some(error) = reply.get("error") {
        return Some(Outcome::Refused {
            code: error.get("code")?.as_i64()?,
            message: error.get("message")?.as_str()?.to_owned(),
        });
    }
    let result = reply.get("result")?;
    if result.get("resultType")?.as_str()? == "input_required" {
        let asks = match result.get("inputRequests") {
            Some(asks) => asks.as_object()?.clone(),
            None => Map::new(),
        };
        let token = result.get("requestState")?.as_str()?.to_owned();
        return Some(Outcome::Incomplete { asks, token });
    }
    let content = result.get("content")?.as_array()?;
    let texts: Vec<&str> = content
        .iter()
        .filter_map(|part| part.get("text")?.as_str())
        .collect();
    Some(Outcome::Complete {
        text: texts.join("\n"),
        is_error: result.get("isError").and_then(Value::as_bool) == Some(true),
    })
}

pub(super) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The `refrain-round` header.
struct Explained {
    instance: String,
    round: u32,
    token: usize,
    did: Did,
}

impl Explained {
    fn parse(text: &str) -> Result<Self, Failure> {
        let field = |name: &str| {
            text.split("; ")
                .filter_map(|pair| pair.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value)
                .ok_or_else(|| format!("there is no `{name}` in the refrain-round header {text:?}"))
        };
        Ok(Self {
            instance: field("instance")?.to_owned(),
            round: field("round")?.parse()?,
            token: field("token")?.parse()?,
            did: Did {
                replayed: field("replayed")?.parse()?,
                steps: field("steps")?.parse()?,
            },
        })
    }
}

fn length<S: serde::Serializer>(token: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(token.len() as u64)
}
