//! Patterns for names, with `*` for any text.

use regex::Regex;

#[derive(Clone, Debug)]
pub(crate) struct NamePattern(Regex);

/// Why a pattern is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("a name must not be empty")]
    Empty,
    #[error("the pattern is too long")]
    TooLong(#[from] regex::Error),
}

impl NamePattern {
    pub(crate) fn new(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        let parts: Vec<String> = text.split('*').map(regex::escape).collect();
        Ok(Self(Regex::new(&format!("(?s)^{}$", parts.join(".*")))?))
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_text() {
        let pattern = NamePattern::new("read_*").expect("a valid pattern");
        assert!(pattern.matches("read_file") && pattern.matches("read_"));
        assert!(!pattern.matches("write_file") && !pattern.matches("xread_file"));
        let all = NamePattern::new("*").expect("a valid pattern");
        assert!(all.matches("anything"));
        let plain = NamePattern::new("a.b").expect("a valid pattern");
        assert!(plain.matches("a.b") && !plain.matches("axb"));
    }
}
