//! A parser for `WWW-Authenticate` challenges. Malformed parts are skipped.

use super::error::sanitize;
use super::grant::GrantScopes;
use http::{HeaderMap, header};

#[derive(Debug, Default, PartialEq)]
pub(super) struct AuthChallenge {
    pub(super) resource_metadata: Option<String>,
    pub(super) scopes: Option<GrantScopes>,
    pub(super) error: Option<String>,
    /// Sanitized and truncated.
    pub(super) description: Option<String>,
    pub(super) has_dpop: bool,
}

impl AuthChallenge {
    /// Reads the Bearer and DPoP challenges. The first value of each parameter wins.
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let mut challenge = Self::default();
        let values = headers.get_all(header::WWW_AUTHENTICATE);
        for value in values.iter().filter_map(|value| value.to_str().ok()) {
            let mut scheme = String::new();
            for part in ChallengeParts(value) {
                match part {
                    ChallengePart::Scheme(name) => {
                        scheme = name.to_ascii_lowercase();
                        challenge.has_dpop |= scheme == "dpop";
                    }
                    ChallengePart::Param(name, value)
                        if ["bearer", "dpop"].contains(&scheme.as_str()) =>
                    {
                        challenge.set(name, value);
                    }
                    ChallengePart::Param(..) => {}
                }
            }
        }
        challenge
    }

    fn set(&mut self, name: &str, value: String) {
        match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => _ = self.resource_metadata.get_or_insert(value),
            "scope" => {
                _ = self
                    .scopes
                    .get_or_insert_with(|| GrantScopes::parse(&value));
            }
            "error" => _ = self.error.get_or_insert(value),
            "error_description" => {
                _ = self.description.get_or_insert_with(|| sanitize(&value));
            }
            _ => {}
        }
    }
}

enum ChallengePart<'a> {
    Scheme(&'a str),
    Param(&'a str, String),
}

/// The parts of a header. A word before `=` is a parameter; any other word starts a challenge.
struct ChallengeParts<'a>(&'a str);

impl<'a> Iterator for ChallengeParts<'a> {
    type Item = ChallengePart<'a>;

    fn next(&mut self) -> Option<ChallengePart<'a>> {
        loop {
            self.0 = self.0.trim_start_matches([' ', '\t', ',']);
            let word = self.word();
            if word.is_empty() {
                let mut rest = self.0.chars();
                rest.next()?;
                self.0 = rest.as_str();
                continue;
            }
            let after = self.0.trim_start_matches([' ', '\t']);
            let Some(value) = after.strip_prefix('=') else {
                return Some(ChallengePart::Scheme(word));
            };
            self.0 = value.trim_start_matches([' ', '\t']);
            let value = self.value();
            return Some(ChallengePart::Param(word, value));
        }
    }
}

impl<'a> ChallengeParts<'a> {
    fn word(&mut self) -> &'a str {
        let is_end = |c: char| " \t,=\"".contains(c);
        let (word, rest) = self.0.split_at(self.0.find(is_end).unwrap_or(self.0.len()));
        self.0 = rest;
        word
    }

    fn value(&mut self) -> String {
        let Some(quoted) = self.0.strip_prefix('"') else {
            return self.word().to_owned();
        };
        let mut value = String::new();
        let mut rest = quoted.chars();
        while let Some(c) = rest.next() {
            match c {
                '"' => break,
                '\\' => value.extend(rest.next()),
                c => value.push(c),
            }
        }
        self.0 = rest.as_str();
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read(values: &[&'static str]) -> AuthChallenge {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(value));
        }
        AuthChallenge::read(&headers)
    }

    fn scopes(text: &str) -> Option<GrantScopes> {
        Some(GrantScopes::parse(text))
    }

    #[test]
    fn challenge_is_parsed() {
        let challenge = read(&[
            r#"Bearer error="insufficient_scope", scope="b  a", resource_metadata="https://x/y?z=1,2""#,
        ]);
        assert_eq!(challenge.error.as_deref(), Some("insufficient_scope"));
        assert_eq!(challenge.scopes, scopes("a b"));
        assert_eq!(
            challenge.resource_metadata.as_deref(),
            Some("https://x/y?z=1,2")
        );
        assert!(!challenge.has_dpop);
    }

    #[test]
    fn description_is_sanitized_and_truncated() {
        let challenge = read(&["Bearer error_description=\"expired\tnow\", error=invalid_token"]);
        assert_eq!(challenge.description.as_deref(), Some("expirednow"));
        let long = format!("Bearer error_description=\"{}\"", "x".repeat(1000)).leak();
        let description = read(&[long]).description.expect("a description");
        assert_eq!(description.len(), 300);
    }

    #[test]
    fn case_spaces_and_unquoted_values_are_accepted() {
        let challenge = read(&["bEaReR  Error = invalid_token ,, SCOPE=a"]);
        assert_eq!(challenge.error.as_deref(), Some("invalid_token"));
        assert_eq!(challenge.scopes, scopes("a"));
    }

    #[test]
    fn parameters_of_other_schemes_are_ignored() {
        let challenge = read(&[
            r#"Basic realm="x", scope="no", Digest YWJj=="#,
            r#"Bearer, DPoP algs="ES256 PS256", error="use_dpop_nonce""#,
        ]);
        assert_eq!(challenge.scopes, None);
        assert_eq!(challenge.error.as_deref(), Some("use_dpop_nonce"));
        assert!(challenge.has_dpop);
    }

    #[test]
    fn quote_may_be_escaped_or_unterminated() {
        let challenge = read(&[r#"Bearer error="a\"b", scope="c d"#]);
        assert_eq!(challenge.error.as_deref(), Some("a\"b"));
        assert_eq!(challenge.scopes, scopes("c d"));
    }

    #[test]
    fn malformed_header_is_ignored() {
        for malformed in ["", "=", "\"", "Bearer =x\"", ",,==\"\\", "Bearer scope"] {
            assert_eq!(
                read(&[malformed]),
                AuthChallenge::default(),
                "{malformed:?}"
            );
        }
    }
}
