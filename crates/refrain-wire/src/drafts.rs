//! Translates the messages of three drafts to and from the ratified revision.
//!
//! | dialect | asks | answers | state | tasks |
//! | --- | --- | --- | --- | --- |
//! | second draft | `result.inputRequests` | `params.inputResponses` | `requestState` next to them | `task` in params, `tasks/result`, `tasks/input_response` |
//! | first draft | `input_requests` next to the id | `input_responses` next to the id, each in a `result` | `request_state` next to them | the same, but answers are a message without a method |
//! | sketch | `dependent_requests` next to the id | `dependent_responses` next to the id, each in a `result` | `request_state`, optional | not supported |
//!
//! ```
//! use refrain_wire::drafts::{Draft, DraftRequest};
//!
//! let request = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet"}}"#;
//! let read = Draft::Sketch.read_request(request)?;
//! let DraftRequest::Request { message, exchange } = read else { panic!("expected a request") };
//! assert!(refrain_wire::ratified::read_call(&message).is_some());
//!
//! let reply = br#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"r":{"method":"roots/list"}}}}"#;
//! let written = exchange.write_reply(reply).expect("calls have a reply");
//! assert_eq!(written, br#"{"jsonrpc":"2.0","id":1,"dependent_requests":{"r":{"method":"roots/list"}}}"#);
//! # Ok::<(), Box<refrain_wire::Rejection>>(())
//! ```
//!
//! Invariants: members keep their order; members that a draft does not have are removed.

mod meta;
mod object;
mod reply;
mod request;
mod task;

pub use task::join_task;

use serde_json::value::RawValue;

use crate::canonical::JsonError;
use crate::envelope::Rejection;
use crate::error::RpcError;
use crate::legacy::{Initialize, Revision, decode_initialize_in};

/// A draft whose messages can be translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Draft {
    /// The initial sketch. It has no state and no tasks; Refrain adds an optional state.
    Sketch,
    /// The first draft of the SEP "Multi Round-Trip Requests".
    First,
    /// The second draft of that SEP.
    Second,
}

impl Draft {
    /// All drafts, the oldest first.
    pub const ALL: [Self; 3] = [Self::Sketch, Self::First, Self::Second];

    /// The draft's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sketch => "draft-0",
            Self::First => "draft-1",
            Self::Second => "draft-2",
        }
    }

    /// The draft with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|draft| draft.name() == name)
    }

    /// The path of the draft's HTTP endpoint.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Sketch => "/drafts/0/mcp",
            Self::First => "/drafts/1/mcp",
            Self::Second => "/drafts/2/mcp",
        }
    }

    /// Whether the draft has tasks.
    pub const fn has_tasks(self) -> bool {
        !matches!(self, Self::Sketch)
    }

    /// Reads the params of `initialize`. The revision is always 2025-11-25, which the drafts extend.
    pub fn decode_initialize(self, raw: Option<&RawValue>) -> Result<Initialize, RpcError> {
        decode_initialize_in(Some(BASE_REVISION), raw)
    }

    const fn names(self) -> MemberNames {
        let (asks, answers, state) = match self {
            Self::Sketch => ("dependent_requests", "dependent_responses", "request_state"),
            Self::First => ("input_requests", "input_responses", "request_state"),
            Self::Second => return RATIFIED,
        };
        MemberNames {
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

/// The names of the members for asks, answers and state.
struct MemberNames {
    asks: &'static str,
    answers: &'static str,
    state: &'static str,
}

const RATIFIED: MemberNames = MemberNames {
    asks: "inputRequests",
    answers: "inputResponses",
    state: "requestState",
};

/// The revision that the drafts extend, and whose handshake they use.
const BASE_REVISION: Revision = Revision::V2025_11_25;

/// The `_meta` key of the task that a message belongs to.
pub const RELATED_TASK_KEY: &str = "io.modelcontextprotocol/related-task";

/// The method that returns the outcome of a task. The ratified revision returns it from `tasks/get`.
pub const TASK_RESULT: &str = "tasks/result";

/// A message from a client of a draft.
#[derive(Debug)]
pub enum DraftRequest {
    /// A request.
    Request {
        /// The request, translated to the ratified revision.
        message: Vec<u8>,
        /// The context for translating the reply.
        exchange: DraftExchange,
    },
    /// A notification, which needs no translation.
    Notification,
    /// A request that is already answered, with its reply.
    Replied(Vec<u8>),
}

/// A request of a draft whose reply is outstanding.
#[derive(Debug, Clone)]
pub struct DraftExchange {
    draft: Draft,
    kind: RequestKind,
    /// The id of the task that the request names.
    task: Option<String>,
    /// Whether the client accepts a task as the reply.
    wants_task: bool,
}

/// Requests grouped by the translation of their reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Call,
    Handshake,
    TaskGet,
    TaskResult,
    TaskAnswers,
    TaskCancel,
    Other,
}

impl DraftExchange {
    /// Whether the request asks for the result of a task. The reply must wait until the task is not `working`.
    pub fn waits_for_task(&self) -> bool {
        self.kind == RequestKind::TaskResult
    }

    /// Whether the request cancels a task. The reply must contain the cancelled task.
    pub fn cancels_task(&self) -> bool {
        self.kind == RequestKind::TaskCancel
    }

    /// Whether the request answers asks of a task. After invalid answers, the reply must wait until the task asks again.
    pub fn answers_task(&self) -> bool {
        self.kind == RequestKind::TaskAnswers
    }

    /// Whether a successful request gets no reply.
    pub fn is_silent(&self) -> bool {
        self.kind == RequestKind::TaskAnswers && self.draft == Draft::First
    }
}

/// A request that cannot be translated to a draft.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// The draft does not have the method.
    #[error("{draft} does not support {method}")]
    Unsupported {
        /// The draft.
        draft: Draft,
        /// The method of the request.
        method: String,
    },
    /// A member is missing.
    #[error("the request lacks {0}")]
    Missing(&'static str),
    /// A member is not an object.
    #[error("{0} is not an object")]
    NotAnObject(&'static str),
    /// The request is not a JSON object.
    #[error(transparent)]
    Json(#[from] JsonError),
}

type DraftResult<T> = Result<T, Box<Rejection>>;
