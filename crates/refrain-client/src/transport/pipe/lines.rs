//! Lines of a stream, with a maximum length.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

pub(super) struct Lines<R> {
    input: BufReader<R>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(input: R, limit: usize) -> Self {
        let input = BufReader::new(input);
        Self { input, limit }
    }

    /// The next line, and whether it was cut at the limit. `None` at the end of the stream, or if it fails.
    pub(super) async fn next(&mut self) -> Option<(String, bool)> {
        let mut line = Vec::new();
        let (mut is_cut, mut has_any) = (false, false);
        loop {
            let piece = match self.input.fill_buf().await {
                Ok(piece) if !piece.is_empty() => piece,
                _ if !has_any => return None,
                _ => break,
            };
            has_any = true;
            let end = piece.iter().position(|byte| *byte == b'\n');
            let taken = &piece[..end.unwrap_or(piece.len())];
            let room = self.limit.saturating_sub(line.len());
            is_cut |= taken.len() > room;
            line.extend_from_slice(&taken[..taken.len().min(room)]);
            let used = end.map_or(piece.len(), |end| end + 1);
            self.input.consume(used);
            if end.is_some() {
                break;
            }
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some((String::from_utf8_lossy(&line).into_owned(), is_cut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_cut_at_the_limit_and_go_on_after_it() {
        let mut lines = Lines::new(&b"one\r\n\nfour-and-more\nlast"[..], 4);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push(line);
        }
        let expected = [("one", false), ("", false), ("four", true), ("last", false)];
        assert_eq!(
            seen,
            expected.map(|(text, is_cut)| (text.to_owned(), is_cut))
        );
    }
}
