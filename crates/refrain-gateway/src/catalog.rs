//! The entries that a backend offers, by the rules of its configuration.

use crate::backend::Backend;
use crate::call::ProxiedTarget;
use crate::check::ToolReport;
use crate::config::{BackendSpec, Sessions, ToolHome, ToolTable, task_after};
use crate::sessions;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use refrain::client::wire::client::AsSent;
use refrain::client::wire::limited_event;
use refrain::client::wire::{
    CallKind, Completion, Excerpt, PromptInfo, ResourceInfo, ResourceTemplateInfo, ToolInfo,
};
use refrain::client::{Client, Error, ErrorKind};
use refrain::prelude::*;
use refrain::server::{Changes, CompletionInput, Prompt, Resource, ResourceTemplate};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The round time of proxied tools. The silence limit of the backend ends a silent call earlier.
const ROUND_TIME: Duration = Duration::from_secs(24 * 3600);

/// The lists of a backend, as it sent them.
#[derive(Default)]
pub(crate) struct BackendLists {
    pub(crate) tools: Vec<AsSent<ToolInfo>>,
    pub(crate) prompts: Vec<AsSent<PromptInfo>>,
    pub(crate) resources: Vec<AsSent<ResourceInfo>>,
    pub(crate) templates: Vec<AsSent<ResourceTemplateInfo>>,
    /// Whether the backend completes arguments.
    can_complete: bool,
}

/// A list, or an empty one if the server answers with an error. Some servers declare lists that they do not have.
fn or_empty<T>(
    backend: &BackendSpec,
    list: &str,
    listed: Result<Vec<T>, Error>,
) -> Result<Vec<T>, Error> {
    match listed {
        Err(Error {
            kind: ErrorKind::Rpc(failure),
            ..
        }) => {
            let error = Excerpt(failure.message);
            limited_event!(
                WARN,
                backend = backend.name,
                list,
                ?error,
                "backend could not list its entries"
            );
            Ok(Vec::new())
        }
        listed => listed,
    }
}

fn is_unknown_method(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::Rpc(failure) if failure.code == -32601)
}

/// Whether the backend of listed entries responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    Up,
    Down,
}

/// The identifiers of offered entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfferedNames {
    pub(crate) tools: BTreeSet<String>,
    pub(crate) prompts: BTreeSet<String>,
    pub(crate) resources: BTreeSet<String>,
    pub(crate) templates: BTreeSet<String>,
}

/// The arguments of a call, which the backend checks.
type Arguments = Map<String, Value>;

impl BackendLists {
    /// Lists everything that the backend declares.
    pub(crate) async fn read(backend: &BackendSpec, client: &Client) -> Result<Self, Error> {
        let declared = &client.server().capabilities;
        let has = |name: &str| declared.contains_key(name);
        let mut listing = Self {
            can_complete: has("completions"),
            ..Self::default()
        };
        if has("tools") {
            listing.tools = match client.tools().await {
                // Without its tools, the backend counts as down and is listed again.
                Err(error) if !is_unknown_method(&error) => return Err(error),
                listed => or_empty(backend, "tools", listed)?,
            };
        }
        if has("prompts") {
            listing.prompts = or_empty(backend, "prompts", client.prompts().await)?;
        }
        if has("resources") {
            listing.resources = or_empty(backend, "resources", client.resources().await)?;
            let templates = client.resource_templates().await;
            listing.templates = or_empty(backend, "resource templates", templates)?;
        }
        Ok(listing)
    }

