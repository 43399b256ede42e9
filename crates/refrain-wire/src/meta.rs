//! What a request says about itself and its sender in `params._meta`.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::decode::{
    Object, RawObject, Text, is_string_or_integer, once, once_nested, reason, skip,
};
use crate::trace::{RawTrace, TraceContext};

/// The protocol version this crate speaks.
pub const PROTOCOL_VERSION: &str = "2026-07-28";
/// The `_meta` key of the protocol version a request is written in.
pub const PROTOCOL_VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// The `_meta` key of the client's name and version.
pub const CLIENT_INFO_KEY: &str = "io.modelcontextprotocol/clientInfo";
/// The `_meta` key of what the client can do.
pub const CLIENT_CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
/// The `_meta` key of the lowest level of log messages the client wants.
pub const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
/// The `_meta` key of the server's name and version in a result.
pub const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
/// The `_meta` key of the request that opened the stream a notification belongs to.
pub const SUBSCRIPTION_ID_KEY: &str = "io.modelcontextprotocol/subscriptionId";
/// The name of the extension that tasks belong to.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// The `_meta` key of an id that makes a repeated first request the same flow.
pub const CALL_ID_KEY: &str = "refrain/callId";
/// The `_meta` key of how long a task that the call becomes may live, in milliseconds.
pub const TASK_TTL_KEY: &str = "refrain/taskTtl";

/// The longest call id, in bytes.
const CALL_ID_MAX: usize = 128;

/// The `_meta` of a request.
#[derive(Debug, Clone)]
pub struct Meta<'a> {
    /// The protocol version the request is written in.
    pub protocol_version: Cow<'a, str>,
    /// The client's name and version, as sent.
    pub client_info: Option<&'a RawValue>,
    /// What the client can do.
    pub capabilities: Capabilities,
    /// The extensions the client speaks, by name, with their settings: an object, as sent.
    pub extensions: Option<&'a RawValue>,
    /// The lowest level of log messages the client wants; none without it.
    pub log_level: Option<LogLevel>,
    /// The string or integer that progress notifications must carry.
    pub progress_token: Option<&'a RawValue>,
    /// The id that makes a repeated first request the same flow.
    pub call_id: Option<Cow<'a, str>>,
    /// How long a task that the call becomes may live.
    pub task_ttl: Option<Duration>,
    /// The trace the request belongs to. In a box of its own: most requests say nothing of one.
    pub trace: Option<Box<TraceContext<'a>>>,
}

/// What a client declared it can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// It can show a form.
    pub form: bool,
    /// It can send its user to a URL.
    pub url: bool,
    /// It can ask a model.
    pub sampling: bool,
    /// It can ask a model that uses tools.
    pub sampling_tools: bool,
    /// It can let a model see what came from its servers.
    pub sampling_context: bool,
    /// It can list its roots.
    pub roots: bool,
    /// It can look after a task.
    pub tasks: bool,
}

impl Capabilities {
    /// Whether the client declared this capability.
    pub const fn has(self, capability: Capability) -> bool {
        match capability {
            Capability::Form => self.form,
            Capability::Url => self.url,
            Capability::Sampling => self.sampling,
            Capability::SamplingTools => self.sampling && self.sampling_tools,
            Capability::Roots => self.roots,
            Capability::Tasks => self.tasks,
        }
    }
}

impl FromIterator<Capability> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Capability>>(declared: I) -> Self {
        let mut all = Self::default();
        for capability in declared {
            match capability {
                Capability::Form => all.form = true,
                Capability::Url => all.url = true,
                Capability::Sampling => all.sampling = true,
                Capability::SamplingTools => (all.sampling, all.sampling_tools) = (true, true),
                Capability::Roots => all.roots = true,
                Capability::Tasks => all.tasks = true,
            }
        }
        all
    }
}

/// Writes `clientCapabilities`.
impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let flags = |flags: &[(&str, bool)]| -> Value {
            let declared = flags.iter().filter(|(_, is_declared)| *is_declared);
            let declared = declared.map(|(name, _)| ((*name).to_owned(), json!({})));
            Value::Object(declared.collect())
        };
        let mut map = serializer.serialize_map(None)?;
        if self.form || self.url {
            // An empty object would mean forms as well.
            let modes = [("form", self.form), ("url", self.url)];
            map.serialize_entry("elicitation", &flags(&modes))?;
        }
        if self.sampling {
            let (context, tools) = (self.sampling_context, self.sampling_tools);
            map.serialize_entry(
                "sampling",
                &flags(&[("context", context), ("tools", tools)]),
            )?;
        }
        if self.roots {
            map.serialize_entry("roots", &json!({}))?;
        }
        if self.tasks {
            map.serialize_entry("extensions", &json!({TASKS_EXTENSION: {}}))?;
        }
        map.end()
    }
}

