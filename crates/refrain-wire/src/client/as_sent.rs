//! Typed views of JSON objects that keep all members.

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::ops::Deref;

use super::message::ReadError;
use crate::decode::Text;
use crate::members::Members;

/// Members that only describe an entry. A malformed one does not make the entry unusable.
const DECORATIONS: [&str; 3] = ["annotations", "icons", "execution"];

/// An object from a server: a typed view of the known members, and the JSON as it was sent.
///
/// Dereferences to the view. Serializes as sent, with unknown members and in the same order.
///
/// ```
/// use refrain_wire::ToolInfo;
/// use refrain_wire::client::AsSent;
/// use serde_json::value::RawValue;
///
/// let sent = r#"{"x-cost":3,"name":"add","inputSchema":{"type":"object"}}"#;
/// let tool: AsSent<ToolInfo> = AsSent::read(serde_json::from_str(sent)?)?;
/// assert_eq!(tool.name, "add");
/// assert_eq!(tool.get("x-cost"), Some(3.into()));
/// assert_eq!(serde_json::to_string(&tool)?, sent);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct AsSent<T> {
    view: T,
    raw: Box<RawValue>,
}

impl<T: DeserializeOwned> AsSent<T> {
    /// Reads an object. Malformed `annotations`, `icons` and `execution` are left out of the view.
    pub fn read(raw: &RawValue) -> Result<Self, ReadError> {
        let view = serde_json::from_str(raw.get()).or_else(|error| {
            let mut value: Value = serde_json::from_str(raw.get())?;
            let members = value.as_object_mut().ok_or(error)?;
            members.retain(|name, _| !DECORATIONS.contains(&name.as_str()));
            T::deserialize(value)
        });
        Ok(Self {
            view: view.map_err(|error| ReadError::Result {
                what: "invalid entry",
                error,
            })?,
            raw: raw.to_owned(),
        })
    }
}

impl<T> AsSent<T> {
    /// The JSON as it was sent.
    pub fn raw(&self) -> &RawValue {
        &self.raw
    }

    /// A member as it was sent, known or not.
    pub fn get(&self, name: &str) -> Option<Value> {
        let mut value: Value = serde_json::from_str(self.raw.get()).ok()?;
        value.get_mut(name).map(Value::take)
    }

    /// All members as they were sent, in order.
    pub fn members(&self) -> Vec<(String, Box<RawValue>)> {
        let members: Members<'_> = serde_json::from_str(self.raw.get()).unwrap_or_default();
        let members = members.0.into_iter();
        let owned = |(key, value): (Text<'_>, &RawValue)| (key.0.into_owned(), value.to_owned());
        members.map(owned).collect()
    }

    /// The typed view.
    pub fn into_view(self) -> T {
        self.view
    }
}

impl<T> Deref for AsSent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.view
    }
}

impl<T> Serialize for AsSent<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolInfo;

    fn read(sent: &str) -> Result<AsSent<ToolInfo>, ReadError> {
        AsSent::read(serde_json::from_str(sent).expect("JSON"))
    }

    #[test]
    fn malformed_decoration_is_kept_only_as_sent() {
        let sent = r#"{"name":"a","inputSchema":{},"icons":[{"src":"x","sizes":"48x48"}],"annotations":{"readOnlyHint":"yes"}}"#;
        let tool = read(sent).expect("a tool");
        assert_eq!((tool.name.as_str(), tool.icons.len()), ("a", 0));
        assert_eq!(tool.raw().get(), sent);
        assert!(read(r#"{"name":"a","icons":7}"#).is_err(), "no schema");
        assert!(read("[]").is_err());
    }
}
