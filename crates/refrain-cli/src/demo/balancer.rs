//! A strict round-robin load balancer that records every exchange.
//!
//! An instance that refuses the connection is skipped.

use crate::AppError;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, client, server};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

const BODY_MAX: usize = 4 * 1024 * 1024;
const FORWARD_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordedExchange {
    pub(super) instance: &'static str,
    /// The instances that refused the connection before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) passed_over: Vec<&'static str>,
    /// The `mcp-method` header of the request.
    #[serde(skip)]
    pub(super) method: String,
    /// The `refrain-round` header of the response.
    #[serde(skip)]
    pub(super) round_header: Option<String>,
    #[serde(skip)]
    pub(super) status: u16,
    #[serde(skip)]
    pub(super) body: Bytes,
}

impl RecordedExchange {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A handle to the balancer, which runs until the runtime ends.
#[derive(Clone)]
pub(super) struct DemoBalancer {
    pub(super) address: SocketAddr,
    state: Arc<Mutex<BalancerState>>,
}

#[derive(Default)]
struct BalancerState {
    members: Vec<(&'static str, SocketAddr)>,
    /// The index of the member that gets the next request.
    next: usize,
    exchanges: Vec<RecordedExchange>,
}

impl DemoBalancer {
    pub(super) async fn start() -> Result<Self, AppError> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .map_err(|error| format!("cannot listen on 127.0.0.1 for the balancer: {error}"))?;
        let balancer = Self {
            address: listener.local_addr()?,
            state: Arc::default(),
        };
        tokio::spawn(balancer.clone().accept(listener));
        Ok(balancer)
    }

    /// Forwards requests to these instances from now on, starting with the first one.
    pub(super) fn forward_to(&self, members: Vec<(&'static str, SocketAddr)>) {
        let mut state = self.state.lock();
        (state.members, state.next) = (members, 0);
    }

    /// Gives the next request to this instance.
    pub(super) fn set_next(&self, name: &str) {
        let mut state = self.state.lock();
        if let Some(next) = state.members.iter().position(|member| member.0 == name) {
            state.next = next;
        }
    }

    /// The exchanges since the last call of this function.
    pub(super) fn take_exchanges(&self) -> Vec<RecordedExchange> {
        std::mem::take(&mut self.state.lock().exchanges)
    }

    async fn accept(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let balancer = self.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| balancer.serve(request));
                let connection = server::conn::http1::Builder::new();
                // The client may close the connection at any time.
                let _ = connection
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    async fn serve(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(self.forward(request).await.unwrap_or_else(|error| {
            let mut response = Response::new(Full::from(error.to_string()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }))
    }

    /// Forwards a request to the next instance that accepts the connection.
    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, AppError> {
        let (parts, body) = read_whole(request.into_parts(), |parts| &mut parts.headers).await?;
        let mut passed_over = Vec::new();
        while let Some((instance, address)) = self.take_next(passed_over.len()) {
            let Ok(stream) = TcpStream::connect(address).await else {
                passed_over.push(instance);
                continue;
            };
            let header =
                |headers: &HeaderMap, name| Some(headers.get(name)?.to_str().ok()?.to_owned());
            let method = header(&parts.headers, "mcp-method").unwrap_or_default();
            let request = Request::from_parts(parts, Full::new(body));
            let response = tokio::time::timeout(FORWARD_TIMEOUT, send(stream, request)).await??;
            self.state.lock().exchanges.push(RecordedExchange {
                instance,
                passed_over,
                method,
                round_header: header(response.headers(), "refrain-round"),
                status: response.status().as_u16(),
                body: response.body().clone(),
            });
            return Ok(response.map(Full::new));
        }
        Err(format!(
            "no instance accepts connections: {}",
            passed_over.join(", ")
        )
        .into())
    }

    /// The next instance, unless all were tried already.
    fn take_next(&self, tried: usize) -> Option<(&'static str, SocketAddr)> {
        let mut state = self.state.lock();
        let members = state.members.len();
        let member = *state.members.get(state.next).filter(|_| tried < members)?;
        state.next = (state.next + 1) % members;
        Some(member)
    }
}

async fn send(
    stream: TcpStream,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, AppError> {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await?.into_parts();
    let (parts, body) = read_whole(response, |parts| &mut parts.headers).await?;
    Ok(Response::from_parts(parts, body))
}

/// Reads a whole message, and removes the headers of the connection.
async fn read_whole<P>(
    (mut parts, body): (P, Incoming),
    headers: fn(&mut P) -> &mut HeaderMap,
) -> Result<(P, Bytes), AppError> {
    headers(&mut parts).remove(CONNECTION);
    headers(&mut parts).remove(TRANSFER_ENCODING);
    let body = Limited::new(body, BODY_MAX).collect().await?;
    Ok((parts, body.to_bytes()))
}
