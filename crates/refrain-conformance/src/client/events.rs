//! The events of a `text/event-stream` body, taken apart as its pieces come in.

use std::mem;

/// What has been read of the event that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, so that a line feed belongs to it.
    after_return: bool,
    data: Option<Vec<u8>>,
}

impl Events {
    /// Takes the next piece and gives the data of the events that it completes. Events without data are left out.
    pub(super) fn push(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        let mut complete = Vec::new();
        for &byte in piece {
            let after_return = mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => complete.extend(self.end_line()),
                _ => self.line.push(byte),
            }
        }
        complete
    }

    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = mem::take(&mut self.line);
        if line.is_empty() {
            return self.data.take().filter(|data| !data.is_empty());
        }
        let value = match line.strip_prefix(b"data") {
            Some([]) => &[],
            Some([b':', value @ ..]) => value.strip_prefix(b" ").unwrap_or(value),
            // A comment or another field.
            _ => return None,
        };
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            None => self.data = Some(value.to_vec()),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b": hello\r\nid: 1\r\ndata:\r\n\r\nevent: message\r\ndata: {\"a\":\r\ndata:1}\r\n\r\ndata: two\n\ndatabase: no\n\ndata: three\r\r";

    #[test]
    fn events_do_not_depend_on_the_cut() {
        let whole = Events::default().push(STREAM);
        assert_eq!(whole, [&b"{\"a\":\n1}"[..], b"two", b"three"]);
        for size in 1..STREAM.len() {
            let mut events = Events::default();
            let cut: Vec<_> = STREAM
                .chunks(size)
                .flat_map(|piece| events.push(piece))
                .collect();
            assert_eq!(cut, whole, "in pieces of {size}");
        }
    }

    #[test]
    fn an_event_is_complete_only_with_its_blank_line() {
        let mut events = Events::default();
        assert!(events.push(b"data: x\n").is_empty());
        assert_eq!(events.push(b"\n"), [b"x"]);
    }
}
