//! The drafts that went before the ratified revision, each a translation of its messages.
//!
//! | dialect | asks | answers | state | tasks |
//! | --- | --- | --- | --- | --- |
//! | second draft | `result.inputRequests` | `params.inputResponses` | `requestState` beside them | `task` in params, `tasks/result`, `tasks/input_response` |
//! | first draft | `input_requests` beside the id | `input_responses` beside the id, each in a `result` | `request_state` beside them | the same, answered by a message without a method |
//! | sketch | `dependent_requests` beside the id | `dependent_responses` beside the id, each in a `result` | none; `request_state`, where the client sends it back | none |
//!
//! A request of a draft becomes the request that the ratified revision has for it, and the reply to that becomes the
//! draft's: so nothing behind the edge knows of drafts. Servers read requests and write replies, clients write requests
//! and read replies.
//!
//! ```
//! use refrain_wire::drafts::{Draft, DraftRequest};
//!
//! let request = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet"}}"#;
//! let read = Draft::Sketch.read_request(request)?;
//! let DraftRequest::Request { message, exchange } = read else { panic!("a request") };
//! assert!(refrain_wire::ratified::read_call(&message).is_some());
//!
//! let reply = br#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"r":{"method":"roots/list"}}}}"#;
//! let written = exchange.write_reply(reply).expect("a reply");
//! assert_eq!(written, br#"{"jsonrpc":"2.0","id":1,"dependent_requests":{"r":{"method":"roots/list"}}}"#);
//! # Ok::<(), Box<refrain_wire::Rejection>>(())
//! ```
//!
//! Invariants: members keep their order; what a draft cannot express is left out; nothing is added but what the ratified
//! revision requires of every request.

mod meta;
mod object;
mod reply;
mod request;
mod task;

pub use task::join_task;

use serde_json::value::RawValue;

use crate::envelope::Rejection;
use crate::error::RpcError;
use crate::legacy::{Initialize, Revision, decode_initialize_in};
use crate::strict::JsonError;

/// A draft whose messages can be translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Draft {
    /// The sketch that came first: one more round, without state.
    Sketch,
    /// The first draft of the proposal.
    First,
    /// The second draft of the proposal.
    Second,
}

impl Draft {
    /// All of them, the oldest first.
    pub const ALL: [Self; 3] = [Self::Sketch, Self::First, Self::Second];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sketch => "draft-0",
            Self::First => "draft-1",
            Self::Second => "draft-2",
        }
    }

    /// The draft of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|draft| draft.name() == name)
    }

    /// The path of its endpoint.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Sketch => "/drafts/0/mcp",
            Self::First => "/drafts/1/mcp",
            Self::Second => "/drafts/2/mcp",
        }
    }

    /// Whether it has tasks.
    pub const fn has_tasks(self) -> bool {
        !matches!(self, Self::Sketch)
    }

    /// Reads the params of `initialize`. Whatever revision the client asks for, one is spoken: its handshake is the draft's.
    pub fn decode_initialize(self, raw: Option<&RawValue>) -> Result<Initialize, RpcError> {
        decode_initialize_in(Some(HANDSHAKE), raw)
    }

    const fn names(self) -> Names {
        match self {
            Self::Sketch => Names {
                asks: "dependent_requests",
                answers: "dependent_responses",
                state: "request_state",
            },
            Self::First => Names {
                asks: "input_requests",
                answers: "input_responses",
                state: "request_state",
            },
            Self::Second => RATIFIED,
        }
    }
}

impl std::fmt::Display for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a draft calls the members that make a round.
struct Names {
    asks: &'static str,
    answers: &'static str,
    state: &'static str,
}

/// What the ratified revision calls them.
const RATIFIED: Names = Names {
    asks: "inputRequests",
    answers: "inputResponses",
    state: "requestState",
};

/// The revision whose handshake the drafts have.
const HANDSHAKE: Revision = Revision::V2025_11_25;

/// The `_meta` key that names the task a message belongs to.
pub const RELATED_TASK_KEY: &str = "io.modelcontextprotocol/related-task";

/// The request for what became of a task, which the ratified revision has not: there `tasks/get` tells it.
pub const TASK_RESULT: &str = "tasks/result";

/// A message of a draft's client.
#[derive(Debug)]
pub enum DraftRequest {
    /// A request.
    Request {
        /// As the ratified revision has it.
        message: Vec<u8>,
        /// What is needed to write the reply.
        exchange: DraftExchange,
    },
    /// Wants no response, and is the same in all dialects.
    Notification,
    /// A request whose reply is known.
    Known(Vec<u8>),
}

/// A request of a draft that waits for its reply.
#[derive(Debug, Clone)]
pub struct DraftExchange {
    draft: Draft,
    kind: Kind,
    /// The task it is about.
    task: Option<String>,
    /// Whether the reply may be a task: it is wanted.
    wants_task: bool,
}

/// What a request is, as far as its reply depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Call,
    Handshake,
    TaskGet,
    TaskResult,
    TaskAnswers,
    TaskCancel,
    Other,
}

impl DraftExchange {
    /// Whether the reply is to wait until the task no longer works.
    pub fn waits_for_task(&self) -> bool {
        self.kind == Kind::TaskResult
    }

    /// Whether the reply is to show the task that was called off. One that was over before cannot be.
    pub fn shows_task(&self) -> bool {
        self.kind == Kind::TaskCancel
    }

    /// Whether the reply to answers of which one does not fit is to wait until the task asks again.
    pub fn settles_task(&self) -> bool {
        self.kind == Kind::TaskAnswers
    }

    /// Whether a request that is done has no reply.
    pub fn is_silent(&self) -> bool {
        self.kind == Kind::TaskAnswers && self.draft == Draft::First
    }
}

/// Why a ratified request cannot be written in a draft.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// The draft does not have the method.
    #[error("{draft} has no {method}")]
    Unsupported {
        /// The draft.
        draft: Draft,
        /// The method of the request.
        method: String,
    },
    /// A member is missing.
    #[error("the request has no {0}")]
    Missing(&'static str),
    /// A member is not an object.
    #[error("{0} is not an object")]
    NotAnObject(&'static str),
    /// The request is not a JSON object.
    #[error(transparent)]
    Json(#[from] JsonError),
}

/// A request that was refused by the dialect itself.
type Refused<T> = Result<T, Box<Rejection>>;
