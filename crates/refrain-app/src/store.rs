//! The URL of the task store, and opening it.

use crate::Failure;
use refrain::store::{self, Store};
use serde::{Serialize, Serializer};
use std::env::VarError;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The environment variable with the URL, used when neither flag nor file has one.
const STORE: &str = "REFRAIN_STORE";
/// The default: a file in the working directory.
const DEFAULT: &str = "sqlite:refrain.db";

/// The URL of a store. Its password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl(String);

impl StoreUrl {
    /// The given URL, else that of the environment.
    pub(crate) fn named(given: Option<Self>) -> Result<Option<Self>, Failure> {
        match (given, std::env::var(STORE)) {
            (Some(given), _) => Ok(Some(given)),
            (None, Ok(url)) => Ok(Some(Self(url))),
            (None, Err(VarError::NotPresent)) => Ok(None),
            (None, Err(VarError::NotUnicode(_))) => Err(format!("${STORE} is not UTF-8").into()),
        }
    }

    /// Opens the store, and creates it if it does not exist.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        store::open(&self.0).await.map_err(|error| {
            let advice = match self.file() {
                Some(_) => "choose another file, where it can be written, with --store sqlite:PATH",
                None => "--store, `store` in the configuration or $REFRAIN_STORE names another",
            };
            format!("the store {self} cannot be opened: {error}; {advice}").into()
        })
    }

    /// Opens a store that must exist.
    pub(crate) async fn open_existing(&self) -> Result<Arc<dyn Store>, Failure> {
        match self.file() {
            Some(file) if !file.is_empty() && !Path::new(file).exists() => Err(format!(
                "there is no store {self}: name the one that the instances use, with --store URL, `store` in the \
                 configuration or ${STORE}"
            )
            .into()),
            _ => self.open().await,
        }
    }

    /// The file of a SQLite store.
    fn file(&self) -> Option<&str> {
        let rest = self.0.strip_prefix("sqlite:")?;
        Some(rest.strip_prefix("//").unwrap_or(rest))
    }
}

impl Default for StoreUrl {
    fn default() -> Self {
        Self(DEFAULT.to_owned())
    }
}

impl From<String> for StoreUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

/// Without the password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.file().is_some() {
            return f.write_str(&self.0);
        }
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        // A malformed URL does not show where its password ends: everything before the last `@` may be part of it.
        let (caller, rest) = match rest.rsplit_once('@') {
            // The password may be among the options.
            Some((before, _)) if before.contains('?') => return write!(f, "{scheme}://…"),
            Some((before, rest)) => {
                let name = before.split_once(':').map_or(before, |(name, _)| name);
                (format!("{name}:…@"), rest)
            }
            None => (String::new(), rest),
        };
        let (place, options) = match rest.split_once('?') {
            Some((place, _)) => (place, "?…"),
            None => (rest, ""),
        };
        let gap = if scheme.is_empty() { "" } else { "://" };
        write!(f, "{scheme}{gap}{caller}{place}{options}")
    }
}

impl Serialize for StoreUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// A line that may contain such a URL, with a star for each character of its password.
pub(crate) fn masked(line: &str) -> String {
    let hidden = |from: usize, to: usize, line: &str| {
        let stars = "*".repeat(line[from..to].chars().count());
        format!("{}{stars}{}", &line[..from], &line[to..])
    };
    let mut line = line.to_owned();
    const OPTION: &str = "password=";
    if let Some(at) = line.find(OPTION) {
        let from = at + OPTION.len();
        let length = line[from..].find(['&', '"', '\'']);
        let to = length.map_or(line.len(), |length| from + length);
        line = hidden(from, to, &line);
    }
    if let Some(scheme) = line.find("://")
        && let Some(end) = line.rfind('@').filter(|end| *end > scheme)
        && let Some(colon) = line[scheme + 3..end].find(':')
    {
        line = hidden(scheme + 3 + colon + 1, end, &line);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_never_shown() {
        for (url, shown) in [
            ("sqlite:refrain.db", "sqlite:refrain.db"),
            (
                "sqlite:///srv/a@b/refrain.db",
                "sqlite:///srv/a@b/refrain.db",
            ),
            ("memory:", "memory:"),
            ("postgres://db/tasks", "postgres://db/tasks"),
            ("postgres://me@db/tasks", "postgres://me:…@db/tasks"),
            ("postgres://me:secret@db/tasks", "postgres://me:…@db/tasks"),
            (
                "postgres://me:secret@/@db/tasks",
                "postgres://me:…@db/tasks",
            ),
            ("postgres://me:secret?@db/tasks", "postgres://…"),
            ("postgres://db/tasks?password=@secret", "postgres://…"),
            (
                "postgres://db/tasks?user=me&password=secret",
                "postgres://db/tasks?…",
            ),
            ("postgrse:me:secret@db", "postgrse:…@db"),
            ("refrain.db", "refrain.db"),
        ] {
            let url = StoreUrl(url.to_owned());
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url} {url:?}").contains("secret"));
        }
    }

    #[test]
    fn masked_line_keeps_its_width() {
        for (line, shown) in [
            (
                "store = \"postgres://me:süß@db/t",
                "store = \"postgres://me:***@db/t",
            ),
            (
                "store = \"postgres://db:1/t?password=s@ß\"",
                "store = \"postgres://db:1/t?password=***\"",
            ),
            (
                "store = \"postgres://db/t?password=süß&x=1\"",
                "store = \"postgres://db/t?password=***&x=1\"",
            ),
            (
                "resource = \"https://mcp.example.com:1/mcp\"",
                "resource = \"https://mcp.example.com:1/mcp\"",
            ),
            ("audience = \"a\"", "audience = \"a\""),
        ] {
            assert_eq!(masked(line), shown);
        }
    }
}
