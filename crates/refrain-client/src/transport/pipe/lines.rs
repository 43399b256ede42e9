//! A line reader with a maximum line length.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

pub(super) struct OutputLines<R> {
    input: BufReader<R>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> OutputLines<R> {
    pub(super) fn new(input: R, limit: usize) -> Self {
        let input = BufReader::new(input);
        Self { input, limit }
    }

    /// The next line, and whether it was truncated at the limit. `None` at the end of the stream or after an error.
    pub(super) async fn next(&mut self) -> Option<(String, bool)> {
        let mut line = Vec::new();
        let (mut is_truncated, mut has_data) = (false, false);
        loop {
            let chunk = match self.input.fill_buf().await {
                Ok(chunk) if !chunk.is_empty() => chunk,
                _ if !has_data => return None,
                _ => break,
            };
            has_data = true;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let taken = &chunk[..end.unwrap_or(chunk.len())];
            let room = self.limit.saturating_sub(line.len());
            is_truncated |= taken.len() > room;
            line.extend_from_slice(&taken[..taken.len().min(room)]);
            let used = end.map_or(chunk.len(), |end| end + 1);
            self.input.consume(used);
            if end.is_some() {
                break;
            }
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some((String::from_utf8_lossy(&line).into_owned(), is_truncated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_line_is_truncated_and_reading_continues() {
        let mut lines = OutputLines::new(&b"one\r\n\nfour-and-more\nlast"[..], 4);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push(line);
        }
        let expected = [("one", false), ("", false), ("four", true), ("last", false)];
        assert_eq!(
            seen,
            expected.map(|(text, is_truncated)| (text.to_owned(), is_truncated))
        );
    }
}
