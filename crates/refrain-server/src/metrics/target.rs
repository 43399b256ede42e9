//! Counters of registered tools, prompts, resources and resource templates.

use super::duration::Durations;
use super::label::{Counts, KINDS, Label, RoundLabel};
use super::number::Counter;
use parking_lot::Mutex;
use refrain_wire::CallKind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of names with separate counters. Each adds about a dozen lines to a scrape.
const MAX_NAMES: usize = 1000;

/// The counters of a tool, prompt, resource or resource template.
#[derive(Debug)]
pub(crate) struct TargetCounts {
    pub(super) kind: CallKind,
    /// The name, URI or URI template. Empty for the shared counters.
    pub(crate) name: String,
    pub(super) calls: Counter,
    pub(super) rounds: Counts<RoundLabel>,
    pub(super) durations: Durations,
}

impl TargetCounts {
    fn new(kind: CallKind, name: &str) -> Arc<Self> {
        Arc::new(Self {
            kind,
            name: name.to_owned(),
            calls: Counter::default(),
            rounds: Counts::default(),
            durations: Durations::default(),
        })
    }
}

/// The counters of all entries. The counters of removed entries are kept until the limit of names is reached.
#[derive(Debug)]
pub(super) struct Targets {
    by_name: Mutex<BTreeMap<(usize, String), Arc<TargetCounts>>>,
    /// For names beyond the limit and unregistered names.
    shared: [Arc<TargetCounts>; KINDS.len()],
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            by_name: Mutex::default(),
            shared: KINDS.map(|kind| TargetCounts::new(kind, "")),
        }
    }
}

impl Targets {
    /// The counters of this name, or the shared ones if the limit of names is reached.
    pub(super) fn get(&self, kind: CallKind, name: &str) -> Arc<TargetCounts> {
        let shared = &self.shared[kind.index()];
        if name.is_empty() {
            return shared.clone();
        }
        let mut by_name = self.by_name.lock();
        let key = (kind.index(), name.to_owned());
        if let Some(counts) = by_name.get(&key) {
            return counts.clone();
        }
        if by_name.len() >= MAX_NAMES {
            // The counters of a removed entry have no other reference than this map.
            by_name.retain(|_, counts| Arc::strong_count(counts) > 1);
        }
        if by_name.len() >= MAX_NAMES {
            return shared.clone();
        }
        let counts = TargetCounts::new(kind, name);
        by_name.insert(key, counts.clone());
        counts
    }

    pub(super) fn or_shared<'a>(
        &'a self,
        kind: CallKind,
        counts: Option<&'a TargetCounts>,
    ) -> &'a TargetCounts {
        counts.unwrap_or(&self.shared[kind.index()])
    }

    /// All counters, grouped by method: first the shared ones, then by name.
    pub(super) fn all(&self) -> Vec<Arc<TargetCounts>> {
        let by_name = self.by_name.lock();
        let mut all: Vec<_> = self
            .shared
            .iter()
            .chain(by_name.values())
            .cloned()
            .collect();
        all.sort_by_key(|counts| counts.kind.index());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_outlive_a_removed_entry() {
        let targets = Targets::default();
        targets.get(CallKind::Tool, "echo").calls.inc();
        assert_eq!(targets.get(CallKind::Tool, "echo").calls.get(), 1);
        assert_eq!(targets.get(CallKind::Prompt, "echo").calls.get(), 0);
    }

    #[test]
    fn names_beyond_the_limit_share_counters() {
        let targets = Targets::default();
        let held: Vec<_> = (0..MAX_NAMES)
            .map(|n| targets.get(CallKind::Tool, &format!("tool {n}")))
            .collect();
        let one_more = targets.get(CallKind::Tool, "one more");
        assert_eq!(one_more.name, "");
        assert_eq!(targets.all().len(), MAX_NAMES + KINDS.len());
        // Dropped entries free their names.
        drop(held);
        assert_eq!(targets.get(CallKind::Tool, "one more").name, "one more");
        assert_eq!(targets.all().len(), 1 + KINDS.len());
    }
}
