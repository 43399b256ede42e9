//! The target of a call: a tool, prompt, resource or resource template.

use crate::catalog::{
    CatalogEntry, Prompt, RegisteredTemplate, RegisteredTool, Resource, encode_uri,
};
use crate::metrics::TargetCounts;
use crate::reply::ReplyTo;
use jsonschema::Validator;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub(crate) enum Target {
    Tool(Arc<RegisteredTool>),
    Prompt(Arc<Prompt>),
    Resource(Arc<Resource>),
    Template(Arc<RegisteredTemplate>),
}

impl Target {
    pub(super) fn entry(&self) -> &CatalogEntry {
        match self {
            Self::Tool(tool) => &tool.tool.entry,
            Self::Prompt(prompt) => &prompt.entry,
            Self::Resource(resource) => &resource.entry,
            Self::Template(registered) => &registered.template.entry,
        }
    }

    /// Whether the handler uses `once`.
    pub(super) fn uses_once(&self) -> bool {
        matches!(self, Self::Tool(tool) if tool.tool.once)
    }

    /// The maximum duration of a round, if the tool sets one.
    pub(crate) fn round_time(&self) -> Option<Duration> {
        match self {
            Self::Tool(tool) => tool.tool.round_time,
            _ => None,
        }
    }

    /// Whether each token of the call can be used only once.
    pub(super) fn is_single_use(&self) -> bool {
        matches!(self, Self::Tool(tool) if tool.tool.single_use)
    }

    /// The handler version in tokens. Only tools have versions.
    pub(super) fn version(&self) -> &str {
        match self {
            Self::Tool(tool) => &tool.tool.version,
            _ => "1",
        }
    }

    /// The validator of structured content.
    pub(crate) fn output(&self) -> Option<&Arc<Validator>> {
        match self {
            Self::Tool(tool) => tool.output.as_ref(),
            _ => None,
        }
    }

    /// Whether the handler stays in memory between rounds.
    pub(super) fn is_live(&self) -> bool {
        matches!(self, Self::Tool(tool) if tool.tool.live)
    }

    pub(super) fn counts(&self) -> Option<&Arc<TargetCounts>> {
        self.entry().counts.get()
    }

    /// The registered URI or URI template.
    pub(super) fn uri(&self) -> Option<&str> {
        match self {
            Self::Tool(_) | Self::Prompt(_) => None,
            Self::Resource(resource) => Some(&resource.info.uri),
            Self::Template(registered) => Some(&registered.template.info.uri_template),
        }
    }

    /// The fields that complete a handler's reply.
    pub(super) fn reply_to(&self, name: &str) -> ReplyTo {
        let mime_type = match self {
            Self::Tool(_) | Self::Prompt(_) => return ReplyTo::default(),
            Self::Resource(resource) => &resource.info.mime_type,
            Self::Template(registered) => &registered.template.info.mime_type,
        };
        ReplyTo {
            uri: encode_uri(name).into_owned(),
            mime_type: mime_type.clone(),
            cache: self.entry().cache,
        }
    }
}
