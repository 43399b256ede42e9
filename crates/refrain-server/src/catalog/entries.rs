//! An immutable snapshot of the catalog: lookup by name, lists in pages.

use super::changes::{AddedEntry, Changes, OnInvalid};
use super::entry::CatalogEntry;
use super::paged_map::{Cursor, PagedMap};
use super::template::{self, Pattern};
use super::{Listing, Prompt, Resource, ResourceTemplate, Tool};
use crate::builder::BuildError;
use crate::handler::StateMap;
use crate::metrics::Metrics;
use jsonschema::Validator;
use refrain_core::limited_event;
use refrain_wire::{
    Cache, CallKind, Empty, Excerpt, ListCapability, ListEntry, ListResult, ParamHeaders, Reply,
    RpcError, ServerCapabilities,
};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

/// Settings of the server that apply when entries are registered and listed.
pub(crate) struct Rules {
    pub(crate) states: StateMap,
    pub(crate) has_replay_log: bool,
    pub(crate) has_task_store: bool,
    pub(crate) page_size: usize,
    pub(crate) caches: Caches,
    pub(crate) metrics: Arc<Metrics>,
}

/// The normal form of a URI, which is the key of a resource. An invalid URI is returned unchanged.
pub(crate) fn normalize_uri(uri: &str) -> Cow<'_, str> {
    template::normalize(uri).map_or(Cow::Borrowed(uri), Cow::Owned)
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Caches {
    pub(crate) discover: Cache,
    /// The cache of each list, by [`Listing`].
    pub(crate) lists: [Cache; 4],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedLists {
    pub(crate) tools: bool,
    pub(crate) prompts: bool,
    pub(crate) resources: bool,
}

impl ChangedLists {
    fn add(&mut self, listing: Listing) {
        match listing {
            Listing::Tools => self.tools = true,
            Listing::Prompts => self.prompts = true,
            Listing::Resources | Listing::ResourceTemplates => self.resources = true,
        }
    }
}

pub(crate) struct RegisteredTool {
    pub(crate) tool: Arc<Tool>,
    /// `None` if the arguments are not checked.
    pub(crate) arguments: Option<Validator>,
    /// `None` if results are not checked.
    pub(crate) output: Option<Arc<Validator>>,
    /// The HTTP headers that repeat arguments.
    pub(crate) headers: ParamHeaders,
}

pub(crate) struct RegisteredTemplate {
    pub(crate) template: Arc<ResourceTemplate>,
    pub(crate) pattern: Pattern,
}

#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) tools: PagedMap<Arc<RegisteredTool>>,
    pub(crate) prompts: PagedMap<Arc<Prompt>>,
    pub(crate) resources: PagedMap<Arc<Resource>>,
    pub(crate) templates: PagedMap<Arc<RegisteredTemplate>>,
    /// The first page of each list, rendered once.
    first_pages: [OnceLock<Reply>; 4],
    pub(crate) discover: OnceLock<Reply>,
}

impl Entries {
    /// The entries after these changes, and the changed lists.
    pub(crate) fn with(
        &self,
        changes: &Changes,
        rules: &Rules,
    ) -> Result<(Self, ChangedLists), BuildError> {
        let mut new = Self {
            tools: self.tools.clone(),
            prompts: self.prompts.clone(),
            resources: self.resources.clone(),
            templates: self.templates.clone(),
            ..Self::default()
        };
        let mut changed = ChangedLists::default();
        for (listing, name) in &changes.removed {
            let removed = match listing {
                Listing::Tools => new.tools.remove(name),
                Listing::Prompts => new.prompts.remove(name),
                Listing::Resources => new.resources.remove(&normalize_uri(name)),
                Listing::ResourceTemplates => new.templates.remove(name),
            };
            if removed {
                changed.add(*listing);
            }
        }
        for (added, on_invalid) in &changes.added {
            let added = match added {
                AddedEntry::Tool(tool) => new.add_tool(tool, rules),
                AddedEntry::Prompt(prompt) => new.add_prompt(prompt, rules),
                AddedEntry::Resource(resource) => new.add_resource(resource, rules),
                AddedEntry::Template(template) => new.add_template(template, rules),
            };
            match added {
                Ok(listing) => changed.add(listing),
                Err(error) if *on_invalid == OnInvalid::Skip => {
                    limited_event!(WARN, error = %Excerpt(&error), "invalid entry skipped");
                }
                Err(error) => return Err(error),
            }
        }
        Ok((new, changed))
    }

