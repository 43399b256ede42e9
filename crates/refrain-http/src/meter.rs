//! Limits the bytes that a server sends and that never reach the reader of a response body.
//!
//! A server can send interim responses (status 1xx) or HTTP/2 control frames without end. The HTTP implementation skips
//! them, so no other limit counts them. Each received byte uses up the budget of its connection, which grows
//! slowly. Body bytes are credited back when they are read. Heads, framing and the rest of a dropped body are never read:
//! each request and each chunk credits a fixed allowance for them.

use hyper_util::client::legacy::connect::{Connected, Connection};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that a server may send at once. Larger than any amount of unread bodies: HTTP/2 flow control allows 5 MiB, the
/// buffer of HTTP/1 less.
pub(crate) const BURST: u64 = 8 << 20;
/// How much the budget grows in a second, up to `BURST`.
const PER_SECOND: f64 = 1_048_576.0;
/// Allowed for the head of a response and for the rest of a body that is dropped: the window of an HTTP/2 stream.
const PER_REQUEST: u64 = 2 << 20;
/// Allowed for the framing of each chunk of a body.
const PER_CHUNK: u64 = 64;

/// The bytes that the server of one connection may still send.
#[derive(Debug)]
pub(crate) struct Meter(Mutex<Budget>);

#[derive(Debug)]
struct Budget {
    left: u64,
    refilled: Instant,
    is_over_budget: bool,
}

impl Meter {
    fn new() -> Self {
        Self(Mutex::new(Budget {
            left: BURST,
            refilled: Instant::now(),
            is_over_budget: false,
        }))
    }

    fn debit(&self, bytes: usize) -> io::Result<()> {
        let mut budget = self.0.lock();
        let bytes = bytes as u64;
        if budget.left < bytes {
            let earned = budget.refilled.elapsed().as_secs_f64() * PER_SECOND;
            budget.refilled = Instant::now();
            budget.add(earned as u64);
        }
        let left = budget.left.checked_sub(bytes);
        budget.is_over_budget = left.is_none();
        budget.left = left.unwrap_or_default();
        match left {
            Some(_) => Ok(()),
            None => Err(io::Error::other("too many bytes outside of bodies")),
        }
    }

    /// Credits a chunk of a body that was read, and the allowance for its framing.
    pub(crate) fn credit_chunk(&self, bytes: usize) {
        if bytes > 0 {
            self.0.lock().add(bytes as u64 + PER_CHUNK);
        }
    }

    /// Credits the allowance of a request whose response was read or dropped.
    pub(crate) fn credit_request(&self) {
        self.0.lock().add(PER_REQUEST);
    }

    pub(crate) fn is_over_budget(&self) -> bool {
        self.0.lock().is_over_budget
    }
}

impl Budget {
    fn add(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes).min(BURST);
    }
}

/// A connection that fails if its server exceeds the limit.
pub(crate) struct MeteredIo<I> {
    io: I,
    meter: Arc<Meter>,
    /// Whether a proxy forwards the requests, without a tunnel.
    is_proxied: bool,
}

impl<I> MeteredIo<I> {
    pub(crate) fn new(io: I, is_proxied: bool) -> Self {
        Self {
            io,
            meter: Arc::new(Meter::new()),
            is_proxied,
        }
    }
}

impl<I: Connection> Connection for MeteredIo<I> {
    fn connected(&self) -> Connected {
        let connected = self.io.connected().proxy(self.is_proxied);
        connected.extra(Arc::clone(&self.meter))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for MeteredIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        Poll::Ready(self.meter.debit(buffer.filled().len() - start))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for MeteredIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn read_bodies_do_not_count() {
        let meter = Meter::new();
        for _ in 0..1000 {
            meter.debit(5 * MIB).expect("read soon");
            meter.credit_chunk(5 * MIB);
        }
        assert!(!meter.is_over_budget());
    }

    #[test]
    fn bytes_outside_of_bodies_are_limited() {
        let meter = Meter::new();
        let received = (0..).take_while(|_| meter.debit(64 * 1024).is_ok());
        let received = received.count() * 64 * 1024;
        assert!((8 * MIB..16 * MIB).contains(&received), "{received}");
        assert!(meter.is_over_budget());
    }

    #[test]
    fn framing_and_dropped_bodies_are_allowed() {
        let meter = Meter::new();
        for _ in 0..1_000_000 {
            // A chunk of one byte, with five bytes of framing.
            meter.debit(6).expect("allowed");
            meter.credit_chunk(1);
        }
        for _ in 0..100 {
            meter.debit(2 * MIB).expect("allowed");
            meter.credit_request();
        }
    }

    #[test]
    fn empty_chunks_count() {
        let meter = Meter::new();
        let frames = (0..).take_while(|_| {
            meter.credit_chunk(0);
            meter.debit(9).is_ok()
        });
        assert!(frames.count() < 2 * MIB);
    }
}
