//! The configuration of one instance: a TOML file, overridden by flags.
//!
//! | file | contents |
//! | --- | --- |
//! | `defaults.toml` | every setting with its default and its meaning |
//! | `settings` | the names of all settings, and the program's own ones |
//! | `tables` | the structs that the file is deserialized into |
//! | `value` | types of single settings, with their bounds |
//! | `file` | parsing: the file over the defaults, with the positions of settings and errors |
//! | `errors` | the errors of a file and their display |
//! | `command` | `config check` and `config defaults` |
//!
//! To add a setting, add a line to `defaults.toml`, a field to a table, and the line that applies it.

mod command;
mod errors;
mod file;
#[cfg(test)]
mod own_tests;
mod settings;
mod tables;
#[cfg(test)]
mod tests;
mod value;

pub use command::ConfigOptions;
pub(crate) use command::{CheckOwn, run};
pub(crate) use settings::Settings;
pub(crate) use tables::Config;
pub use value::LogFormat;
pub(crate) use value::{
    Address, Host, Hosts, InvalidValue, NonBlank, OneOrMore, Origin, Seconds, parse,
};

use crate::auth::AuthPolicy;
use crate::error::with_hint;
use crate::store::StoreUrl;
use crate::{AppError, input_file, keys, webhooks};
use errors::{ConfigError, ConfigErrors};
use file::Spans;
use refrain::auth::BearerTokens;
use refrain::server::{KeyRing, TlsCertificate};
use refrain::task::Webhook;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use tables::ServerCardTable;

/// A configuration with the errors found so far. `C` are the program's own settings.
#[derive(Debug)]
pub(crate) struct UncheckedConfig<C> {
    config: Config,
    /// `None` if they have errors.
    own: Option<C>,
    file: PathBuf,
    text: String,
    spans: Spans,
    errors: Vec<ConfigError>,
    /// The settings with invalid values.
    invalid: Vec<String>,
    /// Whether the file has any of the settings. Other files are not quoted in errors: they may contain secrets.
    has_settings: bool,
    /// The value of `--explain`.
    pub(crate) explain: Option<String>,
    /// Whether the process serves no clients.
    is_worker: bool,
    /// Whether the file is a configuration of `refrain gateway`, and this is another program.
    is_of_gateway: bool,
}

/// A valid configuration, with the contents of the files that it names.
#[derive(Debug)]
pub(crate) struct CheckedConfig {
    pub(crate) config: Config,
    pub(crate) tls: Option<TlsCertificate>,
    pub(crate) keys: Option<KeyRing>,
    pub(crate) tokens: Option<BearerTokens>,
    pub(crate) auth: AuthPolicy,
    pub(crate) webhooks: Vec<Webhook>,
    pub(crate) explain: Option<String>,
    /// Whether the process serves no clients.
    pub(crate) is_worker: bool,
}

impl<C: DeserializeOwned> UncheckedConfig<C> {
    pub(crate) fn defaults(settings: &Settings) -> Self {
        Self::parse(settings, Path::new(""), "")
    }

    pub(crate) fn read(settings: &Settings, file: &Path) -> Result<Self, AppError> {
        let text = input_file::read_text(file).map_err(|error| {
            let message = format!("cannot read configuration file {}: {error}", file.display());
            let hint = format!(
                "`{} config defaults` prints a file to start from",
                settings.program
            );
            with_hint(message, hint)
        })?;
        if keys::is_key_file(&text) {
            let file = file.display();
            return Err(format!("{file} is a key file, not a configuration file").into());
        }
        Ok(Self::parse(settings, file, &text))
    }
}

impl<C> UncheckedConfig<C> {
    /// Overrides a setting with the value of a flag, if the flag was given.
    pub(crate) fn override_by_flag<T: Clone>(
        &mut self,
        name: &str,
        value: Option<&T>,
        set: impl FnOnce(&mut Config, T),
    ) {
        if let Some(value) = value {
            set(&mut self.config, value.clone());
            self.spans.remove(name);
        }
    }

    pub(crate) fn store(&self) -> Option<StoreUrl> {
        self.config.store.clone().map(|url| url.0)
    }

    /// Removes the settings of the endpoint, for a process that serves no clients.
    pub(crate) fn remove_endpoint(&mut self) {
        self.config.advertise = None;
        self.config.tls_cert = None;
        self.config.tls_key = None;
        self.is_worker = true;
        self.config.server_card = None;
    }

