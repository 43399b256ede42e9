//! Opening a store by its URL.

use crate::memory::MemoryStore;
use crate::store::{Store, StoreError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// The URL is invalid.
    #[error("invalid store URL: {0}")]
    Url(#[from] UrlError),
    /// The file of a SQLite store could not be created.
    #[error("could not create {}: {source}", path.display())]
    Create {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A newer version of Refrain has migrated the tables.
    #[error(
        "store has schema version {found}, this version of Refrain supports versions up to {known}: upgrade Refrain"
    )]
    Newer {
        /// The version of the tables.
        found: i64,
        /// The latest version that this build supports.
        known: i64,
    },
    /// The store could not be reached, or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a store URL is invalid. The messages do not contain the URL, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The scheme is unknown, or its cargo feature is disabled.
    #[error("{SCHEMES}")]
    Scheme,
    /// The path of the SQLite file is empty.
    #[error("missing file name: write `sqlite:refrain.db`")]
    NoFile,
    /// The URL names SQLite's memory database.
    #[error("a SQLite store is a file: for a store in memory write `memory:`")]
    SqliteMemory,
    /// The URL of a SQLite file has options.
    #[error("SQLite options are not supported: remove the part after `?`")]
    SqliteOptions,
    /// The URL of a Postgres database has an invalid port.
    #[error("invalid port: expected a number up to 65535")]
    Port,
    /// The URL of a Postgres database has an invalid host.
    #[error("invalid host: expected a name or an IP address, an IPv6 address in brackets")]
    Host,
    /// The URL of a Postgres database has a parameter with this name, which is not supported.
    #[error("unsupported parameter `{0}`: the supported ones are {PARAMETERS}")]
    Parameter(String),
    /// A parameter in the URL of a Postgres database has an invalid value.
    #[error("invalid value of the parameter `{name}`: expected {expected}")]
    Value {
        /// The name of the parameter.
        name: &'static str,
        /// The valid values.
        expected: &'static str,
    },
    /// The URL of a Postgres database is malformed in another way.
    #[error(
        "expected `postgres://user:password@host:5432/database?sslmode=require`, with `%40` for an `@` in the \
         password, `%2F` for `/`, `%3A` for `:`, `%3F` for `?` and `%23` for `#`"
    )]
    Postgres,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl From<sqlx::Error> for OpenStoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Opens the store of this URL, and creates or migrates its tables.
///
/// | URL | store |
/// | --- | --- |
/// | `sqlite:refrain.db`, `sqlite:///var/lib/refrain.db` | a file, for the processes of one machine |
/// | `postgres://user:password@host/database` | a database, for a fleet |
/// | `postgres://user:password@one:5432,two:5432/database` | a database with a standby |
/// | `memory:` | the memory of this process |
///
/// ```
/// use refrain::runtime::store::ListTasks;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = refrain::store::open("memory:").await?;
/// let latest = ListTasks { most: 10, ..ListTasks::default() };
/// assert!(store.list(latest).await?.is_empty());
/// # Ok(())
/// # }
/// ```
pub async fn open(url: &str) -> Result<Arc<dyn Store>, OpenStoreError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", rest)) => {
            let path = sqlite_path(rest)?;
            Ok(Arc::new(crate::SqliteStore::open(path).await?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => Ok(Arc::new(crate::PgStore::open(url).await?)),
        _ => Err(UrlError::Scheme.into()),
    }
}

/// Checks a store URL, without opening the store.
///
/// ```
/// use refrain::runtime::store::{UrlError, check_url};
///
/// assert_eq!(check_url("memory:"), Ok(()));
/// assert_eq!(check_url("mysql://db/tasks"), Err(UrlError::Scheme));
/// ```
pub fn check_url(url: &str) -> Result<(), UrlError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(()),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", rest)) => sqlite_path(rest).map(|_| ()),
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => crate::postgres::check_url(url),
        _ => Err(UrlError::Scheme),
    }
}

/// The parameters of the URL of a Postgres database.
const PARAMETERS: &str = "sslmode, sslrootcert, sslcert, sslkey, user, password, dbname, host, hostaddr, port, \
     application_name, options and statement-cache-capacity";

/// The schemes that this build supports.
const SCHEMES: &str = match (cfg!(feature = "sqlite"), cfg!(feature = "postgres")) {
    (true, true) => "expected a URL that starts with `sqlite:`, `postgres:` or `memory:`",
    (true, false) => {
        "expected a URL that starts with `sqlite:` or `memory:` (built without the feature `postgres`)"
    }
    (false, true) => {
        "expected a URL that starts with `postgres:` or `memory:` (built without the feature `sqlite`)"
    }
    (false, false) => "expected `memory:` (built without the features `sqlite` and `postgres`)",
};

/// The path in a SQLite URL, which has no escapes.
#[cfg(feature = "sqlite")]
fn sqlite_path(rest: &str) -> Result<&str, UrlError> {
    match rest.strip_prefix("//").unwrap_or(rest) {
        "" => Err(UrlError::NoFile),
        ":memory:" => Err(UrlError::SqliteMemory),
        path if path.contains('?') => Err(UrlError::SqliteOptions),
        path => Ok(path),
    }
}