    /// The names of rules for tools that the backend does not have.
    pub(crate) fn unknown_rules<'a>(
        &'a self,
        spec: &'a BackendSpec,
    ) -> impl Iterator<Item = &'a String> {
        let is_listed = |name: &&String| self.tools.iter().any(|tool| tool.name == **name);
        spec.tools.keys().filter(move |name| !is_listed(name))
    }

    /// The entries to register, and their names.
    pub(crate) fn offer(
        &self,
        backend: &Arc<Backend>,
        availability: Availability,
    ) -> (Changes, OfferedNames) {
        let spec = &*backend.spec;
        let mut changes = Changes::new();
        let mut names = OfferedNames::default();
        for tool in self.unknown_rules(spec) {
            limited_event!(
                WARN,
                backend = spec.name,
                tool,
                "rule for a tool that the backend does not have"
            );
        }
        if spec.sessions == Sessions::Handle {
            let tool = sessions::open_tool(backend);
            names.tools.insert(tool.info().name.clone());
            changes = changes.tool(tool);
        }
        let tools = self.tools.iter();
        for info in tools.filter(|tool| is_offered(spec, &tool.name)) {
            let tool = match tool(backend, info, availability) {
                Ok(tool) => tool,
                Err(error) => {
                    let (backend, tool) = (&spec.name, Excerpt(&info.name));
                    limited_event!(WARN, backend, ?tool, %error, "tool is not offered");
                    continue;
                }
            };
            names.tools.insert(tool.info().name.clone());
            changes = changes.tool(tool);
        }
        let prompts = self.prompts.iter();
        for info in prompts.filter(|prompt| is_offered(spec, &prompt.name)) {
            let prompt = prompt(backend, info, self.can_complete);
            names.prompts.insert(prompt.info().name.clone());
            changes = changes.prompt(prompt);
        }
        let resources = self.resources.iter();
        for info in resources.filter(|resource| is_offered(spec, &resource.uri)) {
            names.resources.insert(info.uri.clone());
            changes = changes.resource(resource(backend, info));
        }
        for info in &self.templates {
            if is_offered(spec, &info.uri_template) {
                names.templates.insert(info.uri_template.clone());
                changes = changes.resource_template(template(backend, info, self.can_complete));
            }
        }
        (changes.skip_invalid(), names)
    }
}

impl OfferedNames {
    /// Removes these entries.
    pub(crate) fn remove(&self, mut changes: Changes) -> Changes {
        for name in &self.tools {
            changes = changes.remove_tool(name);
        }
        for name in &self.prompts {
            changes = changes.remove_prompt(name);
        }
        for uri in &self.resources {
            changes = changes.remove_resource(uri);
        }
        for template in &self.templates {
            changes = changes.remove_resource_template(template);
        }
        changes
    }

    /// A name that both offer, with its kind.
    pub(crate) fn collision<'a>(&'a self, other: &'a Self) -> Option<(&'static str, &'a str)> {
        let kinds = [
            ("tool", &self.tools, &other.tools),
            ("prompt", &self.prompts, &other.prompts),
            ("resource", &self.resources, &other.resources),
            ("resource template", &self.templates, &other.templates),
        ];
        let mut both = kinds.into_iter().filter_map(|(kind, ours, theirs)| {
            let name = ours.intersection(theirs).next()?;
            Some((kind, name.as_str()))
        });
        both.next()
    }
}

/// How each tool of a backend is offered. `without_asks` has the lists for clients that answer no asks.
pub(crate) fn describe_tools(
    backend: &Arc<Backend>,
    listing: &BackendLists,
    without_asks: Option<&BackendLists>,
) -> Vec<ToolReport> {
    let spec = &*backend.spec;
    let no_rules = ToolTable::default();
    let is_in = |list: &BackendLists, name: &str| list.tools.iter().any(|tool| tool.name == name);
    let tools = listing.tools.iter().map(|tool| {
        let rules = spec.tools.get(&tool.name).unwrap_or(&no_rules);
        let home = match tool_home(spec, rules, tool) {
            ToolHome::Replay => "replay",
            ToolHome::Live if backend.has_portable_rounds() => "client",
            ToolHome::Live => "live",
        };
        let name = offered_name(spec, rules, tool);
        // The server skips a tool with the name of the gateway's own.
        let is_own = spec.sessions == Sessions::Handle && name == sessions::open_tool_name(spec);
        ToolReport {
            tool: tool.name.clone(),
            offered_as: (is_offered(spec, &tool.name) && !is_own).then_some(name),
            home,
            task_after: tool_task_after(spec, rules).map(|after| after.as_secs()),
            asks: without_asks.is_some_and(|lists| !is_in(lists, &tool.name)),
        }
    });
    tools.collect()
}

