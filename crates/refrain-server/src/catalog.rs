//! The catalog: registered tools, prompts, resources and resource templates.
//!
//! Invariant: the entries of a catalog never change. A change makes new entries, which replace the old ones as a whole or
//! not at all, so that a request sees the same entries from start to end.
//!
//! | module | contents |
//! | --- | --- |
//! | `tool`, `prompt`, `resource` | what can be registered |
//! | `entry`, `builder_macros` | the fields and methods that these have in common |
//! | `template` | URI templates, matched against URIs |
//! | `entries` | one state of the catalog: found by name, listed in pages |
//! | `paged_map` | entries of one kind in order of registration, with cursors |
//! | `changes` | entries to add and remove while the server runs |
//! | `coerce` | text arguments converted to numbers and booleans |
//! | `complete` | suggestions for arguments |

mod builder_macros;
mod changes;
mod coerce;
pub(crate) mod complete;
mod entries;
mod entry;
mod paged_map;
mod prompt;
mod resource;
mod template;
mod tool;

pub use changes::Changes;
pub use complete::Typed;
pub(crate) use entries::{
    Caches, Changed, Entries, RegisteredTemplate, RegisteredTool, Rules, normal, written,
};
pub(crate) use entry::Entry;
pub use prompt::Prompt;
pub use resource::{Resource, ResourceTemplate};
pub use template::{TemplateError, TemplateFlaw};
pub use tool::Tool;

use crate::builder::BuildError;
use crate::handler::States;
use parking_lot::{RwLock, RwLockReadGuard};
use refrain_wire::{Reply, RpcError};
use std::sync::Arc;

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

    /// The present entries. Requests that wait clone them instead of holding the lock.
    pub(crate) fn entries(&self) -> RwLockReadGuard<'_, Arc<Entries>> {
        self.entries.read()
    }

    pub(crate) fn states(&self) -> &States {
        &self.rules.states
    }

    pub(crate) fn list(&self, listing: Listing, cursor: Option<&str>) -> Result<Reply, RpcError> {
        self.entries().list(listing, cursor, &self.rules)
    }

    /// Makes all changes or, on an error, none. Returns which lists changed.
    pub(crate) fn change(&self, changes: &Changes) -> Result<Changed, BuildError> {
        loop {
            let now = self.entries().clone();
            let (new, changed) = now.with(changes, &self.rules)?;
            let new = Arc::new(new);
            let mut entries = self.entries.write();
            if Arc::ptr_eq(&entries, &now) {
                let old = std::mem::replace(&mut *entries, new);
                // Handlers are dropped outside of the lock: their destructors are not ours.
                drop(entries);
                drop(old);
                return Ok(changed);
            }
            // Another change was made meanwhile: this one is made upon it.
            drop(entries);
        }
    }
}
