//! A loopback listener for the redirect from a browser (RFC 8252).

use crate::retry::within;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use url::Url;

const PATH: &str = "/callback";
/// The time for a connection to send its request. Browsers open connections without using them.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A new connection above this number closes the oldest one without a request.
const CONNECTIONS_MAX: u64 = 32;
/// The maximum length of the head of a request, in bytes.
const HEAD_MAX: usize = 32 * 1024;

/// Listens on `127.0.0.1` for the redirect from a browser.
///
/// Pass its [`redirect_uri`](Self::redirect_uri) to [`OAuth::by_browser`](crate::OAuth::by_browser).
#[derive(Debug)]
pub struct Loopback {
    listener: TcpListener,
    redirect_uri: Url,
}

impl Loopback {
    /// Listens on a port of `127.0.0.1`, or on a free port for 0. Some authorization servers require the port that the
    /// client was registered with.
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

    /// Waits for the redirect with the same state as this authorization URL. Other requests get a 404.
    pub async fn wait_for_redirect(
        &self,
        authorization_url: &Url,
        timeout: Duration,
    ) -> io::Result<Url> {
        let state = state(authorization_url);
        let redirect = async {
            let mut connections = FuturesUnordered::new();
            let accepted_count = watch::Sender::new(0);
            loop {
                tokio::select! {
                    accepted = self.listener.accept() => {
                        let (stream, _) = accepted?;
                        accepted_count.send_modify(|count| *count += 1);
                        let received = self.receive(stream, state.as_deref(), accepted_count.subscribe());
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
        within(timeout, redirect).await.unwrap_or_else(|| {
            let seconds = timeout.as_secs();
            let reason = format!("no redirect from the browser within {seconds} seconds");
            Err(io::Error::new(io::ErrorKind::TimedOut, reason))
        })
    }

    async fn receive(
        &self,
        mut stream: TcpStream,
        expected_state: Option<&str>,
        mut accepted_count: watch::Receiver<u64>,
    ) -> io::Result<Option<Url>> {
        let last = *accepted_count.borrow() + CONNECTIONS_MAX;
        let target = tokio::select! {
            target = read_target(&mut stream) => target?,
            _ = accepted_count.wait_for(|count| *count >= last) => return Ok(None),
        };
        let url = target.and_then(|target| self.redirect_uri.join(&target).ok());
        let redirect = url.filter(|url| {
            let is_callback = url.origin() == self.redirect_uri.origin() && url.path() == PATH;
            is_callback && expected_state.is_some() && state(url).as_deref() == expected_state
        });
        let (status, text) = match &redirect {
            Some(_) => (
                "200 OK",
                "Authorization received. You can close this window.",
            ),
            None => ("404 Not Found", "Not found."),
        };
        let head = "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\nCache-Control: no-store";
        let length = text.len();
        let page = format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {length}\r\n\r\n{text}");
        // The redirect counts even if the browser has closed the connection.
        let _ = stream.write_all(page.as_bytes()).await;
        let _ = stream.shutdown().await;
        Ok(redirect)
    }
}

async fn read_target(stream: &mut TcpStream) -> io::Result<Option<String>> {
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
