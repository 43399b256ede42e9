//! A proxy between a client and a fleet. It loses, cuts, delays and duplicates messages.

use super::http::end_of;
use super::{Connection, listen};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

pub const CALL: &str = "tools/call";
/// The request whose response is a stream without an end.
pub const LISTEN: &str = "subscriptions/listen";
/// A GET of a legacy client, for the stream of its session.
pub const GET: &str = "GET";
/// A GET of a legacy client that resumes a stream.
pub const RESUME: &str = "GET with Last-Event-ID";

/// A fault of one request or its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request does not reach the server.
    LoseRequest,
    /// The response does not reach the client.
    LoseResponse,
    /// The response ends in its headers.
    CutHead,
    /// The response ends in the middle of its body.
    CutBody,
    /// The client gets the response up to the first event of its stream, after the server has finished the stream. A
    /// subscription is cut at once.
    CutFinished,
    /// The response ends after the first event of its stream, while the server is at work.
    CutUnfinished,
    /// The request does not reach the server; the response is this status line without a body.
    Status(&'static str),
    /// The response is replaced by this status line without a body, as by a proxy that gave up waiting for it.
    StatusAfter(&'static str),
    /// Both connections are closed while the server is at work.
    HangUp,
    /// The request reaches two instances at the same time. The client gets one of the responses, if possible
    /// one without an error.
    DoubleAtOnce,
    /// The request reaches the server again after the response. The client gets the second response.
    DoubleInTurn,
    /// The response arrives late.
    Delay,
    /// The response is held back until the client closes its connection.
    Hold,
    /// The request reaches the server once more in [`FaultProxy::repeat_late_requests`].
    Late,
    /// Both connections are closed when the server has sent nothing for this long.
    CutSilence(Duration),
}

/// The key of call ids in requests, and of the capability in `server/discover`.
const CALL_ID: &[u8] = b"refrain/callId";
const DELAY: Duration = Duration::from_millis(300);

#[derive(Debug, Default)]
pub struct Plan {
    /// By the method of a request and its number among the requests of that method, from 1.
    faults: BTreeMap<(&'static str, usize), Fault>,
    hides_call_ids: bool,
    denies_call_ids: bool,
}

impl Plan {
    pub fn fault(mut self, method: &'static str, number: usize, fault: Fault) -> Self {
        self.faults.insert((method, number), fault);
        self
    }

    /// Removes call ids from requests.
    pub fn hide_call_ids(mut self) -> Self {
        self.hides_call_ids = true;
        self
    }

    /// Removes the servers' support of call ids from responses.
    pub fn deny_call_ids(mut self) -> Self {
        self.denies_call_ids = true;
        self
    }
}

/// The proxy. Dropping it stops it.
pub struct FaultProxy {
    pub url: String,
    route: Arc<Route>,
    _serving: JoinSet<()>,
}

/// The servers, and the faults on the way to them.
struct Route {
    servers: Vec<SocketAddr>,
    plan: Plan,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Requests received, by method.
    received: BTreeMap<String, usize>,
    /// Requests forwarded, copies included.
    forwarded: BTreeMap<String, usize>,
    /// The number of requests sent, which selects the next server.
    sent: usize,
    /// Requests for [`FaultProxy::repeat_late_requests`].
    late: Vec<RawRequest>,
}

impl FaultProxy {
    pub async fn start(servers: Vec<SocketAddr>, plan: Plan) -> Self {
        let listener = listen().await;
        let address = listener.local_addr().expect("an address");
        let route = Arc::new(Route {
            servers,
            plan,
            state: Mutex::default(),
        });
        let shared = Arc::clone(&route);
        let serving = accept(listener, move |client| {
            let route = Arc::clone(&shared);
            async move { route.forward(client).await }
        });
        Self {
            url: format!("http://{address}/mcp"),
            route,
            _serving: serving,
        }
    }

    /// The number of requests of a method that were received, and that were forwarded, copies included.
    pub fn count(&self, method: &str) -> (usize, usize) {
        let state = self.route.state.lock();
        let count = |counts: &BTreeMap<String, usize>| counts.get(method).copied().unwrap_or(0);
        (count(&state.received), count(&state.forwarded))
    }

    /// Forwards the requests with [`Fault::Late`] again.
    pub async fn repeat_late_requests(&self) {
        let late = std::mem::take(&mut self.route.state.lock().late);
        for request in &late {
            self.route.exchange(request).await;
        }
    }
}

impl Route {
    /// Forwards one request and its response, and closes the connection.
    async fn forward(&self, mut client: Connection) -> io::Result<()> {
        let request = RawRequest::read(&mut client).await?;
        let response = match self.fault(&request) {
            None if self.plan.denies_call_ids && request.method != LISTEN => {
                Some(self.exchange(&request).await)
            }
            None => {
                let mut server = self.send(&request).await;
                copy(&mut server, &mut client.stream).await?;
                None
            }
            Some(fault) => {
                self.response_with(fault, &request, &mut client.stream)
                    .await
            }
        };
        client.stream.write_all(&response.unwrap_or_default()).await
    }

    fn fault(&self, request: &RawRequest) -> Option<Fault> {
        let mut state = self.state.lock();
        let number = state.received.entry(request.method.clone()).or_default();
        *number += 1;
        let planned = self.plan.faults.get(&(request.method.as_str(), *number));
        planned.copied()
    }

    /// The part of the response that reaches the client.
    async fn response_with(
        &self,
        fault: Fault,
        request: &RawRequest,
        client: &mut TcpStream,
    ) -> Option<Vec<u8>> {
        let mut response = match fault {
            Fault::LoseRequest => return None,
            Fault::HangUp => {
                self.send(request).await;
                return None;
            }
            Fault::Status(status) => status_response(status),
            Fault::CutFinished => self.first_event(request, request.method != LISTEN).await,
            Fault::CutUnfinished => self.first_event(request, false).await,
            Fault::CutSilence(limit) => {
                self.copy_until_silent(request, client, limit).await;
                return None;
            }
            Fault::DoubleAtOnce => {
                let (one, other) = tokio::join!(self.exchange(request), self.exchange(request));
                if is_error(&one) { other } else { one }
            }
            _ => self.exchange(request).await,
        };
        let head = end_of(&response, b"\r\n\r\n").unwrap_or_default();
        match fault {
            Fault::LoseResponse => return None,
            Fault::Hold => {
                // Returns when the client closes the connection.
                let _ = client.read_u8().await;
                return None;
            }
            Fault::StatusAfter(status) => response = status_response(status),
            Fault::CutHead => response.truncate(head / 2),
            Fault::CutBody => response.truncate(response.len().midpoint(head)),
            Fault::DoubleInTurn => response = self.exchange(request).await,
            Fault::Delay => tokio::time::sleep(DELAY).await,
            Fault::Late => self.state.lock().late.push(request.clone()),
            _ => {}
        }
        Some(response)
    }

    async fn send(&self, request: &RawRequest) -> TcpStream {
        let server = {
            let mut state = self.state.lock();
            *state.forwarded.entry(request.method.clone()).or_default() += 1;
            state.sent += 1;
            self.servers[state.sent % self.servers.len()]
        };
        let server = TcpStream::connect(server).await;
        let mut server = server.expect("the server is there");
        let mut bytes = request.bytes.clone();
        if self.plan.hides_call_ids {
            hide(&mut bytes, CALL_ID);
        }
        server.write_all(&bytes).await.expect("it listens");
        server
    }

    /// Copies the response until the server closes the connection or is silent for this long.
    async fn copy_until_silent(
        &self,
        request: &RawRequest,
        client: &mut TcpStream,
        limit: Duration,
    ) {
        let mut server = self.send(request).await;
        let mut piece = Vec::new();
        while let Ok(Ok(1..)) = timeout(limit, server.read_buf(&mut piece)).await {
            if client.write_all(&piece).await.is_err() {
                return;
            }
            piece.clear();
        }
    }

    async fn exchange(&self, request: &RawRequest) -> Vec<u8> {
        let mut server = self.send(request).await;
        let mut response = Vec::new();
        let read = server.read_to_end(&mut response).await;
        read.expect("it answers");
        if self.plan.denies_call_ids {
            hide(&mut response, CALL_ID);
        }
        response
    }

    /// Sends a request to the next instance and returns the response up to the end of its first event, either at once or
    /// when the server has ended the stream.
    async fn first_event(&self, request: &RawRequest, wait_for_end: bool) -> Vec<u8> {
        let mut server = self.send(request).await;
        let mut response = Vec::new();
        loop {
            let read = server.read_buf(&mut response).await.expect("it answers");
            let head = end_of(&response, b"\r\n\r\n").unwrap_or(response.len());
            let event = end_of(&response[head..], b"\n\n");
            if let Some(event) = event
                && (read == 0 || !wait_for_end)
            {
                response.truncate(head + event);
                return response;
            }
            assert_ne!(read, 0, "a stream of events is expected");
        }
    }
}

/// Handles each connection in a task. Clients and servers may close their connections at any time.
pub(super) fn accept<F>(
    listener: TcpListener,
    handle: impl Fn(Connection) -> F + Send + 'static,
) -> JoinSet<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((client, address)) = listener.accept().await {
            connections.spawn(handle(Connection::new(client, address.to_string())));
            while connections.try_join_next().is_some() {}
        }
    });
    serving
}

