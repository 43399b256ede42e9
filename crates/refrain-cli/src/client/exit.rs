//! Exit codes, and the errors that end a command.

use super::text::{harmless, one_line};
use refrain_client::{AuthError, Dialect, DialectError, Error, ErrorKind, ReadError, RpcFailure};
use serde_json::{Map, Value, json};
use std::fmt;
use std::process::ExitCode;

/// The exit codes, for the help of the client's commands.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the tool says that it failed, or the server refused
  2    wrong usage
  3    something is asked that was not answered
  4    no server there, none that speaks MCP, or it did not come to an end
  5    the server does not know or does not allow who is calling
  130  interrupted";

/// An exit code; [`EXIT_CODES`] describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Code {
    Done = 0,
    Refused = 1,
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

#[derive(Debug)]
pub(super) struct Stop {
    pub(super) code: Code,
    pub(super) message: String,
    /// The members of the JSON object for programs.
    facts: Map<String, Value>,
    /// Whether standard output has JSON already.
    is_told: bool,
}

impl Stop {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        let error = json!({"message": message});
        Self {
            code,
            message,
            facts: Map::from_iter([("error".to_owned(), error)]),
            is_told: false,
        }
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    pub(super) fn interrupted() -> Self {
        Self::new(Code::Interrupted, "interrupted")
    }

    /// Adds a member for programs.
    pub(super) fn with(mut self, name: &str, fact: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), fact.into());
        self
    }

    /// Tells programs of open asks instead of an error.
    pub(super) fn waiting(mut self, asked: Vec<Value>) -> Self {
        let facts = std::mem::take(&mut self.facts).into_iter();
        let facts = facts.filter(|(name, _)| name != "error");
        self.facts = std::iter::once(("asked".to_owned(), asked.into()))
            .chain(facts)
            .collect();
        self
    }

    /// Prints nothing more for programs.
    pub(super) fn told(self) -> Self {
        Self {
            is_told: true,
            ..self
        }
    }

    /// The JSON object for programs, unless they have one already.
    pub(super) fn to_json(&self) -> Option<Value> {
        (!self.is_told).then(|| Value::Object(self.facts.clone()))
    }

    pub(super) fn and(mut self, line: &str) -> Self {
        self.message.push('\n');
        self.message.push_str(line);
        self
    }
}

/// Without control characters: a message may contain text of a server.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&harmless(&self.message))
    }
}

impl From<&Error> for Stop {
    fn from(error: &Error) -> Self {
        let message = match &error.kind {
            ErrorKind::Auth(why @ AuthError::Unauthorized) => format!(
                "{why}; put one into a file and name it with --bearer-file, or into $REFRAIN_TOKEN"
            ),
            // Text of a server cannot pass for a line of ours.
            kind => one_line(&format!("{kind}{}", hint(kind))),
        };
        let stop = Self::new(code(&error.kind), message);
        match &error.kind {
            ErrorKind::Rpc(failure) => stop.with("error", failed(failure)),
            _ => stop,
        }
    }
}

fn hint(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::InvalidResponse(ReadError::OtherDialect) => {
            " (name it with --dialect)".to_owned()
        }
        ErrorKind::Dialect(DialectError::NotSpoken {
            address,
            dialect: Dialect::Draft(draft),
        }) if address.starts_with("http") => format!(
            "; with `refrain serve --drafts`, the path of that draft is {}",
            draft.path()
        ),
        ErrorKind::Dialect(DialectError::NotSpoken { dialect, .. }) => {
            format!("; `refrain serve --stdio --dialect {dialect}` does")
        }
        _ => String::new(),
    }
}

fn failed(failure: &RpcFailure) -> Value {
    let mut error = json!({"code": failure.code, "message": failure.message});
    if !failure.data.is_null() {
        error["data"] = failure.data.clone();
    }
    error
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

fn code(kind: &ErrorKind) -> Code {
    match kind {
        ErrorKind::Rpc(_) | ErrorKind::TaskCancelled(_) => Code::Refused,
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
