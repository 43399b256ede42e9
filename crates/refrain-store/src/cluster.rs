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

use programs::{Server, User};
use refrain_core::{Source, SystemSource};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The variable that names a Postgres to be used instead of one of its own.
pub const VARIABLE: &str = "REFRAIN_TEST_POSTGRES";

/// Why there is no Postgres.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no Postgres for tests: {0}")]
pub struct ClusterError(String);

impl From<sqlx::Error> for ClusterError {
    fn from(error: sqlx::Error) -> Self {
        Self(error.to_string())
    }
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
                let options = url.parse();
                // What the parser says may repeat parts of the URL, and of its password.
                Kind::Given(Box::new(options.map_err(|_| {
                    ClusterError(format!("{VARIABLE} is not a URL of Postgres"))
                })?))
            }
            Err(_) => Kind::Own(Mutex::new(Server::start(&password())?)),
        };
        Ok(Self { kind })
    }

    /// One for all tests of this process that run at the same time.
    pub fn shared() -> Result<Arc<Self>, ClusterError> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
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
            Kind::Own(server) => work(&mut server.lock().unwrap_or_else(PoisonError::into_inner)),
            Kind::Given(_) => Err(ClusterError(format!(
                "the one of {VARIABLE} is not ours to stop"
            ))),
        }
    }

    fn options(&self) -> PgConnectOptions {
        match &self.kind {
            Kind::Own(server) => {
                let server = server.lock().unwrap_or_else(PoisonError::into_inner);
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
