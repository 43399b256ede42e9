//! Return types of handlers.

use crate::handler::schema_settings;
use refrain_core::{Error, Incomplete, Outcome, Result};
use refrain_wire::{
    Cache, Content, PromptMessage, PromptResult, ReadResult, ResourceContents, ResultBody,
    ToolResult,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// Marker type for tool handlers.
#[derive(Debug)]
pub enum ToolCall {}
/// Marker type for prompt handlers.
#[derive(Debug)]
pub enum PromptCall {}
/// Marker type for resource handlers.
#[derive(Debug)]
pub enum ReadCall {}

/// Properties of the request to which a value is the reply.
#[derive(Clone, Debug, Default)]
pub struct ReplyTo {
    /// The URI being read; empty for tools and prompts.
    pub uri: String,
    /// The registered media type of the resource.
    pub mime_type: Option<String>,
    /// The cache hint of the resource.
    pub cache: Cache,
}

/// A return type of handlers of kind `K`: [`ToolCall`], [`PromptCall`] or [`ReadCall`].
#[diagnostic::on_unimplemented(
    message = "a handler of this kind cannot return `{Self}`",
    note = "a tool may return String, &str, Content, Vec<Content>, ToolResult, Json<T>, RawResult, Incomplete or Reply<..>",
    note = "a prompt may return String, &str, Vec<PromptMessage>, PromptResult, RawResult, Incomplete or Reply<..>",
    note = "a resource may return String, &str, Json<T>, ResourceContents, Vec<ResourceContents>, ReadResult, RawResult, Incomplete or Reply<..>"
)]
pub trait IntoReply<K> {
    /// Converts the value into the outcome of the handler.
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome>;

    /// The JSON schema of the structured result, if any.
    fn output_schema() -> Option<Value> {
        None
    }
}

/// A structured result, sent as `structuredContent` and as text. The schema of `T` becomes the tool's output schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// A result from another server, as a JSON object. All members, known or not, are sent unchanged, except those that this
/// server sets itself: `resultType`, `inputRequests`, `requestState`, and the server's name in `_meta`. If the result of
/// a resource lacks `ttlMs` or `cacheScope`, the value of the registered resource is added. Legacy clients get only the
/// members that their revision defines.
///
/// ```
/// use refrain::prelude::*;
/// use refrain::server::RawResult;
/// use serde_json::json;
///
/// async fn proxy(_: Cx) -> Result<RawResult> {
///     let result = json!({"content": [{"type": "x-hologram", "url": "https://example.com"}], "x-cost": 3});
///     Ok(RawResult(serde_json::from_value(result)?))
/// }
/// let tool = Tool::new("hologram", proxy);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawResult(pub Map<String, Value>);

/// The return value of a handler in the explicit style: it reads the answers that have arrived, and returns the missing
/// asks instead of awaiting them.
#[derive(Debug)]
pub enum Reply<R> {
    /// The result of the call.
    Complete(R),
    /// Questions that the client must answer before the call can complete.
    Incomplete(Incomplete),
}

impl<K, R: IntoReply<K>> IntoReply<K> for Reply<R> {
    fn output_schema() -> Option<Value> {
        R::output_schema()
    }

    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        match self {
            Self::Complete(result) => result.into_reply(to),
            Self::Incomplete(incomplete) => Ok(Outcome::Incomplete(incomplete)),
        }
    }
}

fn complete(result: &impl Serialize, meta: Option<&Map<String, Value>>) -> Result<Outcome> {
    let body = ResultBody::from_members(result).map_err(Error::internal)?;
    let body = match meta {
        Some(meta) => body.with_meta(meta).map_err(Error::internal)?,
        None => body,
    };
    Ok(Outcome::Complete(body))
}

impl<K> IntoReply<K> for Outcome {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        Ok(self)
    }
}

impl<K> IntoReply<K> for Incomplete {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        Ok(Outcome::Incomplete(self))
    }
}

impl RawResult {
    fn complete(self) -> Result<Outcome> {
        let body = ResultBody::from_foreign(self.0).map_err(Error::internal)?;
        Ok(Outcome::Complete(body))
    }
}

impl IntoReply<ToolCall> for RawResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        self.complete()
    }
}

impl IntoReply<PromptCall> for RawResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        self.complete()
    }
}

impl IntoReply<ReadCall> for RawResult {
    fn into_reply(mut self, to: &ReplyTo) -> Result<Outcome> {
        let cache = serde_json::to_value(to.cache).map_err(Error::internal)?;
        for (member, value) in cache.as_object().into_iter().flatten() {
            self.0.entry(member).or_insert_with(|| value.clone());
        }
        self.complete()
    }
}

impl IntoReply<ToolCall> for ToolResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        ResultBody::from_tool(self)
            .map(Outcome::Complete)
            .map_err(Error::internal)
    }
}

impl IntoReply<ToolCall> for String {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        Ok(Outcome::Complete(ResultBody::text(self)))
    }
}

impl<T: Serialize + JsonSchema> IntoReply<ToolCall> for Json<T> {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        let value = serde_json::to_value(&self.0).map_err(Error::internal)?;
        let result = ToolResult {
            content: vec![Content::text(value.to_string())],
            structured_content: Some(value),
            ..ToolResult::default()
        };
        result.into_reply(to)
    }

    fn output_schema() -> Option<Value> {
        let mut generator = schema_settings().for_serialize().into_generator();
        let schema = generator.root_schema_for::<T>().to_value();
        // A schema without constraints is omitted.
        schema
            .as_object()
            .is_some_and(|schema| schema.keys().any(|key| key != "$schema" && key != "title"))
            .then_some(schema)
    }
}

impl<T: Serialize> IntoReply<ReadCall> for Json<T> {
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome> {
        let text = serde_json::to_string(&self.0).map_err(Error::internal)?;
        let mime_type = to.mime_type.as_deref().unwrap_or("application/json");
        let contents = ResourceContents::text(to.uri.clone(), mime_type, text);
        IntoReply::<ReadCall>::into_reply(contents, to)
    }
}

impl IntoReply<PromptCall> for PromptResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        complete(&self, self.meta.as_ref())
    }
}

impl IntoReply<ReadCall> for ReadResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        complete(&self, self.meta.as_ref())
    }
}

/// Implements `IntoReply` by conversion to another reply type.
macro_rules! convert_replies {
    ($($kind:ident: $type:ty => |$value:ident, $to:ident| $reply:expr;)*) => {$(
        impl IntoReply<$kind> for $type {
            fn into_reply(self, $to: &ReplyTo) -> Result<Outcome> {
                let $value = self;
                IntoReply::<$kind>::into_reply($reply, $to)
            }
        }
    )*};
}

convert_replies! {
    ToolCall: &str => |text, to| text.to_owned();
    ToolCall: Content => |content, to| vec![content];
    ToolCall: Vec<Content> => |content, to| ToolResult { content, ..ToolResult::default() };
    PromptCall: &str => |text, to| text.to_owned();
    PromptCall: String => |text, to| vec![PromptMessage::user(text)];
    PromptCall: Vec<PromptMessage> => |messages, to| PromptResult {
        messages,
        ..PromptResult::default()
    };
    ReadCall: &str => |text, to| text.to_owned();
    ReadCall: String => |text, to| {
        let mime_type = to.mime_type.as_deref().unwrap_or("text/plain");
        ResourceContents::text(to.uri.clone(), mime_type, text)
    };
    ReadCall: ResourceContents => |contents, to| vec![contents];
    ReadCall: Vec<ResourceContents> => |contents, to| ReadResult {
        contents,
        cache: to.cache,
        meta: None,
    };
}