fn offered_name(spec: &BackendSpec, rules: &ToolTable, tool: &ToolInfo) -> String {
    match &rules.name {
        Some(name) => name.clone(),
        None => format!("{}{}", spec.prefix, tool.name),
    }
}

fn tool_task_after(spec: &BackendSpec, rules: &ToolTable) -> Option<Duration> {
    match rules.task_after_seconds {
        Some(seconds) => task_after(seconds),
        None => spec.task_after,
    }
}

fn is_offered(spec: &BackendSpec, name: &str) -> bool {
    let is_allowed = spec.allow.is_empty() || spec.allow.iter().any(|allow| allow.matches(name));
    is_allowed && !is_denied(spec, name)
}

pub(crate) fn is_denied(spec: &BackendSpec, name: &str) -> bool {
    spec.deny.iter().any(|deny| deny.matches(name))
}

/// A target whose calls may be repeated after a lost response.
fn repeatable_target(backend: &Arc<Backend>, kind: CallKind, name: &str) -> Arc<ProxiedTarget> {
    Arc::new(ProxiedTarget {
        backend: backend.clone(),
        kind,
        name: name.to_owned(),
        is_repeatable: true,
        has_portable_rounds: backend.has_portable_rounds(),
    })
}

fn tool(
    backend: &Arc<Backend>,
    sent: &AsSent<ToolInfo>,
    availability: Availability,
) -> Result<Tool, sessions::EntryError> {
    let spec = &*backend.spec;
    let no_rules = ToolTable::default();
    let rules = spec.tools.get(&sent.name).unwrap_or(&no_rules);
    let name = offered_name(spec, rules, sent);
    let home = tool_home(spec, rules, sent);
    let has_portable_rounds = backend.has_portable_rounds();
    let target = Arc::new(ProxiedTarget {
        backend: backend.clone(),
        kind: CallKind::Tool,
        name: sent.name.clone(),
        is_repeatable: home == ToolHome::Replay,
        has_portable_rounds,
    });
    let has_handles = spec.sessions == Sessions::Handle;
    let handler = move |cx: Cx, server: State<Server>, mut arguments: Arguments| {
        let target = target.clone();
        async move {
            let handle = match has_handles {
                true => Some(sessions::take_handle(
                    &target.backend.spec,
                    &server,
                    &cx,
                    &mut arguments,
                )?),
                false => None,
            };
            target.call(cx, &target.name, arguments, handle).await
        }
    };
    let mut tool = Tool::new(name, handler);
    tool = match spec.sessions {
        Sessions::None => tool.listing(sent),
        Sessions::Caller => tool.listing(sent).pin_to_caller(),
        Sessions::Handle => {
            let entry = sessions::with_handle_argument(spec, sent)?;
            tool.listing(&entry)
                .pin_by_handle(sessions::HANDLE_ARGUMENT)
        }
    };
    tool = with_descriptions(tool, rules, sent, availability);
    if let Some(after) = tool_task_after(spec, rules) {
        tool = tool.task_after(after);
    }
    tool = tool.round_time(ROUND_TIME).scopes(&rules.scopes);
    Ok(match home {
        ToolHome::Replay => tool.single_use(),
        // Nothing is kept between rounds, so any gateway can continue the call. A round is sent at
        // most once.
        ToolHome::Live if has_portable_rounds => tool.single_use().once(),
        ToolHome::Live => tool.live(),
    })
}

