//! Entries in the lists of tools, prompts, resources and resource templates.

use refrain_wire::ListEntry;
use refrain_wire::client::AsSent;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::ops::Deref;

/// The list entry of a tool, prompt, resource or resource template.
pub(crate) struct Listed<T> {
    info: T,
    /// For an entry of another server: all members, which are listed instead of `info`.
    foreign: Option<Vec<(String, Box<RawValue>)>>,
}

impl<T> From<T> for Listed<T> {
    fn from(info: T) -> Self {
        Self {
            info,
            foreign: None,
        }
    }
}

impl<T> Deref for Listed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.info
    }
}

impl<T: Clone + Serialize> Listed<T> {
    /// Keeps the entry as the other server sent it. `set` changes `info`; the members named in
    /// `own` are then copied from `info`.
    pub(super) fn as_sent(entry: &AsSent<T>, own: &[&str], set: impl FnOnce(&mut T)) -> Self {
        let mut members: Vec<(String, Box<RawValue>)> = Vec::new();
        for (name, value) in entry.members() {
            insert(&mut members, &name, value);
        }
        let mut listed = Self {
            info: (**entry).clone(),
            foreign: Some(members),
        };
        set(&mut listed.info);
        own.iter().for_each(|member| listed.copy_to_foreign(member));
        listed
    }

    /// Changes one member.
    pub(super) fn set(&mut self, member: &str, change: impl FnOnce(&mut T)) {
        change(&mut self.info);
        self.copy_to_foreign(member);
    }

    /// Copies a member from `info` to the members that the other server sent.
    fn copy_to_foreign(&mut self, member: &str) {
        let Some(foreign) = &mut self.foreign else {
            return;
        };
        let info = serde_json::to_value(&self.info).unwrap_or_default();
        match info.get(member).map(to_raw_value) {
            Some(Ok(value)) => insert(foreign, member, value),
            _ => foreign.retain(|(name, _)| name != member),
        }
    }

    /// Changes a member of the other server's entry whose value is an object. Removes the member if the object is then empty,
    /// or if it is not an object.
    pub(super) fn change_foreign(
        &mut self,
        member: &str,
        change: impl FnOnce(&mut serde_json::Map<String, Value>),
    ) {
        let Some(foreign) = &mut self.foreign else {
            return;
        };
        let Some(index) = foreign.iter().position(|(name, _)| name == member) else {
            return;
        };
        if let Ok(mut members) = serde_json::from_str(foreign[index].1.get()) {
            change(&mut members);
            if let Ok(value) = to_raw_value(&members)
                && !members.is_empty()
            {
                foreign[index].1 = value;
                return;
            }
        }
        foreign.remove(index);
    }
}

/// Sets a member. An existing member keeps its position.
fn insert(members: &mut Vec<(String, Box<RawValue>)>, name: &str, value: Box<RawValue>) {
    match members.iter_mut().find(|(existing, _)| existing == name) {
        Some((_, old)) => *old = value,
        None => members.push((name.to_owned(), value)),
    }
}

impl<T: Serialize> Serialize for Listed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.foreign {
            Some(members) => serializer.collect_map(members.iter().map(|(name, raw)| (name, raw))),
            None => self.info.serialize(serializer),
        }
    }
}

impl<T: ListEntry> ListEntry for Listed<T> {
    const MEMBER: &'static str = T::MEMBER;
}
