//! The target of a call: a tool, a prompt, a resource or a resource template.

use crate::catalog::{Entry, Prompt, RegisteredTemplate, RegisteredTool, Resource, written};
use crate::metrics::TargetCounts;
use crate::reply::ReplyTo;
use jsonschema::Validator;
use std::sync::Arc;

/// The target of a call.
#[derive(Clone)]
pub(crate) enum Target {
    Tool(Arc<RegisteredTool>),
    Prompt(Arc<Prompt>),
    Resource(Arc<Resource>),
    Template(Arc<RegisteredTemplate>),
}

impl Target {
    pub(super) fn entry(&self) -> &Entry {
        match self {
            Self::Tool(tool) => &tool.tool.entry,
            Self::Prompt(prompt) => &prompt.entry,
            Self::Resource(resource) => &resource.entry,
            Self::Template(known) => &known.template.entry,
        }
    }

    /// Does the handler use `once`?
    pub(super) fn uses_once(&self) -> bool {
        matches!(self, Self::Tool(tool) if tool.tool.once)
    }

    /// May each token of the call be used only once?
    pub(super) fn is_single_use(&self) -> bool {
        matches!(self, Self::Tool(tool) if tool.tool.single_use)
    }

    /// The version of the handler that tokens name; handlers other than tools have none.
    pub(super) fn version(&self) -> &str {
        match self {
            Self::Tool(tool) => &tool.tool.version,
            _ => "1",
        }
    }

    /// The schema of structured content.
    pub(crate) fn output(&self) -> Option<&Arc<Validator>> {
        match self {
            Self::Tool(tool) => tool.output.as_ref(),
            _ => None,
        }
    }

    /// Is the handler kept in memory between two rounds?
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
            Self::Template(known) => Some(&known.template.info.uri_template),
        }
    }

    /// What a handler's reply is completed with.
    pub(super) fn reply_to(&self, name: &str) -> ReplyTo {
        let mime_type = match self {
            Self::Tool(_) | Self::Prompt(_) => return ReplyTo::default(),
            Self::Resource(resource) => &resource.info.mime_type,
            Self::Template(known) => &known.template.info.mime_type,
        };
        ReplyTo {
            uri: written(name).into_owned(),
            mime_type: mime_type.clone(),
            cache: self.entry().cache,
        }
    }
}
