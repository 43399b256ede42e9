//! HTTP/2 connections.
//!
//! A stream is limited like an HTTP/1.1 connection: it counts as a connection of its address while its request or
//! response is in memory, and it ends if its client does not read.

use super::body::attach_guard;
use super::connections::{ConnectionContext, drive};
use super::frame_limit::FrameLimit;
use super::idle::{ActiveStream, WriteState};
use super::serve::route;
use super::{Body, empty};
use crate::limits::{LimitReached, Permit};
use crate::metrics::Refusal;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use refrain_core::limited_event;
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Maximum number of open streams per connection.
const MAX_STREAMS: u32 = 100;
/// Maximum number of streams per connection that are reset: by the client before they are served, or because of invalid
/// frames. Further resets close the connection.
const MAX_RESETS: usize = 20;
/// Maximum number of unread bytes of request bodies per stream.
const STREAM_WINDOW: u32 = 64 << 10;
/// Maximum number of unread bytes of request bodies per connection.
const CONNECTION_WINDOW: u32 = 256 << 10;
/// Maximum number of buffered bytes of a response.
const SEND_BUFFER: usize = 64 << 10;
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// A connection is closed if it does not answer a ping in this time.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The start of the connection preface. `PRI` is not a method of HTTP/1.1.
const PREFACE: &[u8; 4] = b"PRI ";
/// Maximum number of attempts to read the start of the preface.
const PREFACE_ATTEMPTS: usize = 50;
const PREFACE_INTERVAL: Duration = Duration::from_millis(20);

/// Whether the client sends the connection preface of HTTP/2.
pub(super) async fn is_http2(stream: &TcpStream) -> bool {
    let mut start = [0; PREFACE.len()];
    for _ in 0..PREFACE_ATTEMPTS {
        match stream.peek(&mut start).await {
            // More bytes are needed: `POST` starts with the same letter.
            Ok(read @ 1..4) if PREFACE.starts_with(&start[..read]) => {
                tokio::time::sleep(PREFACE_INTERVAL).await;
            }
            _ => return start == *PREFACE,
        }
    }
    false
}

tokio::task_local! {
    /// The stream that the current task serves.
    static STREAM: Result<Arc<Stream>, LimitReached>;
}

/// A stream: one request and its response.
#[derive(Debug)]
pub(super) struct Stream {
    writes: WriteState,
    _permit: Permit,
    _active: ActiveStream,
}

impl Stream {
    /// Resolves when the client has read nothing for `idle_time` although data waits for it.
    async fn stalled(&self, idle_time: Duration) {
        loop {
            tokio::time::sleep(idle_time).await;
            if self.writes.is_blocked_since_last_check() {
                return;
            }
        }
    }

    /// Records that data waits until the client reads.
    pub(super) fn record_waiting(&self) {
        self.writes.record(false);
    }

    /// Records that the client reads.
    pub(super) fn record_read(&self) {
        self.writes.record(true);
    }

    /// Records that these bytes wait until the client reads. They keep this stream, and its permit, until they are sent.
    pub(super) fn guard(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.record_waiting();
        attach_guard(bytes, self.clone())
    }
}

/// Runs the streams of a connection.
#[derive(Clone)]
struct StreamExecutor(Arc<ConnectionContext>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, future: F) {
        let context = &self.0;
        let permit = context.limiter.acquire(context.key.clone());
        let stream = permit.map(|permit| {
            Arc::new(Stream {
                writes: WriteState::default(),
                _permit: permit,
                _active: ActiveStream::new(&context.activity),
            })
        });
        let Ok(admitted) = stream.clone() else {
            // Rejects the request now: a spawned task would keep it in memory until it runs.
            let rejection = pin!(STREAM.scope(stream, future));
            let _ = rejection.poll(&mut Context::from_waker(Waker::noop()));
            return;
        };
        let idle_time = context.routes.server().limits().idle_time;
        // An interval of zero would end every stream.
        let idle_time = idle_time.max(Duration::from_millis(1));
        let until_stalled = async move {
            tokio::select! {
                () = future => {}
                () = admitted.stalled(idle_time) => tracing::debug!("stream closed: client does not read"),
            }
        };
        tokio::spawn(STREAM.scope(stream, until_stalled));
    }
}

/// Serves a connection until it ends.
pub(super) async fn serve<I>(io: I, context: ConnectionContext)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let context = Arc::new(context);
    let head = context.routes.server().limits().head;
    let service = {
        let context = context.clone();
        service_fn(move |request| serve_stream(context.clone(), request))
    };
    let connection = http2::Builder::new(StreamExecutor(context.clone()))
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(FrameLimit::new(io)), service);
    drive(
        connection,
        &context.activity,
        http2::Connection::graceful_shutdown,
    )
    .await;
}

async fn serve_stream(
    context: Arc<ConnectionContext>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    match STREAM.with(Clone::clone) {
        Ok(stream) => {
            let response = route(&context.routes, &context.activity, request).await;
            response.map(|response| response.map(|body| body.on_stream(stream)))
        }
        Err(reached) => {
            let metrics = &context.routes.server().0.services.metrics;
            metrics.request_refused(Refusal::Connections);
            limited_event!(WARN, reason = %reached, "HTTP/2 stream rejected");
            // Without a body: it would stay in memory, uncounted, until the client reads it.
            let mut response = empty(StatusCode::SERVICE_UNAVAILABLE);
            let second = HeaderValue::from_static("1");
            response.headers_mut().insert(RETRY_AFTER, second);
            Ok(response)
        }
    }
}
