//! A proxy between a client and a fleet, which does what networks do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

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

/// How long a response is delayed.
const DELAY: Duration = Duration::from_millis(300);
/// The request that calls a tool, in its headers.
const TOOL_CALL: &str = "mcp-method: tools/call";

/// A proxy on a port of its own. It stops when this is dropped.
pub(crate) struct Proxy {
    pub(crate) url: String,
    road: Arc<Road>,
    _serving: JoinSet<()>,
}

/// The way to the fleet, and what happens on it.
struct Road {
    servers: Vec<SocketAddr>,
    /// What happens to which request, the requests that call a tool counted from one.
    faults: BTreeMap<usize, Fault>,
    /// Whether servers are kept from knowing call ids.
    hides_call_ids: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many requests that call a tool have come.
    came: usize,
    /// How many of them were sent on, copies included.
    sent_on: usize,
    /// What is still to be sent.
    late: Vec<Vec<u8>>,
}

impl Proxy {
    pub(crate) async fn start(servers: Vec<SocketAddr>, faults: &[(usize, Fault)]) -> Self {
        Self::on(Road {
            servers,
            faults: faults.iter().copied().collect(),
            hides_call_ids: false,
            state: Mutex::default(),
        })
        .await
    }

    /// One that keeps servers from knowing call ids.
    pub(crate) async fn without_call_ids(
        servers: Vec<SocketAddr>,
        faults: &[(usize, Fault)],
    ) -> Self {
        Self::on(Road {
            servers,
            faults: faults.iter().copied().collect(),
            hides_call_ids: true,
            state: Mutex::default(),
        })
        .await
    }

    async fn on(road: Road) -> Self {
        let road = Arc::new(road);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
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

    /// How many requests that call a tool have come.
    pub(crate) fn came(&self) -> usize {
        self.road.state().came
    }

    /// How many of them were sent on, copies included.
    pub(crate) fn sent_on(&self) -> usize {
        self.road.state().sent_on
    }

    /// Sends what was kept for later.
    pub(crate) async fn send_late(&self) {
        let late = std::mem::take(&mut self.road.state().late);
        for request in late {
            self.road.exchange(&request).await;
        }
    }
}

impl Road {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics under the lock")
    }

    /// Passes on the request of a client, and the response to it. The connection ends with it.
    async fn pass(&self, mut client: TcpStream) {
        let Some(request) = read_request(&mut client).await else {
            return;
        };
        let response = match self.fault(&request) {
            None => Some(self.exchange(&request).await),
            Some(fault) => self.answer(fault, &request, &mut client).await,
        };
        if let Some(response) = response {
            // A client that has gone away is none of our concern.
            let _ = client.write_all(&response).await;
        }
    }

    /// What is to happen to a request. Only those that call a tool are counted.
    fn fault(&self, request: &[u8]) -> Option<Fault> {
        if !is_tool_call(request) {
            return None;
        }
        let mut state = self.state();
        state.came += 1;
        self.faults.get(&state.came).copied()
    }

    /// What the client gets to see of the response to its request.
    async fn answer(
        &self,
        fault: Fault,
        request: &[u8],
        client: &mut TcpStream,
    ) -> Option<Vec<u8>> {
        let answered = self.exchange(request);
        match fault {
            Fault::LoseRequest => None,
            Fault::LoseResponse => {
                answered.await;
                None
            }
            Fault::Hold => {
                answered.await;
                // Ends when the client closes the connection.
                let _ = client.read_u8().await;
                None
            }
            Fault::CutHead => {
                let mut response = answered.await;
                response.truncate(head_of(&response).len() / 2);
                Some(response)
            }
            Fault::CutBody => {
                let mut response = answered.await;
                response.truncate(response.len().midpoint(head_of(&response).len()));
                Some(response)
            }
            Fault::CutStream => {
                let mut response = answered.await;
                let head = head_of(&response).len();
                let event = end_of(&response[head..], b"\n\n").expect("a stream of events");
                response.truncate(head + event);
                Some(response)
            }
            Fault::DoubleAtOnce => {
                let (one, other) = tokio::join!(answered, self.exchange(request));
                Some(if is_error(&one) { other } else { one })
            }
            Fault::DoubleInTurn => {
                answered.await;
                Some(self.exchange(request).await)
            }
            Fault::Delay => {
                let response = answered.await;
                tokio::time::sleep(DELAY).await;
                Some(response)
            }
            Fault::Late => {
                self.state().late.push(request.to_vec());
                Some(answered.await)
            }
        }
    }

    /// Sends a request to the next instance, and gives its whole response.
    async fn exchange(&self, request: &[u8]) -> Vec<u8> {
        let server = {
            let mut state = self.state();
            state.sent_on += usize::from(is_tool_call(request));
            self.servers[state.sent_on % self.servers.len()]
        };
        let mut server = TcpStream::connect(server)
            .await
            .expect("the server is there");
        let line = end_of(request, b"\r\n").expect("a whole request");
        let mut request = [&request[..line], b"connection: close\r\n", &request[line..]].concat();
        if self.hides_call_ids {
            hide(&mut request, b"refrain/callId");
        }
        server.write_all(&request).await.expect("it listens");
        let mut response = Vec::new();
        let read = server.read_to_end(&mut response).await;
        read.expect("it answers");
        response
    }
}

/// Where the first of these ends.
fn end_of(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let at = bytes.windows(what.len()).position(|window| window == what);
    at.map(|at| at + what.len())
}

/// Spoils every occurrence of a name, without changing its length.
fn hide(bytes: &mut [u8], name: &[u8]) {
    let mut from = 0;
    while let Some(end) = end_of(&bytes[from..], name) {
        from += end;
        bytes[from - 1] = b'_';
    }
}

/// The first line and the headers of a request or a response.
fn head_of(message: &[u8]) -> String {
    let end = end_of(message, b"\r\n\r\n").expect("a whole head");
    String::from_utf8_lossy(&message[..end]).to_ascii_lowercase()
}

fn is_tool_call(request: &[u8]) -> bool {
    head_of(request).lines().any(|line| line == TOOL_CALL)
}

fn is_error(response: &[u8]) -> bool {
    end_of(response, b"\"error\":").is_some()
}

/// Reads a request with its body. There is none when the client has closed its connection.
async fn read_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut whole = None;
    while whole.is_none_or(|whole| request.len() < whole) {
        if client.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
        if whole.is_none()
            && let Some(head) = end_of(&request, b"\r\n\r\n")
        {
            let length = head_of(&request)
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            whole = Some(head + length.unwrap_or(0));
        }
    }
    Some(request)
}
