//! `--dialect`: a legacy revision, or one of the drafts of MCP 2026-07-28.

use super::options::UnknownName;
use clap::Args;
use refrain_client::{Dialect, DialectError, ErrorKind, ReadError};
use refrain_wire::drafts::Draft;
use refrain_wire::legacy::Revision;

#[derive(Args)]
pub(super) struct DialectOption {
    /// Speak this dialect instead of the newest revision that the server supports: 2025-11-25, 2025-06-18, 2025-03-26, or
    /// draft-0, draft-1 or draft-2, which `refrain serve --drafts` serves at /drafts/0/mcp, /drafts/1/mcp and
    /// /drafts/2/mcp.
    #[arg(long, value_parser = parse)]
    pub(super) dialect: Option<Dialect>,
}

fn parse(name: &str) -> Result<Dialect, UnknownName> {
    Dialect::from_name(name).ok_or_else(|| {
        let drafts = Draft::ALL.iter().map(|draft| draft.name());
        let revisions = Revision::ALL.iter().map(|revision| revision.as_str());
        UnknownName(revisions.chain(drafts).collect())
    })
}

/// The hint for a server that speaks another dialect.
pub(super) fn hint(kind: &ErrorKind) -> Option<String> {
    match kind {
        ErrorKind::InvalidResponse(ReadError::OtherDialect) => {
            Some("select the server's dialect with --dialect".to_owned())
        }
        ErrorKind::Dialect(DialectError::NotSpoken {
            address,
            dialect: Dialect::Draft(draft),
        }) if address.starts_with("http") => Some(format!(
            "`refrain serve --drafts` serves {draft} at {}",
            draft.path()
        )),
        ErrorKind::Dialect(DialectError::NotSpoken { dialect, .. }) => Some(format!(
            "`refrain serve --stdio --dialect {dialect}` speaks {dialect}"
        )),
        _ => None,
    }
}
