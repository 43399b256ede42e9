//! Changes of a running server's catalog.

use super::{Listing, Prompt, Resource, ResourceTemplate, Tool};
use std::sync::Arc;

/// Entries to add to and remove from a running server. Removals are applied first, so removing and adding the same name
/// replaces the entry.
///
/// ```
/// # use refrain::server::{BuildError, Changes, Server, Tool};
/// # use refrain::{Cx, Result};
/// # async fn ping(_: Cx) -> Result<&'static str> { Ok("pong") }
/// # fn main() -> Result<(), BuildError> {
/// let server = Server::builder("docs", "1.0").build()?;
/// server.change(Changes::new().tool(Tool::new("ping", ping)))?;
/// server.change(Changes::new().remove_tool("ping"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "changes do nothing until they are passed to Server::change"]
pub struct Changes {
    pub(super) added: Vec<(AddedEntry, OnInvalid)>,
    pub(super) removed: Vec<(Listing, String)>,
}

/// An entry to add. It is shared, because a change is applied again if another change came first.
#[derive(Clone, Debug)]
pub(super) enum AddedEntry {
    Tool(Arc<Tool>),
    Prompt(Arc<Prompt>),
    Resource(Arc<Resource>),
    Template(Arc<ResourceTemplate>),
}

/// How an invalid entry is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnInvalid {
    Fail,
    Skip,
}

impl Changes {
    /// Creates an empty set of changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    pub fn tool(self, tool: Tool) -> Self {
        self.add(AddedEntry::Tool(Arc::new(tool)))
    }

    /// Adds a prompt.
    pub fn prompt(self, prompt: Prompt) -> Self {
        self.add(AddedEntry::Prompt(Arc::new(prompt)))
    }

    /// Adds a resource.
    pub fn resource(self, resource: Resource) -> Self {
        self.add(AddedEntry::Resource(Arc::new(resource)))
    }

    /// Adds a resource template.
    pub fn resource_template(self, template: ResourceTemplate) -> Self {
        self.add(AddedEntry::Template(Arc::new(template)))
    }

    /// Removes the tool with this name, if it exists. Running rounds finish; later rounds of its calls are rejected.
    pub fn remove_tool(self, name: impl Into<String>) -> Self {
        self.remove(Listing::Tools, name)
    }

    /// Removes the prompt with this name, if it exists.
    pub fn remove_prompt(self, name: impl Into<String>) -> Self {
        self.remove(Listing::Prompts, name)
    }

    /// Removes the resource at this URI, if it exists.
    pub fn remove_resource(self, uri: impl Into<String>) -> Self {
        self.remove(Listing::Resources, uri)
    }

    /// Removes this resource template, if it exists.
    pub fn remove_resource_template(self, uri_template: impl Into<String>) -> Self {
        self.remove(Listing::ResourceTemplates, uri_template)
    }

    /// Skips invalid entries among those added so far, with a warning in the log, instead of failing. For entries of other
    /// servers, whose validity this server does not control.
    ///
    /// ```
    /// # use refrain::server::{BuildError, Changes, Resource, Server};
    /// # use refrain::{Cx, Result};
    /// # async fn read(_: Cx) -> Result<&'static str> { Ok("text") }
    /// # fn main() -> Result<(), BuildError> {
    /// let server = Server::builder("docs", "1.0").build()?;
    /// let invalid = Resource::new("no scheme", "notes", read);
    /// server.change(Changes::new().resource(invalid).skip_invalid())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn skip_invalid(mut self) -> Self {
        for (_, on_invalid) in &mut self.added {
            *on_invalid = OnInvalid::Skip;
        }
        self
    }

    /// These changes, followed by the others.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.added.extend(others.added);
        self.removed.extend(others.removed);
        self
    }

    fn add(mut self, added: AddedEntry) -> Self {
        self.added.push((added, OnInvalid::Fail));
        self
    }

    fn remove(mut self, from: Listing, name: impl Into<String>) -> Self {
        self.removed.push((from, name.into()));
        self
    }
}
