//! The server: what is registered, and what all its rounds share.

use crate::auth::{Access, AccessRules, Authenticator, check_scopes};
use crate::handler::{Needs, States};
use crate::limits::ServerLimits;
use crate::load::Load;
use crate::prompt::Prompt;
use crate::resource::{Pattern, Resource, ResourceTemplate, TemplateError};
use crate::tool::Tool;
use jsonschema::Validator;
use refrain_core::{
    KeyRing, MemoryReplayLog, ReplayLog, Sealer, SealerOptions, Source, SystemSource,
};
use refrain_wire::{
    CacheScope, DiscoverResult, Implementation, ListResult, Listed, PROTOCOL_VERSION, Reply,
    ServerCapabilities,
};
use serde_json::value::{RawValue, to_raw_value};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

/// A server with its handlers, ready to be served over HTTP or stdio. Cloning it is cheap.
#[derive(Clone)]
pub struct Server(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) info: Box<RawValue>,
    pub(crate) instance: Option<String>,
    pub(crate) tools: HashMap<String, Arc<RegisteredTool>>,
    pub(crate) prompts: HashMap<String, Arc<Prompt>>,
    pub(crate) resources: HashMap<String, Arc<Resource>>,
    pub(crate) templates: Vec<(Pattern, Arc<ResourceTemplate>)>,
    pub(crate) lists: Lists,
    pub(crate) states: States,
    pub(crate) sealer: Sealer,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) limits: ServerLimits,
    pub(crate) load: Arc<Load>,
    pub(crate) replay_log: Option<Arc<dyn ReplayLog>>,
    pub(crate) authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) access: Access,
}

pub(crate) struct RegisteredTool {
    pub(crate) tool: Tool,
    pub(crate) arguments: Validator,
}

/// The replies to the list methods: they do not change while the server runs.
pub(crate) struct Lists {
    pub(crate) discover: Reply,
    pub(crate) tools: Reply,
    pub(crate) prompts: Reply,
    pub(crate) resources: Reply,
    pub(crate) templates: Reply,
}

