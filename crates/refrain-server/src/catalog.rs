//! The catalog: registered tools, prompts, resources and resource templates.
//!
//! Invariant: `Entries` is immutable. A change replaces it as a whole, so a request sees the same entries from start to
//! end.
//!
//! | module | contents |
//! | --- | --- |
//! | `tool`, `prompt`, `resource` | entries that authors register |
//! | `entry`, `listed`, `builder_macros` | fields and methods common to all entries |
//! | `template` | URI templates, matched against URIs |
//! | `entries` | an immutable snapshot of the catalog: lookup and lists |
//! | `paged_map` | entries of one kind in registration order, with cursors |
//! | `changes` | entries to add and remove at run time |
//! | `coerce` | converts text arguments to numbers and booleans |
//! | `complete` | completion of arguments |

mod builder_macros;
mod changes;
mod coerce;
pub(crate) mod complete;
mod entries;
mod entry;
mod listed;
mod paged_map;
mod prompt;
mod resource;
mod template;
mod tool;

pub use changes::Changes;
pub use complete::CompletionInput;
pub(crate) use entries::{
    Caches, ChangedLists, Entries, RegisteredTemplate, RegisteredTool, Rules, encode_uri,
    normalize_uri,
};
pub(crate) use entry::{CatalogEntry, Pin};
pub(crate) use paged_map::{Cursor, PagedMap};
pub use prompt::Prompt;
pub use resource::{Resource, ResourceTemplate};
pub use template::{TemplateError, TemplateFlaw};
pub use tool::Tool;

use crate::builder::BuildError;
use crate::handler::StateMap;
use parking_lot::{RwLock, RwLockReadGuard};
use refrain_wire::{Reply, RpcError};
use std::sync::Arc;

/// A list that clients can request.
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
    /// The method that requests the list.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::ResourceTemplates => "resources/templates/list",
        }
    }
}

/// The registered entries of a server. A change replaces them as a whole.
pub(crate) struct Catalog {
    entries: RwLock<Arc<Entries>>,
    pub(crate) rules: Rules,
}

impl Catalog {
    pub(crate) fn new(registered: &Changes, rules: Rules) -> Result<Self, BuildError> {
        let (entries, _) = Entries::default().with(registered, &rules)?;
        Ok(Self {
            entries: RwLock::new(Arc::new(entries)),
            rules,
        })
    }

    /// The current entries. Do not hold the lock across an await: clone the `Arc` instead.
    pub(crate) fn entries(&self) -> RwLockReadGuard<'_, Arc<Entries>> {
        self.entries.read()
    }

    pub(crate) fn states(&self) -> &StateMap {
        &self.rules.states
    }

    pub(crate) fn list(&self, listing: Listing, cursor: Option<&str>) -> Result<Reply, RpcError> {
        self.entries().list(listing, cursor, &self.rules)
    }

    /// Applies all changes or, on an error, none. Returns the changed lists.
    pub(crate) fn change(&self, changes: &Changes) -> Result<ChangedLists, BuildError> {
        loop {
            let current = self.entries().clone();
            let (new, changed) = current.with(changes, &self.rules)?;
            let new = Arc::new(new);
            let mut entries = self.entries.write();
            if Arc::ptr_eq(&entries, &current) {
                let old = std::mem::replace(&mut *entries, new);
                // Handlers are dropped outside the lock, because their destructors are the author's code.
                drop(entries);
                drop(old);
                return Ok(changed);
            }
            // Another change came first: apply this one to its result.
        }
    }
}
