//! The trace context of a request (W3C Trace Context and W3C Baggage).
//!
//! Malformed and oversized values are ignored. They never cause a request to fail.

use std::borrow::Cow;
use std::fmt;

use serde_json::value::RawValue;

use crate::decode::Text;

/// The maximum length of `tracestate` in bytes. The W3C requires support for at least this.
const TRACESTATE_MAX: usize = 512;
/// The maximum length of `baggage` in bytes. The W3C requires support for at least this.
const BAGGAGE_MAX: usize = 8192;

/// Sampled, and random trace id.
const KNOWN_FLAGS: u8 = 3;

/// The id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct TraceId(pub [u8; 16]);

/// The id of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SpanId(pub [u8; 8]);

/// The span that sent a request.
///
/// ```
/// # use refrain_wire::Traceparent;
/// let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let parent = Traceparent::parse(text).expect("a valid traceparent");
/// assert_eq!(parent.span_id.to_string(), "b7ad6b7169203331");
/// assert_eq!(parent.to_string(), text);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Traceparent {
    /// The trace.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// The trace flags, such as sampled.
    pub flags: u8,
}

impl Traceparent {
    /// Reads the text form. `None` if it is malformed. Ignores the unknown parts of versions after `00`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let [version] = hex(parts.next()?)?;
        let trace_id: [u8; 16] = hex(parts.next()?)?;
        let span_id: [u8; 8] = hex(parts.next()?)?;
        let [flags] = hex(parts.next()?)?;
        let extra = parts.next().is_some();
        if version == 0xff || (version == 0 && extra) || trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        Some(Self {
            trace_id: TraceId(trace_id),
            span_id: SpanId(span_id),
            flags: flags & KNOWN_FLAGS,
        })
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{}-{}-{:02x}",
            self.trace_id, self.span_id, self.flags
        )
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traceparent({self})")
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Decodes exactly `N` bytes from lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The trace context in a request's `_meta`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext<'a> {
    /// The span that sent the request.
    pub parent: Option<Traceparent>,
    /// Vendor data, at most 512 bytes of printable ASCII. `None` without a parent.
    pub state: Option<Cow<'a, str>>,
    /// Application data, at most 8192 bytes of printable ASCII.
    pub baggage: Option<Cow<'a, str>>,
    /// A key whose value was ignored as malformed or too long.
    pub ignored: Option<&'static str>,
}

impl TraceContext<'_> {
    /// The trace context in the headers of a request. Malformed and oversized values are ignored.
    pub fn new(parent: Traceparent, state: Option<String>, baggage: Option<String>) -> Self {
        let checked = |text: Option<String>, max| text.filter(|text| is_printable(text, max));
        Self {
            parent: Some(parent),
            state: checked(state, TRACESTATE_MAX).map(Into::into),
            baggage: checked(baggage, BAGGAGE_MAX).map(Into::into),
            ignored: None,
        }
    }
}

/// The raw values of the three keys.
#[derive(Default)]
pub(crate) struct RawTrace<'a> {
    pub(crate) parent: Option<&'a RawValue>,
    pub(crate) state: Option<&'a RawValue>,
    pub(crate) baggage: Option<&'a RawValue>,
}

impl<'a> RawTrace<'a> {
    /// `None` if all values are absent.
    pub(crate) fn read(self) -> Option<Box<TraceContext<'a>>> {
        if self.parent.is_none() && self.state.is_none() && self.baggage.is_none() {
            return None;
        }
        let mut ignored = None;
        let mut check = |key, raw: Option<&'a RawValue>, max| {
            let text = raw.map(|raw| printable(raw, max));
            if let Some(None) = text {
                ignored = Some(key);
            }
            text.flatten()
        };
        let baggage = check("baggage", self.baggage, BAGGAGE_MAX);
        let state = check("tracestate", self.state, TRACESTATE_MAX);
        let parent = check("traceparent", self.parent, usize::MAX);
        let parsed = parent.as_deref().and_then(Traceparent::parse);
        if parent.is_some() && parsed.is_none() {
            ignored = Some("traceparent");
        }
        Some(Box::new(TraceContext {
            parent: parsed,
            state: state.filter(|_| parsed.is_some()),
            baggage,
            ignored,
        }))
    }
}

/// The text of a JSON string of printable ASCII.
fn printable(raw: &RawValue, max: usize) -> Option<Cow<'_, str>> {
    let Text(text) = serde_json::from_str(raw.get()).ok()?;
    is_printable(&text, max).then_some(text)
}

fn is_printable(text: &str, max: usize) -> bool {
    text.len() <= max && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}
