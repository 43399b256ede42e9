//! Prompts.

use super::builder_macros::{completed, scoped, shown};
use super::coerce::Texts;
use super::complete::{self, Completers, from_list};
use crate::builder::BuildError;
use crate::handler::{Handler, Needs, Start, erase};
use crate::metrics::TargetCounts;
use crate::reply::PromptCall;
use refrain_core::Result;
use refrain_wire::{PromptArgument, PromptInfo};
use serde_json::Value;
use std::future::Future;
use std::sync::{Arc, OnceLock};

/// A prompt: a name, a description and a handler.
pub struct Prompt {
    pub(crate) info: PromptInfo,
    pub(crate) texts: Texts,
    pub(crate) completers: Completers,
    pub(crate) scopes: Vec<String>,
    pub(crate) needs: Vec<Needs>,
    pub(crate) start: Start,
    /// Handed out when it is registered.
    pub(crate) counts: OnceLock<Arc<TargetCounts>>,
}

impl Prompt {
    /// A prompt of this name. Its arguments are the fields of the handler's argument struct. Clients send them as
    /// text; fields that are numbers or booleans are read from that.
    pub fn new<M, H: Handler<M, PromptCall>>(name: impl Into<String>, handler: H) -> Self {
        let schema = H::schema().unwrap_or_default();
        Self {
            info: PromptInfo {
                name: name.into(),
                arguments: arguments(&schema),
                ..PromptInfo::default()
            },
            texts: Texts::new(&schema),
            completers: choices(&schema),
            scopes: Vec::new(),
            needs: H::needs(),
            start: erase(handler),
            counts: OnceLock::new(),
        }
    }

    /// The prompt as it is listed.
    pub fn info(&self) -> &PromptInfo {
        &self.info
    }

    pub(crate) fn has_argument(&self, name: &str) -> bool {
        self.info.arguments.iter().any(|known| known.name == name)
    }

    pub(crate) fn check_completers(&self) -> Result<(), BuildError> {
        let arguments = &self.info.arguments;
        let known: Vec<&str> = arguments.iter().map(|known| known.name.as_str()).collect();
        complete::check(
            &format!("the prompt {:?}", self.info.name),
            &self.completers,
            &known,
        )
    }
}

shown!(Prompt);
scoped!(Prompt, "get it");
completed! {
    /// Suggests values for an argument while it is typed. An argument whose type is an enum suggests its variants by
    /// itself.
    ///
    /// ```
    /// # use refrain_core::{Cx, Result};
    /// # use refrain_server::{Prompt, Typed};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// # struct Review { language: String }
    /// # async fn review(_: Cx, _: Review) -> Result<&'static str> { Ok("Review this.") }
    /// let prompt = Prompt::new("review", review).complete("language", async |typed: Typed| {
    ///     let known = ["python", "rust"];
    ///     let fitting = known.into_iter().filter(|name| name.starts_with(&typed.value));
    ///     Ok(fitting.collect::<Vec<_>>())
    /// });
    /// ```
    Prompt, argument
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

/// Suggestions for the fields of an object's schema that have a fixed set of values.
fn choices(schema: &Value) -> Completers {
    let fixed = |field: &Value| -> Option<Vec<String>> {
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
        .filter_map(|(name, field)| Some((name.clone(), from_list(fixed(field)?))))
        .collect()
}

fn texts<'a>(values: impl Iterator<Item = &'a Value>) -> Vec<String> {
    values
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
