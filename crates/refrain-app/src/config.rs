//! The configuration of one instance: a TOML file, with flags laid over it.
//!
//! | file | owns |
//! | --- | --- |
//! | `defaults.toml` | every key with its default and its meaning |
//! | `tables` | the structs that the file is deserialized into |
//! | `value` | types of single settings, with what they allow |
//! | `file` | the file over the defaults, with the positions of settings and mistakes |
//! | `mistake` | how mistakes are shown |
//! | `command` | `config check` and `config defaults` |
//!
//! A new setting is a line of `defaults.toml`, a field of a table, and the line that hands it on.

mod command;
mod file;
mod mistake;
mod tables;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use command::{Options, run};
pub(crate) use tables::Config;
pub use value::LogFormat;
pub(crate) use value::{Address, Filled, Host, Hosts, Invalid, OneOrMore, Seconds, parse};

use crate::auth::Auth;
use crate::{Failure, keys};
use file::Spans;
use mistake::{Mistake, Mistakes};
use refrain::auth::BearerTokens;
use refrain::server::KeyRing;
use std::path::{Path, PathBuf};

/// A configuration, its source, and its mistakes so far.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    config: Config,
    file: PathBuf,
    text: String,
    spans: Spans,
    mistakes: Vec<Mistake>,
    /// The settings whose values could not be used.
    invalid: Vec<String>,
}

/// A checked configuration, with the contents of the files that it names.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) config: Config,
    pub(crate) keys: Option<KeyRing>,
    pub(crate) tokens: Option<BearerTokens>,
    pub(crate) auth: Auth,
}

impl Loaded {
    /// Reads a file.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(file).map_err(|error| {
            let file = file.display();
            format!("the configuration {file} cannot be read: {error}")
        })?;
        Ok(Self::parse(file, &text))
    }

    /// Replaces a setting by the value of a flag, if it was given.
    pub(crate) fn flag<T: Clone>(
        &mut self,
        name: &str,
        given: Option<&T>,
        set: impl FnOnce(&mut Config, T),
    ) {
        if let Some(value) = given {
            set(&mut self.config, value.clone());
            self.spans.remove(name);
        }
    }

    /// Removes the advertised URL: a process without a port holds nothing that others could relay to it.
    pub(crate) fn without_advertise(&mut self) {
        self.config.advertise = None;
    }

    /// The configuration if all of it can be used, else all mistakes in the order of the file.
    pub(crate) fn ready(mut self) -> Result<Ready, Mistakes> {
        self.check();
        let keys = self.config.keys.clone();
        let keys = self.usable("keys", keys, keys::read);
        let tokens = self.config.tokens.clone();
        let tokens = self.usable("tokens", tokens, read_tokens);
        match self.auth() {
            Some(auth) if self.mistakes.is_empty() => Ok(Ready {
                config: self.config,
                keys,
                tokens,
                auth,
            }),
            _ => Err(Mistakes::new(self.file, self.text, self.mistakes)),
        }
    }

    fn mistake(&mut self, name: &str, message: String) {
        let span = self.spans.get(name).cloned();
        self.mistakes.push(Mistake { span, message });
    }

    /// Checks settings against each other.
    fn check(&mut self) {
        let limits = &self.config.limits;
        let (shed, calls) = (limits.shed_above.size(), limits.concurrent_calls.size());
        if shed > calls {
            let message = format!(
                "limits.shed_above must be at most limits.concurrent_calls, which is {calls}, not {shed}"
            );
            self.mistake("limits.shed_above", message);
        }
        let listen = self.config.listen;
        if self.config.metrics == Some(listen) && listen.0.port() != 0 {
            let message = "metrics must be another port than that of listen";
            self.mistake("metrics", message.into());
        }
        if let Some(Filled(url)) = self.config.advertise.clone()
            && !url.starts_with("http://")
            && !url.starts_with("https://")
        {
            let message = format!(
                "advertise must be the http or https URL of this instance's endpoint, not {url:?}"
            );
            self.mistake("advertise", message);
        }
    }

    /// How callers are authenticated. If a part of the table is invalid, the rest is not judged.
    fn auth(&mut self) -> Option<Auth> {
        if self.invalid.iter().any(|name| name.starts_with("auth")) {
            return None;
        }
        match self.config.auth.ready(self.config.tokens.is_some()) {
            Ok(auth) => Some(auth),
            Err(mistakes) => {
                for (place, message) in mistakes {
                    self.mistake(place, message);
                }
                None
            }
        }
    }

    /// The content of a file that a setting names.
    fn usable<T>(
        &mut self,
        name: &str,
        file: Option<Filled<PathBuf>>,
        read: fn(&Path) -> Result<T, Failure>,
    ) -> Option<T> {
        match read(&file?.0) {
            Ok(usable) => Some(usable),
            Err(error) => {
                let message = match self.spans.contains_key(name) {
                    true => format!("{name}: {error}"),
                    false => error.to_string(),
                };
                self.mistake(name, message);
                None
            }
        }
    }
}

fn read_tokens(file: &Path) -> Result<BearerTokens, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the tokens {} cannot be read: {error}", file.display()))?;
    BearerTokens::parse(&text).map_err(|error| format!("{}: {error}", file.display()).into())
}
