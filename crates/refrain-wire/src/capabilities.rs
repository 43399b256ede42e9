//! Client capabilities.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::decode::{AnyObject, RawObject, Text, read_once, reason, skip_value};

/// The name of the tasks extension.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";
pub(crate) const CAPABILITIES_PATH: &str = "_meta.io.modelcontextprotocol/clientCapabilities";
const EXTENSIONS_PATH: &str = "_meta.io.modelcontextprotocol/clientCapabilities.extensions";

/// The capabilities that a client declared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Forms.
    pub form: bool,
    /// URLs for the user to open.
    pub url: bool,
    /// Sampling.
    pub sampling: bool,
    /// Sampling with tools.
    pub sampling_tools: bool,
    /// Sampling with context from the client's servers.
    pub sampling_context: bool,
    /// Roots.
    pub roots: bool,
    /// Tasks as replies to calls.
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
            // An empty object would also declare forms.
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

/// A client capability that an ask or a reply requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Capability {
    /// Forms.
    Form,
    /// URLs for the user to open.
    Url,
    /// Sampling.
    Sampling,
    /// Sampling with tools.
    SamplingTools,
    /// Roots.
    Roots,
    /// Tasks as replies to calls.
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

/// Reads which of the named members an object has. Each must be an object; other members are skipped.
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
                skip_value(&mut map)?;
                continue;
            };
            let name = names[i];
            let fail = |problem: &str| {
                Error::custom(format_args!("{CAPABILITIES_PATH}{path}.{name} {problem}"))
            };
            if seen[i] {
                return Err(fail("is given twice; send it once"));
            }
            map.next_value::<AnyObject>()
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

/// The contents of `clientCapabilities`.
pub(crate) struct DeclaredCapabilities<'a> {
    pub(crate) capabilities: Capabilities,
    pub(crate) extensions: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for DeclaredCapabilities<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CapabilitiesVisitor)
    }
}

struct CapabilitiesVisitor;

impl<'de> Visitor<'de> for CapabilitiesVisitor {
    type Value = DeclaredCapabilities<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CAPABILITIES_PATH} as an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> Result<DeclaredCapabilities<'de>, A::Error> {
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
                    // An empty declaration means forms, because it predates URL asks.
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
                    read_once(&mut map, &mut extensions, EXTENSIONS_PATH, "an object")?;
                }
                CapabilityKey::Other => skip_value(&mut map)?,
            }
        }
        let extensions = extensions.map(|raw| raw.0);
        if let Some(raw) = extensions {
            found.tasks = has_tasks(raw).map_err(|error| Error::custom(reason(&error)))?;
        }
        Ok(DeclaredCapabilities {
            capabilities: found,
            extensions,
        })
    }
}

/// Whether the extensions include tasks.
fn has_tasks(extensions: &RawValue) -> Result<bool, serde_json::Error> {
    let flags = Flags {
        path: ".extensions",
        names: [TASKS_EXTENSION],
    };
    let mut deserializer = serde_json::Deserializer::from_str(extensions.get());
    let [tasks] = flags.deserialize(&mut deserializer)?;
    Ok(tasks)
}
