//! The trace context of a request, in the formats of W3C Trace Context and W3C Baggage.
//!
//! It never is a reason to reject a request: malformed or oversized values are ignored.

use std::borrow::Cow;
use std::fmt;

use serde_json::value::RawValue;

use crate::decode::Text;

/// The longest `tracestate` that is read, in bytes: the minimum that the W3C requires.
const TRACESTATE_MAX: usize = 512;
/// The longest `baggage` that is read, in bytes: the minimum that the W3C requires.
const BAGGAGE_MAX: usize = 8192;

/// The flags that are known: sampled, and that the trace id is random.
const FLAGS: u8 = 3;
const SAMPLED: u8 = 1;

/// The id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct TraceId(pub [u8; 16]);

/// The id of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SpanId(pub [u8; 8]);

/// A span of a trace, as it is sent to the services called from it.
///
/// ```
/// # use refrain_wire::Traceparent;
/// let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let parent = Traceparent::parse(text).expect("well-formed");
/// assert_eq!(parent.span_id.to_string(), "b7ad6b7169203331");
/// assert_eq!(parent.to_string(), text);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Traceparent {
    /// The trace.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// Whether the trace is sampled, and other flags of the W3C.
    pub flags: u8,
}

impl Traceparent {
    /// Reads the text form. `None` if it is malformed; a later version than `00` is read as far as it is known.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let [version] = hex(parts.next()?)?;
        let trace_id: [u8; 16] = hex(parts.next()?)?;
        let span_id: [u8; 8] = hex(parts.next()?)?;
        let [flags] = hex(parts.next()?)?;
        let more = parts.next().is_some();
        if version == 0xff || (version == 0 && more) || trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        Some(Self {
            trace_id: TraceId(trace_id),
            span_id: SpanId(span_id),
            flags: flags & FLAGS,
        })
    }

    /// Whether the sender records the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace_id,
            span_id,
            flags,
        } = self;
        write!(f, "00-{trace_id}-{span_id}-{flags:02x}")
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

/// Exactly `N` bytes in hexadecimal digits, in lower case as the W3C requires.
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

/// The trace that a request's `_meta` names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext<'a> {
    /// The span that sent the request.
    pub parent: Option<Traceparent>,
    /// Additions of tracing systems, at most 512 bytes of printable ASCII. Absent without a parent.
    pub state: Option<Cow<'a, str>>,
    /// Values of the application, at most 8192 bytes of printable ASCII.
    pub baggage: Option<Cow<'a, str>>,
    /// A key whose value was ignored because it is malformed or too long.
    pub ignored: Option<&'static str>,
}

/// The values of the three keys, unchecked.
#[derive(Default)]
pub(crate) struct RawTrace<'a> {
    pub(crate) parent: Option<&'a RawValue>,
    pub(crate) state: Option<&'a RawValue>,
    pub(crate) baggage: Option<&'a RawValue>,
}

impl<'a> RawTrace<'a> {
    /// `None` if there are no values.
    pub(crate) fn read(self) -> Option<Box<TraceContext<'a>>> {
        if self.parent.is_none() && self.state.is_none() && self.baggage.is_none() {
            return None;
        }
        let mut ignored = None;
        let mut check = |key, given: Option<&'a RawValue>, most| {
            let text = given.map(|raw| printable(raw, most));
            if let Some(None) = text {
                ignored = Some(key);
            }
            text.flatten()
        };
        let baggage = check("baggage", self.baggage, BAGGAGE_MAX);
        let state = check("tracestate", self.state, TRACESTATE_MAX);
        let parent = check("traceparent", self.parent, usize::MAX);
        let read = parent.as_deref().and_then(Traceparent::parse);
        if parent.is_some() && read.is_none() {
            ignored = Some("traceparent");
        }
        Some(Box::new(TraceContext {
            parent: read,
            state: state.filter(|_| read.is_some()),
            baggage,
            ignored,
        }))
    }
}

/// The text of a string that could be the value of a header.
fn printable(raw: &RawValue, most: usize) -> Option<Cow<'_, str>> {
    let Text(text) = serde_json::from_str(raw.get()).ok()?;
    let fits = text.len() <= most && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    fits.then_some(text)
}
