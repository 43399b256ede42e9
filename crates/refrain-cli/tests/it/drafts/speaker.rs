//! A client that sends given messages over HTTP or stdio.

use super::{assert_shown, example, posted};
use crate::support::{Instance, PATIENCE, Process, Request, Serve, program, within};
use refrain::server::Draft;
use refrain_testkit::net::http;
use serde_json::{Map, Value};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Http,
    Stdio,
}

impl Transport {
    pub(crate) const ALL: [Self; 2] = [Self::Http, Self::Stdio];
}

enum Connection {
    /// With the session id, if there is one.
    Http(Instance, Option<String>),
    Stdio {
        _process: Child,
        input: ChildStdin,
        output: Lines<BufReader<ChildStdout>>,
    },
}

/// A client of a draft of MCP. In the examples of its document, it replaces the state and the task id by the server's last
/// ones.
pub(crate) struct Speaker {
    draft: Draft,
    connection: Connection,
    /// The bearer token, over HTTP.
    bearer: Option<&'static str>,
    state: Option<Value>,
    task: Option<Value>,
}

impl Speaker {
    /// Starts a server and connects to it.
    pub(crate) async fn start(draft: Draft, transport: Transport) -> Self {
        let connection = match transport {
            Transport::Http => return Self::start_http(draft, Serve::new()).await,
            Transport::Stdio => {
                let mut process = program()
                    .args(["serve", "--stdio", "--dialect", draft.name()])
                    .env("REFRAIN_STORE", "memory:")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .kill_on_drop(true)
                    .spawn()
                    .expect("the binary starts");
                let output = process.stdout.take().expect("the stream is piped");
                Connection::Stdio {
                    input: process.stdin.take().expect("the stream is piped"),
                    output: BufReader::new(output).lines(),
                    _process: process,
                }
            }
        };
        Self {
            draft,
            connection,
            bearer: None,
            state: None,
            task: None,
        }
    }

    /// Starts this server and connects to it over HTTP.
    pub(crate) async fn start_http(draft: Draft, serve: Serve) -> Self {
        let instance = serve.args(["--drafts"]).start().await;
        Self {
            draft,
            connection: Connection::Http(instance, None),
            bearer: None,
            state: None,
            task: None,
        }
    }

    /// Uses this bearer token from now on.
    pub(crate) fn set_bearer(&mut self, bearer: &'static str) {
        self.bearer = Some(bearer);
    }

    /// Swaps the servers of two clients of a draft.
    pub(crate) fn swap_servers(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.connection, &mut other.connection);
    }

    /// The address of the server, over HTTP.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match &self.connection {
            Connection::Http(instance, _) => Some(instance.address),
            Connection::Stdio { .. } => None,
        }
    }

    /// The process of the server, over HTTP.
    pub(crate) fn process(&self) -> Option<&Process> {
        match &self.connection {
            Connection::Http(instance, _) => Some(instance),
            Connection::Stdio { .. } => None,
        }
    }

    /// Speaks another draft with this server from now on.
    pub(crate) fn set_draft(&mut self, draft: Draft) {
        self.draft = draft;
    }

    /// Sends a message verbatim, and returns the response.
    pub(crate) async fn send_verbatim(&mut self, message: &Value) -> Value {
        let text = message.to_string();
        let reply = self.exchange(text).await;
        let reply = reply.unwrap_or_else(|| panic!("no response to {message}"));
        for name in ["requestState", "request_state"] {
            let state = reply.get(name).or_else(|| reply["result"].get(name));
            self.state = state.cloned().or(self.state.take());
        }
        let result = &reply["result"];
        let task = result["task"]
            .get("taskId")
            .or_else(|| result.get("taskId"));
        self.task = task.cloned().or(self.task.take());
        reply
    }

    /// Sends a message that has no response, with the received state and task id.
    pub(crate) async fn notify(&mut self, message: &Value) {
        let message = self.with_received(message.clone()).to_string();
        match &mut self.connection {
            Connection::Http(instance, session) => {
                let (status, body) =
                    post_http(instance, (self.draft, self.bearer), session, message).await;
                assert_eq!((status, body.as_str()), (202, ""));
            }
            // An unexpected response would be read as the response to the next message, and fail there.
            Connection::Stdio { input, .. } => write(input, message).await,
        }
    }

    async fn exchange(&mut self, message: String) -> Option<Value> {
        let answer = match &mut self.connection {
            Connection::Http(instance, session) => {
                let who = (self.draft, self.bearer);
                post_http(instance, who, session, message).await.1
            }
            Connection::Stdio { input, output, .. } => {
                write(input, message).await;
                let line = within("a response", output.next_line()).await;
                line.expect("a line").expect("the server is running")
            }
        };
        serde_json::from_str(&answer).ok()
    }

    /// A message of a document, with the received state and task id.
    fn with_received(&self, mut message: Value) -> Value {
        let put = |members: &mut Map<String, Value>, name: &str, received: &Option<Value>| {
            if let (Some(member), Some(received)) = (members.get_mut(name), received) {
                *member = received.clone();
            }
        };
        let mut open: Vec<&mut Value> = vec![&mut message];
        while let Some(value) = open.pop() {
            if let Value::Object(members) = value {
                put(members, "requestState", &self.state);
                put(members, "request_state", &self.state);
                put(members, "taskId", &self.task);
                open.extend(members.values_mut());
            }
        }
        message
    }

    /// Sends a message of a document with the received state and task id.
    pub(crate) async fn send(&mut self, message: Value) -> Value {
        let message = self.with_received(message);
        self.send_verbatim(&message).await
    }

    /// Sends an example of the draft's document, and compares the response with the example `response`.
    pub(crate) async fn send_example(&mut self, document: u8, request: u8, response: u8) {
        let reply = self.send(posted(document, request)).await;
        assert_shown(document, response, &reply);
    }

    /// Sends an example until the task has the status of the example `response`, and compares the
    /// response with it.
    pub(crate) async fn poll_example(&mut self, document: u8, request: u8, response: u8) {
        let status = example(document, response)["result"]["status"].clone();
        let begun = Instant::now();
        loop {
            let reply = self.send(posted(document, request)).await;
            if reply["result"]["status"] == status {
                return assert_shown(document, response, &reply);
            }
            assert!(begun.elapsed() < PATIENCE, "not {status}: {reply}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn write(input: &mut ChildStdin, message: String) {
    let line = message + "\n";
    let written = within("a message is taken", input.write_all(line.as_bytes())).await;
    written.expect("a message is taken");
}

/// Posts a message, and returns the status and the body.
async fn post_http(
    instance: &Instance,
    (draft, bearer): (Draft, Option<&str>),
    session: &mut Option<String>,
    message: String,
) -> (u16, String) {
    let mut request = Request::post(draft.path(), message);
    if let Some(session) = &session {
        request = request.header("mcp-session-id", session);
    }
    if let Some(bearer) = bearer {
        request = request.bearer(bearer);
    }
    let response = http::send(instance.address, &request).await;
    if let Some(opened) = response.header("mcp-session-id") {
        *session = Some(opened.to_owned());
    }
    (response.status, response.text())
}
