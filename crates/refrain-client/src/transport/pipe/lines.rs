//! A line reader with a maximum line length.

use std::mem;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

pub(super) struct OutputLines<R> {
    input: BufReader<R>,
    limit: usize,
    line: Vec<u8>,
    /// Whether the rest of the current line is dropped.
    is_skipping: bool,
    bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum OutputLine {
    Complete(String),
    /// The start of a line that is longer than the limit.
    Truncated(String),
    /// A part of a line after its start, dropped.
    Skipped,
}

impl<R: AsyncRead + Unpin> OutputLines<R> {
    pub(super) fn new(input: R, limit: usize) -> Self {
        Self {
            input: BufReader::new(input),
            limit,
            line: Vec::new(),
            is_skipping: false,
            bytes: 0,
        }
    }

    /// The number of bytes read since the last call of this function.
    pub(super) fn take_bytes(&mut self) -> usize {
        mem::take(&mut self.bytes)
    }

    /// The next line. `None` at the end of the stream or after an error. No data is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Option<OutputLine> {
        loop {
            let chunk = match self.input.fill_buf().await {
                Ok(chunk) if !chunk.is_empty() => chunk,
                _ if self.line.is_empty() => return None,
                _ => return Some(OutputLine::Complete(self.take_line())),
            };
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let taken = &chunk[..end.unwrap_or(chunk.len())];
            let used = end.map_or(chunk.len(), |end| end + 1);
            let room = self.limit - self.line.len();
            let is_too_long = taken.len() > room;
            if !self.is_skipping {
                self.line.extend_from_slice(&taken[..taken.len().min(room)]);
            }
            self.input.consume(used);
            self.bytes += used;
            let was_skipping = self.is_skipping;
            self.is_skipping = (was_skipping || is_too_long) && end.is_none();
            if was_skipping {
                return Some(OutputLine::Skipped);
            }
            if is_too_long {
                return Some(OutputLine::Truncated(self.take_line()));
            }
            if end.is_some() {
                return Some(OutputLine::Complete(self.take_line()));
            }
        }
    }

    fn take_line(&mut self) -> String {
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        let line = String::from_utf8(mem::take(&mut self.line));
        line.unwrap_or_else(|invalid| String::from_utf8_lossy(invalid.as_bytes()).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputLine::{Complete, Skipped, Truncated};

    #[tokio::test]
    async fn long_line_is_truncated_and_reading_continues() {
        let input = &b"one\r\n\nfour-and-more\nlast"[..];
        let mut lines = OutputLines::new(input, 4);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push(line);
        }
        let complete = |text: &str| Complete(text.into());
        let truncated = Truncated("four".into());
        let expected = [complete("one"), complete(""), truncated, complete("last")];
        assert_eq!(seen, expected);
        assert_eq!(lines.take_bytes(), input.len());
    }

    #[tokio::test]
    async fn memory_of_a_long_line_is_not_kept() {
        let input = [&[b'x'; 100_000][..], b"\nshort\n\xFF\n"].concat();
        let mut lines = OutputLines::new(&input[..], input.len());
        assert_eq!(lines.next().await, Some(Complete("x".repeat(100_000))));
        assert_eq!(lines.next().await, Some(Complete("short".into())));
        assert!(lines.line.capacity() < 1000, "{}", lines.line.capacity());
        assert_eq!(lines.next().await, Some(Complete("\u{FFFD}".into())));
    }

    #[tokio::test]
    async fn endless_line_is_skipped_in_parts() {
        let mut lines = OutputLines::new(tokio::io::repeat(b'x'), 4);
        assert_eq!(lines.next().await, Some(Truncated("xxxx".into())));
        for _ in 0..3 {
            assert!(lines.take_bytes() > 0);
            assert_eq!(lines.next().await, Some(Skipped));
        }
    }
}
