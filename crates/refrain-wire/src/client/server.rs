//! A server's description of itself: name, version, revisions, capabilities.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

use super::message::{ReadError, read};
use crate::info::Implementation;
use crate::meta::{CALL_ID_KEY, PROTOCOL_VERSION, SERVER_INFO_KEY};

/// A server's unverified description of itself.
#[derive(Debug, Clone, Default)]
pub struct ServerInfo {
    /// Its name and version, if sent.
    pub info: Option<Implementation>,
    /// The revision or other dialect in use.
    pub version: String,
    /// All known revisions it supports.
    pub versions: Vec<String>,
    /// Its capabilities as sent.
    pub capabilities: Map<String, Value>,
    /// How to use it, for a model.
    pub instructions: Option<String>,
    /// The result of `server/discover` or `initialize` as it was sent, with unknown members; `null` without one.
    pub raw: Box<RawValue>,
}

impl ServerInfo {
    /// Its title, or its name if it has no title.
    pub fn name(&self) -> Option<&str> {
        let info = self.info.as_ref()?;
        Some(info.title.as_deref().unwrap_or(&info.name))
    }

    /// Whether the server deduplicates first requests by call id.
    pub fn supports_call_ids(&self) -> bool {
        let extensions = self.capabilities.get("extensions");
        extensions.is_some_and(|extensions| extensions.get(CALL_ID_KEY).is_some())
    }

    /// Reads the result of `server/discover`.
    pub fn from_discover(raw: &RawValue) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct DiscoverMembers {
            supported_versions: Vec<String>,
            #[serde(default)]
            capabilities: Map<String, Value>,
            instructions: Option<String>,
            #[serde(rename = "_meta", default)]
            meta: Map<String, Value>,
        }

        let found: DiscoverMembers = read(raw, "invalid response to server/discover")?;
        let info = found.meta.get(SERVER_INFO_KEY);
        Ok(Self {
            info: info.and_then(|info| Implementation::deserialize(info).ok()),
            version: PROTOCOL_VERSION.to_owned(),
            versions: found.supported_versions,
            capabilities: found.capabilities,
            instructions: found.instructions,
            raw: raw.to_owned(),
        })
    }

    /// Reads the result of `initialize`.
    pub fn from_initialize(raw: &RawValue) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct InitializeMembers {
            protocol_version: String,
            #[serde(default)]
            capabilities: Map<String, Value>,
            server_info: Option<Value>,
            instructions: Option<String>,
        }

        let found: InitializeMembers = read(raw, "invalid response to initialize")?;
        Ok(Self {
            info: found
                .server_info
                .and_then(|info| Implementation::deserialize(info).ok()),
            versions: vec![found.protocol_version.clone()],
            version: found.protocol_version,
            capabilities: found.capabilities,
            instructions: found.instructions,
            raw: raw.to_owned(),
        })
    }

    /// Its name and version as sent, with unknown members.
    pub fn raw_info(&self) -> Option<&RawValue> {
        #[derive(Deserialize)]
        struct InfoMembers<'a> {
            #[serde(borrow, rename = "_meta", default)]
            meta: BTreeMap<Cow<'a, str>, &'a RawValue>,
            #[serde(borrow, rename = "serverInfo")]
            server_info: Option<&'a RawValue>,
        }

        let members: InfoMembers<'_> = serde_json::from_str(self.raw.get()).ok()?;
        let in_meta = members.meta.get(SERVER_INFO_KEY).copied();
        in_meta.or(members.server_info)
    }
}
