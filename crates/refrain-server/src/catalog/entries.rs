//! One state of the catalog: entries found by name and listed in pages.

use super::changes::Changes;
use super::paged_map::{Cursor, PagedMap};
use super::template::{self, Pattern};
use super::{Listing, Prompt, Resource, ResourceTemplate, Tool};
use crate::auth::check_scopes;
use crate::builder::BuildError;
use crate::handler::{Needs, States};
use crate::metrics::{Metrics, TargetCounts};
use jsonschema::Validator;
use refrain_wire::{
    Cache, CallKind, Empty, ListCapability, ListResult, Listed, ParamHeaders, Reply, RpcError,
    ServerCapabilities,
};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

/// The rules for new entries.
pub(crate) struct Rules {
    pub(crate) states: States,
    /// Is there a replay log?
    pub(crate) once: bool,
    /// Is there a task store?
    pub(crate) tasks: bool,
    /// Entries on one page of a list.
    pub(crate) page_size: usize,
    pub(crate) caches: Caches,
    pub(crate) metrics: Arc<Metrics>,
}

impl Rules {
    /// Sets the counters of an entry.
    fn count(&self, counts: &OnceLock<Arc<TargetCounts>>, kind: CallKind, name: &str) {
        counts.get_or_init(|| self.metrics.target(kind, name));
    }
}

/// The normal form of a URI, under which resources are stored. An invalid URI stays as it is.
pub(crate) fn normal(uri: &str) -> Cow<'_, str> {
    template::normalise(uri).map_or(Cow::Borrowed(uri), Cow::Owned)
}

/// Cache hints for each list.
#[derive(Clone, Copy, Default)]
pub(crate) struct Caches {
    pub(crate) discover: Cache,
    pub(crate) lists: [Cache; 4],
}

/// The lists that a change concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) tools: bool,
    pub(crate) prompts: bool,
    pub(crate) resources: bool,
}

pub(crate) struct RegisteredTool {
    pub(crate) tool: Arc<Tool>,
    pub(crate) arguments: Validator,
    pub(crate) output: Option<Arc<Validator>>,
    pub(crate) headers: ParamHeaders,
}

pub(crate) struct RegisteredTemplate {
    pub(crate) template: Arc<ResourceTemplate>,
    pub(crate) pattern: Pattern,
}

/// The entries of a catalog at one time.
#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) tools: PagedMap<RegisteredTool>,
    pub(crate) prompts: PagedMap<Prompt>,
    pub(crate) resources: PagedMap<Resource>,
    pub(crate) templates: PagedMap<RegisteredTemplate>,
    /// The number of the next entry.
    next: u64,
    /// The first page of each list, rendered once.
    first: [OnceLock<Reply>; 4],
    pub(crate) discover: OnceLock<Reply>,
}

impl Entries {
    /// The entries after these changes, and which lists differ.
    pub(crate) fn with(
        &self,
        changes: &Changes,
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
        for name in &changes.gone_tools {
            new.tools.remove(name);
        }
        for name in &changes.gone_prompts {
            new.prompts.remove(name);
        }
        for uri in &changes.gone_resources {
            new.resources.remove(&normal(uri));
        }
        for uri in &changes.gone_templates {
            new.templates.remove(uri);
        }
        let fewer_resources = new.resources.len() < self.resources.len()
            || new.templates.len() < self.templates.len();
        let changed = Changed {
            tools: new.tools.len() < self.tools.len() || !changes.tools.is_empty(),
            prompts: new.prompts.len() < self.prompts.len() || !changes.prompts.is_empty(),
            resources: fewer_resources
                || !changes.resources.is_empty()
                || !changes.templates.is_empty(),
        };
        for tool in &changes.tools {
            new.add_tool(tool, rules)?;
        }
        for prompt in &changes.prompts {
            has_states(rules, &prompt.info.name, &prompt.needs)?;
            check_scopes(&prompt.info.name, &prompt.scopes)?;
            prompt.check_completers()?;
            let (number, name) = (new.number(), &prompt.info.name);
            rules.count(&prompt.counts, CallKind::Prompt, name);
            new.prompts
                .add(number, "the prompt", name, prompt.clone())?;
        }
        for resource in &changes.resources {
            has_states(rules, &resource.info.uri, &resource.needs)?;
            check_scopes(&resource.info.uri, &resource.scopes)?;
            check_uri(&resource.info.uri)?;
            let (number, uri) = (new.number(), &resource.info.uri);
            rules.count(&resource.counts, CallKind::Resource, uri);
            new.resources
                .add(number, "the resource", &normal(uri), resource.clone())?;
        }
        for template in &changes.templates {
            new.add_template(template, rules)?;
        }
        Ok((new, changed))
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn add_tool(&mut self, tool: &Arc<Tool>, rules: &Rules) -> Result<(), BuildError> {
        let name = tool.info.name.clone();
        check_name(&name)?;
        has_states(rules, &name, &tool.needs)?;
        check_scopes(&name, &tool.scopes)?;
        if tool.live && (tool.task.at_once || tool.task.after.is_some()) {
            return Err(BuildError::LiveTask { tool: name });
        }
        if tool.task.required && !rules.tasks {
            let tool = name.to_owned();
            return Err(BuildError::NeedsTaskStore { tool });
        }
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
        let headers = ParamHeaders::read(&tool.info.input_schema).map_err(|reason| {
            BuildError::ParamHeader {
                tool: name.clone(),
                reason,
            }
        })?;
        rules.count(&tool.counts, CallKind::Tool, &name);
        let tool = RegisteredTool {
            tool: tool.clone(),
            arguments,
            output,
            headers,
        };
        let number = self.number();
        self.tools.add(number, "the tool", &name, Arc::new(tool))
    }

    fn add_template(
        &mut self,
        template: &Arc<ResourceTemplate>,
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
        rules.count(&template.counts, CallKind::Resource, &uri);
        let number = self.number();
        let known = RegisteredTemplate {
            template: template.clone(),
            pattern,
        };
        self.templates
            .add(number, "the resource template", &uri, Arc::new(known))
    }

    /// The resource at a URI, whatever its percent-encoding.
    pub(crate) fn resource(&self, uri: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&normal(uri))
    }

