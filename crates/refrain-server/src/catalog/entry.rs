//! The common part of tools, prompts, resources and resource templates.

use super::coerce::Texts;
use super::complete::Completers;
use crate::auth::check_scopes;
use crate::builder::BuildError;
use crate::catalog::Rules;
use crate::handler::{Handler, Needs, Start, erase};
use crate::metrics::TargetCounts;
use refrain_wire::{Cache, CallKind};
use std::sync::{Arc, OnceLock};

pub(crate) struct Entry {
    pub(crate) scopes: Vec<String>,
    pub(crate) start: Start,
    /// Arguments that are sent as text: of prompts and resource templates.
    pub(crate) texts: Texts,
    /// Suggestions for arguments: of prompts and resource templates.
    pub(crate) completers: Completers,
    /// How long contents may be cached: of resources and resource templates.
    pub(crate) cache: Cache,
    /// Set when the entry is registered.
    pub(crate) counts: OnceLock<Arc<TargetCounts>>,
    pub(super) needs: Vec<Needs>,
}

impl Entry {
    pub(super) fn new<M, K, H: Handler<M, K>>(handler: H) -> Self {
        Self {
            scopes: Vec::new(),
            start: erase(handler),
            texts: Texts::default(),
            completers: Completers::new(),
            cache: Cache::default(),
            counts: OnceLock::new(),
            needs: H::needs(),
        }
    }

    pub(super) fn check(&self, name: &str, rules: &Rules) -> Result<(), BuildError> {
        if let Some(missing) = self.needs.iter().find(|need| !rules.states.has(need.id)) {
            return Err(BuildError::MissingState {
                handler: name.to_owned(),
                state: missing.name,
            });
        }
        check_scopes(name, &self.scopes)
    }

    /// Checks that every completed argument exists.
    pub(super) fn check_completers(&self, of: String, known: &[&str]) -> Result<(), BuildError> {
        let unknown = |name: &&String| !known.contains(&name.as_str());
        match self.completers.keys().find(unknown) {
            None => Ok(()),
            Some(argument) => Err(BuildError::NothingToComplete {
                of,
                argument: argument.clone(),
                known: known.join(", "),
            }),
        }
    }

    pub(super) fn count(&self, kind: CallKind, name: &str, rules: &Rules) {
        self.counts.get_or_init(|| rules.metrics.target(kind, name));
    }
}