/// Why a server cannot be built.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two things of one kind have one name.
    #[error("{kind} {name:?} is registered twice")]
    Duplicate {
        /// "the tool", "the prompt", "the resource" or "the resource template".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A handler takes a `State<T>` that was not handed in.
    #[error("{handler:?} takes State<{state}>: hand it in with .state(..)")]
    MissingState {
        /// The tool, prompt or resource.
        handler: String,
        /// The type of the state.
        state: &'static str,
    },
    /// A tool wants its work or its tokens used once, and nothing could tell.
    #[error(
        "the tool {tool:?} needs a replay log that the fleet shares: hand one in with .replay_log(..), \
         or declare with .single_instance() that there is only one instance"
    )]
    NeedsReplayLog {
        /// The tool.
        tool: String,
    },
    /// A tool's schema is not a JSON schema.
    #[error("the input schema of {tool:?} is not usable: {reason}")]
    Schema {
        /// The tool.
        tool: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A scope that callers cannot be asked for.
    #[error("{owner} cannot need the scope {scope:?}: {reason}")]
    Scope {
        /// What needs it: the tool, prompt or resource, or the server itself.
        owner: String,
        /// The scope.
        scope: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The resource metadata would lead clients nowhere.
    #[error("the resource metadata cannot name {url:?}: {reason}")]
    Metadata {
        /// The URL that is at fault.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A resource template cannot be matched against URIs.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// What `main` shows when it returns this error.
impl std::fmt::Debug for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Puts a [`Server`] together.
pub struct ServerBuilder {
    info: Implementation,
    instructions: Option<String>,
    instance: Option<String>,
    tools: Vec<Tool>,
    prompts: Vec<Prompt>,
    resources: Vec<Resource>,
    templates: Vec<ResourceTemplate>,
    states: States,
    keys: Option<KeyRing>,
    sealing: SealerOptions,
    limits: ServerLimits,
    source: Arc<dyn Source>,
    replay_log: Option<Arc<dyn ReplayLog>>,
    authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) access: AccessRules,
}

impl Server {
    /// Begins a server of this name and version. The name is also the audience of its tokens, unless another is set.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> ServerBuilder {
        let name = name.into();
        ServerBuilder {
            sealing: SealerOptions {
                audience: name.clone(),
                ..SealerOptions::default()
            },
            info: Implementation {
                name,
                title: None,
                version: version.into(),
            },
            instructions: None,
            instance: None,
            tools: Vec::new(),
            prompts: Vec::new(),
            resources: Vec::new(),
            templates: Vec::new(),
            states: States::default(),
            keys: None,
            limits: ServerLimits::default(),
            source: Arc::new(SystemSource::new()),
            replay_log: None,
            authenticator: None,
            access: AccessRules::default(),
        }
    }

    /// Puts another key ring in place of the present one, without a restart.
    pub fn reload_keys(&self, keys: KeyRing) {
        self.0.sealer.reload(keys);
    }

    /// Hands running flows on at their next checkpoint from now on, and has `/readyz` say no.
    pub fn start_draining(&self) {
        self.0.load.start_draining();
    }

    /// Is the server on its way out?
    pub fn is_draining(&self) -> bool {
        self.0.load.is_draining()
    }

    /// How many calls are running.
    pub fn running(&self) -> usize {
        self.0.load.running()
    }

    /// The limits the server was built with.
    pub fn limits(&self) -> &ServerLimits {
        &self.0.limits
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("info", &self.0.info.get())
            .field("tools", &self.0.tools.len())
            .finish_non_exhaustive()
    }
}

impl ServerBuilder {
    /// Registers a tool.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Registers a prompt.
    pub fn prompt(mut self, prompt: Prompt) -> Self {
        self.prompts.push(prompt);
        self
    }

    /// Registers a resource.
    pub fn resource(mut self, resource: Resource) -> Self {
        self.resources.push(resource);
        self
    }

    /// Registers a family of resources.
    pub fn resource_template(mut self, template: ResourceTemplate) -> Self {
        self.templates.push(template);
        self
    }

    /// Hands in application state, for handlers that take a `State<T>`. One value for each type.
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.insert(state);
        self
    }

    /// A title for the server.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.info.title = Some(title.into());
        self
    }

    /// What a model should know about using this server.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// Names this instance, and has every reply say in a `refrain-round` header what the round did. For looking at
    /// how a fleet works; it tells callers which instance served them.
    pub fn explain_as(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// The keys that tokens are sealed with. All instances of a fleet share them; without any, a key is made that
    /// only this instance has.
    pub fn keys(mut self, keys: KeyRing) -> Self {
        self.keys = Some(keys);
        self
    }

    /// The name of the service that tokens are bound to. All instances of a fleet share it.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.sealing.audience = audience.into();
        self
    }

    /// How long a token is accepted.
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.sealing.ttl = ttl;
        self
    }

    /// How long a flow may live, all its rounds together.
    pub fn flow_ttl(mut self, ttl: Duration) -> Self {
        self.sealing.flow_ttl = ttl;
        self
    }

    /// How far the clocks of two instances may be apart.
    pub fn clock_skew(mut self, skew: Duration) -> Self {
        self.sealing.skew = skew;
        self
    }

    /// The largest token, in characters.
    pub fn max_token(mut self, characters: usize) -> Self {
        self.sealing.max_token = characters;
        self
    }

    /// The limits of the server.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Where time and randomness come from. For tests.
    pub fn source(mut self, source: Arc<dyn Source>) -> Self {
        self.source = source;
        self
    }

    /// The log that makes `once` and single-use tokens possible. All instances of a fleet must share it.
    pub fn replay_log(mut self, log: Arc<dyn ReplayLog>) -> Self {
        self.replay_log = Some(log);
        self
    }

    /// Declares that no other instance accepts the same tokens, so that a replay log in memory will do.
    pub fn single_instance(self) -> Self {
        self.replay_log(Arc::new(MemoryReplayLog::new()))
    }

    /// Finds out who is calling over HTTP. Without one, every caller is anonymous and has no scopes.
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> Self {
        self.authenticator = Some(Arc::new(authenticator));
        self
    }

    /// Checks everything that was registered and builds the server.
    pub fn build(self) -> Result<Server, BuildError> {
        let lists = self.lists();
        let states = self.states;
        let mut tools = HashMap::new();
        for tool in self.tools {
            has_states(&states, &tool.info.name, &tool.needs)?;
            check_scopes(&tool.info.name, &tool.scopes)?;
            if (tool.once || tool.single_use) && self.replay_log.is_none() {
                return Err(BuildError::NeedsReplayLog {
                    tool: tool.info.name,
                });
            }
            let arguments =
                jsonschema::validator_for(&tool.info.input_schema).map_err(|error| {
                    BuildError::Schema {
                        tool: tool.info.name.clone(),
                        reason: error.to_string(),
                    }
                })?;
            let name = tool.info.name.clone();
            insert(
                &mut tools,
                "the tool",
                name,
                RegisteredTool { tool, arguments },
            )?;
        }
        let mut prompts = HashMap::new();
        for prompt in self.prompts {
            has_states(&states, &prompt.info.name, &prompt.needs)?;
            check_scopes(&prompt.info.name, &prompt.scopes)?;
            insert(&mut prompts, "the prompt", prompt.info.name.clone(), prompt)?;
        }
        let mut resources = HashMap::new();
        for resource in self.resources {
            has_states(&states, &resource.info.uri, &resource.needs)?;
            check_scopes(&resource.info.uri, &resource.scopes)?;
            insert(
                &mut resources,
                "the resource",
                resource.info.uri.clone(),
                resource,
            )?;
        }
        let mut templates = Vec::new();
        for template in self.templates {
            has_states(&states, &template.info.uri_template, &template.needs)?;
            check_scopes(&template.info.uri_template, &template.scopes)?;
            let uri = &template.info.uri_template;
            let pattern = Pattern::parse(uri)?;
            if templates.iter().any(|(known, _)| *known == pattern) {
                return Err(BuildError::Duplicate {
                    kind: "the resource template",
                    name: uri.clone(),
                });
            }
            templates.push((pattern, Arc::new(template)));
        }
        let keys = self.keys.unwrap_or_else(|| {
            tracing::warn!(
                "no keys are configured: using one made just now, which no other instance has; \
                 a fleet must share keys"
            );
            KeyRing::generate(&*self.source)
        });
        let load = Load::new(self.limits.concurrent_calls, self.limits.shed_above);
        let info = to_raw_value(&self.info).expect("a name and a version are plain strings");
        Ok(Server(Arc::new(Inner {
            info,
            instance: self.instance,
            tools,
            prompts,
            resources,
            templates,
            lists,
            states,
            sealer: Sealer::new(keys, self.sealing, self.source.clone()),
            source: self.source,
            limits: self.limits,
            load,
            replay_log: self.replay_log,
            authenticator: self.authenticator,
            access: self.access.build()?,
        })))
    }

    fn lists(&self) -> Lists {
        let tools: Vec<_> = self.tools.iter().map(|tool| tool.info.clone()).collect();
        let prompts: Vec<_> = self.prompts.iter().map(|p| p.info.clone()).collect();
        let resources: Vec<_> = self.resources.iter().map(|r| r.info.clone()).collect();
        let templates: Vec<_> = self.templates.iter().map(|t| t.info.clone()).collect();
        let capabilities = ServerCapabilities {
            tools: !tools.is_empty(),
            prompts: !prompts.is_empty(),
            resources: !resources.is_empty() || !templates.is_empty(),
            logging: true,
        };
        Lists {
            discover: Reply::complete(DiscoverResult {
                supported_versions: vec![PROTOCOL_VERSION.to_owned()],
                capabilities,
                instructions: self.instructions.clone(),
                ttl_ms: 0,
                cache_scope: CacheScope::Private,
            }),
            tools: list(&tools),
            prompts: list(&prompts),
            resources: list(&resources),
            templates: list(&templates),
        }
    }
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("name", &self.info.name)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

fn list<T: Listed + serde::Serialize>(items: &[T]) -> Reply {
    Reply::complete(ListResult {
        items,
        next_cursor: None,
        ttl_ms: 0,
        cache_scope: CacheScope::Private,
    })
}

fn has_states(states: &States, handler: &str, needs: &[Needs]) -> Result<(), BuildError> {
    match needs.iter().find(|need| !states.has(need.id)) {
        None => Ok(()),
        Some(need) => Err(BuildError::MissingState {
            handler: handler.to_owned(),
            state: need.name,
        }),
    }
}

fn insert<T>(
    map: &mut HashMap<String, Arc<T>>,
    kind: &'static str,
    name: String,
    item: T,
) -> Result<(), BuildError> {
    match map.entry(name) {
        Entry::Occupied(taken) => Err(BuildError::Duplicate {
            kind,
            name: taken.key().clone(),
        }),
        Entry::Vacant(free) => {
            free.insert(Arc::new(item));
            Ok(())
        }
    }
}
