//! A map in insertion order that is read in pages.

use crate::builder::BuildError;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use refrain_wire::RpcError;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct PagedMap<T> {
    by_name: BTreeMap<Arc<str>, (u64, T)>,
    in_order: BTreeMap<u64, (Arc<str>, T)>,
    /// The number of the next entry. Numbers are never reused.
    next: u64,
}

impl<T> Default for PagedMap<T> {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            in_order: BTreeMap::new(),
            next: 1,
        }
    }
}

impl<T: Clone> PagedMap<T> {
    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.by_name.get(name).map(|(_, item)| item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.in_order.values().map(|(_, item)| item)
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// Removes an entry. `true` if it existed.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let removed = self.by_name.remove(name);
        removed.is_some_and(|(number, _)| self.in_order.remove(&number).is_some())
    }

    /// Adds an entry. Fails if the name is taken.
    pub(crate) fn add(
        &mut self,
        kind: &'static str,
        name: &str,
        item: T,
    ) -> Result<(), BuildError> {
        if self.by_name.contains_key(name) {
            return Err(BuildError::Duplicate {
                kind,
                name: name.to_owned(),
            });
        }
        let name: Arc<str> = name.into();
        self.by_name.insert(name.clone(), (self.next, item.clone()));
        self.in_order.insert(self.next, (name, item));
        self.next += 1;
        Ok(())
    }

    /// The page after a cursor, and the cursor for the next page.
    pub(crate) fn page(&self, cursor: Option<&Cursor>, size: usize) -> (Vec<&T>, Option<Cursor>) {
        // Goes by the name, as instances may number entries differently; by the number if the entry was removed.
        let number = |cursor: &Cursor| match self.by_name.get(cursor.name.as_str()) {
            Some((number, _)) => *number,
            None => cursor.number,
        };
        let from = cursor.map_or(Bound::Unbounded, |it| Bound::Excluded(number(it)));
        let mut rest = self.in_order.range((from, Bound::Unbounded));
        let page: Vec<_> = rest.by_ref().take(size).collect();
        let last = page.last().filter(|_| rest.next().is_some());
        let next = last.map(|(number, (name, _))| Cursor {
            number: **number,
            name: name.to_string(),
        });
        (page.iter().map(|(_, (_, item))| item).collect(), next)
    }
}

/// A position in a list: the last entry of a page. While it stays, no other that stays is skipped or repeated.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    number: u64,
    name: String,
}

impl Cursor {
    /// The text of the cursor, bound to the list with this number.
    pub(crate) fn write(&self, list: usize) -> String {
        URL_SAFE_NO_PAD.encode(format!("{list}.{}.{}", self.number, self.name))
    }

    /// Parses the cursor of a request.
    pub(crate) fn parse(list: usize, text: &str) -> Result<Self, RpcError> {
        Self::read(list, text).ok_or_else(|| {
            RpcError::invalid_params(
                "invalid cursor for this list; request the list again without a cursor",
            )
        })
    }

    /// Reads the text that [`write`](Self::write) returned for the same list.
    fn read(list: usize, text: &str) -> Option<Self> {
        let decoded = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let (_, rest) = decoded.split_once('.')?;
        let (number, name) = rest.split_once('.')?;
        let cursor = Self {
            number: number.parse().ok()?,
            name: name.to_owned(),
        };
        (cursor.write(list) == text).then_some(cursor)
    }
}
