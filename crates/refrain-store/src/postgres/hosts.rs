//! The servers in the URL of a store, and the search for the one that accepts writes.

use super::connections::ACQUIRE_TIMEOUT;
use super::parameters;
use crate::open::UrlError;
use crate::store::StoreError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Prepares a connection, and returns whether its server is read-only, for example a standby. The statement timeout is
/// shorter than [`TIMEOUT`](crate::sql::TIMEOUT). Generic plans avoid planning statements with arrays at each execution,
/// which takes longer than the execution.
const PREPARE: &str = "
SELECT current_setting('transaction_read_only')::bool
FROM set_config('statement_timeout', '10s', false) AS timeout,
    set_config('plan_cache_mode', 'force_generic_plan', false) AS mode";

/// The servers of a database. At most one accepts writes.
#[derive(Clone)]
pub(super) struct Hosts {
    options: Arc<[PgConnectOptions]>,
    /// The server that accepted writes last.
    last: Arc<AtomicUsize>,
}

impl Hosts {
    /// Parses a URL with one or more hosts, `postgres://user@one:5432,two:5433/database`.
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        let begin = url.find("://").map_or(0, |at| at + 3);
        let end = url[begin..].find(['/', '?', '#']);
        let end = end.map_or(url.len(), |at| begin + at);
        let begin = url[begin..end]
            .rfind('@')
            .map_or(begin, |at| begin + at + 1);
        let options = url[begin..end].split(',').map(|host| {
            parse_one(&[&url[..begin], host, &url[end..]].concat())
                // An `@` further on: the password has a character that ended the part with the hosts.
                .map_err(|error| match url[end..].contains('@') {
                    true => UrlError::Postgres,
                    false => error,
                })
        });
        Ok(Self {
            options: options.collect::<Result<_, _>>()?,
            last: Arc::default(),
        })
    }

    /// Connects to the server that accepts writes, and returns its options as well.
    pub(super) async fn connect(&self) -> Result<(PgConnection, &PgConnectOptions), StoreError> {
        let (count, last) = (self.options.len(), self.last.load(Ordering::Relaxed));
        let limit = ACQUIRE_TIMEOUT / u32::try_from(count).unwrap_or(u32::MAX);
        let mut failed = Vec::new();
        for index in (0..count).map(|n| (last + n) % count) {
            let options = &self.options[index];
            let connected = tokio::time::timeout(limit, connect(options)).await;
            match connected.unwrap_or_else(|_| Err(StoreError::timed_out(limit))) {
                Ok(connection) => {
                    self.last.store(index, Ordering::Relaxed);
                    return Ok((connection, options));
                }
                Err(error) => failed.push((address(options), error)),
            }
        }
        Err(no_writable_server(failed))
    }
}

/// The error of the only server, or of all servers.
fn no_writable_server(mut failed: Vec<(String, StoreError)>) -> StoreError {
    if failed.len() == 1
        && let Some((_, error)) = failed.pop()
    {
        return error;
    }
    // An unavailable server may accept writes later.
    let is_unavailable = |(_, error): &_| matches!(error, StoreError::Unavailable(_));
    match failed.iter().any(is_unavailable) {
        true => StoreError::Unavailable(NoWritableServer(failed).into()),
        false => StoreError::Failed(NoWritableServer(failed).into()),
    }
}

/// The errors of several servers, with their addresses.
#[derive(Debug)]
struct NoWritableServer(Vec<(String, StoreError)>);

impl std::error::Error for NoWritableServer {}

impl fmt::Display for NoWritableServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no server accepts writes")?;
        for (index, (address, error)) in self.0.iter().enumerate() {
            let separator = if index == 0 { ':' } else { ';' };
            write!(f, "{separator} {address}: ")?;
            match error {
                StoreError::Unavailable(reason) | StoreError::Failed(reason) => {
                    match reason.downcast_ref() {
                        Some(sqlx::Error::Io(reason)) => write!(f, "{reason}")?,
                        _ => write!(f, "{reason}")?,
                    }
                }
                error => write!(f, "{error}")?,
            }
        }
        Ok(())
    }
}

fn address(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// Parses a URL with one host.
fn parse_one(url: &str) -> Result<PgConnectOptions, UrlError> {
    parameters::check(url)?;
    // The parser's error may contain parts of the password.
    let options: PgConnectOptions = url.parse().map_err(|_| UrlError::Postgres)?;
    let options = match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("refrain"),
    };
    Ok(options.disable_statement_logging())
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    let mut connection = PgConnection::connect_with(options).await?;
    let read_only = sqlx::query_scalar(PREPARE);
    match read_only.fetch_one(&mut connection).await? {
        false => Ok(connection),
        true => Err(StoreError::Unavailable(
            "the database server is read-only".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_port() {
        let hosts = Hosts::parse("postgres://me:a,b@one:1,two,[::1]:3/tasks?sslmode=disable")
            .expect("valid");
        let address =
            |options: &PgConnectOptions| (options.get_host().to_owned(), options.get_port());
        let addresses: Vec<_> = hosts.options.iter().map(address).collect();
        let expected = [("one", 1), ("two", 5432), ("[::1]", 3)];
        assert_eq!(
            addresses,
            expected.map(|(host, port)| (host.to_owned(), port))
        );
        for options in &*hosts.options {
            assert_eq!(options.get_username(), "me");
            assert_eq!(options.get_database(), Some("tasks"));
        }
    }

    #[test]
    fn malformed_url_is_rejected() {
        for (url, error) in [
            ("postgres://one:port,two/x", UrlError::Port),
            ("postgres://one,two:99999/x", UrlError::Port),
            ("postgres://a b,c/x", UrlError::Host),
            ("postgres://[::1/x", UrlError::Host),
            // Characters in the password that must be escaped.
            ("postgres://me:a/b@one/x", UrlError::Postgres),
            ("postgres://me:a?b@one/x", UrlError::Postgres),
            ("postgres://me:1?b@one/x", UrlError::Postgres),
            ("postgres://me:a#b@one/x", UrlError::Postgres),
            ("postgres://me:%ff@one/x", UrlError::Postgres),
        ] {
            assert_eq!(Hosts::parse(url).err(), Some(error), "{url}");
        }
    }
}
