//! Prompts.

use crate::handler::{Handler, Needs, Start, erase};
use crate::reply::PromptCall;
use refrain_wire::{PromptArgument, PromptInfo};
use serde_json::Value;

/// A prompt: a name, a description and a handler. Its arguments are strings.
pub struct Prompt {
    pub(crate) info: PromptInfo,
    pub(crate) scopes: Vec<String>,
    pub(crate) needs: Vec<Needs>,
    pub(crate) start: Start,
}

impl Prompt {
    /// A prompt of this name. Its arguments are the fields of the handler's argument struct.
    pub fn new<M, H: Handler<M, PromptCall>>(name: impl Into<String>, handler: H) -> Self {
        Self {
            info: PromptInfo {
                name: name.into(),
                title: None,
                description: None,
                arguments: H::schema().as_ref().map(arguments).unwrap_or_default(),
            },
            scopes: Vec::new(),
            needs: H::needs(),
            start: erase(handler),
        }
    }

    /// The prompt as it is listed.
    pub fn info(&self) -> &PromptInfo {
        &self.info
    }

    /// A title to show.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.info.title = Some(title.into());
        self
    }

    /// What the prompt is for.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.info.description = Some(description.into());
        self
    }

    /// Scopes that a caller needs to get it, all of them; every round is checked. Over HTTP a caller who lacks one is
    /// answered with 403 and told which are needed; over stdio they are not asked for.
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes.extend(scopes.into_iter().map(Into::into));
        self
    }
}

impl std::fmt::Debug for Prompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prompt")
            .field("name", &self.info.name)
            .finish_non_exhaustive()
    }
}

/// The fields of an object's schema as the arguments of a prompt.
fn arguments(schema: &Value) -> Vec<PromptArgument> {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let text = |field: &Value, key: &str| field[key].as_str().map(str::to_owned);
    schema["properties"]
        .as_object()
        .map(|fields| {
            fields
                .iter()
                .map(|(name, field)| PromptArgument {
                    name: name.clone(),
                    title: text(field, "title"),
                    description: text(field, "description"),
                    required: required.contains(&name.as_str()),
                })
                .collect()
        })
        .unwrap_or_default()
}
