//! A gateway before servers, on a real port, which hands each request to the next one. It cuts the first stream of a call
//! after its first event, and may say something in place of the servers to whoever comes for the rest.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The gateway at work. Dropping it ends it.
pub(crate) struct Gateway {
    pub(crate) url: String,
    road: Arc<Road>,
    _serving: JoinSet<()>,
}

struct Road {
    servers: Vec<SocketAddr>,
    /// What is said in place of the servers, one time after the other.
    elsewhere: &'static [&'static str],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    turn: usize,
    cut: bool,
    resumed: usize,
    listened: usize,
}

/// Where a request goes.
enum Way {
    Through,
    Cut,
    Elsewhere(&'static str),
}

impl Gateway {
    pub(crate) async fn start(
        servers: Vec<SocketAddr>,
        elsewhere: &'static [&'static str],
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let road = Arc::new(Road {
            servers,
            elsewhere,
            state: Mutex::default(),
        });
        let to = Arc::clone(&road);
        let mut serving = JoinSet::new();
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

    /// How often somebody came for the rest of a stream.
    pub(crate) fn resumed(&self) -> usize {
        self.road.state.lock().expect("no panic").resumed
    }

    /// How often somebody came for the stream of the session.
    pub(crate) fn listened(&self) -> usize {
        self.road.state.lock().expect("no panic").listened
    }
}

impl Road {
    /// Passes on one request, and the response to it. The connection ends with it.
    async fn pass(&self, mut client: TcpStream) {
        let Some(request) = read(&mut client).await else {
            return;
        };
        let way = self.way(&request);
        if let Way::Elsewhere(status) = way {
            let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            // A client that has gone away is none of our concern.
            let _ = client.write_all(response.as_bytes()).await;
            return;
        }
        let server = TcpStream::connect(self.next()).await;
        let mut server = server.expect("the server is there");
        server.write_all(&request).await.expect("it listens");
        if let Way::Through = way {
            // Ends when either of them has gone away.
            let _ = copy(&mut server, &mut client).await;
            return;
        }
        let mut response = Vec::new();
        while end_of(&response, b"\n\n").is_none() {
            let read = server.read_buf(&mut response).await.expect("it answers");
            assert_ne!(read, 0, "a stream of events is expected");
        }
        let _ = client.write_all(&response).await;
    }

    fn next(&self) -> SocketAddr {
        let mut state = self.state.lock().expect("no panic");
        state.turn += 1;
        self.servers[state.turn % self.servers.len()]
    }

    fn way(&self, request: &[u8]) -> Way {
        let mut state = self.state.lock().expect("no panic");
        let has = |what: &[u8]| end_of(request, what).is_some();
        if has(b"last-event-id: ") {
            state.resumed += 1;
            let said = self.elsewhere.get(state.resumed - 1);
            return said.map_or(Way::Through, |said| Way::Elsewhere(said));
        }
        if request.starts_with(b"GET ") {
            state.listened += 1;
            let said = self.elsewhere.get(state.listened - 1);
            return said.map_or(Way::Through, |said| Way::Elsewhere(said));
        }
        if has(b"\"tools/call\"") && !std::mem::replace(&mut state.cut, true) {
            return Way::Cut;
        }
        Way::Through
    }
}

/// A request with its body, and with a header that has the server close the connection after its response.
async fn read(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(head) = end_of(&bytes, b"\r\n\r\n") {
            break head;
        }
        if client.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().expect("a number"));
    while bytes.len() < head + length {
        if client.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let line = end_of(&bytes, b"\r\n").expect("a head has a first line");
    bytes.splice(line..line, *b"connection: close\r\n");
    Some(bytes)
}

/// Where the first of these ends.
fn end_of(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let at = bytes.windows(what.len()).position(|window| window == what);
    at.map(|at| at + what.len())
}
