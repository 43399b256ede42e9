//! What a call is aimed at.

use crate::catalog::{RegisteredTemplate, RegisteredTool, written};
use crate::handler::Start as StartHandler;
use crate::metrics::TargetCounts;
use crate::prompt::Prompt;
use crate::reply::ReplyTo;
use crate::resource::Resource;
use crate::server::Server;
use refrain_wire::{Call, CallKind, RpcError};
use serde_json::Value;
use std::sync::Arc;

/// What a call is aimed at.
#[derive(Clone)]
pub(crate) enum Target {
    Tool(Arc<RegisteredTool>),
    Prompt(Arc<Prompt>),
    Resource(Arc<Resource>),
    Template(Arc<RegisteredTemplate>),
}

impl Target {
    pub(super) fn handler(&self) -> &StartHandler {
        match self {
            Self::Tool(tool) => &tool.tool.start,
            Self::Prompt(prompt) => &prompt.start,
            Self::Resource(resource) => &resource.start,
            Self::Template(known) => &known.template.start,
        }
    }

    /// Is its handler kept in memory between two rounds?
    pub(super) fn is_live(&self) -> bool {
        matches!(self, Self::Tool(tool) if tool.tool.live)
    }

    /// The scopes that a caller needs for it.
    pub(super) fn scopes(&self) -> &[String] {
        match self {
            Self::Tool(tool) => &tool.tool.scopes,
            Self::Prompt(prompt) => &prompt.scopes,
            Self::Resource(resource) => &resource.scopes,
            Self::Template(known) => &known.template.scopes,
        }
    }

    pub(super) fn counts(&self) -> Option<&Arc<TargetCounts>> {
        match self {
            Self::Tool(tool) => tool.tool.counts.get(),
            Self::Prompt(prompt) => prompt.counts.get(),
            Self::Resource(resource) => resource.counts.get(),
            Self::Template(known) => known.template.counts.get(),
        }
    }

    /// The URI it was registered under; of a template that is its text.
    pub(super) fn uri(&self) -> Option<&str> {
        match self {
            Self::Tool(_) | Self::Prompt(_) => None,
            Self::Resource(resource) => Some(&resource.info.uri),
            Self::Template(known) => Some(&known.template.info.uri_template),
        }
    }

    /// What a reply to a call of it belongs to.
    pub(super) fn reply_to(&self, name: &str) -> ReplyTo {
        let (mime_type, cache) = match self {
            Self::Tool(_) | Self::Prompt(_) => return ReplyTo::default(),
            Self::Resource(resource) => (&resource.info.mime_type, resource.cache),
            Self::Template(known) => (&known.template.info.mime_type, known.template.cache),
        };
        ReplyTo {
            uri: written(name).into_owned(),
            mime_type: mime_type.clone(),
            cache,
        }
    }

    /// The arguments as the handler takes them, where they came as text.
    pub(super) fn read_texts(&self, arguments: &mut Value) {
        match self {
            Self::Prompt(prompt) => prompt.texts.convert(arguments),
            Self::Template(known) => known.template.texts.convert(arguments),
            Self::Tool(_) | Self::Resource(_) => {}
        }
    }
}

/// Finds what a call is aimed at, and the variables of its URI where that is a resource template.
pub(super) fn find(server: &Server, call: &Call<'_>) -> Result<(Target, Option<Value>), RpcError> {
    let name = call.target.as_ref();
    let catalog = server.catalog();
    let unknown = |kind| RpcError::invalid_params(format!("Unknown {kind}: {name}"));
    match call.kind {
        CallKind::Tool => match catalog.tools.get(name) {
            Some(tool) => Ok((Target::Tool(tool.clone()), None)),
            None => Err(unknown("tool")),
        },
        CallKind::Prompt => match catalog.prompts.get(name) {
            Some(prompt) => Ok((Target::Prompt(prompt.clone()), None)),
            None => Err(unknown("prompt")),
        },
        CallKind::Resource => {
            if let Some(resource) = catalog.resource(name) {
                return Ok((Target::Resource(resource.clone()), None));
            }
            let Some((variables, template)) = catalog.template_of(name) else {
                return Err(RpcError::resource_not_found(name));
            };
            Ok((Target::Template(template.clone()), Some(variables)))
        }
    }
}
