//! Prompts.

use super::builder_macros::{impl_completion, impl_entry};
use super::coerce::TextFields;
use super::complete::{Completers, from_list};
use super::entry::CatalogEntry;
use super::listed::Listed;
use crate::handler::Handler;
use crate::reply::PromptCall;
use refrain_wire::client::AsSent;
use refrain_wire::{PromptArgument, PromptInfo};
use serde_json::Value;
use std::future::Future;

/// A prompt: a name, a description and a handler.
pub struct Prompt {
    pub(crate) info: Listed<PromptInfo>,
    pub(crate) entry: CatalogEntry,
}

impl Prompt {
    /// Creates a prompt. Its arguments are the fields of the handler's argument struct. Clients send text, which is
    /// converted to numbers and booleans where needed.
    pub fn new<M, H: Handler<M, PromptCall>>(name: impl Into<String>, handler: H) -> Self {
        let schema = H::schema().unwrap_or_default();
        Self {
            info: PromptInfo {
                name: name.into(),
                arguments: arguments(&schema),
                ..PromptInfo::default()
            }
            .into(),
            entry: CatalogEntry {
                text_fields: TextFields::new(&schema),
                completers: enum_completers(&schema),
                ..CatalogEntry::new(handler)
            },
        }
    }

    /// The prompt's entry in `prompts/list`.
    pub fn info(&self) -> &PromptInfo {
        &self.info
    }

    /// Sets the entry in `prompts/list` to `entry`, which another server sent. All its members are kept, also those that
    /// Refrain does not know, except the name; see [`Tool::listing`](crate::Tool::listing).
    pub fn listing(mut self, entry: &AsSent<PromptInfo>) -> Self {
        let name = self.info.name.clone();
        self.info = Listed::as_sent(entry, &["name"], |info| info.name = name);
        self
    }

    pub(crate) fn has_argument(&self, name: &str) -> bool {
        self.info
            .arguments
            .iter()
            .any(|argument| argument.name == name)
    }
}

impl_entry!(Prompt, name, "get it");
impl_completion! {
    /// Suggests values for an argument while it is typed. Enums suggest their variants by default.
    ///
    /// ```
    /// # use refrain::server::{CompletionInput, Prompt};
    /// # use refrain::{Cx, Result};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// # struct Review { language: String }
    /// # async fn review(_: Cx, _: Review) -> Result<&'static str> { Ok("Review this.") }
    /// let prompt = Prompt::new("review", review).complete("language", async |input: CompletionInput| {
    ///     let languages = ["python", "rust"];
    ///     let matches = languages.into_iter().filter(|name| name.starts_with(&input.value));
    ///     Ok(matches.collect::<Vec<_>>())
    /// });
    /// ```
    Prompt, argument
}

/// The prompt arguments for the fields of an object schema.
fn arguments(schema: &Value) -> Vec<PromptArgument> {
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |field: &Value, key: &str| field[key].as_str().map(str::to_owned);
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields
        .map(|(name, field)| PromptArgument {
            name: name.clone(),
            title: text(field, "title"),
            description: text(field, "description"),
            required: required.iter().any(|required| required == name),
        })
        .collect()
}

/// Completion functions for the fields of an object schema that have a fixed set of values.
fn enum_completers(schema: &Value) -> Completers {
    let fixed_values = |field: &Value| -> Option<Vec<String>> {
        let target = match field["$ref"].as_str() {
            Some(path) => schema.pointer(path.strip_prefix('#')?)?,
            None => field,
        };
        let values: Vec<String> = match (&target["enum"], &target["oneOf"]) {
            (Value::Array(values), _) => texts(values.iter()),
            (_, Value::Array(variants)) => texts(variants.iter().map(|variant| &variant["const"])),
            _ => return None,
        };
        (!values.is_empty()).then_some(values)
    };
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields
        .filter_map(|(name, field)| Some((name.clone(), from_list(fixed_values(field)?))))
        .collect()
}

fn texts<'a>(values: impl Iterator<Item = &'a Value>) -> Vec<String> {
    values
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
