//! A loopback listener for the redirect of a browser (RFC 8252).

use crate::retry::within;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

const PATH: &str = "/callback";
/// The time for one connection to send a request. Browsers open connections that they do not use.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECTIONS_MAX: usize = 32;
const HEAD_MAX: usize = 32 * 1024;

/// Listens on this machine for the redirect of a browser.
///
/// Its [`redirect_uri`](Self::redirect_uri) is the one for [`OAuth::by_browser`](crate::OAuth::by_browser).
#[derive(Debug)]
pub struct Loopback {
    listener: TcpListener,
    redirect_uri: Url,
}

impl Loopback {
    /// Listens on a port of `127.0.0.1`; 0 chooses a free one. Some authorization servers need a fixed port: the one
    /// that the client was registered with.
    pub async fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let redirect_uri = format!("http://{}{PATH}", listener.local_addr()?);
        let redirect_uri = Url::parse(&redirect_uri).map_err(io::Error::other)?;
        Ok(Self {
            listener,
            redirect_uri,
        })
    }

    /// The redirect URI of this listener.
    pub fn redirect_uri(&self) -> &Url {
        &self.redirect_uri
    }

    /// Waits for the redirect that answers this URL. Requests without its state are rejected.
    pub async fn answer_from(&self, asked: &Url, limit: Duration) -> io::Result<Url> {
        let state = state(asked);
        let answer = async {
            let mut connections = FuturesUnordered::new();
            loop {
                tokio::select! {
                    accepted = self.listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                        let (stream, _) = accepted?;
                        let received = self.receive(stream, state.as_deref());
                        connections.push(within(REQUEST_TIMEOUT, received));
                    }
                    Some(received) = connections.next() => {
                        if let Some(Ok(Some(url))) = received {
                            return Ok(url);
                        }
                    }
                }
            }
        };
        within(limit, answer).await.unwrap_or_else(|| {
            let seconds = limit.as_secs();
            let reason = format!("no browser came back within {seconds} seconds");
            Err(io::Error::new(io::ErrorKind::TimedOut, reason))
        })
    }

    async fn receive(
        &self,
        mut stream: TcpStream,
        wanted: Option<&str>,
    ) -> io::Result<Option<Url>> {
        let target = target(&mut stream).await?;
        let url = target.and_then(|target| self.redirect_uri.join(&target).ok());
        let answer = url.filter(|url| {
            let is_there = url.origin() == self.redirect_uri.origin() && url.path() == PATH;
            is_there && wanted.is_some() && state(url).as_deref() == wanted
        });
        let (status, text) = match &answer {
            Some(_) => (
                "200 OK",
                "Thank you. You can close this window and go back.",
            ),
            None => ("404 Not Found", "There is nothing here."),
        };
        let head = "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\nCache-Control: no-store";
        let length = text.len();
        let page = format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {length}\r\n\r\n{text}");
        // The redirect counts even if the browser has closed the connection.
        let _ = stream.write_all(page.as_bytes()).await;
        let _ = stream.shutdown().await;
        Ok(answer)
    }
}

async fn target(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= HEAD_MAX || stream.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split_ascii_whitespace();
    let is_get = words.next() == Some("GET");
    Ok(words.next().filter(|_| is_get).map(str::to_owned))
}

fn state(url: &Url) -> Option<String> {
    let mut pairs = url.query_pairs();
    pairs.find_map(|(name, value)| (name == "state").then(|| value.into_owned()))
}
