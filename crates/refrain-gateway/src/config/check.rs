//! Checks the settings of a backend, and reads the variables and files that they name.

use super::{
    BackendSpec, BackendTable, BackendTransport, ConfigError, Credentials, HANDLE_LIFETIME,
    NamePattern, Setting,
};
use refrain::client::Dialect;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;
use url::Url;

/// The largest accepted number: a year, for seconds.
const MAX_NUMBER: u64 = 366 * 24 * 3600;

impl BackendTable {
    pub(super) fn check(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<BackendSpec> {
        if !is_name(name) {
            errors.push(ConfigError::BackendName(name.to_owned()));
        }
        self.check_numbers(name, errors);
        let transport = self.transport(name, errors);
        let mut patterns = |setting: &str, texts: &[String]| {
            let read = texts.iter().map(|text| NamePattern::new(text));
            let (valid, invalid): (Vec<_>, Vec<_>) = read.partition(Result::is_ok);
            let reasons = invalid.into_iter().filter_map(Result::err);
            errors.extend(reasons.map(|why| invalid_value(name, setting, &why)));
            valid.into_iter().filter_map(Result::ok).collect::<Vec<_>>()
        };
        let (allow, deny) = (patterns("allow", &self.allow), patterns("deny", &self.deny));
        if let Some(root) = self.roots.iter().find(|root| root.scheme() != "file") {
            let why = format!("{root} is not a file:// URL");
            errors.push(invalid_value(name, "roots", &why));
        }
        let seconds = Duration::from_secs;
        Some(BackendSpec {
            name: name.to_owned(),
            transport: transport?,
            dialect: self.dialect(name, errors),
            exclusive: self.exclusive,
            roots: self.roots.clone(),
            prefix: self.prefix.clone(),
            allow,
            deny,
            home: self.home,
            trust_hints: self.trust_hints,
            task_after: task_after(self.task_after_seconds),
            sessions: self.sessions,
            connections: self.connections,
            prewarm: self.prewarm,
            calls_per_process: self.calls_per_process,
            idle_timeout: seconds(self.idle_seconds),
            handle_lifetime: HANDLE_LIFETIME,
            start_timeout: seconds(self.start_seconds),
            queue_timeout: seconds(self.queue_seconds),
            silence_timeout: seconds(self.silence_seconds),
            tools: self.tools.clone(),
        })
    }

    /// Checks the ranges of the numbers.
    fn check_numbers(&self, name: &str, errors: &mut Vec<ConfigError>) {
        let numbers = [
            ("connections", self.connections as u64, 1),
            ("calls_per_process", self.calls_per_process, 1),
            ("idle_seconds", self.idle_seconds, 0),
            ("start_seconds", self.start_seconds, 1),
            ("queue_seconds", self.queue_seconds, 0),
            ("silence_seconds", self.silence_seconds, 1),
        ];
        for (setting, value, min) in numbers {
            if !(min..=MAX_NUMBER).contains(&value) {
                let why = format!("expected a number from {min} to {MAX_NUMBER}, not {value}");
                errors.push(invalid_value(name, setting, &why));
            }
        }
    }

    fn dialect(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<Dialect> {
        let revision = self.revision.as_ref()?;
        let found = Dialect::from_name(revision).filter(|dialect| dialect.is_revision());
        if found.is_none() {
            let revisions = Dialect::all().filter(|dialect| dialect.is_revision());
            let names = revisions.map(Dialect::name);
            let names = names.collect::<Vec<_>>().join(", ");
            let why = format!("expected one of {names}, not {revision:?}");
            errors.push(invalid_value(name, "revision", &why));
        }
        found
    }

    fn transport(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<BackendTransport> {
        let misplaced = |setting, kind| ConfigError::Misplaced {
            backend: name.to_owned(),
            setting,
            kind,
        };
        match (self.command.split_first(), &self.url) {
            (Some((program, arguments)), None) => {
                if !self.headers.is_empty() {
                    errors.push(misplaced("headers", "url"));
                }
                if self.oauth.is_some() {
                    errors.push(misplaced("oauth", "url"));
                }
                if self.exclusive {
                    errors.push(misplaced("exclusive", "url"));
                }
                Some(BackendTransport::Process {
                    program: program.clone(),
                    arguments: arguments.to_vec(),
                    directory: self.directory.clone(),
                    inherit_env: self.inherit_env,
                    env: read_settings(name, "env", &self.env, errors),
                })
            }
            (None, Some(url)) => {
                if !self.env.is_empty() {
                    errors.push(misplaced("env", "command"));
                }
                if self.directory.is_some() {
                    errors.push(misplaced("directory", "command"));
                }
                if !matches!(url.scheme(), "http" | "https") {
                    let why = "expected an http:// or https:// URL";
                    errors.push(invalid_value(name, "url", &why));
                }
                Some(BackendTransport::Http {
                    url: url.clone(),
                    headers: read_settings(name, "headers", &self.headers, errors),
                    oauth: self.credentials(name, errors),
                })
            }
            (None, None) => {
                errors.push(ConfigError::NoTransport(name.to_owned()));
                None
            }
            (Some(_), Some(_)) => {
                errors.push(ConfigError::TwoTransports(name.to_owned()));
                None
            }
        }
    }

    fn credentials(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<Credentials> {
        let table = self.oauth.as_ref()?;
        if let Err(error) = Url::parse(&table.issuer) {
            let why = format!("expected a URL, not {:?}: {error}", table.issuer);
            errors.push(invalid_value(name, "oauth.issuer", &why));
        }
        let secret = read_setting(name, "oauth.client_secret", &table.client_secret, errors)?;
        Some(Credentials {
            client_id: table.client_id.clone(),
            secret,
            issuer: table.issuer.clone(),
            scopes: table.scopes.clone(),
        })
    }
}

fn invalid_value(backend: &str, setting: &str, why: &dyn Display) -> ConfigError {
    ConfigError::Value {
        backend: backend.to_owned(),
        setting: setting.to_owned(),
        why: why.to_string(),
    }
}

pub(crate) fn task_after(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

fn is_name(name: &str) -> bool {
    name.len() <= 64 && is_bare(name)
}

/// Whether a key of TOML needs no quotes.
pub(super) fn is_bare(key: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !key.is_empty() && key.chars().all(is_valid)
}

fn read_setting(
    backend: &str,
    setting: &str,
    value: &Setting,
    errors: &mut Vec<ConfigError>,
) -> Option<String> {
    let failed = |source| ConfigError::Setting {
        backend: backend.to_owned(),
        setting: setting.to_owned(),
        source,
    };
    value
        .read()
        .map_err(|error| errors.push(failed(error)))
        .ok()
}

fn read_settings(
    backend: &str,
    table: &str,
    settings: &BTreeMap<String, Setting>,
    errors: &mut Vec<ConfigError>,
) -> Vec<(String, String)> {
    let mut read = |(key, value): (&String, &Setting)| {
        let value = read_setting(backend, &format!("{table}.{key}"), value, errors)?;
        Some((key.clone(), value))
    };
    settings.iter().filter_map(&mut read).collect()
}
