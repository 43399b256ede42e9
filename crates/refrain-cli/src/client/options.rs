//! Flags of several commands.

use super::exit::Stop;
use super::preset_answers::PresetAnswers;
use clap::Args;
use refrain_client::{ClientLimits, Dialect};
use refrain_wire::drafts::Draft;
use refrain_wire::legacy::Revision;
use refrain_wire::{LogLevel, Root};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::Url;

pub(super) const TOKEN: &str = "REFRAIN_TOKEN";

/// The server and the output.
#[derive(Args)]
pub(super) struct Reach {
    /// Start COMMAND and speak with it over its standard input and output, in place of a URL.
    #[arg(long, requires = "command")]
    stdio: bool,
    /// The command to start with --stdio, and its arguments.
    #[arg(last = true, value_name = "COMMAND", requires = "stdio")]
    command: Vec<OsString>,
    /// Speak this dialect instead of the newest that the server has: an earlier revision, or draft-0, draft-1 or draft-2,
    /// which `refrain serve --drafts` serves at /drafts/0/mcp, /drafts/1/mcp and /drafts/2/mcp.
    #[arg(long, value_parser = dialect)]
    pub(super) dialect: Option<Dialect>,
    /// A file with an access token in it and nothing else. Without it, the token in $REFRAIN_TOKEN is sent, if there is
    /// one.
    #[arg(long, value_name = "FILE", conflicts_with = "stdio")]
    bearer_file: Option<PathBuf>,
    /// The address comes from a file, whose author must not get the token in the environment.
    #[arg(skip)]
    pub(super) is_address_from_file: bool,
    /// Show every message on standard error. What is nested deeper than DEPTH is folded, and so are long texts; `_meta` is
    /// shown from DEPTH 6 on [default: 5].
    #[arg(long, value_name = "DEPTH", num_args = 0..=1, require_equals = true, default_missing_value = "5")]
    pub(super) trace: Option<usize>,
    /// Print JSON for programs.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Url(String),
    Command(Vec<OsString>),
}

impl Reach {
    /// The address of the server. Without `--stdio` its URL is the first of the words.
    pub(super) fn place(&self, words: &mut impl Iterator<Item = String>) -> Result<Place, Stop> {
        match self.command() {
            Some(command) => Ok(command),
            None => words.next().map(Place::Url).ok_or_else(|| {
                Stop::usage("where is the server? Give its URL, or --stdio -- COMMAND to start it")
            }),
        }
    }

    /// The command to start, with `--stdio`.
    pub(super) fn command(&self) -> Option<Place> {
        self.stdio.then(|| Place::Command(self.command.clone()))
    }

    /// The hint for a server that wants a token, if there is one that was not sent.
    pub(super) fn withheld(&self) -> Option<String> {
        let is_there = std::env::var_os(TOKEN).is_some_and(|token| !token.is_empty());
        let is_withheld = self.is_address_from_file && self.bearer_file.is_none() && is_there;
        is_withheld.then(|| {
            format!(
                "${TOKEN} is not sent to the address in a file; say with --url where the server is, or name a token \
                 with --bearer-file"
            )
        })
    }

    pub(super) fn token(&self) -> Result<Option<String>, Stop> {
        let token = match &self.bearer_file {
            Some(file) => std::fs::read_to_string(file).map_err(|error| {
                let file = file.display();
                Stop::usage(format!("--bearer-file {file} cannot be read: {error}"))
            })?,
            None if self.is_address_from_file => return Ok(None),
            None => match std::env::var(TOKEN) {
                Ok(token) if !token.is_empty() => token,
                Ok(_) | Err(std::env::VarError::NotPresent) => return Ok(None),
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(Stop::usage(format!("${TOKEN} is no access token")));
                }
            },
        };
        Ok(Some(token.trim().to_owned()))
    }
}

/// Answers and limits of a call.
#[derive(Args)]
pub(super) struct Answering {
    /// Answer the ask of this key: with the content of a form, with `accept`, `decline` or `cancel`, or with the whole
    /// answer as the protocol has it. May be given several times; what is asked again under its key takes the next one,
    /// and what is asked again by the same name has the key KEY#2.
    #[arg(long, value_name = "KEY=JSON")]
    answer: Vec<String>,
    /// A file with a JSON object: an answer for each key.
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,
    /// Have a shell command answer for the model: it reads the question as JSON, and writes a text or a
    /// CreateMessageResult.
    #[arg(long, value_name = "CMD")]
    pub(super) sampler: Option<String>,
    /// A directory that the server may know of, if it asks for roots. May be given several times.
    #[arg(long = "root", value_name = "PATH")]
    roots: Vec<PathBuf>,
    /// Show what the call logs, from this level on, on standard error.
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    pub(super) log: Option<LogLevel>,
    /// How long the whole call may take, in seconds, with the time it takes to answer [default: 3600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    deadline: Option<u64>,
    /// How many rounds the call may take [default: 20].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
}

impl Answering {
    pub(super) fn preset(&self) -> Result<PresetAnswers, Stop> {
        PresetAnswers::read(&self.answer, self.answers.as_deref())
    }

    /// The roots, if any were given.
    pub(super) fn roots(&self) -> Result<Option<Vec<Root>>, Stop> {
        let roots = self.roots.iter().map(|path| root(path));
        let roots: Vec<Root> = roots.collect::<Result<_, Stop>>()?;
        Ok(Some(roots).filter(|roots| !roots.is_empty()))
    }

    pub(super) fn limits(&self) -> ClientLimits {
        let mut limits = ClientLimits::default();
        if let Some(seconds) = self.deadline {
            limits.deadline = Some(Duration::from_secs(seconds));
        }
        if let Some(rounds) = self.rounds {
            limits.rounds = rounds;
        }
        limits
    }
}

pub(super) fn here() -> Result<Root, Stop> {
    root(Path::new("."))
}

fn root(path: &Path) -> Result<Root, Stop> {
    let wrong = |why: &str| Stop::usage(format!("--root {}: {why}", path.display()));
    let whole = std::fs::canonicalize(path).map_err(|error| wrong(&error.to_string()))?;
    let uri = Url::from_file_path(&whole).map_err(|()| wrong("it cannot be written as a URI"))?;
    let name = whole.file_name();
    Ok(Root {
        uri: uri.into(),
        name: name.map(|name| name.to_string_lossy().into_owned()),
    })
}

/// A name that is not one of these.
#[derive(Debug, thiserror::Error)]
#[error("it is one of {}", .0.join(", "))]
struct UnknownName(Vec<&'static str>);

fn dialect(name: &str) -> Result<Dialect, UnknownName> {
    Dialect::from_name(name).ok_or_else(|| {
        let drafts = Draft::ALL.iter().map(|draft| draft.name());
        let revisions = Revision::ALL.iter().map(|revision| revision.as_str());
        UnknownName(revisions.chain(drafts).collect())
    })
}

fn level(name: &str) -> Result<LogLevel, UnknownName> {
    const ALL: [LogLevel; 8] = [
        LogLevel::Debug,
        LogLevel::Info,
        LogLevel::Notice,
        LogLevel::Warning,
        LogLevel::Error,
        LogLevel::Critical,
        LogLevel::Alert,
        LogLevel::Emergency,
    ];
    let found = ALL.into_iter().find(|level| level.as_str() == name);
    found.ok_or_else(|| UnknownName(ALL.map(LogLevel::as_str).to_vec()))
}
