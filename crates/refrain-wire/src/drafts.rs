//! Three drafts of the ratified revision, each a translation of its messages.
//!
//! | dialect | asks | answers | state | tasks |
//! | --- | --- | --- | --- | --- |
//! | second draft | `result.inputRequests` | `params.inputResponses` | `requestState` beside them | `task` in params, `tasks/result`, `tasks/input_response` |
//! | first draft | `input_requests` beside the id | `input_responses` beside the id, each in a `result` | `request_state` beside them | the same, answered by a message without a method |
//! | sketch | `dependent_requests` beside the id | `dependent_responses` beside the id, each in a `result` | none; `request_state`, where the client sends it back | none |
//!
//! Servers read requests and write replies, clients write requests and read replies; no other module knows drafts.
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
//! Invariants: members keep their order; members that a draft cannot express are left out.

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

    /// Reads the params of `initialize`. The revision is always that of the draft's handshake.
    pub fn decode_initialize(self, raw: Option<&RawValue>) -> Result<Initialize, RpcError> {
        decode_initialize_in(Some(HANDSHAKE), raw)
    }

    const fn names(self) -> Names {
        let (asks, answers, state) = match self {
            Self::Sketch => ("dependent_requests", "dependent_responses", "request_state"),
            Self::First => ("input_requests", "input_responses", "request_state"),
            Self::Second => return RATIFIED,
        };
        Names {
            asks,
            answers,
            state,
        }
    }
}

impl std::fmt::Display for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The names of the members of a round.
struct Names {
    asks: &'static str,
    answers: &'static str,
    state: &'static str,
}

/// The names in the ratified revision.
const RATIFIED: Names = Names {
    asks: "inputRequests",
    answers: "inputResponses",
    state: "requestState",
};

/// The revision whose handshake the drafts have.
const HANDSHAKE: Revision = Revision::V2025_11_25;

/// The `_meta` key that names the task a message belongs to.
pub const RELATED_TASK_KEY: &str = "io.modelcontextprotocol/related-task";

/// The request for the outcome of a task; in the ratified revision that is part of `tasks/get`.
pub const TASK_RESULT: &str = "tasks/result";

/// A message of a draft's client.
#[derive(Debug)]
pub enum DraftRequest {
    /// A request.
    Request {
        /// The request in the ratified revision.
        message: Vec<u8>,
        /// The context to write the reply.
        exchange: DraftExchange,
    },
    /// A notification, which is the same in all dialects.
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
    /// Whether the reply may be a task.
    wants_task: bool,
}

/// The kind of a request, as far as its reply depends on it.
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
    /// Whether the reply waits until the task no longer works.
    pub fn waits_for_task(&self) -> bool {
        self.kind == Kind::TaskResult
    }

    /// Whether the reply shows the cancelled task.
    pub fn shows_task(&self) -> bool {
        self.kind == Kind::TaskCancel
    }

    /// Whether the reply waits until the task asks again if an answer is invalid.
    pub fn settles_task(&self) -> bool {
        self.kind == Kind::TaskAnswers
    }

    /// Whether a successful request has no reply.
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
