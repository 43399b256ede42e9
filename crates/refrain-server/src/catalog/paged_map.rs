//! Entries of one kind, by name and in order of registration, with cursors for pages.

use crate::builder::BuildError;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// Entries of one kind.
pub(crate) struct PagedMap<T> {
    by_name: HashMap<Arc<str>, (u64, Arc<T>)>,
    in_order: BTreeMap<u64, (Arc<str>, Arc<T>)>,
}

impl<T> Default for PagedMap<T> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
            in_order: BTreeMap::new(),
        }
    }
}

impl<T> Clone for PagedMap<T> {
    fn clone(&self) -> Self {
        Self {
            by_name: self.by_name.clone(),
            in_order: self.in_order.clone(),
        }
    }
}

impl<T> PagedMap<T> {
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.by_name.get(name).map(|(_, item)| item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.in_order.values().map(|(_, item)| item)
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// Removes the entry with this name, if there is one.
    pub(crate) fn remove(&mut self, name: &str) {
        if let Some((number, _)) = self.by_name.remove(name) {
            self.in_order.remove(&number);
        }
    }

    /// Adds an entry with a free name and a number greater than all others.
    pub(crate) fn add(
        &mut self,
        number: u64,
        kind: &'static str,
        name: &str,
        item: Arc<T>,
    ) -> Result<(), BuildError> {
        if self.by_name.contains_key(name) {
            return Err(BuildError::Duplicate {
                kind,
                name: name.to_owned(),
            });
        }
        let name: Arc<str> = name.into();
        self.by_name.insert(name.clone(), (number, item.clone()));
        self.in_order.insert(number, (name, item));
        Ok(())
    }

    /// The page after the entry with this number, and the cursor of the next page.
    pub(crate) fn page<'a, I>(
        &'a self,
        after: Option<u64>,
        size: usize,
        info: impl Fn(&'a T) -> &'a I,
    ) -> (Vec<&'a I>, Option<Cursor>) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.in_order.range((from, Bound::Unbounded));
        let mut last = None;
        let items: Vec<&I> = rest
            .by_ref()
            .take(size)
            .map(|(number, (name, item))| {
                last = Some((*number, name));
                info(item)
            })
            .collect();
        let more = rest.next().is_some();
        let next = last.filter(|_| more).map(|(number, name)| Cursor {
            number,
            name: name.to_string(),
        });
        (items, next)
    }

    /// The number after which a list goes on. Instances may number the same entries differently, so the name decides; the
    /// number is for a removed entry.
    pub(crate) fn after(&self, cursor: &Cursor) -> u64 {
        let known = self.by_name.get(cursor.name.as_str());
        known.map_or(cursor.number, |(number, _)| *number)
    }
}

/// The last entry of a page. Changes between two pages neither skip nor repeat entries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    number: u64,
    name: String,
}

impl Cursor {
    /// The text of the cursor, for the list with this number.
    pub(crate) fn write(&self, list: usize) -> String {
        URL_SAFE_NO_PAD.encode(format!("{list}.{}.{}", self.number, self.name))
    }

    /// Parses the text that [`write`](Self::write) returned for the same list.
    pub(crate) fn read(list: usize, text: &str) -> Option<Self> {
        let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let (_, rest) = plain.split_once('.')?;
        let (number, name) = rest.split_once('.')?;
        let cursor = Self {
            number: number.parse().ok()?,
            name: name.to_owned(),
        };
        (cursor.write(list) == text).then_some(cursor)
    }
}
