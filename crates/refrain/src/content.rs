//! Results of tools, prompts and resources, and the level of log messages.
//!
//! A tool returns a `String`, a [`Json`](crate::Json), a list of [`Content`] or a [`ToolResult`]; a prompt returns
//! [`PromptMessage`]s; a resource returns [`ResourceContents`].

pub use refrain_wire::{
    Content, LogLevel, PromptMessage, ResourceContents, ResourceLink, ToolResult,
};
