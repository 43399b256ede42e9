//! Resources and resource templates.

use crate::builder::BuildError;
use crate::complete::{self, Completers, Typed, completer, from_list};
use crate::handler::{Handler, Needs, Start, erase};
use crate::reply::ReadCall;
use crate::shown::shown;
use refrain_core::Result;
use refrain_wire::{Annotations, Cache, Completion, ResourceInfo, ResourceTemplateInfo};
use serde_json::{Map, Value};
use std::future::Future;

/// A resource: a URI, a name and a handler that reads it.
pub struct Resource {
    pub(crate) info: ResourceInfo,
    pub(crate) cache: Cache,
    pub(crate) scopes: Vec<String>,
    pub(crate) needs: Vec<Needs>,
    pub(crate) start: Start,
}

/// A family of resources: a URI with `{variables}` in it. They are the handler's arguments, as strings.
pub struct ResourceTemplate {
    pub(crate) info: ResourceTemplateInfo,
    pub(crate) cache: Cache,
    pub(crate) completers: Completers,
    pub(crate) scopes: Vec<String>,
    pub(crate) needs: Vec<Needs>,
    pub(crate) start: Start,
}

impl Resource {
    /// A resource at this URI.
    pub fn new<M, H: Handler<M, ReadCall>>(
        uri: impl Into<String>,
        name: impl Into<String>,
        handler: H,
    ) -> Self {
        Self {
            info: ResourceInfo {
                uri: uri.into(),
                name: name.into(),
                ..ResourceInfo::default()
            },
            cache: Cache::default(),
            scopes: Vec::new(),
            needs: H::needs(),
            start: erase(handler),
        }
    }

    /// The media type of its content.
    pub fn mime_type(mut self, mime_type: impl Into<String>) -> Self {
        self.info.mime_type = Some(mime_type.into());
        self
    }

    /// Its size in bytes, as it is listed.
    pub fn size(mut self, bytes: u64) -> Self {
        self.info.size = Some(bytes);
        self
    }

    /// Hints for the client: whom it is meant for, how much it matters, when it last changed.
    pub fn annotations(mut self, annotations: Annotations) -> Self {
        self.info.annotations = Some(annotations);
        self
    }

    /// How long clients may keep what they read, and whether they may share it. Default: not at all.
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// Scopes that a caller needs to read it, all of them; every round is checked. Over HTTP a caller who lacks one is
    /// answered with 403 and told which are needed; over stdio they are not asked for.
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes.extend(scopes.into_iter().map(Into::into));
        self
    }
}

impl ResourceTemplate {
    /// Resources at URIs of this form, as in `notes://{year}/{name}`.
    pub fn new<M, H: Handler<M, ReadCall>>(
        uri_template: impl Into<String>,
        name: impl Into<String>,
        handler: H,
    ) -> Self {
        Self {
            info: ResourceTemplateInfo {
                uri_template: uri_template.into(),
                name: name.into(),
                ..ResourceTemplateInfo::default()
            },
            cache: Cache::default(),
            completers: Completers::new(),
            scopes: Vec::new(),
            needs: H::needs(),
            start: erase(handler),
        }
    }

    /// The media type of their content.
    pub fn mime_type(mut self, mime_type: impl Into<String>) -> Self {
        self.info.mime_type = Some(mime_type.into());
        self
    }

    /// Hints for the client: whom it is meant for, how much it matters, when it last changed.
    pub fn annotations(mut self, annotations: Annotations) -> Self {
        self.info.annotations = Some(annotations);
        self
    }

    /// How long clients may keep what they read, and whether they may share it. Default: not at all.
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// Suggests values for a variable while it is typed.
    pub fn complete<F, Fut, C>(mut self, variable: impl Into<String>, suggest: F) -> Self
    where
        F: Fn(Typed) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<C>> + Send + 'static,
        C: Into<Completion>,
    {
        self.completers.insert(variable.into(), completer(suggest));
        self
    }

    /// Suggests values for a variable from a fixed list: those that begin as typed, then those that contain it.
    pub fn suggest<S: Into<String>>(
        mut self,
        variable: impl Into<String>,
        values: impl IntoIterator<Item = S>,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        self.completers.insert(variable.into(), from_list(values));
        self
    }

    /// Scopes that a caller needs to read them, all of them; every round is checked. Over HTTP a caller who lacks one is
    /// answered with 403 and told which are needed; over stdio they are not asked for.
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes.extend(scopes.into_iter().map(Into::into));
        self
    }

    pub(crate) fn check_completers(&self, pattern: &Pattern) -> Result<(), BuildError> {
        let of = format!("the resource template {:?}", self.info.uri_template);
        complete::check(&of, &self.completers, &pattern.variables())
    }
}

shown!(Resource);
shown!(ResourceTemplate);

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resource")
            .field("uri", &self.info.uri)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ResourceTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResourceTemplate")
            .field("uri_template", &self.info.uri_template)
            .finish_non_exhaustive()
    }
}

/// Why a URI template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the URI template {template:?} is not usable: {reason}")]
pub struct TemplateError {
    /// The template.
    pub template: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// A URI template taken apart: text and variables in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(String),
}

impl Pattern {
    pub(crate) fn parse(template: &str) -> Result<Self, TemplateError> {
        let fail = |reason| TemplateError {
            template: template.to_owned(),
            reason,
        };
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some(open) = rest.find('{') {
            if open > 0 {
                parts.push(Part::Text(rest[..open].to_owned()));
            } else if matches!(parts.last(), Some(Part::Variable(_))) {
                return Err(fail("two variables need text between them"));
            }
            let close = rest[open..].find('}').ok_or_else(|| fail("a { has no }"))?;
            let name = &rest[open + 1..open + close];
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(plain) {
                return Err(fail("a variable is a name of letters, digits and _"));
            }
            parts.push(Part::Variable(name.to_owned()));
            rest = &rest[open + close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// The names of its variables.
    pub(crate) fn variables(&self) -> Vec<&str> {
        self.0
            .iter()
            .filter_map(|part| match part {
                Part::Variable(name) => Some(name.as_str()),
                Part::Text(_) => None,
            })
            .collect()
    }

    /// The variables of a URI that has this form. A variable is at least one character and holds no `/`.
    pub(crate) fn matches(&self, uri: &str) -> Option<Value> {
        let mut variables = Map::new();
        let mut rest = uri;
        let mut parts = self.0.iter().peekable();
        while let Some(part) = parts.next() {
            match part {
                Part::Text(text) => rest = rest.strip_prefix(text.as_str())?,
                Part::Variable(name) => {
                    let end = match parts.peek() {
                        Some(Part::Text(text)) => rest.find(text.as_str())?,
                        _ => rest.len(),
                    };
                    let value = &rest[..end];
                    if value.is_empty() || value.contains('/') {
                        return None;
                    }
                    variables.insert(name.clone(), Value::String(value.to_owned()));
                    rest = &rest[end..];
                }
            }
        }
        rest.is_empty().then_some(Value::Object(variables))
    }
}
