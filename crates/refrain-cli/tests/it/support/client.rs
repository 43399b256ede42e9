//! A client that makes calls round by round, and answers asks by key.

use super::{PATIENCE, within};
use refrain_testkit::net::{
    CAPABILITIES_KEY, Connection, Request, Response, TASKS_EXTENSION, http,
};
use serde_json::{Map, Value, json};
use std::io;
use std::net::SocketAddr;

/// Common clients give up after ten rounds.
const ROUNDS_MAX: usize = 10;

/// A caller.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) bearer: Option<String>,
    /// Whether the client requests progress. Replies are event streams then.
    pub(crate) progress: bool,
    /// Whether the client supports tasks.
    pub(crate) tasks: bool,
}

/// A call, with the state that the client keeps between rounds.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) arguments: Value,
    pub(crate) answers: Map<String, Value>,
    pub(crate) token: Option<String>,
}

/// The reply to a round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// The keys of the asks.
    Asked(Vec<String>),
    /// A token without asks: another instance continues the call.
    HandedOn,
    /// The call became the task with this id.
    Task(String),
    Done(String),
    /// A result marked as an error.
    Failed(String),
    /// A JSON-RPC error.
    Refused {
        status: u16,
        code: i64,
        message: String,
    },
}

/// One round: the reply and the instance that served it.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) reply: Reply,
    pub(crate) served_by: Option<String>,
}

/// A finished call.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) reply: Reply,
    /// The number of rounds without asks.
    pub(crate) handed_on: usize,
    /// The instances that served the rounds, if they report their names.
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

    /// Answers an ask with the content of a form.
    pub(crate) fn answer(&mut self, key: &str, content: &Value) {
        let accepted = json!({"action": "accept", "content": content});
        self.answers.insert(key.into(), accepted);
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

    pub(crate) fn with_tasks(mut self) -> Self {
        self.tasks = true;
        self
    }

    /// The next request of a call.
    pub(crate) fn request(&self, call: &Call) -> Request {
        let mut request = self.add_bearer(Request::tool(&call.tool, call.arguments.clone()));
        if self.tasks {
            request = declare_tasks(request);
        }
        if self.progress {
            request = request.meta("progressToken", "progress".into());
        }
        if !call.answers.is_empty() {
            request = request.param("inputResponses", call.answers.clone().into());
        }
        if let Some(token) = &call.token {
            request = request.param("requestState", token.as_str().into());
        }
        request
    }

    fn add_bearer(&self, request: Request) -> Request {
        match &self.bearer {
            Some(token) => request.bearer(token),
            None => request,
        }
    }

    /// Sends a request about a task, and returns the response.
    pub(crate) async fn about_task(
        &self,
        method: &str,
        id: &str,
        answers: Option<&Value>,
    ) -> Result<Value, String> {
        let mut request = declare_tasks(self.add_bearer(Request::task(method, id)));
        if let Some(answers) = answers {
            request = request.param("inputResponses", answers.clone());
        }
        message_of(&self.try_send(&request).await?)
    }

    /// Sends the next request of a call, and returns the connection when the response begins.
    pub(crate) async fn begin(&self, call: &Call) -> io::Result<Connection> {
        let begun = http::try_begin(self.address, &self.request(call)).await;
        begun.map(|(connection, _)| connection)
    }

    async fn try_send(&self, request: &Request) -> Result<Response, String> {
        let response = tokio::time::timeout(PATIENCE, http::try_send(self.address, request)).await;
        let response = response.map_err(|_| format!("no reply after {PATIENCE:?}"))?;
        response.map_err(|error| error.to_string())
    }

    /// Sends the next request of a call and keeps the state of the reply.
    pub(crate) async fn try_round(&self, call: &mut Call) -> Result<Round, String> {
        let response = self.try_send(&self.request(call)).await?;
        let (status, message) = (response.status, message_of(&response)?);
        let reply = read_reply(call, status, &message)
            .ok_or_else(|| format!("unexpected reply, status {status}: {message}"))?;
        let served_by = response.header("refrain-round").and_then(|round| {
            let name = round.split("; ").find_map(|p| p.strip_prefix("instance="));
            name.map(str::to_owned)
        });
        Ok(Round { reply, served_by })
    }

    /// Like [`Self::try_round`], but panics without a reply.
    pub(crate) async fn round(&self, call: &mut Call) -> Reply {
        match self.try_round(call).await {
            Ok(round) => round.reply,
            Err(reason) => panic!("{call:?}: {reason}"),
        }
    }

    /// Makes further rounds, with the usual answers, until the call ends.
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

    /// Like [`Self::try_finish`], but panics if it fails.
    pub(crate) async fn finish(&self, call: Call) -> Finished {
        let tool = call.tool.clone();
        let finished = within("the end of a call", self.try_finish(call)).await;
        finished.unwrap_or_else(|reason| panic!("{tool}: {reason}"))
    }

    /// Sends a body verbatim, with the headers of a call of `echo`.
    pub(crate) async fn post(&self, body: String) -> (u16, Value) {
        let request = self.add_bearer(Request::bytes(body));
        let response = http::send(self.address, &request).await;
        (
            response.status,
            message_of(&response).expect("the server replies"),
        )
    }
}

/// Adds tasks to the declared capabilities.
fn declare_tasks(request: Request) -> Request {
    let mut capabilities =
        json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}});
    capabilities["extensions"] = json!({TASKS_EXTENSION: {}});
    request.meta(CAPABILITIES_KEY, capabilities)
}

/// The usual answer to an ask.
fn usual_answer(key: &str) -> Value {
    match key {
        "github_login" | "google_login" | "microsoft_login" => json!({"name": "octocat"}),
        "confirm_order" => json!({"confirm": true}),
        "resolution" => json!({"resolution": "Duplicate"}),
        "duplicate_of" => json!({"duplicateOfId": 4301}),
        "echo_input" => json!({"input": "hello"}),
        _ => panic!("no usual answer for {key:?}"),
    }
}

/// The message of a response: its JSON, or the last event of its stream.
fn message_of(response: &Response) -> Result<Value, String> {
    let text = response.text();
    let json = match response.header("content-type") {
        Some("text/event-stream") => text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .next_back()
            .ok_or_else(|| format!("stream without an event: {text}"))?,
        _ => &text,
    };
    let status = response.status;
    serde_json::from_str(json)
        .map_err(|error| format!("status {status}, not JSON ({error}): {text}"))
}

fn read_reply(call: &mut Call, status: u16, message: &Value) -> Option<Reply> {
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
