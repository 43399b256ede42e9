//! Lines of a stream, none longer than it may be.

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

/// Reads lines.
pub(super) struct Lines<R> {
    input: BufReader<R>,
    limit: usize,
}

/// One line, without its end.
pub(super) struct Line {
    pub(super) text: String,
    /// Whether it was longer than it may be, and this is only its start.
    pub(super) is_cut: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(input: R, limit: usize) -> Self {
        Self {
            input: BufReader::new(input),
            limit,
        }
    }

    /// The next line. A stream that fails has none, like one that is at its end.
    pub(super) async fn next(&mut self) -> Option<Line> {
        next(&mut self.input, self.limit).await
    }
}

async fn next(input: &mut (impl AsyncBufRead + Unpin), limit: usize) -> Option<Line> {
    let mut line = Vec::new();
    let mut is_cut = false;
    let mut has_any = false;
    loop {
        let piece = match input.fill_buf().await {
            Ok(piece) if !piece.is_empty() => piece,
            _ if !has_any => return None,
            _ => break,
        };
        has_any = true;
        let end = piece.iter().position(|byte| *byte == b'\n');
        let taken = &piece[..end.unwrap_or(piece.len())];
        let room = limit.saturating_sub(line.len());
        is_cut |= taken.len() > room;
        line.extend_from_slice(&taken[..taken.len().min(room)]);
        let used = end.map_or(piece.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            break;
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    let text = String::from_utf8_lossy(&line).into_owned();
    Some(Line { text, is_cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_cut_at_the_limit_and_go_on_after_it() {
        let mut lines = Lines::new(&b"one\r\n\nfour-and-more\nlast"[..], 4);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push((line.text, line.is_cut));
        }
        let expected = [("one", false), ("", false), ("four", true), ("last", false)];
        assert_eq!(
            seen,
            expected.map(|(text, is_cut)| (text.to_owned(), is_cut))
        );
    }
}
