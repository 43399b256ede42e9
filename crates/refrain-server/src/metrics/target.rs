//! Counters of registered tools, prompts, resources and resource templates.

use super::label::{Counts, KINDS, Label, Outcome};
use super::number::Counter;
use parking_lot::Mutex;
use refrain_wire::CallKind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most names with separate counters. A scrape writes a dozen lines for each.
const MOST: usize = 1000;

/// The counters of one tool, prompt, resource or resource template.
#[derive(Debug)]
pub(crate) struct TargetCounts {
    pub(super) kind: CallKind,
    /// The name, URI or URI template. Empty: all without separate counters.
    pub(crate) name: String,
    pub(super) calls: Counter,
    pub(super) rounds: Counts<Outcome>,
}

impl TargetCounts {
    fn new(kind: CallKind, name: &str) -> Arc<Self> {
        Arc::new(Self {
            kind,
            name: name.to_owned(),
            calls: Counter::default(),
            rounds: Counts::default(),
        })
    }
}

/// The counters of all entries. A removed entry keeps its counters while there is room, for when it is added again.
#[derive(Debug)]
pub(super) struct Targets {
    named: Mutex<BTreeMap<(usize, String), Arc<TargetCounts>>>,
    others: [Arc<TargetCounts>; KINDS.len()],
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            named: Mutex::default(),
            others: KINDS.map(|kind| TargetCounts::new(kind, "")),
        }
    }
}

impl Targets {
    /// The counters of this name; without room for another name, the shared ones.
    pub(super) fn get(&self, kind: CallKind, name: &str) -> Arc<TargetCounts> {
        let other = &self.others[kind.index()];
        if name.is_empty() {
            return other.clone();
        }
        let mut named = self.named.lock();
        let key = (kind.index(), name.to_owned());
        if let Some(known) = named.get(&key) {
            return known.clone();
        }
        if named.len() >= MOST {
            // Removed entries no longer hold their counters.
            named.retain(|_, counts| Arc::strong_count(counts) > 1);
        }
        if named.len() >= MOST {
            return other.clone();
        }
        let counts = TargetCounts::new(kind, name);
        named.insert(key, counts.clone());
        counts
    }

    /// These counters, or the shared ones.
    pub(super) fn or_other<'a>(
        &'a self,
        kind: CallKind,
        counts: Option<&'a TargetCounts>,
    ) -> &'a TargetCounts {
        counts.unwrap_or(&self.others[kind.index()])
    }

    /// All counters: for each method the shared ones first, then by name.
    pub(super) fn all(&self) -> Vec<Arc<TargetCounts>> {
        let named = self.named.lock();
        let mut all: Vec<_> = self.others.iter().chain(named.values()).cloned().collect();
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
    fn names_are_bounded() {
        let targets = Targets::default();
        let held: Vec<_> = (0..MOST)
            .map(|n| targets.get(CallKind::Tool, &format!("tool {n}")))
            .collect();
        let one_more = targets.get(CallKind::Tool, "one more");
        assert_eq!(one_more.name, "");
        assert_eq!(targets.all().len(), MOST + KINDS.len());
        // Those that are gone make room.
        drop(held);
        assert_eq!(targets.get(CallKind::Tool, "one more").name, "one more");
        assert_eq!(targets.all().len(), 1 + KINDS.len());
    }
}
