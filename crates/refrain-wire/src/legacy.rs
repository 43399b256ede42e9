//! Messages of the legacy revisions, in which a session begins with `initialize` and the server asks by sending
//! requests.
//!
//! Requests are read into the types of 2026-07-28; the [`SessionSettings`] supply the missing members. Replies are written
//! without the members that the revision does not have.
//!
//! | feature | since |
//! | --- | --- |
//! | batches | 2025-03-26, and only there |
//! | forms, resource links, structured content, titles (except those of tools) | 2025-06-18 |
//! | URL asks, sampling with tools, choices with titles, icons | 2025-11-25 |

mod downgrade;
mod read;
mod write;

pub(crate) use downgrade::NEW_MEMBERS;
pub(crate) use read::decode_initialize_in;
pub use read::{
    Initialize, decode_call, decode_complete, decode_initialize, decode_list, decode_set_level,
    decode_uri, is_modern, read_trace, split_batch,
};
pub use write::{
    InitializeResult, write_ask, write_cancelled, write_change, write_error, write_reply,
};

use crate::capabilities::Capabilities;
use crate::meta::LogLevel;

/// A legacy revision of the protocol. The order is chronological.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// 2025-03-26.
    V2025_03_26,
    /// 2025-06-18.
    V2025_06_18,
    /// 2025-11-25.
    V2025_11_25,
}

impl Revision {
    /// All supported revisions, the latest first.
    pub const ALL: [Self; 3] = [Self::V2025_11_25, Self::V2025_06_18, Self::V2025_03_26];
    /// The latest revision, which is offered to a client that requests an unsupported one.
    pub const LATEST: Self = Self::V2025_11_25;

    /// The first revision. Only the client supports it.
    pub const FIRST_NAME: &'static str = "2024-11-05";
    /// The names of the revisions that the client supports, the latest first.
    pub const CLIENT_NAMES: [&'static str; 4] = [
        Self::ALL[0].as_str(),
        Self::ALL[1].as_str(),
        Self::ALL[2].as_str(),
        Self::FIRST_NAME,
    ];

    /// The revision's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// The revision with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

/// The settings of a session, negotiated by `initialize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionSettings {
    /// The revision.
    pub revision: Revision,
    /// The client's capabilities in this revision.
    pub capabilities: Capabilities,
    /// The minimum level of log messages to send.
    pub log_level: Option<LogLevel>,
}
