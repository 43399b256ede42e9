//! Exit codes, and the errors that end a command.

use super::protocol_hint;
use super::sanitize::{one_line, sanitize, truncated};
use super::unanswered::quoted;
use refrain_client::{AuthError, Error, ErrorKind, RpcFailure};
use serde_json::{Map, Value, json};
use std::fmt;
use std::process::ExitCode;

/// The exit codes, for the help of the client's commands.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    the tool reported an error, or the server rejected the request
  2    usage error
  3    the server asked for input that was not provided
  4    no MCP server at the address, connection lost, or a limit was exceeded
  5    not authorized
  130  interrupted";

const TOKEN_HINT: &str = "log in with `refrain login URL` if the server uses OAuth, or put an access token into a file and pass --bearer-file FILE, or set $REFRAIN_TOKEN";
const SAVED_ADDRESS_TOKEN_HINT: &str = "$REFRAIN_TOKEN is not sent to a saved address: pass --url URL to send it, or pass --bearer-file FILE, or log in with `refrain login URL`";

/// The printed length of a line of a server's standard error.
const MAX_SERVER_LINE: usize = 300;

/// An exit code; [`EXIT_CODES`] describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Code {
    Success = 0,
    Failed = 1,
    Usage = 2,
    Unanswered = 3,
    Unreachable = 4,
    Unauthorized = 5,
    Interrupted = 130,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// The error of a command, printed as `error: …` with `note: …` and `hint: …` lines, and as JSON.
#[derive(Debug)]
pub(super) struct CommandError {
    pub(super) code: Code,
    pub(super) message: String,
    remarks: Vec<Remark>,
    /// The members of the JSON object.
    members: Box<Map<String, Value>>,
    /// Whether the command has already printed its JSON.
    is_json_printed: bool,
}

/// A line after the message. It may have further lines, which are indented.
#[derive(Debug)]
struct Remark {
    label: Label,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Note,
    Hint,
}

impl CommandError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        let error = json!({"message": message});
        Self {
            code,
            message,
            remarks: Vec::new(),
            members: Box::new(Map::from_iter([("error".to_owned(), error)])),
            is_json_printed: false,
        }
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// The error of a command outside of the client: a message, then lines `error: …` with further messages, and `hint: …`.
    pub(super) fn from_text(text: &str) -> Self {
        let mut messages = String::new();
        let mut hints: Vec<String> = Vec::new();
        for line in text.lines() {
            match (line.strip_prefix("hint: "), hints.last_mut()) {
                (Some(hint), _) => hints.push(hint.to_owned()),
                // A hint is continued by an indented line.
                (None, Some(hint)) if line.starts_with(' ') => hint.push_str(&format!("\n{line}")),
                (None, _) => {
                    let message = line.strip_prefix("error: ").unwrap_or(line);
                    messages.push_str(&format!("{message}\n"));
                }
            }
        }
        hints
            .into_iter()
            .fold(Self::usage(messages.trim_end()), Self::hint)
    }

    /// The error of invalid command line arguments, without the usage.
    pub(super) fn from_clap(error: &clap::Error) -> Self {
        let text = error.to_string();
        let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
        let message = message.strip_prefix("error: ").unwrap_or(message);
        let message: Vec<&str> = message.lines().map(str::trim).collect();
        let tips = rest
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("tip: "));
        tips.fold(Self::usage(message.join(" ")), Self::hint)
    }

    pub(super) fn interrupted() -> Self {
        Self::new(Code::Interrupted, "interrupted")
    }

    pub(super) fn note(mut self, text: impl fmt::Display) -> Self {
        self.remarks.push(Remark::new(Label::Note, text));
        self
    }

    pub(super) fn hint(mut self, text: impl fmt::Display) -> Self {
        self.remarks.push(Remark::new(Label::Hint, text));
        self
    }

    /// Corrects the hint how to send an access token, for a server whose address comes from a saved call.
    pub(super) fn at_saved_address(mut self) -> Self {
        for remark in &mut self.remarks {
            remark.text = remark.text.replace(TOKEN_HINT, SAVED_ADDRESS_TOKEN_HINT);
        }
        self
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// Adds the last lines of the server's standard error, if the server may be unusable.
    pub(super) fn with_server_lines(mut self, lines: &[String]) -> Self {
        if self.code != Code::Unreachable || lines.is_empty() {
            return self;
        }
        let shown = lines.iter().map(|line| {
            let (start, length) = truncated(line, MAX_SERVER_LINE);
            let end = if length.is_some() { "…" } else { "" };
            format!("\n  {}{end}", one_line(start))
        });
        let shown: String = shown.collect();
        let text = format!("last lines of the server's standard error:{shown}");
        self.remarks.insert(0, Remark::new(Label::Note, text));
        self.with("stderr", lines.to_vec())
    }

    /// Replaces the error in the JSON object with the unanswered asks.
    pub(super) fn with_asks(mut self, asks: Vec<Value>) -> Self {
        let members = std::mem::take(&mut *self.members).into_iter();
        let members = members.filter(|(name, _)| name != "error");
        *self.members = std::iter::once(("asked".to_owned(), asks.into()))
            .chain(members)
            .collect();
        self
    }

    /// Marks that the result was already printed, so that the error is not printed as JSON.
    pub(super) fn printed_on_stderr_only(self) -> Self {
        Self {
            is_json_printed: true,
            ..self
        }
    }

    pub(super) fn to_json(&self) -> Option<Map<String, Value>> {
        if self.is_json_printed {
            return None;
        }
        let hints = self.remarks.iter();
        let hints = hints.filter(|remark| remark.label == Label::Hint);
        let hints: Vec<&str> = hints.map(|remark| &*remark.text).collect();
        let mut members = (*self.members).clone();
        if !hints.is_empty() {
            members.insert("hints".to_owned(), json!(hints));
        }
        Some(members)
    }
}

