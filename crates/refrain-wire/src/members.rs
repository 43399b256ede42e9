//! Reads objects member by member, for messages outside the hot path.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::canonical::JsonError;
use crate::decode::{RawObject, Text, is_object};
use crate::error::RpcError;
use crate::meta::Meta;

pub(crate) const MISSING_META: &str = "params._meta is missing; every request must carry it";

/// The members of an object, in the order they were sent.
#[derive(Default)]
pub(crate) struct Members<'a>(pub(crate) Vec<(Text<'a>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

/// Reads the members of an object by name. Duplicates are errors. Errors have the path of the member.
pub(crate) struct Reader<'a> {
    pub(crate) members: Members<'a>,
    path: String,
    null_is_absent: bool,
}

impl<'a> Reader<'a> {
    /// `path` is the path of the object, with a trailing dot unless it is empty.
    pub(crate) fn new(members: Members<'a>, path: impl Into<String>) -> Self {
        Self {
            members,
            path: path.into(),
            null_is_absent: false,
        }
    }

    /// Reads the params of a request of 2026-07-28.
    pub(crate) fn params(raw: Option<&'a RawValue>, required: &str) -> Result<Self, RpcError> {
        match raw {
            Some(raw) => Self::optional_params(Some(raw)),
            None => Err(RpcError::invalid_params(format!(
                "params is missing; send an object with {required}"
            ))),
        }
    }

    /// Reads params that may be absent.
    pub(crate) fn optional_params(raw: Option<&'a RawValue>) -> Result<Self, RpcError> {
        if raw.is_some_and(|raw| !is_object(raw)) {
            return Err(RpcError::invalid_params("params must be an object"));
        }
        let members = raw.map_or(Ok(Members::default()), read)?;
        Ok(Self::new(members, ""))
    }

    /// Treats null members as absent.
    pub(crate) fn with_null_as_absent(mut self) -> Self {
        self.null_is_absent = true;
        self
    }

    /// The raw value of a member.
    pub(crate) fn raw(&self, name: &str) -> Result<Option<&'a RawValue>, JsonError> {
        let mut found = self.members.0.iter().filter(|(key, _)| key.0 == name);
        let raw = found.next().map(|(_, raw)| *raw);
        if found.next().is_some() {
            return Err(self.error(name, "is given twice; send it once"));
        }
        Ok(raw.filter(|raw| !self.null_is_absent || raw.get() != "null"))
    }

    /// Reads a member of a type whose errors already name it.
    pub(crate) fn nested<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, JsonError> {
        self.raw(name)?.map(read).transpose()
    }

    /// Reads a member. `expected` describes valid values in the error.
    pub(crate) fn value<T: Deserialize<'a>>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, JsonError> {
        let read = self.raw(name)?.map(read).transpose();
        read.map_err(|_| self.error(name, &format!("must be {expected}")))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>, JsonError> {
        let text: Option<Text<'a>> = self.value(name, "a string")?;
        Ok(text.map(|text| text.0))
    }

    pub(crate) fn raw_object(&self, name: &str) -> Result<Option<&'a RawValue>, JsonError> {
        let raw: Option<RawObject<'a>> = self.value(name, "an object")?;
        Ok(raw.map(|raw| raw.0))
    }

    /// The members of a member that is an object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>, JsonError> {
        let members = self.value(name, "an object")?;
        Ok(members.map(|members| Self {
            members,
            path: format!("{}{name}.", self.path),
            null_is_absent: self.null_is_absent,
        }))
    }

    /// The `_meta` of a request of 2026-07-28.
    pub(crate) fn meta(&self) -> Result<Meta<'a>, JsonError> {
        let missing = || JsonError::new(MISSING_META);
        self.nested("_meta")?.ok_or_else(missing)
    }

    /// An error about a member.
    pub(crate) fn error(&self, name: &str, problem: &str) -> JsonError {
        JsonError::new(format!("{}{name} {problem}", self.path))
    }

    /// The error for a missing member.
    pub(crate) fn missing(&self, name: &str) -> JsonError {
        self.error(name, "is missing")
    }
}

/// Reads a raw value.
pub(crate) fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, JsonError> {
    Ok(serde_json::from_str(raw.get())?)
}

impl From<JsonError> for RpcError {
    fn from(error: JsonError) -> Self {
        Self::invalid_params(error.to_string())
    }
}
