//! What is registered: found by name, listed in pages, and changed while the server runs.
//!
//! What always holds: a catalog never changes. A change makes a new one, which takes the old one's place whole or not
//! at all, so that a request sees one catalog from its beginning to its end.

use crate::auth::check_scopes;
use crate::builder::BuildError;
use crate::handler::{Needs, States};
use crate::metrics::Metrics;
use crate::param_headers::ParamHeader;
use crate::prompt::Prompt;
use crate::resource::{Resource, ResourceTemplate};
use crate::template::{self, Pattern};
use crate::tool::Tool;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonschema::Validator;
use refrain_wire::{Cache, CallKind, ListResult, Listed, Reply, RpcError};
use serde_json::Value;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

/// What to add to a running server, and what to remove. Removals come first, so that removing and adding under one name
/// replaces.
///
/// ```
/// # use refrain_core::{Cx, Result};
/// # use refrain_server::{Changes, Server, Tool};
/// # async fn ping(_: Cx) -> Result<&'static str> { Ok("pong") }
/// # fn main() -> Result<(), refrain_server::BuildError> {
/// let server = Server::builder("docs", "1.0").build()?;
/// server.change(Changes::new().tool(Tool::new("ping", ping)))?;
/// server.change(Changes::new().remove_tool("ping"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "changes do nothing until they are given to Server::change"]
pub struct Changes {
    pub(crate) tools: Vec<Tool>,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) resources: Vec<Resource>,
    pub(crate) templates: Vec<ResourceTemplate>,
    gone_tools: Vec<String>,
    gone_prompts: Vec<String>,
    gone_resources: Vec<String>,
    gone_templates: Vec<String>,
}

impl Changes {
    /// No changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Adds a prompt.
    pub fn prompt(mut self, prompt: Prompt) -> Self {
        self.prompts.push(prompt);
        self
    }

    /// Adds a resource.
    pub fn resource(mut self, resource: Resource) -> Self {
        self.resources.push(resource);
        self
    }

    /// Adds a family of resources.
    pub fn resource_template(mut self, template: ResourceTemplate) -> Self {
        self.templates.push(template);
        self
    }

    /// Removes the tool of this name, if there is one. Calls of it that run are finished; later rounds of its flows
    /// find no tool.
    pub fn remove_tool(mut self, name: impl Into<String>) -> Self {
        self.gone_tools.push(name.into());
        self
    }

    /// Removes the prompt of this name, if there is one.
    pub fn remove_prompt(mut self, name: impl Into<String>) -> Self {
        self.gone_prompts.push(name.into());
        self
    }

    /// Removes the resource at this URI, if there is one.
    pub fn remove_resource(mut self, uri: impl Into<String>) -> Self {
        self.gone_resources.push(uri.into());
        self
    }

    /// Removes the resource template of this form, if there is one.
    pub fn remove_resource_template(mut self, uri_template: impl Into<String>) -> Self {
        self.gone_templates.push(uri_template.into());
        self
    }
}

/// A list that a client can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// `tools/list`.
    Tools,
    /// `prompts/list`.
    Prompts,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    ResourceTemplates,
}

impl Listing {
    /// The method that asks for it.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::ResourceTemplates => "resources/templates/list",
        }
    }
}

/// What everything that is registered must fit.
pub(crate) struct Rules {
    pub(crate) states: States,
    /// Can a tool's work and tokens be used once?
    pub(crate) once: bool,
    /// Things on one page of a list.
    pub(crate) page_size: usize,
    pub(crate) caches: Caches,
    pub(crate) metrics: Arc<Metrics>,
}

/// How long each list may be kept.
#[derive(Clone, Copy, Default)]
pub(crate) struct Caches {
    pub(crate) discover: Cache,
    pub(crate) lists: [Cache; 4],
}

/// Which lists a change changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) tools: bool,
    pub(crate) prompts: bool,
    pub(crate) resources: bool,
}

