//! What tools, prompts and resources return.
//!
//! A tool returns a `String`, a [`Json`](crate::Json), a list of [`Content`] or a [`ToolResult`]; a prompt returns
//! [`PromptMessage`]s; a resource returns [`ResourceContents`].

pub use refrain_wire::{
    Annotations, Content, LogLevel, PromptMessage, PromptResult, ReadResult, ResourceContents,
    ResourceLink, Role, ToolResult,
};