/// Applies the rules for the texts and hints of a tool, and marks a tool whose backend is down.
fn with_descriptions(
    mut tool: Tool,
    rules: &ToolTable,
    sent: &ToolInfo,
    availability: Availability,
) -> Tool {
    if let Some(title) = &rules.title {
        tool = tool.title(title);
    }
    let description = rules.description.as_ref().or(sent.description.as_ref());
    if availability == Availability::Down {
        let description = description.map(String::as_str).unwrap_or_default();
        tool = tool.describe(format!("(unavailable) {description}"));
    } else if let Some(description) = &rules.description {
        tool = tool.describe(description);
    }
    match &rules.annotations {
        Some(annotations) => tool.annotations(annotations.clone()),
        None => tool,
    }
}

fn tool_home(spec: &BackendSpec, rules: &ToolTable, info: &ToolInfo) -> ToolHome {
    let hints = info.annotations.as_ref();
    let is_read_only = hints.and_then(|hints| hints.read_only_hint) == Some(true);
    match rules.home {
        Some(home) => home,
        None if spec.trust_hints && is_read_only => ToolHome::Replay,
        None => spec.home,
    }
}

fn prompt(backend: &Arc<Backend>, sent: &AsSent<PromptInfo>, can_complete: bool) -> Prompt {
    let name = format!("{}{}", backend.spec.prefix, sent.name);
    let target = repeatable_target(backend, CallKind::Prompt, &sent.name);
    let handler = {
        let target = target.clone();
        move |cx: Cx, arguments: Arguments| {
            let target = target.clone();
            async move { target.call(cx, &target.name, arguments, None).await }
        }
    };
    let mut prompt = Prompt::new(name, handler).listing(sent);
    if backend.spec.sessions == Sessions::Caller {
        prompt = prompt.pin_to_caller();
    }
    if can_complete {
        for argument in &sent.arguments {
            prompt = prompt.complete(&argument.name, completer(&target, &argument.name));
        }
    }
    prompt
}

/// Completes an argument of a prompt or a variable of a template.
fn completer(
    target: &Arc<ProxiedTarget>,
    argument: &str,
) -> impl Fn(CompletionInput) -> BoxFuture<'static, Result<Completion>> + Send + Sync + 'static {
    let (target, argument) = (target.clone(), argument.to_owned());
    move |input| {
        let (target, argument) = (target.clone(), argument.clone());
        async move { target.complete(argument, input).await }.boxed()
    }
}

fn resource(backend: &Arc<Backend>, sent: &AsSent<ResourceInfo>) -> Resource {
    let target = repeatable_target(backend, CallKind::Resource, &sent.uri);
    let handler = move |cx: Cx| {
        let target = target.clone();
        async move { target.call(cx, &target.name, Map::new(), None).await }
    };
    let resource = Resource::new(&sent.uri, &sent.name, handler).listing(sent);
    match backend.spec.sessions {
        Sessions::Caller => resource.pin_to_caller(),
        Sessions::None | Sessions::Handle => resource,
    }
}

fn template(
    backend: &Arc<Backend>,
    sent: &AsSent<ResourceTemplateInfo>,
    can_complete: bool,
) -> ResourceTemplate {
    let target = repeatable_target(backend, CallKind::Resource, &sent.uri_template);
    let handler = {
        let target = target.clone();
        move |cx: Cx| {
            let target = target.clone();
            async move {
                let uri = cx.uri().unwrap_or_default().to_owned();
                if is_denied(&target.backend.spec, &uri) {
                    let message = format!("resource not found: {uri}");
                    return Err(refrain::Error::rpc(-32602, message, json!({"uri": uri})));
                }
                target.call(cx, &uri, Map::new(), None).await
            }
        }
    };
    let mut template = ResourceTemplate::new(&sent.uri_template, &sent.name, handler).listing(sent);
    if backend.spec.sessions == Sessions::Caller {
        template = template.pin_to_caller();
    }
    if can_complete {
        for variable in template.variables() {
            template = template.complete(&variable, completer(&target, &variable));
        }
    }
    template
}