    /// Checks the whole configuration, and returns it with the program's own settings. Errors are in the order of the file.
    pub(crate) fn check(mut self) -> Result<(CheckedConfig, C), ConfigErrors> {
        self.check_combinations();
        let tls = self.read_tls();
        let keys = self.config.keys.clone();
        let keys = self.read_file_setting("keys", keys, keys::read);
        let tokens = self.config.tokens.clone();
        let tokens = self.read_file_setting("tokens", tokens, read_tokens);
        let webhooks = self.read_webhooks();
        match (self.auth(), self.own) {
            (Some(auth), Some(own)) if self.errors.is_empty() => {
                let checked = CheckedConfig {
                    config: self.config,
                    tls,
                    keys,
                    tokens,
                    auth,
                    webhooks,
                    explain: self.explain,
                    is_worker: self.is_worker,
                };
                Ok((checked, own))
            }
            _ => {
                let (file, text) = (self.file, self.text);
                let errors = ConfigErrors::new(file, text, self.errors, self.has_settings);
                Err(match self.is_of_gateway {
                    true => errors.with_hint(
                        "check a file of the gateway with `refrain gateway config check FILE`",
                    ),
                    false => errors,
                })
            }
        }
    }

    fn error(&mut self, name: &str, message: String) {
        let span = self.spans.get(name).cloned();
        self.errors.push(ConfigError { span, message });
    }

    fn check_combinations(&mut self) {
        let limits = &self.config.limits;
        let shed = usize::from(limits.shed_above);
        let calls = usize::from(limits.concurrent_calls);
        if shed > calls {
            let message = format!(
                "limits.shed_above must be at most limits.concurrent_calls ({calls}), not {shed}"
            );
            self.error("limits.shed_above", message);
        }
        let listen = self.config.listen;
        if self.config.metrics == Some(listen) && listen.0.port() != 0 {
            let message = format!(
                "`metrics` and `listen` must not be the same address: both are {}",
                listen.0
            );
            self.error("metrics", message);
        }
        if let Some(NonBlank(store)) = &self.config.store
            && self.spans.contains_key("store")
            && let Err(error) = store.check()
        {
            self.error("store", format!("invalid store URL: {error}"));
        }
        if let Some(NonBlank(url)) = self.config.advertise.clone()
            && !url.starts_with("http://")
            && !url.starts_with("https://")
        {
            let message = format!(
                "advertise must be the http or https URL of this instance's endpoint, not {url:?}"
            );
            self.error("advertise", message);
        }
        let card = self.config.server_card.as_ref();
        if let Some((setting, reason)) = card.and_then(ServerCardTable::find_error) {
            self.error(setting, format!("{setting}: {reason}"));
        }
    }

    fn read_tls(&mut self) -> Option<TlsCertificate> {
        let (set, missing) = match (&self.config.tls_cert, &self.config.tls_key) {
            (None, None) => return None,
            (Some(_), None) => ("tls_cert", "tls_key"),
            (None, Some(_)) => ("tls_key", "tls_cert"),
            (Some(_), Some(_)) => {
                let read = self.config.tls()?.read();
                return read
                    .map_err(|error| self.error("tls_cert", error.to_string()))
                    .ok();
            }
        };
        let message = match self.spans.contains_key(set) {
            true => format!("{set} requires {missing}"),
            false => format!("{set} requires {missing}").replace("tls_", "--tls-"),
        };
        self.error(set, message);
        None
    }

    /// Checks the `[auth]` table, unless a setting in it is invalid already.
    fn auth(&mut self) -> Option<AuthPolicy> {
        if self.invalid.iter().any(|name| name.starts_with("auth")) {
            return None;
        }
        match self.config.auth.check(self.config.tokens.is_some()) {
            Ok(auth) => Some(auth),
            Err(errors) => {
                for (setting, message) in errors {
                    self.error(setting, message);
                }
                None
            }
        }
    }

    fn read_webhooks(&mut self) -> Vec<Webhook> {
        webhooks::read(&self.config.webhooks).unwrap_or_else(|errors| {
            for (setting, message) in errors {
                self.error(&setting, message);
            }
            Vec::new()
        })
    }

    fn read_file_setting<T>(
        &mut self,
        name: &str,
        file: Option<NonBlank<PathBuf>>,
        read: fn(&Path) -> Result<T, AppError>,
    ) -> Option<T> {
        match read(&file?.0) {
            Ok(content) => Some(content),
            Err(error) => {
                let message = match self.spans.contains_key(name) {
                    true => format!("{name}: {error}"),
                    false => error.to_string(),
                };
                self.error(name, message);
                None
            }
        }
    }
}

pub(crate) fn read_tokens(file: &Path) -> Result<BearerTokens, AppError> {
    let text = input_file::read_text(file)
        .map_err(|error| format!("cannot read token file {}: {error}", file.display()))?;
    if keys::is_key_file(&text) {
        return Err(format!("{} is a key file, not a token file", file.display()).into());
    }
    BearerTokens::parse(&text)
        .map_err(|error| format!("invalid token file {}: {error}", file.display()).into())
}
