//! `--dialect`: 2026-07-28, a legacy revision, or a draft of 2026-07-28.

use super::options::one_of;
use clap::Args;
use refrain_client::{ClientBuilder, Dialect, DialectError, ErrorKind, PendingCall, ReadError};

#[derive(Clone, Copy, Args)]
pub(super) struct ProtocolOption {
    /// Speak only this dialect, instead of the newest revision that the server supports. `refrain serve --drafts` serves the
    /// drafts at /drafts/0/mcp, /drafts/1/mcp and /drafts/2/mcp.
    #[arg(long, value_parser = one_of(Dialect::all().map(|dialect| (dialect.name(), dialect))))]
    dialect: Option<Dialect>,
}

impl ProtocolOption {
    pub(super) fn configure(self, builder: ClientBuilder) -> ClientBuilder {
        match self.dialect {
            Some(dialect) => builder.dialect(dialect),
            None => builder,
        }
    }

    /// Uses the dialect of a saved call, unless the flag is set.
    pub(super) fn or_saved(&mut self, pending: &PendingCall) {
        self.dialect = self.dialect.or(pending.dialect());
    }

    pub(super) fn is_set(self) -> bool {
        self.dialect.is_some()
    }

    pub(super) fn is_draft(self) -> bool {
        matches!(self.dialect, Some(Dialect::Draft(_)))
    }

    /// The flag for a command line, with a leading space.
    pub(super) fn flag(self) -> String {
        let flag = self.dialect.map(|dialect| format!(" --dialect {dialect}"));
        flag.unwrap_or_default()
    }
}

/// The hint for a server that speaks another dialect.
pub(super) fn protocol_hint(kind: &ErrorKind) -> Option<String> {
    match kind {
        ErrorKind::NoCommonVersion { supported } => {
            let mut names = Dialect::all().map(Dialect::name);
            let name = names.find(|name| supported.iter().any(|other| other == name))?;
            Some(format!("try --dialect {name}"))
        }
        ErrorKind::InvalidResponse(ReadError::OtherDialect) => {
            Some("select the server's dialect with --dialect".to_owned())
        }
        ErrorKind::Dialect(DialectError::NotSpoken {
            address,
            dialect: Dialect::Draft(draft),
            ..
        }) if address.starts_with("http") => Some(format!(
            "`refrain serve --drafts` serves {draft} at {}",
            draft.path()
        )),
        ErrorKind::Dialect(DialectError::NotSpoken {
            dialect: Dialect::Modern,
            ..
        }) => Some(
            "without --dialect, an earlier revision is used if the server supports one".to_owned(),
        ),
        ErrorKind::Dialect(DialectError::NotSpoken { dialect, .. }) => Some(format!(
            "`refrain serve --stdio --dialect {dialect}` speaks {dialect}"
        )),
        _ => None,
    }
}
