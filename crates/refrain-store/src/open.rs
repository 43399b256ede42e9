//! Opening a store by its URL.

use crate::memory::MemoryStore;
use crate::store::{Store, StoreError};
use std::sync::Arc;

/// Why a store could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Its URL is none of a store. What it says never holds the URL, in which there may be a password.
    #[error("the URL of the store cannot be used: {0}")]
    Url(String),
    /// A newer version of Refrain has made its tables.
    #[error(
        "the tables of the store are of version {found}, and this version of Refrain knows them up to {known}: use the newer one"
    )]
    Newer {
        /// The version of the tables.
        found: i64,
        /// The latest version that is known here.
        known: i64,
    },
    /// It could not be reached, or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Opens the store of this URL, and makes its tables where they are missing.
///
/// | URL | store |
/// | --- | --- |
/// | `sqlite:refrain.db`, `sqlite:///var/lib/refrain.db` | a file, for the processes of one machine |
/// | `postgres://user:password@host/database` | a database, for a fleet |
/// | `memory:` | the memory of this process |
///
/// ```
/// use refrain_core::{FlowId, Principal};
/// use refrain_store::{NewTask, TaskId, TaskStatus};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "sqlite")] {
/// let dir = tempfile::tempdir()?;
/// let file = dir.path().join("refrain.db");
/// let store = refrain_store::open(&format!("sqlite:{}", file.display())).await?;
///
/// let (id, alice) = (TaskId::new([7; 24]), Principal::new("alice"));
/// let new = NewTask {
///     id: id.clone(),
///     flow: FlowId::from_bytes([7; 16]),
///     owner: alice.clone(),
///     tool: "update_work_item".to_owned(),
///     call: Vec::new(),
///     journal: Vec::new(),
///     status_message: None,
///     ttl: Duration::from_secs(3600),
///     poll_interval: Duration::from_secs(1),
///     claimed: None,
/// };
/// store.create(new).await?;
///
/// let task = store.get(&id, &alice).await?.expect("it was made");
/// assert_eq!(task.status, TaskStatus::Working);
/// assert!(store.get(&id, &Principal::new("bob")).await?.is_none());
/// # }
/// # Ok(())
/// # }
/// ```
pub async fn open(url: &str) -> Result<Arc<dyn Store>, OpenError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", rest)) => {
            let path = sqlite_path(rest)?;
            Ok(Arc::new(crate::SqliteStore::open(path).await?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => Ok(Arc::new(crate::PgStore::open(url).await?)),
        _ => Err(OpenError::Url(KINDS.to_owned())),
    }
}

/// The stores that this build has.
const KINDS: &str = match (cfg!(feature = "sqlite"), cfg!(feature = "postgres")) {
    (true, true) => "it has to begin with `sqlite:`, `postgres:` or `memory:`",
    (true, false) => "in this build it has to begin with `sqlite:` or `memory:`",
    (false, true) => "in this build it has to begin with `postgres:` or `memory:`",
    (false, false) => "in this build it has to be `memory:`",
};

/// The file of a SQLite URL, as it is written there.
#[cfg(feature = "sqlite")]
fn sqlite_path(rest: &str) -> Result<&str, OpenError> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let wrong = |what: &str| Err(OpenError::Url(what.to_owned()));
    match path {
        "" => wrong("it names no file: write `sqlite:refrain.db`"),
        ":memory:" => wrong("SQLite is for files here: a store in memory is `memory:`"),
        _ if path.contains('?') => {
            wrong("a SQLite file has no options here: leave out what follows the `?`")
        }
        _ => Ok(path),
    }
}
