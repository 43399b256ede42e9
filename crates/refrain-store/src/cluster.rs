//! A Postgres for tests.
//!
//! It is one of its own, in a directory of its own, with the programs of an installed Postgres; or, if
//! `REFRAIN_TEST_POSTGRES` is set, the one of that URL, whose user must be allowed to make databases.
//!
//! ```no_run
//! use refrain_store::cluster::Cluster;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::shared()?;
//! let store = refrain_store::open(&cluster.database().await?).await?;
//! # Ok(())
//! # }
//! ```

mod programs;

use parking_lot::Mutex;
use programs::{Server, User};
use refrain_core::{Source, SystemSource};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use std::sync::{Arc, Weak};
use std::{fmt, io};

/// The variable that names a Postgres to be used instead of one of its own.
pub const VARIABLE: &str = "REFRAIN_TEST_POSTGRES";

/// Why the Postgres server for tests cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The URL in the variable is malformed. The parser's error may repeat its password, so it is left out.
    #[error("{VARIABLE} is not a Postgres URL")]
    Url,
    /// The programs of Postgres are missing.
    #[error(
        "Postgres is not installed: run scripts/tools, or set {VARIABLE} to the URL of a server"
    )]
    NotInstalled,
    /// Postgres refuses to run as root.
    #[error("Postgres cannot run as root, and there is no user `postgres`")]
    NoUser,
    /// An operation of the operating system failed.
    #[error("could not {action}: {source}")]
    Io {
        /// What was to be done.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("initdb failed: {stderr}")]
    InitDb {
        /// Its standard error.
        stderr: String,
    },
    /// The server did not start.
    #[error("Postgres did not start: {log}")]
    NotStarted {
        /// Its log.
        log: String,
    },
    /// The server of the variable cannot be stopped.
    #[error("the server of {VARIABLE} cannot be stopped")]
    NotOwned,
    /// The server rejected a connection or statement.
    #[error("Postgres failed: {0}")]
    Database(#[from] sqlx::Error),
}

/// A Postgres that is there until this is dropped.
pub struct Cluster {
    kind: Kind,
}

enum Kind {
    Own(Mutex<Server>),
    Given(Box<PgConnectOptions>),
}

impl Cluster {
    /// Starts one, or takes the one that was named.
    pub fn start() -> Result<Self, ClusterError> {
        let kind = match std::env::var(VARIABLE) {
            Ok(url) => {
                let options = url.parse().map_err(|_| ClusterError::Url)?;
                Kind::Given(Box::new(options))
            }
            Err(_) => Kind::Own(Mutex::new(Server::start(&password())?)),
        };
        Ok(Self { kind })
    }

    /// One for all tests of this process that run at the same time.
    pub fn shared() -> Result<Arc<Self>, ClusterError> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        if let Some(cluster) = shared.upgrade() {
            return Ok(cluster);
        }
        let cluster = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&cluster);
        Ok(cluster)
    }

    /// The URL of a database that is new.
    pub async fn database(&self) -> Result<String, ClusterError> {
        let options = self.options();
        let mut random = [0; 8];
        SystemSource::new().fill(&mut random);
        let name = format!("refrain_test_{:016x}", u64::from_le_bytes(random));
        let mut connection = PgConnection::connect_with(&options).await?;
        let create = format!("CREATE DATABASE {name}");
        connection.execute(AssertSqlSafe(create)).await?;
        connection.close().await?;
        Ok(options.database(&name).to_url_lossy().to_string())
    }

    /// Ends it, and starts it again where it was.
    pub fn restart(&self) -> Result<(), ClusterError> {
        self.stop()?;
        self.start_again()
    }

    /// Ends it, for a while. Connections are cut.
    pub fn stop(&self) -> Result<(), ClusterError> {
        self.own(Server::stop)
    }

    /// Starts it again after it was stopped.
    pub fn start_again(&self) -> Result<(), ClusterError> {
        self.own(Server::run)
    }

    /// Can it be stopped? One that was named cannot.
    pub fn can_stop(&self) -> bool {
        matches!(self.kind, Kind::Own(_))
    }

    fn own(
        &self,
        work: impl FnOnce(&mut Server) -> Result<(), ClusterError>,
    ) -> Result<(), ClusterError> {
        match &self.kind {
            Kind::Own(server) => work(&mut server.lock()),
            Kind::Given(_) => Err(ClusterError::NotOwned),
        }
    }

    fn options(&self) -> PgConnectOptions {
        match &self.kind {
            Kind::Own(server) => {
                let server = server.lock();
                PgConnectOptions::new_without_pgpass()
                    .host("127.0.0.1")
                    .port(server.port)
                    .username(User::NAME)
                    .password(&server.password)
                    .database("postgres")
            }
            Kind::Given(options) => (**options).clone(),
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

fn password() -> String {
    let mut random = [0; 16];
    SystemSource::new().fill(&mut random);
    format!("{:032x}", u128::from_le_bytes(random))
}
