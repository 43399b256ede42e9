//! Detection of idle connections, and of clients that do not read, by one periodic check of all connections: that costs less
//! than a timer per request.

use crate::limits::Permit;
use parking_lot::Mutex;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

const WRITABLE: u8 = 0;
const BLOCKED: u8 = 1;
const BLOCKED_AT_LAST_CHECK: u8 = 2;

/// The state of writes to the client.
#[derive(Debug, Default)]
pub(super) struct WriteState(AtomicU8);

impl WriteState {
    pub(super) fn record(&self, is_writable: bool) {
        let relaxed = Ordering::Relaxed;
        if is_writable {
            if self.0.load(relaxed) != WRITABLE {
                self.0.store(WRITABLE, relaxed);
            }
        } else {
            // Does not overwrite `BLOCKED_AT_LAST_CHECK`.
            let _ = self.0.compare_exchange(WRITABLE, BLOCKED, relaxed, relaxed);
        }
    }

    /// Whether writes were blocked at the last check and ever since.
    pub(super) fn is_blocked_since_last_check(&self) -> bool {
        let (relaxed, next) = (Ordering::Relaxed, BLOCKED_AT_LAST_CHECK);
        let previous = self.0.compare_exchange(BLOCKED, next, relaxed, relaxed);
        previous == Err(BLOCKED_AT_LAST_CHECK)
    }
}

/// The state of a connection that its requests and the idle check share.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// The client's address.
    pub(crate) address: Option<IpAddr>,
    /// Returned when the connection ends, or earlier by [`return_permit`](Self::return_permit).
    permit: Mutex<Option<Permit>>,
    /// The number of requests received so far.
    requests: AtomicU64,
    /// The number of requests in flight that do not wait for their client. HTTP/2 allows several.
    running: AtomicUsize,
    /// The number of HTTP/2 streams in memory.
    streams: AtomicUsize,
    pub(super) writes: WriteState,
    /// Whether the client has sent nothing since the last response of an HTTP/1 connection was ready.
    nothing_sent_since_response: AtomicBool,
    closing: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Activity {
    pub(super) fn new(address: IpAddr, permit: Permit) -> Self {
        Self {
            address: Some(address),
            permit: Mutex::new(Some(permit)),
            ..Self::default()
        }
    }

    pub(super) fn return_permit(&self) {
        drop(self.permit.lock().take());
    }

    pub(crate) fn request_received(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a response of an HTTP/1 connection is ready.
    pub(super) fn response_ready(&self) {
        self.nothing_sent_since_response
            .store(true, Ordering::Relaxed);
    }

    fn bytes_received(&self) {
        if self.is_next_request_pipelined() {
            self.nothing_sent_since_response
                .store(false, Ordering::Relaxed);
        }
    }

    /// Whether the next request of an HTTP/1 connection was already sent when the last response was ready.
    pub(super) fn is_next_request_pipelined(&self) -> bool {
        self.nothing_sent_since_response.load(Ordering::Relaxed)
    }

    /// Closes the connection after the requests in flight.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Registers the waker, then returns whether [`close`](Self::close) was called. The first waker is kept: one Tokio task
    /// polls a connection.
    pub(crate) fn is_closing(&self, waker: &Waker) -> bool {
        self.waker.get_or_init(|| waker.clone());
        self.closing.load(Ordering::Acquire)
    }

    /// Resolves when [`close`](Self::close) is called.
    #[cfg(any(feature = "http2", feature = "tls"))]
    pub(super) async fn closing(&self) {
        std::future::poll_fn(|cx| match self.is_closing(cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Whether most of the streams in memory wait for the client: the request is incomplete, or the response unread.
    pub(super) fn has_mostly_stalled_streams(&self) -> bool {
        let running = self.running.load(Ordering::Relaxed);
        self.streams.load(Ordering::Relaxed) > 2 * running
    }

    /// Whether no request is in flight and none was received since the last check. `checked_requests`: the number of
    /// requests at the last check, which is updated.
    pub(crate) fn is_idle_since_check(&self, checked_requests: &mut u64) -> bool {
        let requests = self.requests.load(Ordering::Relaxed);
        let last = std::mem::replace(checked_requests, requests);
        requests == last && !self.is_busy()
    }

    fn record_write<T>(&self, result: Poll<T>) -> Poll<T> {
        self.writes.record(result.is_ready());
        result
    }
}

/// A request in flight: the connection is busy until this is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Option<Arc<Activity>>);

impl ActiveRequest {
    pub(crate) fn new(activity: Option<&Arc<Activity>>) -> Self {
        let activity = activity.cloned();
        if let Some(activity) = &activity {
            activity.running.fetch_add(1, Ordering::Relaxed);
        }
        Self(activity)
    }
}

impl ActiveRequest {
    pub(super) fn activity(&self) -> Option<&Activity> {
        self.0.as_deref()
    }

    /// Waits for the client, which does not keep the connection busy.
    pub(super) async fn wait_for_client<T>(&self, received: impl Future<Output = T>) -> T {
        let _waiting = WaitingRequest::new(self.activity());
        received.await
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if let Some(activity) = &self.0 {
            activity.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A request in flight that waits for its client until this is dropped.
struct WaitingRequest<'a>(Option<&'a Activity>);

impl<'a> WaitingRequest<'a> {
    fn new(activity: Option<&'a Activity>) -> Self {
        if let Some(activity) = activity {
            activity.running.fetch_sub(1, Ordering::Relaxed);
        }
        Self(activity)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if let Some(activity) = self.0 {
            activity.running.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An HTTP/2 stream: it counts as a stream of its connection until this is dropped.
#[cfg(feature = "http2")]
#[derive(Debug)]
pub(super) struct ActiveStream(Arc<Activity>);

#[cfg(feature = "http2")]
impl ActiveStream {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        activity.streams.fetch_add(1, Ordering::Relaxed);
        Self(activity.clone())
    }
}

#[cfg(feature = "http2")]
impl Drop for ActiveStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection whose reads and blocked writes are recorded in its [`Activity`].
pub(super) struct ConnectionStream {
    pub(super) stream: TcpStream,
    pub(super) activity: Arc<Activity>,
}

impl AsyncRead for ConnectionStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > filled {
            self.activity.bytes_received();
        }
        read
    }
}

impl AsyncWrite for ConnectionStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.activity.record_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.activity.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
