//! The fields that tools, prompts, resources and resource templates share.

use super::coerce::TextFields;
use super::complete::Completers;
use crate::auth::check_scopes;
use crate::builder::BuildError;
use crate::catalog::Rules;
use crate::handler::{ErasedHandler, Handler, StateRequirement, erase};
use crate::metrics::TargetCounts;
use refrain_wire::{Cache, CallKind};
use std::sync::{Arc, OnceLock};

/// How the instance that runs a call is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// By the caller.
    Caller,
    /// By a handle in the argument with this name.
    Handle(String),
}

/// The fields that all kinds of entries have, apart from their list entry.
pub(crate) struct CatalogEntry {
    pub(crate) scopes: Vec<String>,
    /// `None` if any instance may run a call.
    pub(crate) pin: Option<Pin>,
    pub(crate) start: ErasedHandler,
    /// For prompts and resource templates.
    pub(crate) text_fields: TextFields,
    /// For prompts and resource templates.
    pub(crate) completers: Completers,
    /// For resources and resource templates.
    pub(crate) cache: Cache,
    /// The metrics of the entry, set when it is registered.
    pub(crate) counts: OnceLock<Arc<TargetCounts>>,
    pub(super) required_states: Vec<StateRequirement>,
}

impl CatalogEntry {
    pub(super) fn new<M, K, H: Handler<M, K>>(handler: H) -> Self {
        Self {
            scopes: Vec::new(),
            pin: None,
            start: erase(handler),
            text_fields: TextFields::default(),
            completers: Completers::new(),
            cache: Cache::default(),
            counts: OnceLock::new(),
            required_states: H::required_states(),
        }
    }

    pub(super) fn check(&self, name: &str, rules: &Rules) -> Result<(), BuildError> {
        if let Some(missing) = self
            .required_states
            .iter()
            .find(|state| !rules.states.has(state.id))
        {
            return Err(BuildError::MissingState {
                handler: name.to_owned(),
                state: missing.name,
            });
        }
        check_scopes(name, &self.scopes)
    }

    /// Checks that every argument with a completion function exists.
    pub(super) fn check_completers(
        &self,
        owner: String,
        arguments: &[&str],
    ) -> Result<(), BuildError> {
        let unknown = |name: &&String| !arguments.contains(&name.as_str());
        match self.completers.keys().find(unknown) {
            None => Ok(()),
            Some(argument) => Err(BuildError::UnknownCompletion {
                owner,
                argument: argument.clone(),
                arguments: arguments.join(", "),
            }),
        }
    }

    pub(super) fn create_counts(&self, kind: CallKind, name: &str, rules: &Rules) {
        self.counts.get_or_init(|| rules.metrics.target(kind, name));
    }
}
