//! A server that answers as it is told, byte for byte.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What to answer to a request.
pub(crate) enum Say {
    /// A result.
    Result(Value),
    /// An error of the protocol.
    Error(i64, &'static str),
    /// A status, a media type and a body.
    Raw(u16, &'static str, String),
    /// The start of a stream of events, which breaks there.
    Cut(String),
}

/// A server of this process.
pub(crate) struct Told {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Told {
    /// Answers `server/discover` by itself, and everything else as it is told.
    pub(crate) async fn start(answer: impl Fn(&Value) -> Say + Send + Sync + 'static) -> Self {
        let discovered = json!({
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "ttlMs": 0,
            "cacheScope": "private",
        });
        Self::start_raw(move |request| match request["method"].as_str() {
            Some("server/discover") => Say::Result(discovered.clone()),
            _ => answer(request),
        })
        .await
    }

    /// Answers everything as it is told.
    pub(crate) async fn start_raw(answer: impl Fn(&Value) -> Say + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (answer, seen) = (Arc::new(answer), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let Some(request) = read(&mut stream).await else {
                        return;
                    };
                    seen.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(request.clone());
                    let response = written(&request, answer(&request));
                    // Whoever asked may be gone.
                    let _ = stream.write_all(&response).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// How often it was asked this.
    pub(crate) fn count(&self, method: &str) -> usize {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.iter().filter(|r| r["method"] == method).count()
    }
}

/// The message in the body of a request, and null for one that is none.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(serde_json::from_slice(&body).unwrap_or_default())
}

fn written(request: &Value, say: Say) -> Vec<u8> {
    let id = &request["id"];
    let message = |body: Value| ("application/json", body.to_string());
    let (status, (kind, body)) = match say {
        Say::Result(result) => (
            200,
            message(json!({"jsonrpc": "2.0", "id": id, "result": result})),
        ),
        Say::Error(code, text) => {
            let error = json!({"code": code, "message": text});
            (
                400,
                message(json!({"jsonrpc": "2.0", "id": id, "error": error})),
            )
        }
        Say::Raw(status, kind, body) => (status, (kind, body)),
        // Without a length and without the last chunk: the end is a break.
        Say::Cut(body) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            return format!("{head}{:x}\r\n{body}\r\n", body.len()).into_bytes();
        }
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Told\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
