//! How a command ends.

use super::text::harmless;
use refrain_client::{AuthError, Error, ErrorKind};
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
}

impl Stop {
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self {
            code: Code::Usage,
            message: message.into(),
        }
    }

    pub(super) fn interrupted() -> Self {
        Self {
            code: Code::Interrupted,
            message: "interrupted".to_owned(),
        }
    }

    /// The same with one more line.
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
            kind => kind.to_string(),
        };
        Self {
            code: code(&error.kind),
            message,
        }
    }
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
