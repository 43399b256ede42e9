//! The databases for the measurements.

use std::any::Any;

use refrain_store::test_postgres::TestPostgres;

use crate::error::{ArgumentError, Error};

/// A database on the command line. `Debug` hides the URL, because it may contain a password.
#[derive(Clone)]
pub(crate) enum StoreArgument {
    /// A new file, deleted afterwards.
    Sqlite,
    /// A new server, stopped afterwards.
    Postgres,
    Url(String),
}

impl std::fmt::Debug for StoreArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "Sqlite",
            Self::Postgres => "Postgres",
            Self::Url(_) => "Url(..)",
        })
    }
}

impl StoreArgument {
    pub(crate) fn parse(text: &str) -> Result<Self, ArgumentError> {
        match text.split_once(':') {
            None if text == "sqlite" => Ok(Self::Sqlite),
            None if text == "postgres" => Ok(Self::Postgres),
            Some(("sqlite" | "postgres" | "postgresql", _)) => Ok(Self::Url(text.to_owned())),
            _ => Err(ArgumentError::Store),
        }
    }

    /// Creates the database unless its URL is given.
    pub(crate) async fn open(&self) -> Result<TestDatabase, Error> {
        let (url, created): (String, Box<dyn Any>) = match self {
            Self::Sqlite => {
                let dir = tempfile::Builder::new().prefix("refrain-bench-").tempdir();
                let dir = dir.map_err(Error::system(
                    "could not create a directory for the database",
                ))?;
                let file = dir.path().join("refrain.db");
                (format!("sqlite:{}", file.display()), Box::new(dir))
            }
            Self::Postgres => {
                let cluster = TestPostgres::start()?;
                (cluster.database().await?, Box::new(cluster))
            }
            Self::Url(url) => (url.clone(), Box::new(())),
        };
        Ok(TestDatabase {
            url,
            _created: created,
        })
    }
}

/// The URL of a database. A database that was created here is deleted on drop.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    /// The directory or the server to drop.
    _created: Box<dyn Any>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_argument_is_a_kind_or_a_url() {
        let parsed = |text| StoreArgument::parse(text).map(|store| format!("{store:?}"));
        assert_eq!(parsed("sqlite").unwrap(), "Sqlite");
        assert_eq!(parsed("postgres").unwrap(), "Postgres");
        assert_eq!(parsed("sqlite:a.db").unwrap(), "Url(..)");
        assert_eq!(
            parsed("postgres://me:secret@host/bench").unwrap(),
            "Url(..)"
        );
        assert_eq!(parsed("memory:"), Err(ArgumentError::Store));
    }
}
