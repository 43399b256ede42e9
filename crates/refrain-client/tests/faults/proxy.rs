//! A proxy between a client and a fleet, which does what networks do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The calls of tools.
pub(crate) const CALL: &str = "tools/call";
/// The request whose response is a stream that does not end by itself.
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// What is done to one request or its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The request does not reach the server.
    LoseRequest,
    /// The server answers, and nothing of it arrives.
    LoseResponse,
    /// The response ends in its headers.
    CutHead,
    /// The response ends in the middle of its body.
    CutBody,
    /// The response ends after the first event of its stream.
    CutStream,
    /// Both connections end while the server is at work.
    HangUp,
    /// The request reaches two instances at the same time. The first good response arrives.
    DoubleAtOnce,
    /// The request reaches the server again after it was answered. The second response arrives.
    DoubleInTurn,
    /// The response takes its time.
    Delay,
    /// The response is kept back until the client has gone.
    Hold,
    /// The request reaches the server once more when everything is over.
    Late,
}

/// The name of call ids, in requests and where servers say what they know.
const CALL_ID: &[u8] = b"refrain/callId";
/// How long a response is delayed.
const DELAY: Duration = Duration::from_millis(300);

/// What is to happen.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// By the method of the request, and its number among those, from one.
    faults: BTreeMap<(&'static str, usize), Fault>,
    hides_call_ids: bool,
    denies_call_ids: bool,
}

impl Plan {
    /// This happens to one request.
    pub(crate) fn fault(mut self, method: &'static str, number: usize, fault: Fault) -> Self {
        self.faults.insert((method, number), fault);
        self
    }

    /// Servers do not get to see call ids, though they say that they know them.
    pub(crate) fn hide_call_ids(mut self) -> Self {
        self.hides_call_ids = true;
        self
    }

    /// Clients do not get to know that servers know call ids.
    pub(crate) fn deny_call_ids(mut self) -> Self {
        self.denies_call_ids = true;
        self
    }
}

/// A proxy on a port of its own. It stops when this is dropped.
pub(crate) struct Proxy {
    pub(crate) url: String,
    road: Arc<Road>,
    _serving: JoinSet<()>,
}

/// The way to the fleet, and what happens on it.
struct Road {
    servers: Vec<SocketAddr>,
    plan: Plan,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The requests that came, by their methods.
    came: BTreeMap<String, usize>,
    /// Those that were sent on, copies included.
    sent_on: BTreeMap<String, usize>,
    /// The instance that was sent the last one.
    instance: usize,
    /// What is still to be sent.
    late: Vec<Request>,
}

impl Proxy {
    pub(crate) async fn start(servers: Vec<SocketAddr>, plan: Plan) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let road = Arc::new(Road {
            servers,
            plan,
            state: Mutex::default(),
        });
        let mut serving = JoinSet::new();
        let to = Arc::clone(&road);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let road = Arc::clone(&to);
                connections.spawn(async move { road.pass(client).await });
            }
        });
        Self {
            url: format!("http://{address}/mcp"),
            road,
            _serving: serving,
        }
    }

    /// How many requests of a method have come, and how many were sent on, copies included.
    pub(crate) fn count(&self, method: &str) -> (usize, usize) {
        let state = self.road.state();
        let of = |counts: &BTreeMap<String, usize>| counts.get(method).copied().unwrap_or(0);
        (of(&state.came), of(&state.sent_on))
    }

    /// Sends what was kept for later.
    pub(crate) async fn send_late(&self) {
        let late = std::mem::take(&mut self.road.state().late);
        for request in &late {
            self.road.exchange(request).await;
        }
    }
}

