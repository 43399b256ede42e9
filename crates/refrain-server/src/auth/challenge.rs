//! What a refused client is told in the `WWW-Authenticate` header.

use http::HeaderValue;
use std::fmt::Write;

/// A challenge of the `Bearer` scheme (RFC 6750, RFC 9728).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Challenge<'a> {
    pub(crate) error: Option<&'static str>,
    /// The scopes that would be enough, with spaces between them.
    pub(crate) scope: &'a str,
    /// Where the metadata are served.
    pub(crate) metadata: Option<&'a str>,
    pub(crate) description: Option<&'a str>,
}

impl Challenge<'_> {
    pub(crate) fn to_header(self) -> HeaderValue {
        let mut text = String::from("Bearer");
        let mut parameter = |name: &str, value: &str| {
            let comma = if text.len() == "Bearer".len() {
                ""
            } else {
                ","
            };
            // Writing to a string does not fail.
            let _ = write!(text, "{comma} {name}=\"{}\"", quoted(value));
        };
        if let Some(error) = self.error {
            parameter("error", error);
        }
        if !self.scope.is_empty() {
            parameter("scope", self.scope);
        }
        if let Some(url) = self.metadata {
            parameter("resource_metadata", url);
        }
        if let Some(description) = self.description {
            parameter("error_description", description);
        }
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("Bearer"))
    }
}

/// What may stand between quotes: printable ASCII but for the quote and the backslash.
fn quoted(value: &str) -> String {
    let plain = |c: char| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
    value
        .chars()
        .map(|c| if plain(c) { c } else { '\'' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_written_in_order_and_cannot_break_out() {
        assert_eq!(Challenge::default().to_header(), "Bearer");
        let challenge = Challenge {
            error: Some("invalid_token"),
            scope: "a b",
            metadata: Some("https://x/.well-known/oauth-protected-resource"),
            description: Some("no \"such\\ thing\r\nX: y, ü"),
        };
        assert_eq!(
            challenge.to_header(),
            "Bearer error=\"invalid_token\", scope=\"a b\", \
             resource_metadata=\"https://x/.well-known/oauth-protected-resource\", \
             error_description=\"no 'such' thing''X: y, '\""
        );
    }
}
