//! Entries to add to a running server and to remove from it.

use super::{Listing, Prompt, Resource, ResourceTemplate, Tool};
use std::sync::Arc;

/// Entries to add to a running server and to remove from it. Removals come first, so that removing and adding under one
/// name replaces.
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
#[derive(Clone, Debug, Default)]
#[must_use = "changes do nothing until they are given to Server::change"]
pub struct Changes {
    pub(super) added: Vec<Added>,
    pub(super) removed: Vec<(Listing, String)>,
}

/// An entry to add. Shared, because a change is repeated if another was made meanwhile.
#[derive(Clone, Debug)]
pub(super) enum Added {
    Tool(Arc<Tool>),
    Prompt(Arc<Prompt>),
    Resource(Arc<Resource>),
    Template(Arc<ResourceTemplate>),
}

impl Changes {
    /// No changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    pub fn tool(self, tool: Tool) -> Self {
        self.add(Added::Tool(Arc::new(tool)))
    }

    /// Adds a prompt.
    pub fn prompt(self, prompt: Prompt) -> Self {
        self.add(Added::Prompt(Arc::new(prompt)))
    }

    /// Adds a resource.
    pub fn resource(self, resource: Resource) -> Self {
        self.add(Added::Resource(Arc::new(resource)))
    }

    /// Adds a family of resources.
    pub fn resource_template(self, template: ResourceTemplate) -> Self {
        self.add(Added::Template(Arc::new(template)))
    }

    /// Removes the tool of this name, if there is one. Running calls are finished; later rounds of its flows are rejected.
    pub fn remove_tool(self, name: impl Into<String>) -> Self {
        self.remove(Listing::Tools, name)
    }

    /// Removes the prompt of this name, if there is one.
    pub fn remove_prompt(self, name: impl Into<String>) -> Self {
        self.remove(Listing::Prompts, name)
    }

    /// Removes the resource at this URI, if there is one.
    pub fn remove_resource(self, uri: impl Into<String>) -> Self {
        self.remove(Listing::Resources, uri)
    }

    /// Removes the resource template of this form, if there is one.
    pub fn remove_resource_template(self, uri_template: impl Into<String>) -> Self {
        self.remove(Listing::ResourceTemplates, uri_template)
    }

    fn add(mut self, added: Added) -> Self {
        self.added.push(added);
        self
    }

    fn remove(mut self, from: Listing, name: impl Into<String>) -> Self {
        self.removed.push((from, name.into()));
        self
    }
}