pub(crate) struct RegisteredTool {
    pub(crate) tool: Tool,
    pub(crate) arguments: Validator,
    pub(crate) output: Option<Arc<Validator>>,
    pub(crate) headers: Vec<ParamHeader>,
}

pub(crate) struct RegisteredTemplate {
    pub(crate) template: ResourceTemplate,
    pub(crate) pattern: Pattern,
}

/// What is registered.
#[derive(Default)]
pub(crate) struct Catalog {
    pub(crate) tools: Shelf<RegisteredTool>,
    pub(crate) prompts: Shelf<Prompt>,
    pub(crate) resources: Shelf<Resource>,
    pub(crate) templates: Shelf<RegisteredTemplate>,
    /// The number of the next thing that is registered.
    next: u64,
    /// The first page of each list: what almost every list request asks for.
    first: [OnceLock<Reply>; 4],
    pub(crate) discover: OnceLock<Reply>,
}

/// Things of one kind, by name and in the order they were registered.
pub(crate) struct Shelf<T> {
    by_name: HashMap<String, (u64, Arc<T>)>,
    in_order: BTreeMap<u64, Arc<T>>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
            in_order: BTreeMap::new(),
        }
    }
}

impl<T> Clone for Shelf<T> {
    fn clone(&self) -> Self {
        Self {
            by_name: self.by_name.clone(),
            in_order: self.in_order.clone(),
        }
    }
}

impl<T> Shelf<T> {
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.by_name.get(name).map(|(_, item)| item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.in_order.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    fn remove(&mut self, names: &[String]) -> bool {
        let before = self.len();
        for name in names {
            if let Some((number, _)) = self.by_name.remove(name) {
                self.in_order.remove(&number);
            }
        }
        self.len() != before
    }

    fn add(
        &mut self,
        number: u64,
        kind: &'static str,
        name: String,
        item: T,
    ) -> Result<(), BuildError> {
        match self.by_name.entry(name) {
            Entry::Occupied(taken) => Err(BuildError::Duplicate {
                kind,
                name: taken.key().clone(),
            }),
            Entry::Vacant(free) => {
                let item = Arc::new(item);
                free.insert((number, item.clone()));
                self.in_order.insert(number, item);
                Ok(())
            }
        }
    }

    /// The things after the one of this number, as they are listed, and the number to go on after.
    fn page<I>(
        &self,
        after: Option<u64>,
        size: usize,
        info: impl Fn(&T) -> &I,
    ) -> (Vec<&I>, Option<u64>) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.in_order.range((from, Bound::Unbounded));
        let mut last = 0;
        let items: Vec<&I> = rest
            .by_ref()
            .take(size)
            .map(|(number, item)| {
                last = *number;
                info(item)
            })
            .collect();
        let more = rest.next().is_some();
        (items, more.then_some(last))
    }
}

