//! The configuration of one instance: a TOML file, and flags that override it.

use crate::Failure;
use crate::auth::AuthConfig;
use refrain::{Limits, ServerLimits};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// What a configuration file may say. Every key is optional.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) keys: Option<PathBuf>,
    pub(crate) audience: Option<String>,
    pub(crate) tokens: Option<PathBuf>,
    pub(crate) allowed_hosts: Option<Vec<String>>,
    pub(crate) log: Option<LogFormat>,
    pub(crate) token_ttl_seconds: Option<u64>,
    pub(crate) flow_ttl_seconds: Option<u64>,
    pub(crate) clock_skew_seconds: Option<u64>,
    pub(crate) limits: LimitsConfig,
    pub(crate) auth: AuthConfig,
}

/// The `[limits]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsConfig {
    pub(crate) body_bytes: Option<usize>,
    pub(crate) token_chars: Option<usize>,
    pub(crate) concurrent_calls: Option<usize>,
    pub(crate) shed_above: Option<usize>,
    pub(crate) round_seconds: Option<u64>,
    pub(crate) drain_seconds: Option<u64>,
    pub(crate) drain_grace_ms: Option<u64>,
    pub(crate) rounds: Option<u32>,
    pub(crate) asks: Option<usize>,
    pub(crate) entries: Option<usize>,
    pub(crate) retries: Option<u32>,
    pub(crate) sheds: Option<u32>,
}

impl Config {
    /// Reads a file; an error says which line is wrong.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(file).map_err(|error| {
            format!(
                "the configuration {} cannot be read: {error}",
                file.display()
            )
        })?;
        toml::from_str(&text).map_err(|error| format!("{}: {error}", file.display()).into())
    }
}

impl LimitsConfig {
    pub(crate) fn to_limits(&self) -> ServerLimits {
        let defaults = ServerLimits::default();
        let flow = &defaults.flow;
        let concurrent_calls = self.concurrent_calls.unwrap_or(defaults.concurrent_calls);
        ServerLimits {
            body: self.body_bytes.unwrap_or(defaults.body),
            concurrent_calls,
            shed_above: self
                .shed_above
                .unwrap_or(concurrent_calls - concurrent_calls / 4),
            round_time: seconds(self.round_seconds, defaults.round_time),
            drain_time: seconds(self.drain_seconds, defaults.drain_time),
            drain_grace: self
                .drain_grace_ms
                .map_or(defaults.drain_grace, Duration::from_millis),
            flow: Limits {
                rounds: self.rounds.unwrap_or(flow.rounds),
                asks: self.asks.unwrap_or(flow.asks),
                entries: self.entries.unwrap_or(flow.entries),
                retries: self.retries.unwrap_or(flow.retries),
                sheds: self.sheds.unwrap_or(flow.sheds),
                ..flow.clone()
            },
            ..defaults.clone()
        }
    }
}

fn seconds(given: Option<u64>, default: Duration) -> Duration {
    given.map_or(default, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error =
            toml::from_str::<Config>("listen = \"127.0.0.1:1\"\nlisten_on = 5\n").unwrap_err();
        assert!(error.to_string().contains("listen_on"), "{error}");
        assert!(error.to_string().contains("line 2"), "{error}");
    }

    #[test]
    fn limits_are_taken_from_the_table() {
        let config: Config =
            toml::from_str("[limits]\nbody_bytes = 10\nrounds = 3\nconcurrent_calls = 8\n")
                .unwrap();
        let limits = config.limits.to_limits();
        assert_eq!((limits.body, limits.flow.rounds), (10, 3));
        assert_eq!((limits.concurrent_calls, limits.shed_above), (8, 6));
    }

    #[test]
    fn a_single_call_is_no_overload() {
        let config: Config = toml::from_str("[limits]\nconcurrent_calls = 1\n").unwrap();
        assert_eq!(config.limits.to_limits().shed_above, 1);
        assert_eq!(Config::default().limits.to_limits().shed_above, 768);
    }
}
