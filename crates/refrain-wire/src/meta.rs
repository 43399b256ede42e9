//! The `_meta` of a request: protocol version, client, capabilities, progress and trace.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;

use crate::capabilities::{CAPABILITIES_PATH, Capabilities, DeclaredCapabilities};
use crate::decode::{EXPECTED_ID, RawObject, Text, is_id, read_once, read_once_nested, skip_value};
use crate::meta_cache;
use crate::trace::{RawTrace, TraceContext};
use crate::write;

/// The latest protocol version.
pub const PROTOCOL_VERSION: &str = "2026-07-28";
/// The `_meta` key of the protocol version of a request.
pub const PROTOCOL_VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// The `_meta` key of the client's name and version.
pub const CLIENT_INFO_KEY: &str = "io.modelcontextprotocol/clientInfo";
/// The `_meta` key of the client's capabilities.
pub const CLIENT_CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
/// The `_meta` key of the minimum level of log messages to send.
pub const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
/// The `_meta` key of the server's name and version in a result.
pub const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
/// The `_meta` key of the id of a notification's subscription.
pub const SUBSCRIPTION_ID_KEY: &str = "io.modelcontextprotocol/subscriptionId";
/// The `_meta` key of the idempotency key of a call's first request.
pub const CALL_ID_KEY: &str = "refrain/callId";
/// The `_meta` key of the requested lifetime of a task, in milliseconds.
pub const TASK_TTL_KEY: &str = "refrain/taskTtl";

/// The `_meta` key of the token of progress notifications.
pub const PROGRESS_TOKEN_KEY: &str = "progressToken";

/// The maximum length of a call id in bytes.
pub const CALL_ID_MAX: usize = 128;

/// The `_meta` of a request.
#[derive(Debug, Clone, Default)]
pub struct Meta<'a> {
    /// The protocol version of the request.
    pub protocol_version: Cow<'a, str>,
    /// The client's name and version as raw JSON.
    pub client_info: Option<&'a str>,
    /// The client's capabilities.
    pub capabilities: Capabilities,
    /// The client's extensions with their settings, as a raw object.
    pub extensions: Option<&'a RawValue>,
    /// The minimum level of log messages to send. `None` disables them.
    pub log_level: Option<LogLevel>,
    /// The token of progress notifications: a raw string or integer.
    pub progress_token: Option<&'a RawValue>,
    /// The idempotency key of the call's first request.
    pub call_id: Option<Cow<'a, str>>,
    /// The requested lifetime if the call becomes a task.
    pub task_ttl: Option<Duration>,
    /// The trace context. Boxed because most requests have none.
    pub trace: Option<Box<TraceContext<'a>>>,
    /// The members that neither the protocol nor Refrain reserves. Boxed because most requests have none.
    pub custom: Option<Box<CustomMeta<'a>>>,
}

/// Members of `_meta` that neither the protocol nor Refrain reserves, at least one, in the order they were sent.
#[derive(Debug, Clone, Default)]
pub struct CustomMeta<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> CustomMeta<'a> {
    /// Adds a member.
    pub(crate) fn add(into: &mut Option<Box<Self>>, key: Cow<'a, str>, value: &'a RawValue) {
        into.get_or_insert_default().0.push((key, value));
    }

    /// The members as a JSON object.
    pub fn to_json(&self) -> String {
        let mut out = Vec::with_capacity(256);
        for (key, value) in &self.0 {
            out.push(if out.is_empty() { b'{' } else { b',' });
            write::text(&mut out, key);
            out.push(b':');
            out.extend_from_slice(value.get().as_bytes());
        }
        out.push(b'}');
        String::from_utf8(out).expect("serialized JSON is UTF-8")
    }
}

/// Whether the protocol or Refrain reserves a key of `_meta`. The protocol reserves keys without a prefix that it defines, and
/// prefixes whose second label is `modelcontextprotocol` or `mcp`.
pub(crate) fn is_reserved(key: &str) -> bool {
    match key.split_once('/') {
        None => matches!(
            key,
            "progressToken" | "traceparent" | "tracestate" | "baggage"
        ),
        Some((prefix, _)) => {
            let second_label = prefix.split('.').nth(1);
            prefix == "refrain" || matches!(second_label, Some("modelcontextprotocol" | "mcp"))
        }
    }
}

/// The severity of a log message, in ascending order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Debugging details.
    Debug,
    /// Normal operation.
    Info,
    /// Normal but significant.
    Notice,
    /// A possible problem.
    Warning,
    /// An error.
    Error,
    /// A component failed.
    Critical,
    /// Immediate action is required.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl LogLevel {
    /// All levels in ascending order.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The level's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

enum MetaKey<'a> {
    ProtocolVersion,
    ClientInfo,
    ClientCapabilities,
    LogLevel,
    ProgressToken,
    CallId,
    TaskTtl,
    Traceparent,
    Tracestate,
    Baggage,
    Other(Cow<'a, str>),
}

