//! Namespaces for the tools of several servers in one task store.
//!
//! Invariant: a stored name belongs to exactly one tool in one namespace.

use crate::builder::BuildError;

const SEPARATOR: char = ':';

/// The namespace of a server's tools. The default is empty.
pub(crate) struct Namespace(String);

impl Namespace {
    /// Fails if the name contains the separator.
    pub(crate) fn new(name: String) -> Result<Self, BuildError> {
        match name.contains(SEPARATOR) {
            true => Err(BuildError::TaskNamespace(name)),
            false => Ok(Self(name)),
        }
    }

    pub(super) fn stored_name(&self, tool: &str) -> String {
        let Self(namespace) = self;
        if namespace.is_empty() && !tool.contains(SEPARATOR) {
            return tool.to_owned();
        }
        format!("{namespace}{SEPARATOR}{tool}")
    }

    /// The tool with this stored name, if it belongs to this namespace.
    pub(super) fn tool_of<'a>(&self, stored: &'a str) -> Option<&'a str> {
        let (namespace, tool) = stored.split_once(SEPARATOR).unwrap_or(("", stored));
        (namespace == self.0).then_some(tool)
    }
}

#[cfg(test)]
mod tests {
    use super::Namespace;

    #[test]
    fn stored_name_belongs_to_one_tool_in_one_namespace() {
        let namespaces = ["", "a", "ab", "second"];
        let tools = ["b", "a:b", ":b", "a::b", "second:b", ":", "ab:"];
        let namespace_of =
            |name: &str| Namespace::new(name.to_owned()).expect("the name has no separator");
        for namespace in namespaces {
            for tool in tools {
                let stored = namespace_of(namespace).stored_name(tool);
                for other in namespaces {
                    let expected = (other == namespace).then_some(tool);
                    assert_eq!(
                        namespace_of(other).tool_of(&stored),
                        expected,
                        "{stored} in {other:?}"
                    );
                }
            }
        }
        assert_eq!(namespace_of("").stored_name("echo"), "echo");
        assert!(Namespace::new("a:b".to_owned()).is_err());
    }
}