impl Catalog {
    /// The catalog after these changes, and what is different.
    pub(crate) fn with(
        &self,
        changes: Changes,
        rules: &Rules,
    ) -> Result<(Self, Changed), BuildError> {
        let mut new = Self {
            tools: self.tools.clone(),
            prompts: self.prompts.clone(),
            resources: self.resources.clone(),
            templates: self.templates.clone(),
            next: self.next,
            ..Self::default()
        };
        let mut changed = Changed {
            tools: new.tools.remove(&changes.gone_tools),
            prompts: new.prompts.remove(&changes.gone_prompts),
            resources: new.resources.remove(&changes.gone_resources)
                | new.templates.remove(&changes.gone_templates),
        };
        changed.tools |= !changes.tools.is_empty();
        changed.prompts |= !changes.prompts.is_empty();
        changed.resources |= !changes.resources.is_empty() || !changes.templates.is_empty();
        for tool in changes.tools {
            new.add_tool(tool, rules)?;
        }
        for mut prompt in changes.prompts {
            has_states(rules, &prompt.info.name, &prompt.needs)?;
            check_scopes(&prompt.info.name, &prompt.scopes)?;
            prompt.check_completers()?;
            let (number, name) = (new.number(), prompt.info.name.clone());
            prompt.counts = Some(rules.metrics.target(CallKind::Prompt, &name));
            new.prompts.add(number, "the prompt", name, prompt)?;
        }
        for mut resource in changes.resources {
            has_states(rules, &resource.info.uri, &resource.needs)?;
            check_scopes(&resource.info.uri, &resource.scopes)?;
            check_uri(&resource.info.uri)?;
            let (number, uri) = (new.number(), resource.info.uri.clone());
            resource.counts = Some(rules.metrics.target(CallKind::Resource, &uri));
            new.resources.add(number, "the resource", uri, resource)?;
        }
        for template in changes.templates {
            new.add_template(template, rules)?;
        }
        Ok((new, changed))
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn add_tool(&mut self, mut tool: Tool, rules: &Rules) -> Result<(), BuildError> {
        let name = tool.info.name.clone();
        check_name(&name)?;
        has_states(rules, &name, &tool.needs)?;
        check_scopes(&name, &tool.scopes)?;
        if (tool.once || tool.single_use) && !rules.once {
            return Err(BuildError::NeedsReplayLog { tool: name });
        }
        let usable = |which, schema: &Value| {
            jsonschema::validator_for(schema).map_err(|error| BuildError::Schema {
                tool: name.clone(),
                which,
                reason: error.to_string(),
            })
        };
        let arguments = usable("input", &tool.info.input_schema)?;
        if tool.info.input_schema["type"] != "object" {
            return Err(BuildError::Schema {
                tool: name,
                which: "input",
                reason: r#"it must have "type": "object" at its root"#.into(),
            });
        }
        let output = match &tool.info.output_schema {
            Some(schema) => Some(Arc::new(usable("output", schema)?)),
            None => None,
        };
        let headers = ParamHeader::all(&tool.info.input_schema).map_err(|reason| {
            BuildError::ParamHeader {
                tool: name.clone(),
                reason,
            }
        })?;
        tool.counts = Some(rules.metrics.target(CallKind::Tool, &name));
        let tool = RegisteredTool {
            tool,
            arguments,
            output,
            headers,
        };
        let number = self.number();
        self.tools.add(number, "the tool", name, tool)
    }

    fn add_template(
        &mut self,
        mut template: ResourceTemplate,
        rules: &Rules,
    ) -> Result<(), BuildError> {
        let uri = template.info.uri_template.clone();
        has_states(rules, &uri, &template.needs)?;
        check_scopes(&uri, &template.scopes)?;
        let pattern = Pattern::parse(&uri)?;
        template.check_completers(&pattern)?;
        if (self.templates.iter()).any(|known| known.pattern.is_same(&pattern)) {
            return Err(BuildError::Duplicate {
                kind: "the resource template",
                name: uri,
            });
        }
        template.counts = Some(rules.metrics.target(CallKind::Resource, &uri));
        let number = self.number();
        let template = RegisteredTemplate { template, pattern };
        self.templates
            .add(number, "the resource template", uri, template)
    }

    /// The resource template that a URI is of, and its variables.
    pub(crate) fn template_of(&self, uri: &str) -> Option<(Value, &Arc<RegisteredTemplate>)> {
        template::find(
            self.templates.iter().map(|known| (&known.pattern, known)),
            uri,
        )
    }

    /// The scopes that a caller needs for the resource at this URI; none if there is no such resource.
    pub(crate) fn scopes_of_resource(&self, uri: &str) -> &[String] {
        if let Some(resource) = self.resources.get(uri) {
            return &resource.scopes;
        }
        let found = self.template_of(uri);
        found.map_or(&[], |(_, known)| &known.template.scopes)
    }

    /// A page of a list.
    pub(crate) fn list(
        &self,
        listing: Listing,
        cursor: Option<&str>,
        rules: &Rules,
    ) -> Result<Reply, RpcError> {
        let Some(cursor) = cursor else {
            let first = &self.first[listing as usize];
            return Ok(first
                .get_or_init(|| self.render(listing, None, rules))
                .clone());
        };
        let after = read_cursor(listing, cursor).ok_or_else(|| {
            RpcError::invalid_params(
                "cursor: not one that this list gave out; ask for the list again without a cursor",
            )
        })?;
        Ok(self.render(listing, Some(after), rules))
    }

    fn render(&self, listing: Listing, after: Option<u64>, rules: &Rules) -> Reply {
        let size = rules.page_size;
        let cache = rules.caches.lists[listing as usize];
        match listing {
            Listing::Tools => {
                let page = self.tools.page(after, size, |tool| &tool.tool.info);
                reply(listing, page, cache)
            }
            Listing::Prompts => {
                let page = self.prompts.page(after, size, |prompt| &prompt.info);
                reply(listing, page, cache)
            }
            Listing::Resources => {
                let page = self.resources.page(after, size, |resource| &resource.info);
                reply(listing, page, cache)
            }
            Listing::ResourceTemplates => {
                let page = (self.templates).page(after, size, |known| &known.template.info);
                reply(listing, page, cache)
            }
        }
    }

    /// Does anything suggest values for its arguments?
    pub(crate) fn completes(&self) -> bool {
        self.prompts.iter().any(|p| !p.completers.is_empty())
            || (self.templates.iter()).any(|t| !t.template.completers.is_empty())
    }
}

fn reply<I: Listed>(
    listing: Listing,
    (items, next): (Vec<&I>, Option<u64>),
    cache: Cache,
) -> Reply {
    let cursor = next.map(|number| write_cursor(listing, number));
    Reply::complete(ListResult {
        items: &items,
        next_cursor: cursor.as_deref(),
        cache,
    })
}

/// A cursor holds the number of the last thing that was listed: what is added or removed in between moves nothing.
fn write_cursor(listing: Listing, number: u64) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}.{number}", listing as usize))
}

