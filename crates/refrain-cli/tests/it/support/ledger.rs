//! The file to which all instances append the effects of their tools.

use super::{PATIENCE, within};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A ledger. Each line has a kind, a key and a rest.
pub(crate) struct Ledger(PathBuf);

impl Ledger {
    pub(crate) fn at(file: &Path) -> Self {
        Self(file.into())
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).expect("the ledger is readable");
        assert!(
            text.is_empty() || text.ends_with('\n'),
            "partial line: {text:?}"
        );
        text.lines().map(str::to_owned).collect()
    }

    /// The effects of one kind in their order: key and rest of the line.
    pub(crate) fn effects(&self, kind: &str) -> Vec<(String, String)> {
        let parse = |line: &String| {
            let mut parts = line.splitn(3, ' ');
            let (kind, key, rest) = (parts.next()?, parts.next()?, parts.next()?);
            Some((kind.to_owned(), key.to_owned(), rest.to_owned()))
        };
        self.lines()
            .iter()
            .map(|line| parse(line).unwrap_or_else(|| panic!("malformed line: {line:?}")))
            .filter(|(line_kind, ..)| line_kind == kind)
            .map(|(_, key, rest)| (key, rest))
            .collect()
    }

    /// The processes that attempted a step, in their order. All must have used the same key.
    pub(crate) fn attempts(&self, step: &str) -> Vec<u32> {
        let attempts = self.effects("attempt").into_iter();
        let attempts: Vec<(String, u32)> = attempts
            .filter_map(|(key, rest)| {
                let (name, process) = rest.split_once(' ').expect("a step and a process");
                let process = process.parse().expect("a process id");
                (name == step).then_some((key, process))
            })
            .collect();
        assert!(
            attempts.iter().all(|(key, _)| *key == attempts[0].0),
            "{step} has several keys: {attempts:?}"
        );
        attempts.into_iter().map(|(_, process)| process).collect()
    }

    /// The completed steps of tasks, sorted: name and rest of the line. Their keys must be unique.
    pub(crate) fn done(&self) -> Vec<String> {
        let (keys, mut done): (Vec<_>, Vec<_>) = self.effects("done").into_iter().unzip();
        assert_unique(&keys);
        done.sort();
        done
    }

    /// Waits for this number of effects of a kind.
    pub(crate) async fn wait_for(&self, kind: &str, count: usize) {
        let found = async {
            while !self.0.exists() || self.effects(kind).len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(
            &format!("{count} lines of {kind} within {PATIENCE:?}"),
            found,
        )
        .await;
    }

    /// The numbers that calls of `sum` added, by call.
    pub(crate) fn added(&self) -> BTreeMap<String, Vec<u64>> {
        let mut calls: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (call, number) in self.effects("add") {
            let number = number.parse().expect("a number was added");
            calls.entry(call).or_default().push(number);
        }
        calls
    }

    /// Checks that this number of calls of `sum` added each number from 1 up exactly once, in order.
    pub(crate) fn assert_added_once(&self, calls: usize, to: u64) {
        let added = self.added();
        assert_eq!(added.len(), calls, "number of calls that added something");
        let expected: Vec<u64> = (1..=to).collect();
        for (call, numbers) in added {
            assert_eq!(numbers, expected, "numbers that call {call} added");
        }
    }

    /// Checks that exactly these items were reserved and charged once each, under unique keys.
    pub(crate) fn assert_ordered_once(&self, items: &[String]) {
        let mut expected = items.to_vec();
        expected.sort();
        let mut all_keys = Vec::new();
        for kind in ["reserve", "charge"] {
            let (keys, mut done): (Vec<_>, Vec<_>) = self.effects(kind).into_iter().unzip();
            done.sort();
            assert_eq!(done, expected, "items of {kind}");
            all_keys.extend(keys);
        }
        assert_unique(&all_keys);
    }
}

#[track_caller]
fn assert_unique(keys: &[String]) {
    let unique: BTreeSet<&String> = keys.iter().collect();
    assert_eq!(unique.len(), keys.len(), "keys must be unique: {keys:?}");
}
