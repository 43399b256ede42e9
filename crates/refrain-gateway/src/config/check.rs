//! Checks the settings of a backend, and reads the variables and files that they name.

use super::{
    BackendSpec, BackendTable, BackendTransport, ConfigError, Credentials, NamePattern, SESSION,
    Setting,
};
use refrain::client::Dialect;
use std::collections::BTreeMap;
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
            errors.extend(invalid.into_iter().filter_map(Result::err).map(|why| {
                ConfigError::Value {
                    backend: name.to_owned(),
                    setting: setting.to_owned(),
                    why: why.to_string(),
                }
            }));
            valid.into_iter().filter_map(Result::ok).collect::<Vec<_>>()
        };
        let (allow, deny) = (patterns("allow", &self.allow), patterns("deny", &self.deny));
        if let Some(root) = self.roots.iter().find(|root| root.scheme() != "file") {
            errors.push(ConfigError::Value {
                backend: name.to_owned(),
                setting: "roots".to_owned(),
                why: format!("{root} is not a file:// URL"),
            });
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
            idle: seconds(self.idle_seconds),
            session: SESSION,
            start: seconds(self.start_seconds),
            queue: seconds(self.queue_seconds),
            silence: seconds(self.silence_seconds),
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
        for (setting, value, least) in numbers {
            if !(least..=MAX_NUMBER).contains(&value) {
                errors.push(ConfigError::Value {
                    backend: name.to_owned(),
                    setting: setting.to_owned(),
                    why: format!("expected a number from {least} to {MAX_NUMBER}, not {value}"),
                });
            }
        }
    }

    fn dialect(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<Dialect> {
        let revision = self.revision.as_ref()?;
        let is_revision = |dialect: &Dialect| !matches!(dialect, Dialect::Draft(_));
        let found = Dialect::from_name(revision).filter(is_revision);
        if found.is_none() {
            let names = Dialect::all().filter(is_revision).map(Dialect::name);
            errors.push(ConfigError::Value {
                backend: name.to_owned(),
                setting: "revision".to_owned(),
                why: format!(
                    "expected one of {}, not {revision:?}",
                    names.collect::<Vec<_>>().join(", ")
                ),
            });
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
                    errors.push(ConfigError::Value {
                        backend: name.to_owned(),
                        setting: "url".to_owned(),
                        why: "expected an http:// or https:// URL".to_owned(),
                    });
                }
                Some(BackendTransport::Http {
                    url: url.clone(),
                    headers: read_settings(name, "headers", &self.headers, errors),
                    oauth: self.credentials(name, errors),
                })
            }
            _ => {
                errors.push(ConfigError::Transport(name.to_owned()));
                None
            }
        }
    }

    fn credentials(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<Credentials> {
        let table = self.oauth.as_ref()?;
        if let Err(why) = Url::parse(&table.issuer) {
            errors.push(ConfigError::Value {
                backend: name.to_owned(),
                setting: "oauth.issuer".to_owned(),
                why: format!("expected a URL, not {:?}: {why}", table.issuer),
            });
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

pub(crate) fn task_after(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

fn is_name(name: &str) -> bool {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=64).contains(&name.len()) && name.chars().all(valid)
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
