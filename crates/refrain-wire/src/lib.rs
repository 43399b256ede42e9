//! Reads and writes the messages of MCP 2026-07-28, the earlier revisions and the drafts, without I/O.
//!
//! | module | contents |
//! | --- | --- |
//! | [`ratified`] | requests and replies of 2026-07-28 |
//! | [`legacy`] | requests and replies of 2025-11-25, 2025-06-18 and 2025-03-26 |
//! | [`drafts`] | messages of the three drafts that preceded 2026-07-28, translated to and from it |
//! | [`client`] | the client side: writes requests, reads server messages |
//!
//! The types at the root are shared by all modules: the envelope ([`parse`], [`Message`], [`Id`], [`RpcError`]), calls and
//! replies ([`Call`], [`Reply`]), asks and answers ([`Ask`], [`Form`], [`SamplingParams`]), content and lists.
//!
//! [`parse`] reads the JSON-RPC envelope and leaves `params` as raw text. [`ratified::decode_call`] reads the params into
//! types that borrow from the message. [`ratified::write_reply`] writes a [`Reply`] into the caller's buffer.
//!
//! ```
//! use refrain_wire::ratified::{decode_call, write_reply};
//! use refrain_wire::{CallKind, Message, Reply, RpcError, ToolResult, parse};
//! use serde_json::value::RawValue;
//!
//! let bytes = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet","_meta":{
//!     "io.modelcontextprotocol/protocolVersion":"2026-07-28",
//!     "io.modelcontextprotocol/clientCapabilities":{}}}}"#;
//! let Ok(Message::Request { id, method, params }) = parse(bytes) else { panic!("expected a request") };
//! let reply = match CallKind::from_method(&method) {
//!     None => Reply::Error(RpcError::method_not_found(&method)),
//!     Some(kind) => match decode_call(kind, params) {
//!         Err(error) => Reply::Error(error),
//!         Ok(call) => Reply::complete(&ToolResult::text(format!("this is {}", call.target))),
//!     },
//! };
//!
//! let server = RawValue::from_string(r#"{"name":"doc","version":"1"}"#.to_owned())?;
//! let mut out = Vec::new();
//! write_reply(&mut out, Some(id), &reply, &server);
//! assert!(out.starts_with(br#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete""#));
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! Invariants: decoded values borrow from the message, except strings with escapes; errors name the invalid member; unknown
//! members are skipped; a duplicate of a known member is an error.

mod answer;
mod ask;
mod call;
mod canonical;
mod capabilities;
pub mod client;
mod complete;
mod content;
mod decode;
pub mod drafts;
mod envelope;
mod error;
mod excerpt;
mod form;
mod info;
pub mod legacy;
mod list;
mod listen;
#[doc(hidden)]
pub mod log_limit;
mod members;
mod meta;
mod meta_cache;
#[doc(hidden)]
pub mod otel;
mod param_headers;
mod plain;
pub mod ratified;
mod read_call;
mod sampling;
mod similar;
mod skills;
mod tasks;
mod trace;
mod value_count;
mod write;

pub use answer::{
    Action, AnswerError, ElicitAnswer, Root, RootsAnswer, ShapeError, check_answer_shape,
    read_answer,
};
pub use ask::{Ask, AskKind};
pub use call::{Answers, Call, CallKind, Incomplete, Reply, ResultBody};
pub use canonical::{JsonError, parse_value, write_canonical};
pub use capabilities::{Capabilities, Capability, TASKS_EXTENSION};
pub use complete::{CompleteParams, CompleteResult, Completion, MAX_SUGGESTIONS, Reference};
pub use content::{Annotations, Content, ResourceContents, ResourceLink, Role};
pub use envelope::{Id, IdBuf, Message, Rejection, Response, find_request_id, parse};
pub use error::{ErrorCode, RpcError};
pub use excerpt::Excerpt;
pub use form::{
    Choice, ContentError, Field, FieldError, FieldKind, Form, FormError, Format, InvalidField,
};
pub use info::{
    Empty, Icon, Implementation, ListCapability, PromptArgument, PromptInfo, ResourceInfo,
    ResourceTemplateInfo, ServerCapabilities, TaskSupport, TasksCapability, Theme, ToolAnnotations,
    ToolExecution, ToolInfo,
};
pub use list::{
    Cache, CacheScope, DiscoverResult, ListEntry, ListResult, PromptMessage, PromptResult,
    ReadResult, ToolResult,
};
pub use listen::{Change, Filter, ListenParams};
pub use meta::{
    CALL_ID_KEY, CALL_ID_MAX, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, CustomMeta, LOG_LEVEL_KEY,
    LogLevel, Meta, PROGRESS_TOKEN_KEY, PROTOCOL_VERSION, PROTOCOL_VERSION_KEY, SERVER_INFO_KEY,
    SUBSCRIPTION_ID_KEY, TASK_TTL_KEY,
};
pub use param_headers::{
    InvalidHeaderArgument, ParamHeaderError, ParamHeaders, decode_header, encode_header,
};
pub use sampling::{
    ConversationError, IncludeContext, MessageError, ModelHint, ModelPreferences, SamplingAnswer,
    SamplingBlock, SamplingMessage, SamplingParams, ToolChoice, ToolUse, ToolUseResult,
};
pub use similar::{did_you_mean, similar_names};
pub use skills::{
    SKILLS_EXTENSION, SkillFile, SkillInfo, SkillParams, SkillResources, SkillResult,
};
pub use tasks::{
    TaskInfo, TaskMethod, TaskParams, TaskState, stored_error, stored_result, timestamp,
};
pub use trace::{SpanId, TraceContext, TraceId, Traceparent};
pub use value_count::{TooManyValues, check_values};