impl Road {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics under the lock")
    }

    /// Passes on the request of a client, and the response to it. The connection ends with it.
    async fn pass(&self, mut client: TcpStream) {
        let Some(request) = Request::read(&mut client).await else {
            return;
        };
        let response = match self.fault(&request) {
            None if request.method == LISTEN => {
                let mut server = self.send(&request).await;
                // Ends when either of them has gone away.
                let _ = copy(&mut server, &mut client).await;
                return;
            }
            None => Some(self.exchange(&request).await),
            Some(fault) => self.answer(fault, &request, &mut client).await,
        };
        if let Some(response) = response {
            // A client that has gone away is none of our concern.
            let _ = client.write_all(&response).await;
        }
    }

    /// What is to happen to a request that has come.
    fn fault(&self, request: &Request) -> Option<Fault> {
        let mut state = self.state();
        let came = state.came.entry(request.method.clone()).or_default();
        *came += 1;
        let planned = self.plan.faults.get(&(request.method.as_str(), *came));
        planned.copied()
    }

    /// What the client gets to see of the response to its request.
    async fn answer(
        &self,
        fault: Fault,
        request: &Request,
        client: &mut TcpStream,
    ) -> Option<Vec<u8>> {
        match fault {
            Fault::LoseRequest => None,
            Fault::LoseResponse => {
                self.exchange(request).await;
                None
            }
            Fault::HangUp => {
                self.send(request).await;
                None
            }
            Fault::Hold => {
                self.exchange(request).await;
                // Ends when the client closes the connection.
                let _ = client.read_u8().await;
                None
            }
            Fault::CutHead => {
                let mut response = self.exchange(request).await;
                response.truncate(head_of(&response).len() / 2);
                Some(response)
            }
            Fault::CutBody => {
                let mut response = self.exchange(request).await;
                response.truncate(response.len().midpoint(head_of(&response).len()));
                Some(response)
            }
            Fault::CutStream => Some(self.first_event(request).await),
            Fault::DoubleAtOnce => {
                let (one, other) = tokio::join!(self.exchange(request), self.exchange(request));
                Some(if is_error(&one) { other } else { one })
            }
            Fault::DoubleInTurn => {
                self.exchange(request).await;
                Some(self.exchange(request).await)
            }
            Fault::Delay => {
                let response = self.exchange(request).await;
                tokio::time::sleep(DELAY).await;
                Some(response)
            }
            Fault::Late => {
                let response = self.exchange(request).await;
                self.state().late.push(request.clone());
                Some(response)
            }
        }
    }

    /// Sends a request to the next instance.
    async fn send(&self, request: &Request) -> TcpStream {
        let server = {
            let mut state = self.state();
            *state.sent_on.entry(request.method.clone()).or_default() += 1;
            state.instance += 1;
            self.servers[state.instance % self.servers.len()]
        };
        let mut server = TcpStream::connect(server)
            .await
            .expect("the server is there");
        let mut bytes = request.bytes.clone();
        if self.plan.hides_call_ids {
            hide(&mut bytes, CALL_ID);
        }
        server.write_all(&bytes).await.expect("it listens");
        server
    }

    /// Sends a request to the next instance, and gives its whole response.
    async fn exchange(&self, request: &Request) -> Vec<u8> {
        let mut server = self.send(request).await;
        let mut response = Vec::new();
        let read = server.read_to_end(&mut response).await;
        read.expect("it answers");
        if self.plan.denies_call_ids {
            hide(&mut response, CALL_ID);
        }
        response
    }

    /// Sends a request to the next instance, and gives its response up to the end of the first event. A stream that
    /// ends by itself is read to its end all the same, so that the server has done its work.
    async fn first_event(&self, request: &Request) -> Vec<u8> {
        let mut server = self.send(request).await;
        let mut response = Vec::new();
        loop {
            let read = server.read_buf(&mut response).await.expect("it answers");
            let head = end_of(&response, b"\r\n\r\n").unwrap_or(response.len());
            let event = end_of(&response[head..], b"\n\n");
            if let Some(event) = event
                && (read == 0 || request.method == LISTEN)
            {
                response.truncate(head + event);
                return response;
            }
            assert_ne!(read, 0, "a stream of events is expected");
        }
    }
}

/// A request of a client.
#[derive(Clone)]
struct Request {
    method: String,
    /// The bytes of it, with a header that has the server close the connection after its response.
    bytes: Vec<u8>,
}

impl Request {
    /// Reads a request with its body. There is none when the client has closed its connection.
    async fn read(client: &mut TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        while end_of(&bytes, b"\r\n\r\n").is_none() {
            if client.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
        let head = head_of(&bytes);
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let length: usize = header("content-length: ").map_or(0, |length| {
            length.parse().expect("the length of a body is a number")
        });
        while bytes.len() < head.len() + length {
            if client.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
        let line = end_of(&bytes, b"\r\n").expect("a head has a first line");
        bytes.splice(line..line, *b"connection: close\r\n");
        let method = header("mcp-method: ").unwrap_or_default().to_owned();
        Some(Self { method, bytes })
    }
}

/// Where the first of these ends.
fn end_of(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let at = bytes.windows(what.len()).position(|window| window == what);
    at.map(|at| at + what.len())
}

/// The first line and the headers of a request or a response.
fn head_of(message: &[u8]) -> String {
    let end = end_of(message, b"\r\n\r\n").expect("a whole head");
    String::from_utf8_lossy(&message[..end]).to_ascii_lowercase()
}

fn is_error(response: &[u8]) -> bool {
    end_of(response, b"\"error\":").is_some()
}

/// Spoils every occurrence of a name, without changing its length.
fn hide(bytes: &mut [u8], name: &[u8]) {
    let mut from = 0;
    while let Some(end) = end_of(&bytes[from..], name) {
        from += end;
        bytes[from - 1] = b'_';
    }
}