/// One thing that a client must have declared to be asked for it, or answered with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Capability {
    /// Showing a form.
    Form,
    /// Sending the user to a URL.
    Url,
    /// Asking a model.
    Sampling,
    /// Asking a model that uses tools.
    SamplingTools,
    /// Listing roots.
    Roots,
    /// Looking after a task.
    Tasks,
}

impl Capability {
    /// The capability's path in `clientCapabilities`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Form => "elicitation.form",
            Self::Url => "elicitation.url",
            Self::Sampling => "sampling",
            Self::SamplingTools => "sampling.tools",
            Self::Roots => "roots",
            Self::Tasks => "extensions.io.modelcontextprotocol/tasks",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How grave a log message is, the least grave first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Detail for finding faults.
    Debug,
    /// Ordinary news.
    Info,
    /// Ordinary, but worth noticing.
    Notice,
    /// Something may be wrong.
    Warning,
    /// Something is wrong.
    Error,
    /// A part has failed.
    Critical,
    /// Someone must act now.
    Alert,
    /// Nothing works.
    Emergency,
}

impl LogLevel {
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

#[derive(serde::Deserialize)]
#[serde(field_identifier)]
enum MetaKey {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    ProtocolVersion,
    #[serde(rename = "io.modelcontextprotocol/clientInfo")]
    ClientInfo,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    ClientCapabilities,
    #[serde(rename = "io.modelcontextprotocol/logLevel")]
    LogLevel,
    #[serde(rename = "progressToken")]
    ProgressToken,
    #[serde(rename = "refrain/callId")]
    CallId,
    #[serde(rename = "refrain/taskTtl")]
    TaskTtl,
    #[serde(rename = "traceparent")]
    Traceparent,
    #[serde(rename = "tracestate")]
    Tracestate,
    #[serde(rename = "baggage")]
    Baggage,
    #[serde(other)]
    Other,
}

impl<'de: 'a, 'a> Deserialize<'de> for Meta<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetaVisitor)
    }
}

struct MetaVisitor;

impl<'de> Visitor<'de> for MetaVisitor {
    type Value = Meta<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("params._meta as an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Meta<'de>, A::Error> {
        let mut version: Option<Text<'de>> = None;
        let mut client_info: Option<RawObject<'de>> = None;
        let mut declared: Option<Declared<'de>> = None;
        let mut log_level: Option<LogLevel> = None;
        let mut progress_token: Option<ProgressToken<'de>> = None;
        let mut call_id: Option<CallId<'de>> = None;
        let mut task_ttl: Option<NonZeroU64> = None;
        let mut trace = RawTrace::default();

        while let Some(key) = map.next_key()? {
            match key {
                MetaKey::ProtocolVersion => {
                    once(&mut map, &mut version, VERSION_PATH, "a string")?;
                }
                MetaKey::ClientInfo => {
                    once(&mut map, &mut client_info, CLIENT_INFO_PATH, "an object")?;
                }
                MetaKey::ClientCapabilities => {
                    once_nested(&mut map, &mut declared, CAPABILITIES_PATH)?;
                }
                MetaKey::LogLevel => once(&mut map, &mut log_level, LOG_LEVEL_PATH, LEVELS)?,
                MetaKey::ProgressToken => {
                    let expected = "a string or an integer";
                    once(
                        &mut map,
                        &mut progress_token,
                        "_meta.progressToken",
                        expected,
                    )?;
                }
                MetaKey::CallId => {
                    let expected = "a string of 1 to 128 bytes";
                    once(&mut map, &mut call_id, "_meta.refrain/callId", expected)?;
                }
                MetaKey::TaskTtl => {
                    let expected = "a whole number of milliseconds, at least 1";
                    once(&mut map, &mut task_ttl, "_meta.refrain/taskTtl", expected)?;
                }
                MetaKey::Traceparent => {
                    once(&mut map, &mut trace.parent, "_meta.traceparent", "a value")?;
                }
                MetaKey::Tracestate => {
                    once(&mut map, &mut trace.state, "_meta.tracestate", "a value")?;
                }
                MetaKey::Baggage => {
                    once(&mut map, &mut trace.baggage, "_meta.baggage", "a value")?;
                }
                MetaKey::Other => skip(&mut map)?,
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
            client_info: client_info.map(|raw| raw.0),
            capabilities: declared.capabilities,
            extensions: declared.extensions,
            log_level,
            progress_token: progress_token.map(|raw| raw.0),
            call_id: call_id.map(|text| text.0),
            task_ttl: task_ttl.map(|millis| Duration::from_millis(millis.get())),
            trace: trace.read(),
        })
    }
}