    fn add_tool(&mut self, tool: &Arc<Tool>, rules: &Rules) -> Result<Listing, BuildError> {
        let name = &tool.info.name;
        check_tool_name(name)?;
        tool.entry.check(name, rules)?;
        tool.check(rules)?;
        let schema_error = |which, reason| BuildError::Schema {
            tool: name.clone(),
            which,
            reason,
        };
        let validator = |which, schema: &Value| {
            jsonschema::validator_for(schema)
                .map_err(|error| schema_error(which, error.to_string()))
        };
        let input = Some(&tool.info.input_schema).filter(|_| tool.checks.input);
        let arguments = input.map(|schema| validator("input", schema)).transpose()?;
        if input.is_some_and(|schema| schema["type"] != "object") {
            let reason = r#"its root must have "type": "object""#;
            return Err(schema_error("input", reason.into()));
        }
        let output = tool.info.output_schema.as_ref();
        let output = output.filter(|_| tool.checks.output);
        let output = output
            .map(|schema| validator("output", schema))
            .transpose()?;
        let headers = ParamHeaders::read(&tool.info.input_schema);
        let headers = headers.map_err(|reason| BuildError::ParamHeader {
            tool: name.clone(),
            reason,
        })?;
        tool.entry.create_counts(CallKind::Tool, name, rules);
        let registered = RegisteredTool {
            tool: tool.clone(),
            arguments,
            output: output.map(Arc::new),
            headers,
        };
        self.tools.add("tool", name, Arc::new(registered))?;
        Ok(Listing::Tools)
    }

    fn add_prompt(&mut self, prompt: &Arc<Prompt>, rules: &Rules) -> Result<Listing, BuildError> {
        let name = &prompt.info.name;
        prompt.entry.check(name, rules)?;
        let arguments = prompt.info.arguments.iter();
        let names: Vec<&str> = arguments.map(|argument| argument.name.as_str()).collect();
        let owner = format!("prompt {name:?}");
        prompt.entry.check_completers(owner, &names)?;
        prompt.entry.create_counts(CallKind::Prompt, name, rules);
        self.prompts.add("prompt", name, prompt.clone())?;
        Ok(Listing::Prompts)
    }

    fn add_resource(
        &mut self,
        resource: &Arc<Resource>,
        rules: &Rules,
    ) -> Result<Listing, BuildError> {
        let uri = &resource.info.uri;
        resource.entry.check(uri, rules)?;
        check_uri(uri)?;
        resource.entry.create_counts(CallKind::Resource, uri, rules);
        self.resources
            .add("resource", &normalize_uri(uri), resource.clone())?;
        Ok(Listing::Resources)
    }

    fn add_template(
        &mut self,
        template: &Arc<ResourceTemplate>,
        rules: &Rules,
    ) -> Result<Listing, BuildError> {
        let (kind, uri) = ("resource template", &template.info.uri_template);
        template.entry.check(uri, rules)?;
        let pattern = Pattern::parse(uri)?;
        let owner = format!("{kind} {uri:?}");
        template
            .entry
            .check_completers(owner, &pattern.variables())?;
        if (self.templates.iter()).any(|other| other.pattern.is_same(&pattern)) {
            let name = uri.clone();
            return Err(BuildError::Duplicate { kind, name });
        }
        template.entry.create_counts(CallKind::Resource, uri, rules);
        let registered = RegisteredTemplate {
            template: template.clone(),
            pattern,
        };
        self.templates.add(kind, uri, Arc::new(registered))?;
        Ok(Listing::ResourceTemplates)
    }

