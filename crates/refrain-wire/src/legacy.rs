//! The dialects of earlier revisions: a client introduces itself once, with `initialize`, and is asked by requests.
//!
//! What always holds: a request is read into the same neutral types as one of today, what it does not say of itself taken
//! from what was [`Agreed`]; a reply is written without what the revision does not know.
//!
//! | what | since |
//! | --- | --- |
//! | batches | 2025-03-26, and only there |
//! | forms, links to resources, structured content, titles but a tool's | 2025-06-18 |
//! | URLs, models that use tools, choices with titles, icons | 2025-11-25 |

mod known;
mod read;
mod write;

pub(crate) use known::LATER;
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
    /// All that are spoken, the latest first.
    pub const ALL: [Self; 3] = [Self::V2025_11_25, Self::V2025_06_18, Self::V2025_03_26];
    /// The latest, which is offered to a client that wants one that is not spoken.
    pub const LATEST: Self = Self::V2025_11_25;

    /// The names of all that a client speaks, the latest first. Servers here do not offer the last.
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
    ///
    /// ```
    /// # use refrain_wire::legacy::Revision;
    /// assert_eq!(Revision::parse("2025-06-18"), Some(Revision::V2025_06_18));
    /// assert_eq!(Revision::parse("2024-11-05"), None);
    /// ```
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

/// What a client and the server agreed on, for all requests of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The revision that is spoken.
    pub revision: Revision,
    /// What the client can do, as far as the revision knows it.
    pub capabilities: Capabilities,
    /// The lowest level of log messages that go out.
    pub log_level: Option<LogLevel>,
}
