//! Return values of handlers.

use refrain_core::{Error, Incomplete, Outcome, Result};
use refrain_wire::{
    Cache, Content, PromptMessage, PromptResult, ReadResult, ResourceContents, ResultBody,
    ToolResult,
};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::{Map, Value};

/// Marks the handlers of tools.
#[derive(Debug)]
pub enum ToolCall {}
/// Marks the handlers of prompts.
#[derive(Debug)]
pub enum PromptCall {}
/// Marks the handlers of resources.
#[derive(Debug)]
pub enum ReadCall {}

/// The request that a reply belongs to.
#[derive(Clone, Debug, Default)]
pub struct ReplyTo {
    /// The URI that is read; empty for tools and prompts.
    pub uri: String,
    /// The media type the resource was registered with.
    pub mime_type: Option<String>,
    /// The cache hint of the resource.
    pub cache: Cache,
}

/// A value that a handler of the kind `K` ([`ToolCall`], [`PromptCall`], [`ReadCall`]) may return.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of this handler",
    note = "a tool may return String, &str, Content, Vec<Content>, ToolResult, Json<T>, Incomplete or Reply<..>",
    note = "a prompt may return String, &str, Vec<PromptMessage>, PromptResult, Incomplete or Reply<..>",
    note = "a resource may return String, &str, Json<T>, ResourceContents, Vec<ResourceContents>, ReadResult, Incomplete or Reply<..>"
)]
pub trait IntoReply<K> {
    /// Turns the value into the flow's outcome.
    fn into_reply(self, to: &ReplyTo) -> Result<Outcome>;

    /// The JSON schema of the structured result, for values that have one.
    fn output_schema() -> Option<Value> {
        None
    }
}

/// A structured result: sent as `structuredContent`, and as text for other clients. The tool's output schema is that of
/// `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// The return value of a handler in the explicit style.
#[derive(Debug)]
pub enum Reply<R> {
    /// The result of the call.
    Complete(R),
    /// Asks that must be answered first.
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

fn complete(members: &impl Serialize, meta: Option<&Map<String, Value>>) -> Result<Outcome> {
    let body = ResultBody::from_members(members).map_err(Error::internal)?;
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

impl IntoReply<ToolCall> for ToolResult {
    fn into_reply(self, _: &ReplyTo) -> Result<Outcome> {
        ResultBody::from_tool(self)
            .map(Outcome::Complete)
            .map_err(Error::internal)
    }
}

impl IntoReply<ToolCall> for &str {
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
        let mut generator = SchemaSettings::draft2020_12()
            .for_serialize()
            .into_generator();
        let schema = generator.root_schema_for::<T>().to_value();
        // A schema that accepts everything is omitted.
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

/// Replies that are converted to another type of reply of the same kind.
macro_rules! converted {
    ($($kind:ident: $type:ty => |$value:ident, $to:ident| $reply:expr;)*) => {$(
        impl IntoReply<$kind> for $type {
            fn into_reply(self, $to: &ReplyTo) -> Result<Outcome> {
                let $value = self;
                IntoReply::<$kind>::into_reply($reply, $to)
            }
        }
    )*};
}

converted! {
    ToolCall: String => |text, to| text.as_str();
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