impl Remark {
    fn new(label: Label, text: impl fmt::Display) -> Self {
        let text = text.to_string();
        Self { label, text }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Hint => "hint",
        })
    }
}

/// Without control characters: a message may contain text of a server.
impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sanitize(&self.message))?;
        for Remark { label, text } in &self.remarks {
            write!(f, "\n{label}: {}", sanitize(text))?;
        }
        Ok(())
    }
}

impl From<&Error> for CommandError {
    fn from(error: &Error) -> Self {
        let message = match &error.kind {
            // The lines of its standard error follow, see `with_server_lines`.
            ErrorKind::Exited {
                program, status, ..
            } => ErrorKind::Exited {
                program: program.clone(),
                status: status.clone(),
                stderr: String::new(),
            }
            .to_string(),
            kind => kind.to_string(),
        };
        // On one line, so that text of a server cannot pass for a line of this program.
        let message = one_line(&message);
        let command_error = Self::new(code(&error.kind), message);
        match &error.kind {
            ErrorKind::Rpc(failure) => command_error.with("error", to_json(failure)),
            ErrorKind::Auth(AuthError::Unauthorized) => command_error.hint(TOKEN_HINT),
            ErrorKind::Auth(AuthError::TokenRejected(_)) => command_error.hint(
                "get a new token, and put it into the file of --bearer-file or into $REFRAIN_TOKEN",
            ),
            ErrorKind::Auth(AuthError::LoginRequired(server)) => {
                command_error.hint(format!("log in with `refrain login {server}`"))
            }
            ErrorKind::Auth(AuthError::ScopeRequired { server, scopes, .. }) => {
                let scopes = scopes.split(' ').filter(|scope| !scope.is_empty());
                let options = scopes.map(|scope| format!(" --scope {}", quoted(scope)));
                let options: String = options.collect();
                command_error.hint(format!("log in again with `refrain login {server}{options}`"))
            }
            ErrorKind::InvalidAddress { address, .. }
                if !address.is_empty() && !address.contains("://") =>
            {
                let path = if address.contains('/') { "" } else { "/mcp" };
                command_error.hint(format!("did you mean http://{address}{path}?"))
            }
            ErrorKind::HttpStatus {
                status: 404 | 405 | 501,
                ..
            } => command_error.hint("check the URL and its path"),
            ErrorKind::NotTls { address } => {
                let plain = address.replacen("https://", "http://", 1);
                command_error.hint(format!("if the server does not use TLS, try {plain}"))
            }
            ErrorKind::Auth(AuthError::ClientNotRegistered(_)) => command_error.hint(
                "pass the client id with `refrain login URL --client-id ID`, and its redirect port with --port PORT",
            ),
            ErrorKind::NotHttp { address } => {
                let secure = address.replacen("http://", "https://", 1);
                command_error.hint(format!("if the server uses TLS, try {secure}"))
            }
            ErrorKind::Unreachable { .. } => {
                command_error.hint("check that the server is running and that the URL is right")
            }
            ErrorKind::Spawn { .. } => command_error.hint("check the command and $PATH"),
            ErrorKind::NotMcp { address, .. } => {
                let is_url = address.starts_with("http://") || address.starts_with("https://");
                command_error.hint(match is_url {
                    true => "check the URL and its path",
                    false => "check the command",
                })
            }
            ErrorKind::TooManyRounds(_) => {
                command_error.hint("raise --rounds, unless the server repeats the same asks")
            }
            kind => match protocol_hint(kind) {
                Some(hint) => command_error.hint(hint),
                None => command_error,
            },
        }
    }
}

fn to_json(failure: &RpcFailure) -> Value {
    let mut error = json!({"code": failure.code, "message": failure.message});
    if !failure.data.is_null() {
        error["data"] = failure.data.clone();
    }
    error
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

fn code(kind: &ErrorKind) -> Code {
    match kind {
        ErrorKind::Rpc(_) | ErrorKind::TaskCancelled(_) => Code::Failed,
        ErrorKind::InvalidAddress { .. }
        | ErrorKind::InvalidArgument(_)
        | ErrorKind::CannotResume(_) => Code::Usage,
        ErrorKind::Unanswered(_) => Code::Unanswered,
        ErrorKind::Auth(_)
        | ErrorKind::HttpStatus {
            status: 401 | 403, ..
        } => Code::Unauthorized,
        _ => Code::Unreachable,
    }
}
