//! The configuration of one instance: a TOML file, and flags that override it.
//!
//! `settings` is the list of all there is to set. Reading a file, `refrain config` and the documentation go by it.

mod command;
mod mistake;
mod read;
mod settings;
#[cfg(test)]
mod tests;

pub(crate) use command::{Options, run};
pub(crate) use settings::{address, host};

use crate::auth::{Auth, AuthConfig, AuthMistake};
use crate::store::StoreUrl;
use crate::{Failure, keys};
use mistake::{Mistake, Mistakes};
use refrain::{BearerTokens, KeyRing, Peers, SealerOptions, ServerLimits, TaskOptions};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// What an instance is set up with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) store: Option<StoreUrl>,
    pub(crate) keys: Option<PathBuf>,
    pub(crate) tokens: Option<PathBuf>,
    pub(crate) allowed_hosts: Option<Vec<String>>,
    pub(crate) log: LogFormat,
    pub(crate) sealing: SealerOptions,
    pub(crate) limits: ServerLimits,
    pub(crate) tasks: TaskOptions,
    pub(crate) peers: PeersConfig,
    pub(crate) auth: AuthConfig,
}

/// The instances of the fleet, as this one knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeersConfig {
    pub(crate) name: Option<String>,
    pub(crate) urls: Option<BTreeMap<String, String>>,
}

impl PeersConfig {
    /// The fleet, if this instance has a name in it.
    pub(crate) fn peers(&self) -> Option<Peers> {
        let urls = self.urls.iter().flatten();
        let alone = Peers::new(self.name.clone()?);
        Some(urls.fold(alone, |peers, (name, url)| peers.peer(name, url)))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            metrics: None,
            store: None,
            keys: None,
            tokens: None,
            allowed_hosts: None,
            log: LogFormat::default(),
            sealing: SealerOptions::default(),
            limits: ServerLimits::default(),
            tasks: TaskOptions::default(),
            peers: PeersConfig::default(),
            auth: AuthConfig::default(),
        }
    }
}

impl Config {
    /// Is every caller anonymous?
    pub(crate) fn lets_anyone_in(&self) -> bool {
        self.tokens.is_none() && self.auth.jwt.is_none() && self.auth.proxy.is_none()
    }
}

/// A configuration, where it comes from, and what is wrong with it so far.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    config: Config,
    file: PathBuf,
    text: String,
    /// The places of what the file sets, by the names of settings and tables.
    from: BTreeMap<&'static str, Range<usize>>,
    /// Settings whose values are of no use.
    unread: Vec<&'static str>,
    mistakes: Vec<Mistake>,
}

/// A configuration that can be used, and what is in the files that it names.
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
        Ok(Self::parse(file, text))
    }

    fn parse(file: &Path, text: String) -> Self {
        let mut loaded = Self {
            file: file.to_owned(),
            text,
            ..Self::default()
        };
        let text = std::mem::take(&mut loaded.text);
        read::read(&text, &mut loaded);
        loaded.text = text;
        loaded
    }

    /// Puts the value of a flag in place of what the file says.
    pub(crate) fn flag<T: Clone>(
        &mut self,
        name: &'static str,
        given: Option<&T>,
        put: impl FnOnce(&mut Config, T),
    ) {
        if let Some(value) = given {
            put(&mut self.config, value.clone());
            self.from.remove(name);
        }
    }

    /// Takes this for the file of a whole fleet, if no instance is named in it: each is, where it is started.
    fn of_any_peer(&mut self) {
        let peers = &mut self.config.peers;
        if peers.name.is_none() {
            let names = peers.urls.iter().flatten().map(|(name, _)| name);
            peers.name = names.min().cloned();
        }
    }

    /// Takes this for the file of a process that serves nobody: no peer hands a request to it, and it needs no name.
    pub(crate) fn without_peers(&mut self) {
        self.config.peers = PeersConfig::default();
    }

    /// The configuration, if all of it can be used. All that is wrong with it is told at once, in its order.
    pub(crate) fn ready(mut self) -> Result<Ready, Mistakes> {
        let together = read::check(&self.config, &self.from);
        self.mistakes.extend(together);
        let keys = self.config.keys.as_deref().map(keys::read);
        let keys = self.usable("keys", keys);
        let tokens = self.config.tokens.as_deref().map(read_tokens);
        let tokens = self.usable("tokens", tokens);
        let auth = self.auth();
        match auth {
            Some(auth) if self.mistakes.is_empty() => Ok(Ready {
                config: self.config,
                keys,
                tokens,
                auth,
            }),
            _ => Err(Mistakes::new(self.file, self.text, self.mistakes)),
        }
    }

    /// How callers are told apart. Where a part of that could not be read, the rest is not judged.
    fn auth(&mut self) -> Option<Auth> {
        if self.unread.iter().any(|name| name.starts_with("auth.")) {
            return None;
        }
        let mistake = |AuthMistake { place, message }| Mistake {
            span: self.from.get(place).cloned(),
            message,
        };
        match self.config.auth.ready(self.config.tokens.is_some()) {
            Ok(auth) => Some(auth),
            Err(mistakes) => {
                self.mistakes.extend(mistakes.into_iter().map(mistake));
                None
            }
        }
    }

    /// What was read from a file that a setting names.
    fn usable<T>(&mut self, name: &str, read: Option<Result<T, Failure>>) -> Option<T> {
        match read? {
            Ok(usable) => Some(usable),
            Err(error) => {
                let span = self.from.get(name).cloned();
                let message = match span {
                    Some(_) => format!("{name}: {error}"),
                    None => error.to_string(),
                };
                self.mistakes.push(Mistake { span, message });
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
