//! The challenges of `WWW-Authenticate`. Malformed parts are skipped.

use super::grant::Scopes;
use http::{HeaderMap, header};

/// The authorization that a server demands when it refuses a request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Demand {
    pub(super) resource_metadata: Option<String>,
    pub(super) scopes: Option<Scopes>,
    pub(super) error: Option<String>,
    /// Whether the server takes DPoP-bound tokens.
    pub(super) dpop: bool,
}

impl Demand {
    /// Reads the Bearer and DPoP challenges. The first value of each parameter counts.
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let mut demand = Self::default();
        let values = headers.get_all(header::WWW_AUTHENTICATE);
        for value in values.iter().filter_map(|value| value.to_str().ok()) {
            let mut scheme = String::new();
            for piece in Pieces(value) {
                match piece {
                    Piece::Scheme(name) => {
                        scheme = name.to_ascii_lowercase();
                        demand.dpop |= scheme == "dpop";
                    }
                    Piece::Param(name, value) if ["bearer", "dpop"].contains(&scheme.as_str()) => {
                        demand.take(name, value);
                    }
                    Piece::Param(..) => {}
                }
            }
        }
        demand
    }

    fn take(&mut self, name: &str, value: String) {
        match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => _ = self.resource_metadata.get_or_insert(value),
            "scope" => _ = self.scopes.get_or_insert_with(|| Scopes::parse(&value)),
            "error" => _ = self.error.get_or_insert(value),
            _ => {}
        }
    }
}

enum Piece<'a> {
    Scheme(&'a str),
    Param(&'a str, String),
}

/// The words of a header. A word with `=` behind it is a parameter, any other one begins a challenge.
struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
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
                return Some(Piece::Scheme(word));
            };
            self.0 = value.trim_start_matches([' ', '\t']);
            let value = self.value();
            return Some(Piece::Param(word, value));
        }
    }
}

impl<'a> Pieces<'a> {
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

    fn read(values: &[&'static str]) -> Demand {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(value));
        }
        Demand::read(&headers)
    }

    fn scopes(text: &str) -> Option<Scopes> {
        Some(Scopes::parse(text))
    }

    #[test]
    fn a_challenge_is_taken_apart() {
        let demand = read(&[
            r#"Bearer error="insufficient_scope", scope="b  a", resource_metadata="https://x/y?z=1,2""#,
        ]);
        assert_eq!(demand.error.as_deref(), Some("insufficient_scope"));
        assert_eq!(demand.scopes, scopes("a b"));
        assert_eq!(
            demand.resource_metadata.as_deref(),
            Some("https://x/y?z=1,2")
        );
        assert!(!demand.dpop);
    }

    #[test]
    fn case_spaces_and_bare_words_do_not_matter() {
        let demand = read(&["bEaReR  Error = invalid_token ,, SCOPE=a"]);
        assert_eq!(demand.error.as_deref(), Some("invalid_token"));
        assert_eq!(demand.scopes, scopes("a"));
    }

    #[test]
    fn the_parameters_of_other_schemes_are_not_taken() {
        let demand = read(&[
            r#"Basic realm="x", scope="no", Digest YWJj=="#,
            r#"Bearer, DPoP algs="ES256 PS256", error="use_dpop_nonce""#,
        ]);
        assert_eq!(demand.scopes, None);
        assert_eq!(demand.error.as_deref(), Some("use_dpop_nonce"));
        assert!(demand.dpop);
    }

    #[test]
    fn a_quote_may_be_escaped_or_not_end() {
        let demand = read(&[r#"Bearer error="a\"b", scope="c d"#]);
        assert_eq!(demand.error.as_deref(), Some("a\"b"));
        assert_eq!(demand.scopes, scopes("c d"));
    }

    #[test]
    fn nonsense_is_passed_over() {
        for nonsense in ["", "=", "\"", "Bearer =x\"", ",,==\"\\", "Bearer scope"] {
            assert_eq!(read(&[nonsense]), Demand::default(), "{nonsense:?}");
        }
    }
}
