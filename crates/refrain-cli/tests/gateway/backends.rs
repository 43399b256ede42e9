//! The servers behind the gateways.

use crate::checks::{self, Check};
use refrain_testkit::net::installed::listening;
use refrain_testkit::net::process::Process;
use refrain_testkit::net::sdk_programs::{
    EVERYTHING, EVERYTHING_HTTP, FASTMCP, LEGACY_NPM, LEGACY_PYTHON, NPM, PYTHON, Program, RMCP,
};
use tokio::process::Command;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Everything,
    FastMcp,
    LegacyPython,
    Python,
    LegacyNpm,
    Npm,
    Rmcp,
    Refrain,
}

/// A backend that listens on a port. Dropping it kills the process.
pub(crate) struct HttpServer {
    pub(crate) url: String,
    _process: Process,
}

impl Backend {
    fn program(self) -> Option<Program> {
        Some(match self {
            Self::Everything => EVERYTHING,
            Self::FastMcp => FASTMCP,
            Self::LegacyPython => LEGACY_PYTHON,
            Self::Python => PYTHON,
            Self::LegacyNpm => LEGACY_NPM,
            Self::Npm => NPM,
            Self::Rmcp => RMCP,
            Self::Refrain => return None,
        })
    }

    /// The command that starts it over standard input and output.
    pub(crate) async fn command(self) -> Command {
        match self.program() {
            Some(program) => program.stdio().await,
            None => serve(&["--stdio"]),
        }
    }

    /// Starts it on a port, with the transport `--http` or, for the legacy Python SDK, `--sse`.
    pub(crate) async fn listen(self, transport: &str) -> HttpServer {
        let (process, url) = match self.program() {
            Some(EVERYTHING) => EVERYTHING_HTTP.listen(transport).await,
            Some(program) => program.listen(transport).await,
            None => listening(serve(&["--listen", "127.0.0.1:0"])).await,
        };
        HttpServer {
            url,
            _process: process,
        }
    }

    pub(crate) fn checks(self) -> Vec<Check> {
        match self {
            Self::Everything => checks::everything(),
            Self::Refrain => checks::refrain(),
            Self::FastMcp => checks::restaurant_with("inline form", "book_table_inline"),
            Self::LegacyNpm => {
                checks::restaurant_with("unassociated form", "book_table_unassociated")
            }
            _ => checks::restaurant(),
        }
    }

    /// Whether it asks for the roots by itself, 350 ms after its start. Over stdio that may be during a call.
    pub(crate) fn asks_for_roots_at_any_time(self) -> bool {
        self == Self::Everything
    }

    /// Whether a check must run without concurrent calls: log messages of 2026-07-28 over stdio do not name their call,
    /// and calls share a process.
    pub(crate) fn must_run_alone(self, check: &str) -> bool {
        let is_modern = matches!(self, Self::FastMcp | Self::Python | Self::Npm | Self::Rmcp);
        is_modern && check == "logs"
    }

    /// Why a check cannot succeed with this backend.
    pub(crate) fn cannot(self, target: &str, check: &str) -> Option<&'static str> {
        match (self, target, check) {
            (Self::FastMcp, _, "inline form") => {
                Some("FastMCP asks inline only on legacy connections: set `revision`")
            }
            (Self::LegacyNpm, "http", "unassociated form") => {
                Some("the request is sent on the stream of the session: set `exclusive`")
            }
            _ => None,
        }
    }
}

fn serve(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.args(["serve", "--store", "memory:"]).args(args);
    command
}
