//! A limit for HTTP/2 frames that carry no part of a request, such as PING, SETTINGS and WINDOW_UPDATE.
//!
//! Each of them costs the server time, and none needs credentials.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of control frames that a client may send at once.
const BURST: f64 = 1_000.0;
/// Control frames that a client may send per second.
const PER_SECOND: f64 = 200.0;
/// Bytes of a response that allow one more control frame, because a client needs WINDOW_UPDATE frames to receive more bytes.
const BYTES_PER_FRAME: f64 = 1024.0;

const PREFACE_LENGTH: usize = 24;
const HEADER_LENGTH: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;

/// A connection that fails if its client sends too many control frames.
pub(super) struct FrameLimit<I> {
    io: I,
    frames: FrameReader,
    /// Control frames that the client may send now.
    budget: f64,
    refilled: Instant,
}

impl<I> FrameLimit<I> {
    pub(super) fn new(io: I) -> Self {
        Self {
            io,
            frames: FrameReader::default(),
            budget: BURST,
            refilled: Instant::now(),
        }
    }

    fn count_received(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.budget -= f64::from(self.frames.count_control_frames(bytes));
        if self.budget >= 0.0 {
            return Ok(());
        }
        let elapsed = self.refilled.elapsed().as_secs_f64();
        self.refilled = Instant::now();
        self.budget = (self.budget + elapsed * PER_SECOND).min(BURST);
        match self.budget >= 0.0 {
            true => Ok(()),
            false => Err(io::Error::other("too many HTTP/2 control frames")),
        }
    }

    fn count_sent(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.budget = (self.budget + *bytes as f64 / BYTES_PER_FRAME).min(BURST);
        }
        written
    }
}

/// Finds the frames in a stream of bytes.
#[derive(Debug)]
struct FrameReader {
    /// Bytes to skip before the next frame header.
    skip: usize,
    header: [u8; HEADER_LENGTH],
    header_bytes: usize,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            skip: PREFACE_LENGTH,
            header: [0; HEADER_LENGTH],
            header_bytes: 0,
        }
    }
}

impl FrameReader {
    /// Counts the frames whose header ends in these bytes, except DATA and HEADERS frames.
    fn count_control_frames(&mut self, mut bytes: &[u8]) -> u32 {
        let mut count = 0;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let missing = (HEADER_LENGTH - self.header_bytes).min(bytes.len());
            let (header, rest) = bytes.split_at(missing);
            self.header[self.header_bytes..][..missing].copy_from_slice(header);
            self.header_bytes += missing;
            bytes = rest;
            if self.header_bytes == HEADER_LENGTH {
                let [high, middle, low, kind, ..] = self.header;
                self.skip = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.header_bytes = 0;
                count += u32::from(kind != DATA && kind != HEADERS);
            }
        }
        count
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for FrameLimit<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        Poll::Ready(self.count_received(&buffer.filled()[start..]))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for FrameLimit<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.count_sent(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.count_sent(written)
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

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let header = [length[1], length[2], length[3], kind, 0, 0, 0, 0, 0];
        [&header[..], payload].concat()
    }

    #[test]
    fn frames_are_found_in_pieces_of_any_size() {
        const PING: u8 = 6;
        let sent = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, &[]),
            frame(HEADERS, &[PING; 70_000]),
            frame(DATA, &[PING; 300]),
            frame(PING, &[0; 8]),
            frame(8, &[0; 4]),
        ]
        .concat();
        for size in [1, 2, 8, 9, 10, 64, sent.len()] {
            let mut reader = FrameReader::default();
            let pieces = sent.chunks(size);
            let count: u32 = pieces.map(|piece| reader.count_control_frames(piece)).sum();
            assert_eq!(count, 3, "pieces of {size} bytes");
        }
    }
}
