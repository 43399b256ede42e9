//! The messages of MCP 2026-07-28 and of the revisions before it, read and written without I/O.
//!
//! Bytes come in through [`parse`], which finds the JSON-RPC envelope and leaves `params` as raw
//! text. The dialect then reads the parameters of the one method at hand ([`decode_call`],
//! [`decode_list`], [`decode_meta`]) into neutral types that borrow from those bytes. A [`Reply`]
//! goes out through [`write_reply`], straight into the caller's buffer.
//!
//! ```
//! use refrain_wire::{CallKind, Message, Reply, RpcError, ToolResult, decode_call, parse, write_reply};
//! use serde_json::value::RawValue;
//!
//! let bytes = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet","_meta":{
//!     "io.modelcontextprotocol/protocolVersion":"2026-07-28",
//!     "io.modelcontextprotocol/clientCapabilities":{}}}}"#;
//! let Ok(Message::Request { id, method, params }) = parse(bytes) else { panic!("a request") };
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
//! Always true here: decoding borrows and says in its error which member was wrong; an unknown
//! member is skipped without being copied; a member that is read may be given only once.

mod answer;
mod ask;
mod call;
pub mod client;
mod complete;
mod content;
mod decode;
mod drafts;
mod envelope;
mod error;
mod fast;
mod form;
mod info;
mod list;
mod listen;
mod meta;
mod older;
mod param_headers;
mod ratified;
mod sampling;
mod strict;
mod tasks;
mod trace;
mod write;

pub use answer::{
    Action, AnswerError, ElicitAnswer, Root, RootsAnswer, ShapeError, check_answer_shape,
};
pub use ask::{Ask, AskKind};
pub use call::{Answers, Call, CallKind, Incomplete, Reply, ResultBody};
pub use complete::{
    CompleteParams, CompleteResult, Completion, MAX_SUGGESTIONS, Reference, decode_complete,
};
pub use content::{Annotations, Content, ResourceContents, ResourceLink, Role};
pub use drafts::{
    Draft, DraftError, DraftExchange, DraftRequest, RELATED_TASK_KEY, TASK_RESULT, join_task,
};
pub use envelope::{Id, IdBuf, Message, Rejection, Response, parse};
pub use error::{ErrorCode, RpcError};
pub use fast::{Incoming, read_call, read_message};
pub use form::{
    Choice, ContentError, Field, FieldError, FieldFlaw, FieldKind, Form, FormError, Format,
};
pub use info::{
    Empty, Icon, Implementation, ListCapability, PromptArgument, PromptInfo, ResourceInfo,
    ResourceTemplateInfo, ServerCapabilities, TaskSupport, TasksCapability, Theme, ToolAnnotations,
    ToolExecution, ToolInfo,
};
pub use list::{
    Cache, CacheScope, DiscoverResult, ListResult, Listed, PromptMessage, PromptResult, ReadResult,
    ToolResult,
};
pub use listen::{
    Change, Filter, ListenParams, decode_listen, write_acknowledged, write_change,
    write_listen_cancelled, write_listen_end, write_task_change,
};
pub use meta::{
    CALL_ID_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, Capabilities, Capability, LOG_LEVEL_KEY,
    LogLevel, Meta, PROTOCOL_VERSION, PROTOCOL_VERSION_KEY, SERVER_INFO_KEY, SUBSCRIPTION_ID_KEY,
    TASK_TTL_KEY, TASKS_EXTENSION,
};
pub use older::{
    Agreed, Initialize, InitializeResult, Revision, decode_initialize, decode_older_call,
    decode_older_complete, decode_older_list, decode_set_level, decode_uri, is_modern, split_batch,
    write_ask, write_cancelled, write_older_change, write_older_error, write_older_reply,
};
pub use param_headers::{
    InvalidHeaderArgument, ParamHeaderError, ParamHeaders, decode_header, encode_header,
};
pub use ratified::{
    ListParams, decode_call, decode_list, decode_meta, record_reply, write_error, write_log,
    write_progress, write_reply,
};
pub use sampling::{
    ConversationError, IncludeContext, MessageError, ModelHint, ModelPreferences, SamplingAnswer,
    SamplingBlock, SamplingMessage, SamplingParams, ToolChoice, ToolUse, ToolUseResult,
};
pub use strict::{JsonError, parse_value, write_canonical};
pub use tasks::{
    TaskInfo, TaskMethod, TaskParams, TaskState, decode_task, error_at_rest, result_at_rest,
    timestamp,
};
pub use trace::{SpanId, TraceContext, TraceId, Traceparent};