    /// The resource at a URI, regardless of percent-encoding.
    pub(crate) fn resource(&self, uri: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&normalize_uri(uri))
    }

    /// The resource template that a URI matches, and its variables.
    pub(crate) fn template_of(&self, uri: &str) -> Option<(Value, &Arc<RegisteredTemplate>)> {
        let templates = self.templates.iter();
        template::find(templates.map(|entry| (&entry.pattern, entry)), uri)
    }

    /// The scopes that a caller needs to read this URI. Empty if no resource matches.
    pub(crate) fn scopes_of_resource(&self, uri: &str) -> &[String] {
        if let Some(resource) = self.resource(uri) {
            return &resource.entry.scopes;
        }
        let found = self.template_of(uri);
        found.map_or(&[], |(_, entry)| &entry.template.entry.scopes)
    }

    pub(crate) fn list(
        &self,
        listing: Listing,
        cursor: Option<&str>,
        rules: &Rules,
    ) -> Result<Reply, RpcError> {
        let Some(cursor) = cursor else {
            let first = &self.first_pages[listing as usize];
            let render = || self.render(listing, None, rules);
            return Ok(first.get_or_init(render).clone());
        };
        let cursor = Cursor::parse(listing as usize, cursor)?;
        Ok(self.render(listing, Some(&cursor), rules))
    }

    fn render(&self, listing: Listing, cursor: Option<&Cursor>, rules: &Rules) -> Reply {
        let page = (listing, cursor, rules);
        match listing {
            Listing::Tools => page_reply(page, &self.tools, |it| &it.tool.info),
            Listing::Prompts => page_reply(page, &self.prompts, |it| &it.info),
            Listing::Resources => page_reply(page, &self.resources, |it| &it.info),
            Listing::ResourceTemplates => page_reply(page, &self.templates, |it| &it.template.info),
        }
    }

    fn all_entries(&self) -> impl Iterator<Item = &CatalogEntry> {
        let tools = self.tools.iter().map(|it| &it.tool.entry);
        let prompts = self.prompts.iter().map(|it| &it.entry);
        let resources = self.resources.iter().map(|it| &it.entry);
        let templates = self.templates.iter().map(|it| &it.template.entry);
        tools.chain(prompts).chain(resources).chain(templates)
    }

    pub(crate) fn needs_scopes(&self) -> bool {
        self.all_entries().any(|entry| !entry.scopes.is_empty())
    }

    pub(crate) fn completes(&self) -> bool {
        self.all_entries().any(|entry| !entry.completers.is_empty())
    }

    /// The server's capabilities, without extensions.
    pub(crate) fn capabilities(&self) -> ServerCapabilities {
        let list = |has_entries: bool, subscribe| {
            has_entries.then_some(ListCapability {
                list_changed: true,
                subscribe,
            })
        };
        let resources = !self.resources.is_empty() || !self.templates.is_empty();
        ServerCapabilities {
            tasks: None,
            tools: list(!self.tools.is_empty(), false),
            prompts: list(!self.prompts.is_empty(), false),
            resources: list(resources, true),
            logging: Some(Empty {}),
            completions: self.completes().then_some(Empty {}),
            extensions: Map::new(),
        }
    }
}

fn page_reply<T: Clone, I: ListEntry>(
    (listing, cursor, rules): (Listing, Option<&Cursor>, &Rules),
    entries: &PagedMap<T>,
    info: impl Fn(&T) -> &I,
) -> Reply {
    let (page, next) = entries.page(cursor, rules.page_size);
    let items: Vec<&I> = page.into_iter().map(info).collect();
    let next = next.map(|cursor| cursor.write(listing as usize));
    Reply::complete(ListResult {
        items: &items,
        next_cursor: next.as_deref(),
        cache: rules.caches.lists[listing as usize],
    })
}

/// Checks the name of a tool. Warns about unusual names, because some clients turn names into function names.
fn check_tool_name(name: &str) -> Result<(), BuildError> {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() {
        return Err(BuildError::EmptyName);
    }
    if name.len() > 128 || !name.chars().all(is_usual) {
        limited_event!(
            WARN,
            tool = ?Excerpt(name),
            "some clients reject this tool name: use up to 128 characters from A-Z a-z 0-9 _ - ."
        );
    }
    Ok(())
}

/// Whether a URI must percent-encode this character.
fn needs_encoding(c: char) -> bool {
    !c.is_ascii_graphic() || r#"<>"{}|\^`"#.contains(c)
}

/// The URI, with the characters percent-encoded that a URI must not contain. A valid URI is unchanged.
pub(crate) fn encode_uri(uri: &str) -> Cow<'_, str> {
    match uri.chars().any(needs_encoding) {
        true => normalize_uri(uri),
        false => Cow::Borrowed(uri),
    }
}

fn check_uri(uri: &str) -> Result<(), BuildError> {
    let scheme = uri.split_once(':').map(|(scheme, _)| scheme);
    let is_in_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let has_scheme = scheme.is_some_and(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_in_scheme)
    });
    let reason = match uri.chars().find(|c| needs_encoding(*c)) {
        _ if !has_scheme => "a scheme is missing, as in notes://today".to_owned(),
        Some(c) => format!("{c:?} must be percent-encoded"),
        None => return Ok(()),
    };
    Err(BuildError::Uri {
        uri: uri.to_owned(),
        reason,
    })
}
