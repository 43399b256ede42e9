//! One HTTP request and its response, over a connection of its own.

use super::in_time;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing was sent.
    Connect(io::Error),
    /// The connection ended in the middle.
    Broken(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "no connection: {error}"),
            Self::Broken(reason) => write!(f, "the connection broke: {reason}"),
        }
    }
}

impl From<hyper::Error> for Fault {
    fn from(error: hyper::Error) -> Self {
        Self::Broken(format!("{error:?}"))
    }
}

/// Sends a request. The connection lives as long as the response's body.
pub(crate) async fn send(
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, Fault> {
    let stream = TcpStream::connect(address).await.map_err(Fault::Connect)?;
    stream.set_nodelay(true).map_err(Fault::Connect)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // What goes wrong with the connection is seen by whoever reads from it.
    tokio::spawn(async { drop(connection.await) });
    Ok(sender.send_request(request).await?)
}

/// Asks for one of the plain pages.
async fn get(address: SocketAddr, path: &str) -> Result<Response<Incoming>, Fault> {
    let request = Request::get(path)
        .header("host", address.to_string())
        .body(Full::default())
        .expect("a plain request");
    send(address, request).await
}

/// Asks for one of the plain pages and gives its status.
pub(crate) async fn status_of(address: SocketAddr, path: &str) -> Result<u16, Fault> {
    Ok(get(address, path).await?.status().as_u16())
}

/// Asks for one of the plain pages and gives its text.
pub(crate) async fn text_of(address: SocketAddr, path: &str) -> String {
    in_time("a page", page_of(address, path))
        .await
        .expect("a page")
}

/// The same, where there may be nobody to ask.
pub(crate) async fn page_of(address: SocketAddr, path: &str) -> Result<String, Fault> {
    let response = get(address, path).await?;
    assert_eq!(response.status(), 200, "{path}");
    let body = response.into_body().collect().await?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}
