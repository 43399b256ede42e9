//! The URL of the task store.

use crate::AppError;
use crate::error::with_hint;
use refrain::runtime::store::{UrlError, check_url};
use refrain::store::{self, OpenStoreError, Store};
use serde::{Serialize, Serializer};
use std::env::VarError;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The environment variable with the URL of the task store, used when neither a flag nor the file sets one.
pub const STORE: &str = "REFRAIN_STORE";
const DEFAULT: &str = "sqlite:refrain.db";
const CHECK_HINT: &str = "check --store, `store` in the configuration file, or $REFRAIN_STORE";
pub(crate) const SHARED_HINT: &str =
    "pass the store that the instances use: --store URL, --config FILE or $REFRAIN_STORE";

/// The URL of a store. Its password is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl(String);

impl StoreUrl {
    /// The configured URL, or else the URL in the environment.
    pub(crate) fn or_environment(configured: Option<Self>) -> Result<Option<Self>, AppError> {
        match (configured, std::env::var(STORE)) {
            (Some(url), _) => Ok(Some(url)),
            (None, Ok(url)) => Ok(Some(Self(url))),
            (None, Err(VarError::NotPresent)) => Ok(None),
            (None, Err(VarError::NotUnicode(_))) => Err(format!("${STORE} is not UTF-8").into()),
        }
    }

    /// Checks the URL, without opening the store.
    pub(crate) fn check(&self) -> Result<(), UrlError> {
        check_url(&self.0)
    }

    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>, AppError> {
        store::open(&self.0).await.map_err(|error| {
            let hint = match error {
                OpenStoreError::Create { .. } => {
                    "choose a file in a writable directory with --store sqlite:PATH"
                }
                _ => CHECK_HINT,
            };
            let url = self.to_string();
            with_hint(format!("cannot open store {url:?}: {error}"), hint)
        })
    }

    /// Rejects a store that no other process can use.
    pub(crate) fn check_shared(&self) -> Result<(), AppError> {
        match self.is_memory() {
            true => Err(with_hint(
                "a memory store belongs to one process: no other process can use it",
                SHARED_HINT,
            )),
            false => Ok(()),
        }
    }

    pub(crate) async fn open_existing(&self) -> Result<Arc<dyn Store>, AppError> {
        match self.is_new() {
            true => Err(with_hint(
                format!("store {self} does not exist"),
                SHARED_HINT,
            )),
            false => self.open().await,
        }
    }

    /// Whether opening the store creates its file.
    pub(crate) fn is_new(&self) -> bool {
        let file = self.file().filter(|file| !file.is_empty());
        file.is_some_and(|file| !Path::new(file).exists())
    }

    /// Whether each process has its own store.
    pub(crate) fn is_memory(&self) -> bool {
        self.0.starts_with("memory:")
    }

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

/// The URL without its password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.file().is_some() {
            let (file, options) = match self.0.split_once('?') {
                Some((file, _)) => (file, "?…"),
                None => (self.0.as_str(), ""),
            };
            return write!(f, "{file}{options}");
        }
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        // In a malformed URL, everything before the last `@` may be part of the password.
        let (user, rest) = match rest.rsplit_once('@') {
            // The password may be one of the options.
            Some((before, _)) if before.contains('?') => return write!(f, "{scheme}://…"),
            Some((before, rest)) => {
                let name = before.split_once(':').map_or(before, |(name, _)| name);
                (format!("{name}:…@"), rest)
            }
            None => (String::new(), rest),
        };
        let (database, options) = match rest.split_once('?') {
            Some((database, _)) => (database, "?…"),
            None => (rest, ""),
        };
        let gap = if scheme.is_empty() { "" } else { "://" };
        write!(f, "{scheme}{gap}{user}{database}{options}")
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

/// Replaces each character of a URL's password, and of the values of its parameters, in a line with a star.
pub(crate) fn mask_password(line: &str) -> String {
    let mask = |from: usize, to: usize, line: &str| {
        let stars = "*".repeat(line[from..to].chars().count());
        format!("{}{stars}{}", &line[..from], &line[to..])
    };
    let mut line = line.to_owned();
    const OPTION: &str = "password=";
    if let Some(at) = line.find(OPTION) {
        let from = at + OPTION.len();
        let length = line[from..].find(['&', '"', '\'']);
        let to = length.map_or(line.len(), |length| from + length);
        line = mask(from, to, &line);
    }
    let url = line.find("://").or_else(|| line.find("sqlite:"));
    let mut rest = url.and_then(|url| Some(url + line[url..].find('?')?));
    while let Some(at) = rest
        && let Some(length) = line[at..].find('=')
    {
        let from = at + length + 1;
        let length = line[from..].find(['&', '"', '\'']);
        let to = length.map_or(line.len(), |length| from + length);
        let characters = line[from..to].chars().count();
        line = mask(from, to, &line);
        rest = Some(from + characters).filter(|end| line[*end..].starts_with('&'));
    }
    if let Some(scheme) = line.find("://")
        && let Some(end) = line.rfind('@').filter(|end| *end > scheme)
        && let Some(colon) = line[scheme + 3..end].find(':')
    {
        line = mask(scheme + 3 + colon + 1, end, &line);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_never_printed() {
        for (url, shown) in [
            ("sqlite:refrain.db", "sqlite:refrain.db"),
            (
                "sqlite:///srv/a@b/refrain.db",
                "sqlite:///srv/a@b/refrain.db",
            ),
            ("sqlite:x.db?key=secret", "sqlite:x.db?…"),
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
                "store = \"postgres://db/t?password=***&x=*\"",
            ),
            (
                "store = \"postgres://db/t?a=süß&pwd=x@y=z\" # comment = 1",
                "store = \"postgres://db/t?a=***&pwd=*****\" # comment = 1",
            ),
            (
                "store = \"sqlite:x.db?key=süß\"",
                "store = \"sqlite:x.db?key=***\"",
            ),
            (
                "resource = \"https://mcp.example.com:1/mcp\"",
                "resource = \"https://mcp.example.com:1/mcp\"",
            ),
            ("audience = \"a\"", "audience = \"a\""),
        ] {
            assert_eq!(mask_password(line), shown);
        }
    }
}
