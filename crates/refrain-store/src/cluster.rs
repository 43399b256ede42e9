//! A Postgres server for tests.
//!
//! It runs the programs of an installed Postgres in a temporary directory. If `REFRAIN_TEST_POSTGRES` is set, the server
//! of that URL is used instead; its user must be allowed to create databases.
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

mod server;

use parking_lot::Mutex;
use refrain_core::{Source, SystemSource};
use server::Server;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use std::sync::{Arc, Weak};
use std::{fmt, io};

/// The variable with the URL of a server to use.
const VARIABLE: &str = "REFRAIN_TEST_POSTGRES";

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
        /// The operation.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A program of Postgres failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Its name.
        program: &'static str,
        /// Its log.
        output: String,
    },
    /// The server of the variable cannot be stopped.
    #[error("the server of {VARIABLE} cannot be stopped")]
    NotOwned,
    /// The server rejected a connection or statement.
    #[error("Postgres failed: {0}")]
    Database(#[from] sqlx::Error),
}

/// A Postgres server that runs until this is dropped.
pub struct Cluster {
    options: PgConnectOptions,
    /// `None`: the server of the variable.
    server: Option<Mutex<Server>>,
}

impl Cluster {
    /// Starts a server, or uses the one of the variable.
    pub fn start() -> Result<Self, ClusterError> {
        let (options, server) = match std::env::var(VARIABLE) {
            Ok(url) => (url.parse().map_err(|_| ClusterError::Url)?, None),
            Err(_) => {
                let password = random();
                let server = Server::start(&password)?;
                let options = PgConnectOptions::new_without_pgpass()
                    .host("127.0.0.1")
                    .port(server.port)
                    .username(server::SUPERUSER)
                    .password(&password)
                    .database("postgres");
                (options, Some(Mutex::new(server)))
            }
        };
        Ok(Self { options, server })
    }

    /// One server for all tests of this process that run at the same time.
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

    /// The URL of a new database.
    pub async fn database(&self) -> Result<String, ClusterError> {
        let name = format!("refrain_test_{}", random());
        let mut connection = PgConnection::connect_with(&self.options).await?;
        let create = format!("CREATE DATABASE {name}");
        connection.execute(AssertSqlSafe(create)).await?;
        connection.close().await?;
        let options = self.options.clone().database(&name);
        Ok(options.to_url_lossy().to_string())
    }

    /// Stops the server and starts it again.
    pub fn restart(&self) -> Result<(), ClusterError> {
        self.stop()?;
        self.start_again()
    }

    /// Stops the server. Connections are cut.
    pub fn stop(&self) -> Result<(), ClusterError> {
        self.owned()?.lock().stop()
    }

    /// Starts the server again, on the same port.
    pub fn start_again(&self) -> Result<(), ClusterError> {
        self.owned()?.lock().run()
    }

    /// Whether the server can be stopped. That of the variable cannot.
    pub fn can_stop(&self) -> bool {
        self.server.is_some()
    }

    fn owned(&self) -> Result<&Mutex<Server>, ClusterError> {
        self.server.as_ref().ok_or(ClusterError::NotOwned)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

fn random() -> String {
    let mut random = [0; 16];
    SystemSource::new().fill(&mut random);
    format!("{:032x}", u128::from_le_bytes(random))
}
