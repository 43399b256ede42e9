//! Forms, sampling requests and their answers.
//!
//! [`Cx::elicit`](crate::Cx::elicit) takes any type that derives [`Elicit`](crate::Elicit). A [`Form`] is built by hand where
//! its fields are known only at run time; [`SamplingParams`] is a request to the client's model.

pub use refrain_core::{Choice, Field, Form};
pub use refrain_wire::{
    Capability, Root, SamplingAnswer, SamplingBlock, SamplingMessage, SamplingParams, ToolChoice,
    ToolInfo, ToolUse, ToolUseResult,
};