    /// The resource template that a URI matches, and its variables.
    pub(crate) fn template_of(&self, uri: &str) -> Option<(Value, &Arc<RegisteredTemplate>)> {
        template::find(
            self.templates.iter().map(|known| (&known.pattern, known)),
            uri,
        )
    }

    /// The scopes that a caller needs for the resource at this URI; none if there is no such resource.
    pub(crate) fn scopes_of_resource(&self, uri: &str) -> &[String] {
        if let Some(resource) = self.resource(uri) {
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
        let cursor = Cursor::read(listing as usize, cursor).ok_or_else(|| {
            RpcError::invalid_params(
                "cursor: not one that this list gave out; ask for the list again without a cursor",
            )
        })?;
        let after = match listing {
            Listing::Tools => self.tools.after(&cursor),
            Listing::Prompts => self.prompts.after(&cursor),
            Listing::Resources => self.resources.after(&cursor),
            Listing::ResourceTemplates => self.templates.after(&cursor),
        };
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

    /// Does any entry need scopes?
    pub(crate) fn needs_scopes(&self) -> bool {
        self.tools.iter().any(|tool| !tool.tool.scopes.is_empty())
            || self.prompts.iter().any(|p| !p.scopes.is_empty())
            || self.resources.iter().any(|r| !r.scopes.is_empty())
            || (self.templates.iter()).any(|t| !t.template.scopes.is_empty())
    }

    /// The server's capabilities, without extensions.
    pub(crate) fn capabilities(&self) -> ServerCapabilities {
        let list = |there: bool, subscribe| {
            there.then_some(ListCapability {
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

    /// Does any entry suggest values for its arguments?
    pub(crate) fn completes(&self) -> bool {
        self.prompts.iter().any(|p| !p.completers.is_empty())
            || (self.templates.iter()).any(|t| !t.template.completers.is_empty())
    }
}

fn reply<I: Listed>(
    listing: Listing,
    (items, next): (Vec<&I>, Option<Cursor>),
    cache: Cache,
) -> Reply {
    let cursor = next.map(|cursor| cursor.write(listing as usize));
    Reply::complete(ListResult {
        items: &items,
        next_cursor: cursor.as_deref(),
        cache,
    })
}

/// Unusual names are accepted with a warning: some clients make function names of them.
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

/// Must a URI percent-encode this character?
fn is_odd(c: char) -> bool {
    !c.is_ascii_graphic() || r#"<>"{}|\^`"#.contains(c)
}

/// A URI with all necessary percent-encoding.
pub(crate) fn written(uri: &str) -> Cow<'_, str> {
    if uri.chars().any(is_odd) {
        return normal(uri);
    }
    Cow::Borrowed(uri)
}

fn check_uri(uri: &str) -> Result<(), BuildError> {
    let scheme = uri.split_once(':').map(|(scheme, _)| scheme);
    let in_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let has_scheme = scheme.is_some_and(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(in_scheme)
    });
    let reason = match uri.chars().find(|c| is_odd(*c)) {
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
