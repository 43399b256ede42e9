//! Tools of the same name in one store: each server's are in a space of their own.
//!
//! What always holds: a name in the store is that of one tool in one space, whatever the names are.

/// Stands between a space and a tool.
const BETWEEN: char = ':';

/// The space of a server's tools; without a name, the one that servers have by default.
pub(crate) struct Space(String);

impl Space {
    /// The space of this name, if it can be one.
    pub(crate) fn named(name: String) -> Option<Self> {
        (!name.contains(BETWEEN)).then_some(Self(name))
    }

    /// The name of a tool in the store.
    pub(super) fn stored_name(&self, tool: &str) -> String {
        let Self(space) = self;
        if space.is_empty() && !tool.contains(BETWEEN) {
            return tool.to_owned();
        }
        format!("{space}{BETWEEN}{tool}")
    }

    /// The tool of this name in the store, if it is in this space.
    pub(super) fn tool_of<'a>(&self, stored: &'a str) -> Option<&'a str> {
        let (space, tool) = stored.split_once(BETWEEN).unwrap_or(("", stored));
        (space == self.0).then_some(tool)
    }
}

#[cfg(test)]
mod tests {
    use super::Space;

    #[test]
    fn a_stored_name_is_of_one_tool_in_one_space() {
        let spaces = ["", "a", "ab", "second"];
        let tools = ["b", "a:b", ":b", "a::b", "second:b", ":", "ab:"];
        let named = |name: &str| Space::named(name.to_owned()).expect("a space");
        for space in spaces {
            for tool in tools {
                let stored = named(space).stored_name(tool);
                for other in spaces {
                    let expected = (other == space).then_some(tool);
                    assert_eq!(
                        named(other).tool_of(&stored),
                        expected,
                        "{stored} in {other:?}"
                    );
                }
            }
        }
        assert_eq!(named("").stored_name("echo"), "echo");
        assert!(Space::named("a:b".to_owned()).is_none());
    }
}
