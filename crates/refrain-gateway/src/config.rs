//! The configuration of a gateway: its backends, and the rules for their tools.
//!
//! The structs are the tables of the file. [`GatewayConfig::check`] turns them into [`BackendSpec`]s, which contain only
//! valid settings.

mod check;
mod pattern;
mod setting;

pub use setting::Setting;

pub(crate) use check::task_after;
pub(crate) use pattern::NamePattern;

use refrain::client::Dialect;
use refrain::client::wire::ToolAnnotations;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// How long a handle is accepted, if its session does not end before.
const HANDLE_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The tables of a gateway in the configuration file.
///
/// ```
/// use refrain_gateway::GatewayConfig;
///
/// let config: GatewayConfig = toml::from_str(r#"
///     [backends.files]
///     command = ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/files"]
///     prefix = "files_"
///
///     [backends.files.tools.read_file]
///     home = "replay"
/// "#)?;
/// assert!(config.check().is_ok());
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// Limits and rules of all backends.
    pub gateway: GatewayTable,
    /// The backends by name.
    pub backends: BTreeMap<String, BackendTable>,
}

/// Limits and rules of all backends: the table `[gateway]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayTable {
    /// The maximum number of backend processes and sessions.
    pub connections: usize,
    /// The maximum number of backend processes and sessions of one caller.
    pub connections_each: usize,
    /// Whether the tools of a backend that is down are listed.
    pub unavailable: Unavailable,
    /// The advertised URLs of all gateways of the fleet, for backends with `sessions = "caller"`.
    pub peers: Vec<String>,
}

impl Default for GatewayTable {
    fn default() -> Self {
        Self {
            connections: 128,
            connections_each: 64,
            unavailable: Unavailable::List,
            peers: Vec::new(),
        }
    }
}

/// The treatment of tools whose backend is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unavailable {
    /// The tools stay in the list, and calling them fails.
    List,
    /// The tools are removed from the list until the backend is back.
    Hide,
}

/// Where the state of a call is kept while it waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolHome {
    /// In the memory of the gateway that has the connection to the backend.
    Live,
    /// With the client: the backend runs the call again in every round. A backend of 2026-07-28 over HTTP continues with its
    /// request state instead, and repeats only an interrupted round.
    Replay,
}

/// Which calls reach the same backend process or session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sessions {
    /// Any process that no other caller has used: for servers that keep no state.
    #[default]
    None,
    /// One process for all calls of a caller.
    Caller,
    /// One process for all calls with the same handle, which the tool `open_session` returns.
    Handle,
}

/// One backend: the table `[backends.NAME]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BackendTable {
    /// The program to start and its arguments.
    pub command: Vec<String>,
    /// The URL of the server, instead of `command`.
    pub url: Option<Url>,
    /// The revision to speak with the backend. `None`: the newest that it supports.
    pub revision: Option<String>,
    /// Whether an HTTP session runs one call at a time, for servers whose questions do not name their call.
    pub exclusive: bool,
    /// The working directory of the program.
    pub directory: Option<PathBuf>,
    /// Variables for the program.
    pub env: BTreeMap<String, Setting>,
    /// Whether the program also gets the variables of the gateway, without Refrain's secrets.
    pub inherit_env: bool,
    /// Headers for requests to the URL.
    pub headers: BTreeMap<String, Setting>,
    /// Access tokens for the URL by client credentials.
    pub oauth: Option<OAuthTable>,
    /// The roots for a `roots/list` outside of any call.
    pub roots: Vec<Url>,
    /// A prefix for the names of tools and prompts.
    pub prefix: String,
    /// Names of the tools, prompts and resources to offer, with `*` for any text. Empty: all.
    pub allow: Vec<String>,
    /// Names of the tools, prompts and resources not to offer.
    pub deny: Vec<String>,
    /// The home of tools without a rule.
    pub home: ToolHome,
    /// Whether tools that the backend declares as read-only have the home `replay`.
    pub trust_hints: bool,
    /// After how many seconds a call becomes a task, if the client supports tasks; 0 for never.
    pub task_after_seconds: u64,
    /// Which calls reach the same process.
    pub sessions: Sessions,
    /// The maximum number of processes or sessions.
    pub connections: usize,
    /// How many unused processes are kept ready after the first call.
    pub prewarm: usize,
    /// How many calls a process serves before it is replaced.
    pub calls_per_process: u64,
    /// How long a process or session may be idle.
    pub idle_seconds: u64,
    /// How long the backend may take to start.
    pub start_seconds: u64,
    /// How long a call waits for a free process.
    pub queue_seconds: u64,
    /// How long the backend may be silent during a call.
    pub silence_seconds: u64,
    /// Rules for single tools, by their name at the backend.
    pub tools: BTreeMap<String, ToolTable>,
}