fn read_cursor(listing: Listing, cursor: &str) -> Option<u64> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    let (list, number) = text.split_once('.')?;
    let number: u64 = number.parse().ok()?;
    // Only what was written is read: no other spelling of the same number.
    (list == (listing as usize).to_string() && write_cursor(listing, number) == cursor)
        .then_some(number)
}

/// Some clients show names, others make functions of them: odd ones are taken, with a warning.
fn check_name(name: &str) -> Result<(), BuildError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() {
        return Err(BuildError::EmptyName);
    }
    if name.len() > 128 || !name.chars().all(plain) {
        tracing::warn!(
            tool = name,
            "some clients refuse tools whose name is longer than 128 characters or has others than A-Z a-z 0-9 _ - ."
        );
    }
    Ok(())
}

fn check_uri(uri: &str) -> Result<(), BuildError> {
    let scheme = uri.split_once(':').map(|(scheme, _)| scheme);
    let in_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let has_scheme = scheme.is_some_and(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(in_scheme)
    });
    let odd = |c: char| !c.is_ascii_graphic() || r#"<>"{}|\^`"#.contains(c);
    let reason = match uri.chars().find(|c| odd(*c)) {
        _ if !has_scheme => "it needs a scheme, as in notes://today".to_owned(),
        Some(c) => format!("{c:?} must be percent-encoded"),
        None => return Ok(()),
    };
    Err(BuildError::Uri {
        uri: uri.to_owned(),
        reason,
    })
}

fn has_states(rules: &Rules, handler: &str, needs: &[Needs]) -> Result<(), BuildError> {
    match needs.iter().find(|need| !rules.states.has(need.id)) {
        None => Ok(()),
        Some(need) => Err(BuildError::MissingState {
            handler: handler.to_owned(),
            state: need.name,
        }),
    }
}
