//! Tools of several servers in one store: each server has its own namespace.
//!
//! Invariant: a stored name belongs to one tool in one namespace.

use crate::builder::BuildError;

/// Separates namespace and tool.
const BETWEEN: char = ':';

/// The namespace of a server's tools; the default has no name.
pub(crate) struct Namespace(String);

impl Namespace {
    /// The namespace of this name, unless the name contains the separator.
    pub(crate) fn named(name: String) -> Result<Self, BuildError> {
        match name.contains(BETWEEN) {
            true => Err(BuildError::TaskSpace(name)),
            false => Ok(Self(name)),
        }
    }

    pub(super) fn stored_name(&self, tool: &str) -> String {
        let Self(namespace) = self;
        if namespace.is_empty() && !tool.contains(BETWEEN) {
            return tool.to_owned();
        }
        format!("{namespace}{BETWEEN}{tool}")
    }

    /// The tool with this stored name, if it is in this namespace.
    pub(super) fn tool_of<'a>(&self, stored: &'a str) -> Option<&'a str> {
        let (namespace, tool) = stored.split_once(BETWEEN).unwrap_or(("", stored));
        (namespace == self.0).then_some(tool)
    }
}

#[cfg(test)]
mod tests {
    use super::Namespace;

    #[test]
    fn a_stored_name_is_of_one_tool_in_one_namespace() {
        let namespaces = ["", "a", "ab", "second"];
        let tools = ["b", "a:b", ":b", "a::b", "second:b", ":", "ab:"];
        let named = |name: &str| Namespace::named(name.to_owned()).expect("a namespace");
        for namespace in namespaces {
            for tool in tools {
                let stored = named(namespace).stored_name(tool);
                for other in namespaces {
                    let expected = (other == namespace).then_some(tool);
                    assert_eq!(
                        named(other).tool_of(&stored),
                        expected,
                        "{stored} in {other:?}"
                    );
                }
            }
        }
        assert_eq!(named("").stored_name("echo"), "echo");
        assert!(Namespace::named("a:b".to_owned()).is_err());
    }
}
