//! A parser for `text/event-stream` bodies.

use std::mem;

/// The maximum length of an event id, which is sent back as a header. Longer ids are ignored.
const ID_MAX: usize = 4096;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

#[derive(Default)]
pub(super) struct EventParser {
    line: Vec<u8>,
    after_cr: bool,
    event: StreamEvent,
    has_data: bool,
    has_started: bool,
}

/// The type of an event. The data of other types is skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum EventKind {
    #[default]
    Message,
    /// The first event of the HTTP+SSE transport of 2024-11-05.
    Endpoint,
    Other,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StreamEvent {
    pub(super) kind: EventKind,
    pub(super) data: Vec<u8>,
    pub(super) id: Option<String>,
    /// The pause before resuming the stream, in milliseconds.
    pub(super) retry: Option<u64>,
}

impl EventParser {
    /// Adds a chunk of the body, and returns the non-empty events that it completes.
    pub(super) fn push(&mut self, mut chunk: &[u8]) -> Vec<StreamEvent> {
        let mut complete = Vec::new();
        if !chunk.is_empty() && mem::take(&mut self.after_cr) {
            chunk = chunk.strip_prefix(b"\n").unwrap_or(chunk);
        }
        while let Some(end) = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, rest) = chunk.split_at(end);
            self.line.extend_from_slice(text);
            complete.extend(self.end_line());
            self.after_cr = rest == b"\r";
            chunk = rest.strip_prefix(b"\r\n").unwrap_or(&rest[1..]);
        }
        self.line.extend_from_slice(chunk);
        complete
    }

    pub(super) fn buffered(&self) -> usize {
        self.line.len() + self.event.data.len()
    }

    fn end_line(&mut self) -> Option<StreamEvent> {
        let line = mem::take(&mut self.line);
        let mut line = &line[..];
        if !mem::replace(&mut self.has_started, true) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            self.has_data = false;
            let mut event = mem::take(&mut self.event);
            if event.kind == EventKind::Other {
                (event.kind, event.data) = Default::default();
            }
            return (event != StreamEvent::default()).then_some(event);
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if mem::replace(&mut self.has_data, true) {
                    self.event.data.push(b'\n');
                }
                self.event.data.extend_from_slice(value);
            }
            b"event" => {
                self.event.kind = match value {
                    b"" | b"message" => EventKind::Message,
                    b"endpoint" => EventKind::Endpoint,
                    _ => EventKind::Other,
                };
            }
            b"id" if !value.contains(&0) && value.len() <= ID_MAX => {
                self.event.id = Some(String::from_utf8_lossy(value).into_owned());
            }
            b"retry" => {
                self.event.retry = std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok());
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b": hello\r\nid: 1\r\ndata:\r\n\r\nevent: message\r\ndata: {\"a\":\r\ndata:1}\r\nretry: 20\r\n\r\ndata: two\n\ndatabase: no\n\ndata: three\r\r";

    #[test]
    fn chunk_boundaries_do_not_affect_events() {
        let whole = EventParser::default().push(STREAM);
        let seen: Vec<_> = whole
            .iter()
            .map(|event| (&event.data[..], event.id.as_deref(), event.retry))
            .collect();
        assert_eq!(
            seen,
            [
                (&b""[..], Some("1"), None),
                (&b"{\"a\":\n1}"[..], None, Some(20)),
                (&b"two"[..], None, None),
                (&b"three"[..], None, None)
            ]
        );
        for size in 1..STREAM.len() {
            let mut events = EventParser::default();
            let chunked: Vec<_> = STREAM
                .chunks(size)
                .flat_map(|chunk| [chunk, b""])
                .flat_map(|chunk| events.push(chunk))
                .collect();
            assert_eq!(chunked, whole, "chunks of {size} bytes");
        }
    }

    #[test]
    fn event_of_another_type_keeps_only_its_id() {
        let mut events = EventParser::default();
        let seen = events.push(
            b"event: ping\ndata: now\n\nevent: ping\nid: 7\ndata: now\n\ndata: a\n\nevent: message\ndata: b\n\n",
        );
        let seen: Vec<_> = seen
            .iter()
            .map(|event| (&event.data[..], event.id.as_deref()))
            .collect();
        assert_eq!(
            seen,
            [(&b""[..], Some("7")), (&b"a"[..], None), (&b"b"[..], None)]
        );
    }

    #[test]
    fn byte_order_mark_is_stripped_only_at_the_start() {
        let mut events = EventParser::default();
        let seen = events.push(b"\xEF\xBB\xBFdata: a\n\n\xEF\xBB\xBFdata: b\n\ndata: c\n\n");
        let seen: Vec<_> = seen.iter().map(|event| &event.data[..]).collect();
        assert_eq!(seen, [b"a", b"c"], "only the first mark is stripped");
    }

    #[test]
    fn event_completes_at_its_blank_line() {
        let mut events = EventParser::default();
        assert!(events.push(b"data: x\n").is_empty());
        assert_eq!(events.buffered(), 1);
        assert_eq!(events.push(b"\n")[0].data, b"x");
    }
}