const VERSION_PATH: &str = "_meta.io.modelcontextprotocol/protocolVersion";
const CLIENT_INFO_PATH: &str = "_meta.io.modelcontextprotocol/clientInfo";
const CAPABILITIES_PATH: &str = "_meta.io.modelcontextprotocol/clientCapabilities";
const EXTENSIONS_PATH: &str = "_meta.io.modelcontextprotocol/clientCapabilities.extensions";
const LOG_LEVEL_PATH: &str = "_meta.io.modelcontextprotocol/logLevel";
const LEVELS: &str = "one of debug, info, notice, warning, error, critical, alert, emergency";

/// A string or an integer, as sent.
pub(crate) struct ProgressToken<'a>(pub(crate) &'a RawValue);

impl<'de: 'a, 'a> Deserialize<'de> for ProgressToken<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        if is_string_or_integer(raw) {
            Ok(Self(raw))
        } else {
            Err(Error::custom("expected a string or an integer"))
        }
    }
}

/// A call id of a sensible length.
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

/// Reads a few known members, each of them an object, out of an object, and skips the others.
struct Flags<const N: usize> {
    path: &'static str,
    names: [&'static str; N],
}

impl<'de, const N: usize> DeserializeSeed<'de> for Flags<N> {
    type Value = [bool; N];
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<[bool; N], D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Flags<N> {
    type Value = [bool; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CAPABILITIES_PATH}{} as an object", self.path)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<[bool; N], A::Error> {
        let Self { path, names } = self;
        let mut seen = [false; N];
        while let Some(Text(key)) = map.next_key()? {
            let Some(i) = names.iter().position(|name| *name == key) else {
                skip(&mut map)?;
                continue;
            };
            let name = names[i];
            let fail = |problem: &str| {
                Error::custom(format_args!("{CAPABILITIES_PATH}{path}.{name} {problem}"))
            };
            if seen[i] {
                return Err(fail("is given twice; send it once"));
            }
            map.next_value::<Object>()
                .map_err(|_| fail("must be an object"))?;
            seen[i] = true;
        }
        Ok(seen)
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum CapabilityKey {
    Elicitation,
    Sampling,
    Roots,
    Extensions,
    #[serde(other)]
    Other,
}

/// What a client declared: what it can do, and the extensions it speaks.
struct Declared<'a> {
    capabilities: Capabilities,
    extensions: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Declared<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CapabilitiesVisitor)
    }
}

struct CapabilitiesVisitor;

impl<'de> Visitor<'de> for CapabilitiesVisitor {
    type Value = Declared<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CAPABILITIES_PATH} as an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Declared<'de>, A::Error> {
        let mut found = Capabilities::default();
        let mut extensions: Option<RawObject<'de>> = None;
        let mut elicitation = false;
        let twice = |name: &str| {
            Error::custom(format_args!(
                "{CAPABILITIES_PATH}.{name} is given twice; send it once"
            ))
        };
        while let Some(key) = map.next_key()? {
            match key {
                CapabilityKey::Elicitation if elicitation => return Err(twice("elicitation")),
                CapabilityKey::Elicitation => {
                    elicitation = true;
                    let flags = Flags {
                        path: ".elicitation",
                        names: ["form", "url"],
                    };
                    let [form, url] = map.next_value_seed(flags)?;
                    // An empty declaration is one for forms, from before there were URLs.
                    found.form = form || !url;
                    found.url = url;
                }
                CapabilityKey::Sampling if found.sampling => return Err(twice("sampling")),
                CapabilityKey::Sampling => {
                    found.sampling = true;
                    let flags = Flags {
                        path: ".sampling",
                        names: ["tools", "context"],
                    };
                    [found.sampling_tools, found.sampling_context] = map.next_value_seed(flags)?;
                }
                CapabilityKey::Roots if found.roots => return Err(twice("roots")),
                CapabilityKey::Roots => {
                    found.roots = true;
                    let [] = map.next_value_seed(Flags {
                        path: ".roots",
                        names: [],
                    })?;
                }
                CapabilityKey::Extensions => {
                    once(&mut map, &mut extensions, EXTENSIONS_PATH, "an object")?;
                }
                CapabilityKey::Other => skip(&mut map)?,
            }
        }
        let extensions = extensions.map(|raw| raw.0);
        if let Some(raw) = extensions {
            found.tasks = has_tasks(raw).map_err(|error| Error::custom(reason(&error)))?;
        }
        Ok(Declared {
            capabilities: found,
            extensions,
        })
    }
}

/// Are tasks among the extensions that a client speaks?
fn has_tasks(extensions: &RawValue) -> Result<bool, serde_json::Error> {
    let flags = Flags {
        path: ".extensions",
        names: [TASKS_EXTENSION],
    };
    let mut deserializer = serde_json::Deserializer::from_str(extensions.get());
    let [tasks] = flags.deserialize(&mut deserializer)?;
    Ok(tasks)
}