impl<'de> Deserialize<'de> for MetaKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(key) = Text::deserialize(deserializer)?;
        Ok(match &*key {
            PROTOCOL_VERSION_KEY => Self::ProtocolVersion,
            CLIENT_INFO_KEY => Self::ClientInfo,
            CLIENT_CAPABILITIES_KEY => Self::ClientCapabilities,
            LOG_LEVEL_KEY => Self::LogLevel,
            "progressToken" => Self::ProgressToken,
            CALL_ID_KEY => Self::CallId,
            TASK_TTL_KEY => Self::TaskTtl,
            "traceparent" => Self::Traceparent,
            "tracestate" => Self::Tracestate,
            "baggage" => Self::Baggage,
            _ => Self::Other(key),
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Meta<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(META_TYPE, MetaVisitor)
    }
}

/// The name by which [`PlainDeserializer`](crate::plain::PlainDeserializer) recognizes a `_meta`.
pub(crate) const META_TYPE: &str = "refrain::Meta";

struct MetaVisitor;

impl<'de> Visitor<'de> for MetaVisitor {
    type Value = Meta<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("params._meta as an object")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Meta<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }

    /// Reads a cached text, which is not parsed again.
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Meta<'de>, E> {
        let cached = meta_cache::find(text).map(|(_, meta)| meta);
        cached.ok_or_else(|| E::invalid_type(Unexpected::Str(text), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Meta<'de>, A::Error> {
        let mut version: Option<Text<'de>> = None;
        let mut client_info: Option<RawObject<'de>> = None;
        let mut declared: Option<DeclaredCapabilities<'de>> = None;
        let mut log_level: Option<LogLevel> = None;
        let mut progress_token: Option<ProgressToken<'de>> = None;
        let mut call_id: Option<CallId<'de>> = None;
        let mut task_ttl: Option<NonZeroU64> = None;
        let mut trace = RawTrace::default();
        let mut custom = None;

        while let Some(key) = map.next_key()? {
            match key {
                MetaKey::ProtocolVersion => {
                    read_once(&mut map, &mut version, VERSION_PATH, "a string")?;
                }
                MetaKey::ClientInfo => {
                    read_once(&mut map, &mut client_info, CLIENT_INFO_PATH, "an object")?;
                }
                MetaKey::ClientCapabilities => {
                    read_once_nested(&mut map, &mut declared, CAPABILITIES_PATH)?;
                }
                MetaKey::LogLevel => {
                    read_once(&mut map, &mut log_level, LOG_LEVEL_PATH, LOG_LEVELS)?;
                }
                MetaKey::ProgressToken => {
                    let path = "_meta.progressToken";
                    read_once(&mut map, &mut progress_token, path, EXPECTED_ID)?;
                }
                MetaKey::CallId => {
                    let expected = "a string of 1 to 128 bytes";
                    read_once(&mut map, &mut call_id, "_meta.refrain/callId", expected)?;
                }
                MetaKey::TaskTtl => {
                    let expected = "a whole number of milliseconds, at least 1";
                    read_once(&mut map, &mut task_ttl, "_meta.refrain/taskTtl", expected)?;
                }
                MetaKey::Traceparent => {
                    read_once(&mut map, &mut trace.parent, "_meta.traceparent", "a value")?;
                }
                MetaKey::Tracestate => {
                    read_once(&mut map, &mut trace.state, "_meta.tracestate", "a value")?;
                }
                MetaKey::Baggage => {
                    read_once(&mut map, &mut trace.baggage, "_meta.baggage", "a value")?;
                }
                MetaKey::Other(key) if is_reserved(&key) => skip_value(&mut map)?,
                MetaKey::Other(key) => CustomMeta::add(&mut custom, key, map.next_value()?),
            }
        }

        let missing = |path| {
            Error::custom(format_args!(
                "{path} is missing; every request must carry it"
            ))
        };
        let declared = declared.ok_or_else(|| missing(CAPABILITIES_PATH))?;
        Ok(Meta {
            protocol_version: version.ok_or_else(|| missing(VERSION_PATH))?.0,
            client_info: client_info.map(|raw| raw.0.get()),
            capabilities: declared.capabilities,
            extensions: declared.extensions,
            log_level,
            progress_token: progress_token.map(|raw| raw.0),
            call_id: call_id.map(|text| text.0),
            task_ttl: task_ttl.map(|millis| Duration::from_millis(millis.get())),
            trace: trace.read(),
            custom,
        })
    }
}

const VERSION_PATH: &str = "_meta.io.modelcontextprotocol/protocolVersion";
const CLIENT_INFO_PATH: &str = "_meta.io.modelcontextprotocol/clientInfo";
const LOG_LEVEL_PATH: &str = "_meta.io.modelcontextprotocol/logLevel";
const LOG_LEVELS: &str = "one of debug, info, notice, warning, error, critical, alert, emergency";

/// A raw string or integer.
pub(crate) struct ProgressToken<'a>(pub(crate) &'a RawValue);

impl<'de: 'a, 'a> Deserialize<'de> for ProgressToken<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        if is_id(raw.get()) {
            Ok(Self(raw))
        } else {
            Err(Error::custom(format_args!("expected {EXPECTED_ID}")))
        }
    }
}

/// A call id of valid length.
struct CallId<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for CallId<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        if text.is_empty() || text.len() > CALL_ID_MAX {
            return Err(Error::custom("expected 1 to 128 bytes"));
        }
        Ok(Self(text))
    }
}
