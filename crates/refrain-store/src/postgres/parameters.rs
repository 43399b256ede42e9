//! The parameters of a store URL. They are checked before sqlx parses the URL: sqlx logs an unknown parameter with its value,
//! which may be a secret.

use crate::open::UrlError;
use sqlx::postgres::PgSslMode;
use std::net::IpAddr;
use std::str::FromStr;
use url::{ParseError, Url};

const SSL_MODES: &str = "disable, allow, prefer, require, verify-ca or verify-full";

/// Checks the port, the host and the parameters of a URL with one host.
pub(super) fn check(url: &str) -> Result<(), UrlError> {
    let url = Url::parse(url).map_err(|error| match error {
        ParseError::InvalidPort => UrlError::Port,
        ParseError::EmptyHost
        | ParseError::IdnaError
        | ParseError::InvalidIpv4Address
        | ParseError::InvalidIpv6Address
        | ParseError::InvalidDomainCharacter => UrlError::Host,
        _ => UrlError::Postgres,
    })?;
    let mut follows_password = false;
    for (name, value) in url.query_pairs() {
        check_parameter(&name, &value).map_err(|error| match error {
            // A password with an `&` that is not escaped continues as the name of the next parameter.
            UrlError::Parameter(_) if follows_password => UrlError::Postgres,
            error => error,
        })?;
        follows_password |= name.contains("password");
    }
    Ok(())
}

fn check_parameter(name: &str, value: &str) -> Result<(), UrlError> {
    match name {
        "sslmode" | "ssl-mode" => parse::<PgSslMode>("sslmode", SSL_MODES, value),
        "hostaddr" => parse::<IpAddr>("hostaddr", "an IP address", value),
        "port" => parse::<u16>("port", "a number up to 65535", value),
        "statement-cache-capacity" => parse::<usize>("statement-cache-capacity", "a number", value),
        "sslrootcert" | "ssl-root-cert" | "ssl-ca" | "sslcert" | "ssl-cert" | "sslkey"
        | "ssl-key" | "host" | "dbname" | "user" | "password" | "application_name" | "options" => {
            Ok(())
        }
        _ if name.starts_with("options[") => Ok(()),
        _ => {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            match !value.is_empty() && name.chars().all(is_part) {
                true => Err(UrlError::Parameter(name.to_owned())),
                // Probably a part of a password that is not escaped.
                false => Err(UrlError::Postgres),
            }
        }
    }
}

fn parse<T: FromStr>(
    name: &'static str,
    expected: &'static str,
    value: &str,
) -> Result<(), UrlError> {
    match value.parse::<T>() {
        Ok(_) => Ok(()),
        Err(_) => Err(UrlError::Value { name, expected }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_parameters_are_accepted() {
        for parameters in [
            "",
            "?sslmode=verify-full&sslrootcert=/a.pem&sslcert=/b.pem&sslkey=/c.pem",
            "?host=/run/postgresql&user=me&password=a@b&dbname=tasks",
            "?hostaddr=127.0.0.1&port=5433&statement-cache-capacity=0",
            "?application_name=x&options=-c%20a%3Db&options[search_path]=s",
        ] {
            let url = format!("postgres://db/tasks{parameters}");
            assert_eq!(check(&url), Ok(()), "{url}");
        }
    }

    #[test]
    fn part_of_a_password_is_not_named() {
        for url in [
            "postgres://db/x?password=a&hunter2",
            "postgres://db/x?password=a&hunter2=b",
            "postgres://db/x?hun@ter2=b",
        ] {
            assert_eq!(check(url), Err(UrlError::Postgres), "{url}");
        }
    }

    #[test]
    fn invalid_value_is_not_in_the_error() {
        for (parameter, name) in [
            ("sslmode=hunter2", "sslmode"),
            ("ssl-mode=hunter2", "sslmode"),
            ("hostaddr=hunter2", "hostaddr"),
            ("port=hunter2", "port"),
            (
                "statement-cache-capacity=hunter2",
                "statement-cache-capacity",
            ),
        ] {
            let error = check(&format!("postgres://db/x?{parameter}")).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(
                matches!(error, UrlError::Value { name: named, .. } if named == name),
                "{error}"
            );
        }
    }
}
