//! A client that sends what the protocol demands and answers what it is asked, by key.

use super::http::{Fault, send};
use super::{PATIENCE, in_time};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use refrain::PROTOCOL_VERSION;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// Today's clients give up after ten rounds.
const ROUNDS_MAX: usize = 10;
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Somebody who calls.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) bearer: Option<String>,
    /// Does the client want progress? Then replies come as events.
    pub(crate) progress: bool,
    /// Does the client know tasks?
    pub(crate) tasks: bool,
}

/// A call on its way through its rounds: what the client keeps between two of them.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) arguments: Value,
    pub(crate) answers: Map<String, Value>,
    pub(crate) token: Option<String>,
}

/// What a round was answered with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// The keys of what is asked.
    Asked(Vec<String>),
    /// Nothing is asked: the call is to go on elsewhere.
    HandedOn,
    /// The call has become the task of this id.
    Task(String),
    Done(String),
    /// A result marked as an error.
    Failed(String),
    /// An error of the protocol.
    Refused {
        status: u16,
        code: i64,
        message: String,
    },
}

/// One round: the reply and which instance says that it served it.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) reply: Reply,
    pub(crate) served_by: Option<String>,
}

/// A call that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) reply: Reply,
    /// Rounds in which nothing was asked.
    pub(crate) handed_on: usize,
    /// Who served the rounds, as far as they say.
    pub(crate) served_by: Vec<String>,
}

impl Call {
    pub(crate) fn new(tool: &str, arguments: Value) -> Self {
        Self {
            tool: tool.into(),
            arguments,
            answers: Map::new(),
            token: None,
        }
    }

    pub(crate) fn weather(location: &str) -> Self {
        Self::new("get_weather", json!({"location": location}))
    }

    pub(crate) fn order(item: &str) -> Self {
        Self::new("place_order", json!({"item": item}))
    }

    pub(crate) fn sum(to: u64, pause_ms: u64) -> Self {
        Self::new("sum", json!({"to": to, "pause_ms": pause_ms}))
    }

    /// Answers an ask with a form.
    pub(crate) fn answer(&mut self, key: &str, content: &Value) {
        let accepted = json!({"action": "accept", "content": content});
        self.answers.insert(key.into(), accepted);
    }

    /// The body of the next request.
    fn body(&self, client: &Client) -> Value {
        let mut params = json!({
            "name": self.tool,
            "arguments": self.arguments,
            "_meta": meta(),
        });
        if client.tasks {
            declare_tasks(&mut params);
        }
        if client.progress {
            params["_meta"]["progressToken"] = "progress".into();
        }
        if !self.answers.is_empty() {
            params["inputResponses"] = self.answers.clone().into();
        }
        if let Some(token) = &self.token {
            params["requestState"] = token.as_str().into();
        }
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            bearer: None,
            progress: false,
            tasks: false,
        }
    }

    pub(crate) fn with_bearer(mut self, token: &str) -> Self {
        self.bearer = Some(token.into());
        self
    }

    pub(crate) fn with_progress(mut self, progress: bool) -> Self {
        self.progress = progress;
        self
    }

    /// The same client, which knows tasks.
    pub(crate) fn with_tasks(mut self) -> Self {
        self.tasks = true;
        self
    }

    /// The next request of a call.
    pub(crate) fn request(&self, call: &Call) -> Request<Full<Bytes>> {
        self.request_of("tools/call", &call.tool, &call.body(self))
    }

    /// A request with the headers that belong to it.
    fn request_of(&self, method: &str, name: &str, body: &Value) -> Request<Full<Bytes>> {
        let mut request = Request::post("/mcp")
            .header("host", self.address.to_string())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", PROTOCOL_VERSION)
            .header("mcp-method", method)
            .header("mcp-name", name);
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", format!("Bearer {bearer}"));
        }
        let body = Full::from(body.to_string());
        request.body(body).expect("a valid request")
    }

    /// Asks about a task, and gives the message that comes back. `Err`: there was none.
    pub(crate) async fn about_task(
        &self,
        method: &str,
        id: &str,
        answers: Option<&Value>,
    ) -> Result<Value, String> {
        let mut params = json!({"taskId": id, "_meta": meta()});
        declare_tasks(&mut params);
        if let Some(answers) = answers {
            params["inputResponses"] = answers.clone();
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = self.request_of(method, id, &body);
        let reply = async {
            let response = send(self.address, request).await;
            read(response.map_err(|error| error.to_string())?).await
        };
        let reply = tokio::time::timeout(PATIENCE, reply).await;
        let (_, _, message) = reply.map_err(|_| format!("no reply after {PATIENCE:?}"))??;
        Ok(message)
    }

    /// Sends the next request of a call, and gives the response when it begins.
    pub(crate) async fn begin(&self, call: &Call) -> Result<Response<Incoming>, Fault> {
        send(self.address, self.request(call)).await
    }

    /// Sends the next request of a call and keeps what its reply says. `Err`: there was no reply.
    pub(crate) async fn try_round(&self, call: &mut Call) -> Result<Round, String> {
        let round = async {
            let response = self.begin(call).await.map_err(|e| e.to_string())?;
            read(response).await
        };
        let (served_by, status, message) = tokio::time::timeout(PATIENCE, round)
            .await
            .map_err(|_| format!("no reply after {PATIENCE:?}"))??;
        let reply = understand(call, status, &message)
            .ok_or_else(|| format!("an unexpected reply, status {status}: {message}"))?;
        Ok(Round { reply, served_by })
    }

    /// The same, where a reply must come.
    pub(crate) async fn round(&self, call: &mut Call) -> Reply {
        match self.try_round(call).await {
            Ok(round) => round.reply,
            Err(reason) => panic!("{call:?}: {reason}"),
        }
    }

    /// Goes on with a call, answering what is asked, until it is over.
    pub(crate) async fn try_finish(&self, mut call: Call) -> Result<Finished, String> {
        let mut handed_on = 0;
        let mut served_by = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let round = self.try_round(&mut call).await?;
            served_by.extend(round.served_by);
            match round.reply {
                Reply::Asked(keys) => {
                    for key in keys {
                        let content = usual_answer(&key);
                        call.answer(&key, &content);
                    }
                }
                Reply::HandedOn => handed_on += 1,
                reply => {
                    return Ok(Finished {
                        reply,
                        handed_on,
                        served_by,
                    });
                }
            }
        }
        Err(format!("not done after {ROUNDS_MAX} rounds"))
    }

    /// The same, where nothing may go wrong with the connections.
    pub(crate) async fn finish(&self, call: Call) -> Finished {
        let tool = call.tool.clone();
        let finished = in_time("a call ends", self.try_finish(call)).await;
        finished.unwrap_or_else(|reason| panic!("{tool}: {reason}"))
    }

    /// Sends a body as it is, with the headers of a call of `echo`.
    pub(crate) async fn post(&self, body: String) -> (u16, Value) {
        let mut request = self.request(&Call::new("echo", json!({})));
        *request.body_mut() = Full::from(body);
        let response = in_time("a reply", send(self.address, request)).await;
        let (_, status, message) = read(response.expect("a response")).await.expect("a reply");
        (status, message)
    }
}

