//! Settings that may be secret: their text, or the variable or file that contains it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// A setting of a backend: a text, or where to read it.
///
/// ```
/// use refrain_gateway::Setting;
///
/// let settings: std::collections::BTreeMap<String, Setting> = toml::from_str(r#"
///     LOG = "debug"
///     API_KEY = { env = "ACME_API_KEY" }
///     TOKEN = { file = "/run/secrets/token" }
/// "#)?;
/// assert_eq!(format!("{:?}", settings["LOG"]), "Text(..)");
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "must be a string, { env = \"VARIABLE\" } or { file = \"PATH\" }"
)]
pub enum Setting {
    /// The text itself.
    Text(String),
    /// A variable of the gateway's environment.
    Env(EnvSetting),
    /// The first line of a file.
    File(FileSetting),
}

/// The variable with a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvSetting {
    /// The name of the variable.
    pub env: String,
}

/// The file with a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSetting {
    /// The path of the file.
    pub file: PathBuf,
}

/// Why a setting cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The variable is not set, or is not text.
    #[error("environment variable {name} {}", if matches!(source, std::env::VarError::NotPresent) { "is not set" } else { "is not text" })]
    Env {
        /// The variable.
        name: String,
        /// The reason.
        source: std::env::VarError,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

impl Setting {
    pub(super) fn read(&self) -> Result<String, SettingError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Env(EnvSetting { env: name }) => {
                std::env::var(name).map_err(|source| SettingError::Env {
                    name: name.clone(),
                    source,
                })
            }
            Self::File(FileSetting { file: path }) => {
                let text = std::fs::read_to_string(path).map_err(|source| SettingError::File {
                    path: path.clone(),
                    source,
                })?;
                Ok(text.lines().next().unwrap_or_default().to_owned())
            }
        }
    }
}

/// Hides the text, which may be secret.
impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::Env(setting) => setting.fmt(f),
            Self::File(setting) => setting.fmt(f),
        }
    }
}
