//! The members of an object, moved about without being looked into.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::decode::reason;
use crate::write;

/// The members of an object in their order, no name twice; values are JSON text.
#[derive(Debug, Clone, Default)]
pub(super) struct Object(Vec<(String, Box<RawValue>)>);

impl Object {
    /// Reads an object, or says what is wrong with it.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| reason(&error))
    }

    /// Reads a member that is an object; one that is not there has no members.
    pub(super) fn read_member(raw: Option<Box<RawValue>>) -> Result<Self, String> {
        raw.map_or_else(|| Ok(Self::default()), |raw| Self::read(raw.get()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn get(&self, name: &str) -> Option<&RawValue> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_ref())
    }

    /// Removes a member and gives its value.
    pub(super) fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(at).1)
    }

    /// Puts a member in place of one of the same name, or at the end.
    pub(super) fn set(&mut self, name: &str, value: impl Into<Value>) {
        let Value(value) = value.into();
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some(member) => member.1 = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Adds a member of a name that is not there yet.
    pub(super) fn push(&mut self, name: String, value: impl Into<Value>) {
        let Value(value) = value.into();
        self.0.push((name, value));
    }

    /// Moves a member that is there to another object, under another name.
    pub(super) fn hand_over(&mut self, name: &str, to: &mut Self, new: &str) {
        if let Some(value) = self.take(name) {
            to.set(new, value);
        }
    }

    pub(super) fn rename(&mut self, name: &str, new: &str) {
        if let Some(member) = self.0.iter_mut().find(|(key, _)| key == name) {
            new.clone_into(&mut member.0);
        }
    }

    pub(super) fn members(self) -> impl Iterator<Item = (String, Box<RawValue>)> {
        self.0.into_iter()
    }

    /// The text of the object, on one line.
    pub(super) fn to_text(&self) -> String {
        let mut out = vec![b'{'];
        for (i, (name, value)) in self.0.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            write::text(&mut out, name);
            out.push(b':');
            write::raw(&mut out, value);
        }
        out.push(b'}');
        String::from_utf8(out).expect("only whole strings were written")
    }
}

/// A value of a member.
pub(super) struct Value(Box<RawValue>);

impl From<Box<RawValue>> for Value {
    fn from(raw: Box<RawValue>) -> Self {
        Self(raw)
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self(json(object.to_text()))
    }
}

impl From<&str> for Value {
    fn from(string: &str) -> Self {
        let mut out = Vec::new();
        write::text(&mut out, string);
        Self(json(String::from_utf8(out).expect("a string was written")))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self(json(number.to_string()))
    }
}

/// Text that was written as JSON.
pub(super) fn json(text: String) -> Box<RawValue> {
    RawValue::from_string(text).expect("it was written as JSON")
}

/// The string that JSON text stands for, if it is one.
pub(super) fn string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, Box<RawValue>>()? {
                    members.push(member);
                }
                // Sorting keeps a hostile number of names cheap.
                let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
                names.sort_unstable();
                if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                    let message = format_args!("{:?} is given twice; send it once", pair[0]);
                    return Err(Error::custom(message));
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}
