//! Flags that several commands share.

use super::ProtocolOption;
use super::exit::CommandError;
use super::preset_answers::PresetAnswers;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, value_parser};
use refrain_app::input_file;
use refrain_app::telemetry::OTEL_SECRETS;
use refrain_client::ClientLimits;
use refrain_wire::{LogLevel, Root};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::Url;

pub(super) const TOKEN: &str = "REFRAIN_TOKEN";

/// Environment variables with secrets, which commands started by this program do not get.
pub(crate) fn secrets() -> impl Iterator<Item = &'static str> {
    let own = [TOKEN, refrain_app::KEYS, refrain_app::STORE];
    own.into_iter().chain(OTEL_SECRETS)
}

const DEFAULT_DEADLINE: Duration = Duration::from_secs(3600);

/// The server to connect to, and the format of the output.
#[derive(Args, Clone)]
pub(super) struct ConnectOptions {
    /// Start COMMAND as the server, and speak MCP over its standard input and output.
    #[arg(long, requires = "command")]
    stdio: bool,
    /// The server's command and its arguments, with --stdio.
    #[arg(last = true, value_name = "COMMAND", requires = "stdio")]
    command: Vec<OsString>,
    #[command(flatten)]
    pub(super) protocol: ProtocolOption,
    /// A file that contains an access token. Without it, the token in $REFRAIN_TOKEN is sent, if it is set, else the token
    /// of `refrain login`. `refrain resume` sends $REFRAIN_TOKEN only with --url.
    #[arg(long, value_name = "FILE", conflicts_with = "stdio")]
    bearer_file: Option<PathBuf>,
    /// Whether the address comes from a saved call. The file may name any server, so $REFRAIN_TOKEN is not sent there.
    #[arg(skip)]
    pub(super) is_saved_address: bool,
    /// Print every message to standard error. Long texts and values nested deeper than DEPTH are shortened. The default
    /// DEPTH is 5. `_meta` is printed in full only with a DEPTH of 6 or more.
    #[arg(long, value_name = "DEPTH", num_args = 0..=1, require_equals = true, default_missing_value = "5")]
    pub(super) trace: Option<usize>,
    /// The time limit for the whole command in seconds, including the time for answers [default: 3600].
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..))]
    deadline: Option<u64>,
    /// Print the result, or the error, as JSON; never ask at the terminal.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerTarget {
    Url(String),
    Command(Vec<OsString>),
}

/// The origin of a command's access token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BearerSource {
    File(PathBuf),
    Environment,
}

impl fmt::Display for BearerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "--bearer-file {}", file.display()),
            Self::Environment => write!(f, "${TOKEN}"),
        }
    }
}

impl ConnectOptions {
    /// The server. Without `--stdio`, the first positional argument (`words`) is its URL.
    pub(super) fn target(
        &self,
        words: &mut impl Iterator<Item = String>,
    ) -> Result<ServerTarget, CommandError> {
        match self.command() {
            Some(command) => Ok(command),
            None => words.next().map(ServerTarget::Url).ok_or_else(|| {
                CommandError::usage("missing server: no URL and no --stdio")
                    .hint("pass the server's URL first, or start a server with --stdio -- COMMAND")
            }),
        }
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline.map_or(DEFAULT_DEADLINE, Duration::from_secs)
    }

    /// The command to start, with `--stdio`.
    pub(super) fn command(&self) -> Option<ServerTarget> {
        self.stdio
            .then(|| ServerTarget::Command(self.command.clone()))
    }

    pub(super) fn token(&self) -> Result<Option<(String, BearerSource)>, CommandError> {
        let (token, source) = match &self.bearer_file {
            Some(file) => {
                let token = input_file::read_text(file).map_err(|error| {
                    let file = file.display();
                    CommandError::usage(format!("cannot read --bearer-file {file}: {error}"))
                })?;
                (token, BearerSource::File(file.clone()))
            }
            None if self.is_saved_address => return Ok(None),
            None => match std::env::var(TOKEN) {
                Ok(token) if !token.is_empty() => (token, BearerSource::Environment),
                Ok(_) | Err(std::env::VarError::NotPresent) => return Ok(None),
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(CommandError::usage(format!("${TOKEN} is not UTF-8")));
                }
            },
        };
        Ok(Some((token.trim().to_owned(), source)))
    }
}

#[derive(Args, Clone)]
pub(super) struct AnswerOptions {
    /// The answer to the ask KEY: the content of a form; `accept`, `decline` or `cancel`; the text of a model's answer; a
    /// list of root URIs; or the whole answer in the protocol's format. May be given several times. If the server repeats
    /// an ask, the next --answer for that key is used. On a Refrain server, the second ask with the same name has the key
    /// KEY#2.
    #[arg(long, value_name = "KEY=JSON")]
    answer: Vec<String>,
    /// A file with answers: a JSON object whose keys are those of the asks.
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,
    /// A shell command that answers sampling requests: it reads the request as JSON, and writes a text or a
    /// CreateMessageResult.
    #[arg(long, value_name = "CMD")]
    pub(super) sampler: Option<String>,
    /// A directory to offer to a server that asks for roots. May be given several times.
    #[arg(long = "root", value_name = "PATH")]
    roots: Vec<PathBuf>,
    /// Print log messages of the server at or above this level to standard error.
    #[arg(long, value_name = "LEVEL", value_parser = one_of(LogLevel::ALL.map(|level| (level.as_str(), level))))]
    pub(super) log: Option<LogLevel>,
    /// The maximum number of requests (rounds) of one call [default: 20].
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..))]
    rounds: Option<u32>,
}

impl AnswerOptions {
    pub(super) fn preset(&self) -> Result<PresetAnswers, CommandError> {
        PresetAnswers::read(&self.answer, self.answers.as_deref())
    }

    pub(super) fn roots(&self) -> Result<Option<Vec<Root>>, CommandError> {
        let roots = self.roots.iter().map(|path| read_root(path));
        let roots: Vec<Root> = roots.collect::<Result<_, CommandError>>()?;
        Ok(Some(roots).filter(|roots| !roots.is_empty()))
    }

    pub(super) fn limits(&self) -> ClientLimits {
        let defaults = ClientLimits::default();
        ClientLimits {
            rounds: self.rounds.unwrap_or(defaults.rounds),
            ..defaults
        }
    }
}

pub(super) fn working_directory() -> Result<Root, CommandError> {
    read_root(Path::new("."))
}

fn read_root(path: &Path) -> Result<Root, CommandError> {
    let invalid =
        |why: &str| CommandError::usage(format!("invalid --root {}: {why}", path.display()));
    let path = std::fs::canonicalize(path).map_err(|error| invalid(&error.to_string()))?;
    let uri = Url::from_file_path(&path).map_err(|()| invalid("cannot be written as a URI"))?;
    let name = path.file_name();
    Ok(Root {
        uri: uri.into(),
        name: name.map(|name| name.to_string_lossy().into_owned()),
    })
}

/// A parser for a flag whose value is one of these names.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    all: impl IntoIterator<Item = (&'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let all = Vec::from_iter(all);
    let names = PossibleValuesParser::new(all.iter().map(|(name, _)| *name));
    names.try_map(move |name| {
        let found = all.iter().find(|(candidate, _)| *candidate == name);
        found.map(|(_, value)| *value).ok_or("unknown name")
    })
}