impl Default for BackendTable {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            url: None,
            revision: None,
            exclusive: false,
            directory: None,
            env: BTreeMap::new(),
            inherit_env: false,
            headers: BTreeMap::new(),
            oauth: None,
            roots: Vec::new(),
            prefix: String::new(),
            allow: Vec::new(),
            deny: Vec::new(),
            home: ToolHome::Live,
            trust_hints: false,
            task_after_seconds: 20,
            sessions: Sessions::None,
            connections: 64,
            prewarm: 1,
            calls_per_process: 1000,
            idle_seconds: 300,
            start_seconds: 60,
            queue_seconds: 30,
            silence_seconds: 3600,
            tools: BTreeMap::new(),
        }
    }
}

/// OAuth client credentials: the table `[backends.NAME.oauth]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OAuthTable {
    /// The client's id at the authorization server.
    pub client_id: String,
    /// The client's secret.
    pub client_secret: Setting,
    /// The URL of the issuer that may get the secret, exactly as the issuer writes it.
    pub issuer: String,
    /// The scopes to request.
    #[serde(default)]
    pub scopes: Vec<String>,
}

/// The rules for one tool: the table `[backends.NAME.tools.TOOL]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolTable {
    /// The name to offer the tool under, instead of the prefix and its own name.
    pub name: Option<String>,
    /// The title to offer.
    pub title: Option<String>,
    /// The description to offer.
    pub description: Option<String>,
    /// The hints to offer.
    pub annotations: Option<ToolAnnotations>,
    /// The tool's home.
    pub home: Option<ToolHome>,
    /// After how many seconds a call becomes a task; 0 for never.
    pub task_after_seconds: Option<u64>,
    /// The scopes that a caller needs.
    pub scopes: Vec<String>,
}

/// Why the configuration of a gateway is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no backend.
    #[error(
        "no backend is configured: add a table [backends.NAME] with `command` or `url` to the configuration"
    )]
    NoBackend,
    /// A name is invalid.
    #[error(
        "invalid backend name {0:?}: expected 1 to 64 letters, digits, hyphens and underscores"
    )]
    BackendName(String),
    /// Neither `command` nor `url` is set.
    #[error("backends.{0}: neither `command` nor `url` is set")]
    NoTransport(String),
    /// Both `command` and `url` are set.
    #[error("backends.{0}: `command` and `url` are both set; remove one")]
    TwoTransports(String),
    /// A setting is only for the other kind of backend.
    #[error("backends.{backend}.{setting} is only for a backend with `{kind}`")]
    Misplaced {
        /// The backend.
        backend: String,
        /// The setting.
        setting: &'static str,
        /// The kind of backend that has this setting.
        kind: &'static str,
    },
    /// A setting has an invalid value.
    #[error("invalid backends.{backend}.{setting}: {why}")]
    Value {
        /// The backend.
        backend: String,
        /// The setting.
        setting: String,
        /// The reason.
        why: String,
    },
    /// A variable or file with a setting cannot be read.
    #[error("backends.{backend}.{setting}: {source}")]
    Setting {
        /// The backend.
        backend: String,
        /// The setting.
        setting: String,
        /// The reason.
        source: setting::SettingError,
    },
    /// The limit of one caller is zero, or more than that of all callers.
    #[error(
        "invalid gateway.connections_each: expected a number from 1 to gateway.connections ({total}), not {each}"
    )]
    Connections {
        /// The limit of one caller.
        each: usize,
        /// The limit of all callers.
        total: usize,
    },
}

