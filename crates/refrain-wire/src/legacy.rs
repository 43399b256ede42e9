//! Earlier revisions: a client introduces itself once, with `initialize`, and is asked by requests.
//!
//! A request is read into the same types as one of 2026-07-28, completed from what was [`Agreed`]; a reply is written
//! without the members that the revision does not know.
//!
//! | feature | since |
//! | --- | --- |
//! | batches | 2025-03-26, and only there |
//! | forms, links to resources, structured content, titles but a tool's | 2025-06-18 |
//! | URLs, models that use tools, choices with titles, icons | 2025-11-25 |

mod parts;
mod read;
mod write;

pub(crate) use parts::LATER;
pub(crate) use read::decode_initialize_in;
pub use read::{
    Initialize, decode_call, decode_complete, decode_initialize, decode_list, decode_set_level,
    decode_uri, is_modern, split_batch,
};
pub use write::{
    InitializeResult, write_ask, write_cancelled, write_change, write_error, write_reply,
};

use crate::meta::{Capabilities, LogLevel};

/// An earlier revision of the protocol, the earliest first.
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
    /// The latest, which is offered to a client that asks for an unsupported one.
    pub const LATEST: Self = Self::V2025_11_25;

    /// The names of all that the client supports, the latest first. The server does not offer the last.
    pub const CLIENT: [&'static str; 4] = [
        Self::ALL[0].as_str(),
        Self::ALL[1].as_str(),
        Self::ALL[2].as_str(),
        "2024-11-05",
    ];

    /// The revision's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// The revision of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

/// The parameters that client and server agreed on for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The revision.
    pub revision: Revision,
    /// The client's capabilities, as far as the revision knows them.
    pub capabilities: Capabilities,
    /// The lowest level of log messages that go out.
    pub log_level: Option<LogLevel>,
}