/// What every request says of its client.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "refrain-tests", "version": "0"},
        CAPABILITIES: {
            "elicitation": {"form": {}, "url": {}},
            "sampling": {},
            "roots": {},
        },
    })
}

fn declare_tasks(params: &mut Value) {
    params["_meta"][CAPABILITIES]["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
}

/// What everybody answers to the tools' asks.
fn usual_answer(key: &str) -> Value {
    match key {
        "github_login" | "google_login" | "microsoft_login" => json!({"name": "octocat"}),
        "confirm_order" => json!({"confirm": true}),
        "resolution" => json!({"resolution": "Duplicate"}),
        "duplicate_of" => json!({"duplicateOfId": 4301}),
        "echo_input" => json!({"input": "hello"}),
        _ => panic!("asked for {key:?}, which nobody can answer"),
    }
}

/// Reads a response to its end: a JSON body, or the last event of a stream.
async fn read(response: Response<Incoming>) -> Result<(Option<String>, u16, Value), String> {
    let status = response.status().as_u16();
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        Some(value.to_str().ok()?.to_owned())
    };
    let served_by = header("refrain-round").and_then(|round| {
        let name = round
            .split("; ")
            .find_map(|p| p.strip_prefix("instance="))?;
        Some(name.to_owned())
    });
    let is_stream = header("content-type").is_some_and(|kind| kind == "text/event-stream");
    let body = response.into_body().collect().await;
    let body = body.map_err(|error| format!("{error:?}"))?.to_bytes();
    let text = String::from_utf8_lossy(&body);
    let json = if is_stream {
        text.lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .next_back()
            .ok_or_else(|| format!("a stream without an event: {text}"))?
    } else {
        &text
    };
    let message = serde_json::from_str(json)
        .map_err(|error| format!("status {status}, not JSON ({error}): {text}"))?;
    Ok((served_by, status, message))
}

fn understand(call: &mut Call, status: u16, message: &Value) -> Option<Reply> {
    if let Some(error) = message.get("error") {
        return Some(Reply::Refused {
            status,
            code: error.get("code")?.as_i64()?,
            message: error.get("message")?.as_str()?.to_owned(),
        });
    }
    let result = message.get("result")?;
    if result.get("resultType")? == "task" {
        return Some(Reply::Task(result.get("taskId")?.as_str()?.to_owned()));
    }
    if result.get("resultType")? == "input_required" {
        call.token = Some(result.get("requestState")?.as_str()?.to_owned());
        call.answers.clear();
        return Some(match result.get("inputRequests") {
            None => Reply::HandedOn,
            Some(asks) => Reply::Asked(asks.as_object()?.keys().cloned().collect()),
        });
    }
    let text = result.get("content")?.get(0)?.get("text")?.as_str()?;
    let failed = result.get("isError").and_then(Value::as_bool) == Some(true);
    Some(if failed {
        Reply::Failed(text.into())
    } else {
        Reply::Done(text.into())
    })
}
