//! What is known of the server.

use refrain_wire::{CALL_ID_KEY, Implementation, PROTOCOL_VERSION, SERVER_INFO_KEY};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// What a server says of itself. Nobody has checked it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Server {
    /// Its name and version, if it gave them.
    pub info: Option<Implementation>,
    /// The revision that is spoken with it, or the name of the draft.
    pub version: String,
    /// All revisions it speaks, as far as is known.
    pub versions: Vec<String>,
    /// What it can do, as it said it.
    pub capabilities: Map<String, Value>,
    /// How to use it, for a model.
    pub instructions: Option<String>,
}

impl Server {
    /// What a person calls it.
    pub fn name(&self) -> Option<&str> {
        let info = self.info.as_ref()?;
        Some(info.title.as_deref().unwrap_or(&info.name))
    }

    /// Whether a repeated first request of the same call id is the same flow there.
    pub fn knows_call_ids(&self) -> bool {
        self.has_extension(CALL_ID_KEY)
    }

    fn has_extension(&self, name: &str) -> bool {
        let extensions = self.capabilities.get("extensions");
        extensions.is_some_and(|extensions| extensions.get(name).is_some())
    }
}

/// Reads the result of `server/discover`.
pub(crate) fn discovered(raw: &RawValue) -> Result<Server, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Discovered {
        supported_versions: Vec<String>,
        #[serde(default)]
        capabilities: Map<String, Value>,
        instructions: Option<String>,
        #[serde(rename = "_meta", default)]
        meta: Map<String, Value>,
    }

    let found: Discovered = serde_json::from_str(raw.get())?;
    let info = found.meta.get(SERVER_INFO_KEY);
    Ok(Server {
        info: info.and_then(|info| Implementation::deserialize(info).ok()),
        version: PROTOCOL_VERSION.to_owned(),
        versions: found.supported_versions,
        capabilities: found.capabilities,
        instructions: found.instructions,
    })
}