/// A request as bytes, with a header that makes the server close the connection after its response.
#[derive(Clone)]
pub(super) struct RawRequest {
    /// The method of its message, [`GET`] or [`RESUME`].
    method: String,
    pub(super) bytes: Vec<u8>,
}

impl RawRequest {
    pub(super) async fn read(client: &mut Connection) -> io::Result<Self> {
        let mut bytes = client.until(b"\r\n\r\n").await?;
        let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let mut body = match header("content-length:") {
            Some(length) => {
                client
                    .take(length.trim().parse().expect("a length"))
                    .await?
            }
            None if header("transfer-encoding:").is_some() => {
                client.until(b"\r\n0\r\n\r\n").await?
            }
            None => Vec::new(),
        };
        let method = if header("last-event-id:").is_some() {
            RESUME.to_owned()
        } else if head.starts_with("get ") {
            GET.to_owned()
        } else {
            let message: Value = serde_json::from_slice(&body).unwrap_or_default();
            message["method"].as_str().unwrap_or_default().to_owned()
        };
        let line = end_of(&bytes, b"\r\n").expect("a head has a first line");
        bytes.splice(line..line, *b"connection: close\r\n");
        bytes.append(&mut body);
        Ok(Self { method, bytes })
    }
}

fn status_response(status: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into_bytes()
}

fn is_error(response: &[u8]) -> bool {
    end_of(response, b"\"error\":").is_some()
}

/// Changes the last byte of every occurrence of a name, so that its reader does not know it.
fn hide(bytes: &mut [u8], name: &[u8]) {
    let mut from = 0;
    while let Some(end) = end_of(&bytes[from..], name) {
        from += end;
        bytes[from - 1] = b'_';
    }
}
