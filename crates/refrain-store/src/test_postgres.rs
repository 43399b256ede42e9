//! A Postgres server for tests.
//!
//! It runs an installed Postgres in a temporary directory. If `REFRAIN_TEST_POSTGRES` is set, the server of that URL is used
//! instead; its user must be allowed to create databases.
//!
//! ```no_run
//! use refrain_store::test_postgres::TestPostgres;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let postgres = TestPostgres::shared()?;
//! let store = refrain_store::open(&postgres.database().await?).await?;
//! # Ok(())
//! # }
//! ```

mod server;

use parking_lot::Mutex;
use refrain_core::{Source, SystemSource};
use server::PostgresServer;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, io};

/// The environment variable with the URL of a server.
const VARIABLE: &str = "REFRAIN_TEST_POSTGRES";

/// Why the Postgres server for tests cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestPostgresError {
    /// The URL in `REFRAIN_TEST_POSTGRES` is malformed. The parser's error is omitted, since it may contain the password.
    #[error("{VARIABLE} is not a Postgres URL")]
    Url,
    /// The programs of Postgres are missing.
    #[error(
        "Postgres is not installed: run scripts/tools, or set {VARIABLE} to the URL of a server"
    )]
    NotInstalled,
    /// Postgres refuses to run as root.
    #[error("Postgres cannot run as root, and there is no user `postgres` or `nobody`")]
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
    /// The server in `REFRAIN_TEST_POSTGRES` was not started here and cannot be stopped.
    #[error("the server in {VARIABLE} was not started here and cannot be stopped")]
    NotOwned,
    /// The server was started without a standby.
    #[error("the server has no standby; start it with start_with_standby")]
    NoStandby,
    /// The server rejected a connection or statement.
    #[error("Postgres failed: {0}")]
    Database(#[from] sqlx::Error),
}

/// A Postgres server that runs until this is dropped.
pub struct TestPostgres {
    options: PgConnectOptions,
    /// `None`: the server in `REFRAIN_TEST_POSTGRES` is used.
    server: Option<Mutex<PostgresServer>>,
    standby: Option<Mutex<PostgresServer>>,
}

impl TestPostgres {
    /// Starts a server, or uses the one in `REFRAIN_TEST_POSTGRES`.
    pub fn start() -> Result<Self, TestPostgresError> {
        match std::env::var(VARIABLE) {
            Ok(url) => Ok(Self {
                options: url.parse().map_err(|_| TestPostgresError::Url)?,
                server: None,
                standby: None,
            }),
            Err(_) => Self::start_own(&random()),
        }
    }

    fn start_own(password: &str) -> Result<Self, TestPostgresError> {
        let server = PostgresServer::start(password)?;
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(server.port)
            .username(server::SUPERUSER)
            .password(password)
            .database("postgres");
        Ok(Self {
            options,
            server: Some(Mutex::new(server)),
            standby: None,
        })
    }

    /// Starts a server with a synchronous standby. Ignores `REFRAIN_TEST_POSTGRES`.
    pub async fn start_with_standby() -> Result<Self, TestPostgresError> {
        let start = || {
            let password = random();
            let mut postgres = Self::start_own(&password)?;
            let standby = PostgresServer::start_standby(&password, postgres.options.get_port())?;
            postgres.standby = Some(Mutex::new(standby));
            Ok::<_, TestPostgresError>(postgres)
        };
        let started = tokio::task::spawn_blocking(start).await;
        let postgres = started.map_err(io::Error::from).map_err(|source| {
            let action = "start Postgres";
            TestPostgresError::Io { action, source }
        })??;
        let mut connection = PgConnection::connect_with(&postgres.options).await?;
        // From now on a commit is confirmed when it is on the disks of both.
        for statement in [
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "SELECT pg_reload_conf()",
        ] {
            connection.execute(statement).await?;
        }
        let synchronous =
            "SELECT EXISTS (SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync')";
        // Waits at most a minute until the standby is synchronous. If it is not by then, the first commit waits for it.
        for _ in 0..3000 {
            if sqlx::query_scalar(synchronous)
                .fetch_one(&mut connection)
                .await?
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        connection.close().await?;
        Ok(postgres)
    }

    /// Adds the standby to the URL of a database.
    pub fn with_standby(&self, url: &str) -> String {
        let Some(standby) = &self.standby else {
            return url.to_owned();
        };
        let (one, other) = (self.options.get_port(), standby.lock().port);
        url.replace(&format!(":{one}/"), &format!(":{one},127.0.0.1:{other}/"))
    }

    /// Kills the server with SIGKILL, promotes the standby, and returns the standby's port.
    pub fn fail_over(&self) -> Result<u16, TestPostgresError> {
        let standby = self.standby.as_ref();
        let standby = standby.ok_or(TestPostgresError::NoStandby)?;
        self.owned()?.lock().kill()?;
        let standby = standby.lock();
        standby.promote()?;
        Ok(standby.port)
    }

    /// Returns one server for all concurrent tests of this process.
    pub fn shared() -> Result<Arc<Self>, TestPostgresError> {
        static SHARED: Mutex<Weak<TestPostgres>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        if let Some(postgres) = shared.upgrade() {
            return Ok(postgres);
        }
        let postgres = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&postgres);
        Ok(postgres)
    }

    /// Creates a database and returns its URL.
    pub async fn database(&self) -> Result<String, TestPostgresError> {
        let name = format!("refrain_test_{}", random());
        let mut connection = PgConnection::connect_with(&self.options).await?;
        let create = format!("CREATE DATABASE {name}");
        connection.execute(AssertSqlSafe(create)).await?;
        connection.close().await?;
        let options = self.options.clone().database(&name);
        Ok(options.to_url_lossy().to_string())
    }

    /// Stops the server and starts it again.
    pub fn restart(&self) -> Result<(), TestPostgresError> {
        self.stop()?;
        self.start_again()
    }

    /// Stops the server. Connections are cut.
    pub fn stop(&self) -> Result<(), TestPostgresError> {
        self.owned()?.lock().stop()
    }

    /// Starts the server again, on the same port.
    pub fn start_again(&self) -> Result<(), TestPostgresError> {
        self.owned()?.lock().run()
    }

    /// Returns whether the server can be stopped. The one in `REFRAIN_TEST_POSTGRES` cannot.
    pub fn can_stop(&self) -> bool {
        self.server.is_some()
    }

    fn owned(&self) -> Result<&Mutex<PostgresServer>, TestPostgresError> {
        self.server.as_ref().ok_or(TestPostgresError::NotOwned)
    }
}

impl fmt::Debug for TestPostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestPostgres").finish_non_exhaustive()
    }
}

fn random() -> String {
    let mut random = [0; 16];
    SystemSource::new().fill(&mut random);
    format!("{:032x}", u128::from_le_bytes(random))
}
