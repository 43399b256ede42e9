//! Entries to add to a running server and to remove from it.

use super::Prompt;
use super::Tool;
use super::{Resource, ResourceTemplate};
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
    // Shared, so that a change can be made again upon another.
    pub(crate) tools: Vec<Arc<Tool>>,
    pub(crate) prompts: Vec<Arc<Prompt>>,
    pub(crate) resources: Vec<Arc<Resource>>,
    pub(crate) templates: Vec<Arc<ResourceTemplate>>,
    pub(crate) gone_tools: Vec<String>,
    pub(crate) gone_prompts: Vec<String>,
    pub(crate) gone_resources: Vec<String>,
    pub(crate) gone_templates: Vec<String>,
}

impl Changes {
    /// No changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// Adds a prompt.
    pub fn prompt(mut self, prompt: Prompt) -> Self {
        self.prompts.push(Arc::new(prompt));
        self
    }

    /// Adds a resource.
    pub fn resource(mut self, resource: Resource) -> Self {
        self.resources.push(Arc::new(resource));
        self
    }

    /// Adds a family of resources.
    pub fn resource_template(mut self, template: ResourceTemplate) -> Self {
        self.templates.push(Arc::new(template));
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
