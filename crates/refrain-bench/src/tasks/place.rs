//! The databases that are measured on.

use refrain_store::cluster::Cluster;
use tempfile::TempDir;

use crate::error::{ArgumentError, Error};

/// Which kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// Which database, as it is asked for. Its text may hold a password, so it is not shown.
#[derive(Clone)]
pub(crate) enum Choice {
    /// One of its own, that is gone afterwards.
    Own(Kind),
    /// The one of this URL.
    Url(Kind, String),
}

impl std::fmt::Debug for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own(kind) => write!(f, "Own({kind:?})"),
            Self::Url(kind, _) => write!(f, "Url({kind:?}, ..)"),
        }
    }
}

impl Choice {
    pub(crate) const OWN: [Self; 2] = [Self::Own(Kind::Sqlite), Self::Own(Kind::Postgres)];

    pub(crate) fn parse(text: &str) -> Result<Self, ArgumentError> {
        let url = |kind| Ok(Self::Url(kind, text.to_owned()));
        match text.split_once(':') {
            None if text == "sqlite" => Ok(Self::Own(Kind::Sqlite)),
            None if text == "postgres" => Ok(Self::Own(Kind::Postgres)),
            Some(("sqlite", _)) => url(Kind::Sqlite),
            Some(("postgres" | "postgresql", _)) => url(Kind::Postgres),
            _ => Err(ArgumentError::Store),
        }
    }

    /// Makes the database, or takes the one that was named.
    pub(crate) fn open(&self) -> Result<Place, Error> {
        Ok(match self {
            Self::Own(Kind::Sqlite) => {
                let dir = tempfile::Builder::new().prefix("refrain-bench-").tempdir();
                Place::Dir(dir.map_err(Error::system("no directory for the database"))?)
            }
            Self::Own(Kind::Postgres) => Place::Cluster(Cluster::start()?),
            Self::Url(kind, url) => Place::Url(*kind, url.clone()),
        })
    }
}

/// A database that is there as long as this value, or longer.
pub(crate) enum Place {
    Dir(TempDir),
    Cluster(Cluster),
    Url(Kind, String),
}

impl Place {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Dir(_) => Kind::Sqlite,
            Self::Cluster(_) => Kind::Postgres,
            Self::Url(kind, _) => *kind,
        }
    }

    pub(crate) async fn url(&self) -> Result<String, Error> {
        Ok(match self {
            Self::Dir(dir) => format!("sqlite:{}", dir.path().join("refrain.db").display()),
            Self::Cluster(cluster) => cluster.database().await?,
            Self::Url(_, url) => url.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_its_kind_or_its_url() {
        let parsed = |text| Choice::parse(text).map(|choice| format!("{choice:?}"));
        assert_eq!(parsed("sqlite").unwrap(), "Own(Sqlite)");
        assert_eq!(parsed("postgres").unwrap(), "Own(Postgres)");
        assert_eq!(parsed("sqlite:a.db").unwrap(), "Url(Sqlite, ..)");
        let secret = parsed("postgres://me:secret@host/bench").unwrap();
        assert_eq!(secret, "Url(Postgres, ..)");
        assert_eq!(parsed("memory:"), Err(ArgumentError::Store));
    }
}
