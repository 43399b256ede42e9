//! HTTP pages, and requests whose responses are read piece by piece.

pub(crate) use refrain_testkit::net::http::{status_of, text_of};

use bytes::Bytes;
use http_body_util::Full;
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
