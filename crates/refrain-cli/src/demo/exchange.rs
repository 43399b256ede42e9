//! One HTTP request and its response, over a connection of its own.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// The largest body that is read, either way.
pub(super) const BODY_MAX: usize = 4 * 1024 * 1024;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// Nothing was sent: another instance may be tried.
    #[error("{0} cannot be reached: {1}")]
    Connect(SocketAddr, #[source] io::Error),
    #[error("{0} did not answer: {1}")]
    Broken(SocketAddr, String),
    #[error("{0} did not answer within {1:?}")]
    Late(SocketAddr, Duration),
}

/// Sends a request and reads the whole response, in no more than `time`.
pub(super) async fn exchange(
    address: SocketAddr,
    request: Request<Full<Bytes>>,
    time: Duration,
) -> Result<Response<Bytes>, Fault> {
    tokio::time::timeout(time, send(address, request))
        .await
        .unwrap_or(Err(Fault::Late(address, time)))
}

async fn send(
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, Fault> {
    let broken = |error: &dyn std::fmt::Display| Fault::Broken(address, error.to_string());
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| Fault::Connect(address, error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broken(&error))?;
    let talk = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| broken(&error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, BODY_MAX)
            .collect()
            .await
            .map_err(|error| broken(&error))?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    };
    // The connection is driven beside the talk. Where it ends first, the talk finds out by itself.
    let mut talk = std::pin::pin!(talk);
    tokio::select! {
        response = talk.as_mut() => response,
        _ = connection => talk.await,
    }
}