impl ConfigError {
    /// The name of the invalid setting or table in the file.
    pub fn setting(&self) -> String {
        let table = |backend: &str| match check::is_bare(backend) {
            true => format!("backends.{backend}"),
            false => format!("backends.{backend:?}"),
        };
        match self {
            Self::NoBackend => "backends".to_owned(),
            Self::BackendName(backend)
            | Self::NoTransport(backend)
            | Self::TwoTransports(backend) => table(backend),
            Self::Misplaced {
                backend, setting, ..
            } => format!("{}.{setting}", table(backend)),
            Self::Value {
                backend, setting, ..
            }
            | Self::Setting {
                backend, setting, ..
            } => format!("{}.{setting}", table(backend)),
            Self::Connections { .. } => "gateway.connections_each".to_owned(),
        }
    }
}

/// How to reach a backend. Contains secrets, so it has no `Debug`.
#[derive(Clone)]
pub(crate) enum BackendTransport {
    Process {
        program: String,
        arguments: Vec<String>,
        directory: Option<PathBuf>,
        inherit_env: bool,
        env: Vec<(String, String)>,
    },
    Http {
        url: Url,
        headers: Vec<(String, String)>,
        oauth: Option<Credentials>,
    },
}

#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) client_id: String,
    pub(crate) secret: String,
    pub(crate) issuer: String,
    pub(crate) scopes: Vec<String>,
}

/// A backend with valid settings, and the contents of the variables and files that they name.
#[derive(Clone)]
pub(crate) struct BackendSpec {
    pub(crate) name: String,
    pub(crate) transport: BackendTransport,
    /// The dialect to speak, without negotiation.
    pub(crate) dialect: Option<Dialect>,
    exclusive: bool,
    pub(crate) roots: Vec<Url>,
    pub(crate) prefix: String,
    pub(crate) allow: Vec<NamePattern>,
    pub(crate) deny: Vec<NamePattern>,
    pub(crate) home: ToolHome,
    pub(crate) trust_hints: bool,
    pub(crate) task_after: Option<Duration>,
    pub(crate) sessions: Sessions,
    pub(crate) connections: usize,
    pub(crate) prewarm: usize,
    pub(crate) calls_per_process: u64,
    pub(crate) idle_timeout: Duration,
    pub(crate) handle_lifetime: Duration,
    pub(crate) start_timeout: Duration,
    pub(crate) queue_timeout: Duration,
    pub(crate) silence_timeout: Duration,
    pub(crate) tools: BTreeMap<String, ToolTable>,
}

/// A valid configuration.
#[derive(Clone)]
pub struct CheckedGateway {
    pub(crate) table: GatewayTable,
    pub(crate) backends: Vec<BackendSpec>,
}

impl BackendSpec {
    /// Whether a connection serves one call at a time although the transport could serve several.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive || self.sessions == Sessions::Handle
    }
}

impl GatewayConfig {
    /// Checks all settings, and reads the variables and files that they name.
    pub fn check(&self) -> Result<CheckedGateway, Vec<ConfigError>> {
        let mut errors = Vec::new();
        if self.backends.is_empty() {
            errors.push(ConfigError::NoBackend);
        }
        let (each, total) = (self.gateway.connections_each, self.gateway.connections);
        if each > total || each == 0 {
            errors.push(ConfigError::Connections { each, total });
        }
        let mut backends = Vec::new();
        for (name, table) in &self.backends {
            let errors_before = errors.len();
            let spec = table.check(name, &mut errors);
            if errors.len() == errors_before {
                backends.extend(spec);
            }
        }
        match errors.is_empty() {
            true => Ok(CheckedGateway {
                table: self.gateway.clone(),
                backends,
            }),
            false => Err(errors),
        }
    }

    /// The configuration of one backend without rules.
    pub fn single(name: impl Into<String>, backend: BackendTable) -> Self {
        Self {
            gateway: GatewayTable::default(),
            backends: BTreeMap::from([(name.into(), backend)]),
        }
    }
}
