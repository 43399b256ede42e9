//! How a command ends.

use super::text::{harmless, one_line};
use refrain_client::{AuthError, Dialect, DialectError, Error, ErrorKind, ReadError, RpcFailure};
use serde_json::{Map, Value, json};
use std::fmt;
use std::process::ExitCode;

/// What the commands of the client say in their help about how they end.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the tool says that it failed, or the server refused
  2    wrong usage
  3    something is asked that was not answered
  4    no server there, none that speaks MCP, or it did not come to an end
  5    the server does not know or does not allow who is calling
  130  interrupted";

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Code {
    /// It did what it was told to.
    Done = 0,
    /// The tool says that it failed, or the server refused.
    Refused = 1,
    /// It was told something that makes no sense.
    Usage = 2,
    /// Something is asked that was not answered.
    Unanswered = 3,
    /// The server was not reached, or does not keep to the protocol.
    Unreachable = 4,
    /// The server does not know or does not allow who is calling.
    Unauthorized = 5,
    /// Somebody pressed Ctrl-C.
    Interrupted = 130,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Why a command ends without having done what it was told to: a sentence that says what to do, and the code.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) code: Code,
    pub(super) message: String,
    /// What programs are told.
    facts: Map<String, Value>,
    /// Programs were told already, or have the result.
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

    /// The same, of which programs are told one thing more.
    pub(super) fn with(mut self, name: &str, fact: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), fact.into());
        self
    }

    /// The same, of which programs need not be told any more.
    pub(super) fn told(self) -> Self {
        Self {
            is_told: true,
            ..self
        }
    }

    /// What programs are to be told, unless they were.
    pub(super) fn to_json(&self) -> Option<Value> {
        (!self.is_told).then(|| Value::Object(self.facts.clone()))
    }

    /// The same with one more line, for people.
    pub(super) fn and(mut self, line: &str) -> Self {
        self.message.push('\n');
        self.message.push_str(line);
        self
    }
}

/// What others said is in it, and must not steer the terminal.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&harmless(&self.message))
    }
}

impl From<&Error> for Stop {
    fn from(error: &Error) -> Self {
        let message = match &error.kind {
            ErrorKind::Auth(why @ AuthError::Refused) => format!(
                "{why}; put one into a file and name it with --bearer-file, or into $REFRAIN_TOKEN"
            ),
            // Nothing that a server says can pass for a line of ours.
            kind => one_line(&format!("{kind}{}", hint(kind))),
        };
        let stop = Self::new(code(&error.kind), message);
        match &error.kind {
            ErrorKind::Refused(failure) => stop.with("error", failed(failure)),
            _ => stop,
        }
    }
}

/// What to do about an error on the command line.
fn hint(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::BadAnswer(ReadError::OtherDialect) => " (name it with --dialect)".to_owned(),
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

/// An error of the server's, for programs.
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
        ErrorKind::Refused(_) | ErrorKind::TaskCancelled(_) => Code::Refused,
        ErrorKind::Address { .. } | ErrorKind::BadArgument(_) | ErrorKind::BadPending(_) => {
            Code::Usage
        }
        ErrorKind::Unanswered(_) => Code::Unanswered,
        ErrorKind::Auth(_)
        | ErrorKind::Status {
            status: 401 | 403, ..
        } => Code::Unauthorized,
        _ => Code::Unreachable,
    }
}
