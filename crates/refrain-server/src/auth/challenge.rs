//! The `WWW-Authenticate` header.

use http::HeaderValue;

/// The algorithms of DPoP proofs.
pub(super) const DPOP_ALGORITHMS: [&str; 9] = [
    "ES256", "ES384", "EdDSA", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512",
];

/// A challenge of the scheme `Bearer` (RFC 6750, RFC 9728) or `DPoP` (RFC 9449).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Challenge<'a> {
    pub(crate) is_dpop: bool,
    pub(crate) error: Option<&'static str>,
    /// The required scopes, separated by spaces.
    pub(crate) scope: &'a str,
    pub(crate) metadata: Option<&'a str>,
    pub(crate) description: Option<&'a str>,
}

impl Challenge<'_> {
    pub(crate) fn to_header(self) -> HeaderValue {
        let (scheme, algorithms) = match self.is_dpop {
            true => ("DPoP", Some(DPOP_ALGORITHMS.join(" "))),
            false => ("Bearer", None),
        };
        let parameters = [
            ("algs", algorithms.as_deref()),
            ("error", self.error),
            ("scope", Some(self.scope).filter(|scope| !scope.is_empty())),
            ("resource_metadata", self.metadata),
            ("error_description", self.description),
        ];
        let written = parameters
            .into_iter()
            .filter_map(|(name, value)| Some(format!(" {name}=\"{}\"", sanitize(value?))));
        let written = written.collect::<Vec<_>>().join(",");
        HeaderValue::try_from(format!("{scheme}{written}"))
            .unwrap_or(HeaderValue::from_static(scheme))
    }
}

/// Makes a text safe inside quotes: replaces `"`, `\` and all characters except printable ASCII.
fn sanitize(value: &str) -> String {
    let is_safe = |c: char| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
    value
        .chars()
        .map(|c| if is_safe(c) { c } else { '\'' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_parameters_are_ordered_and_sanitized() {
        assert_eq!(Challenge::default().to_header(), "Bearer");
        let challenge = Challenge {
            is_dpop: false,
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
        let challenge = Challenge {
            is_dpop: true,
            error: Some("invalid_dpop_proof"),
            ..Challenge::default()
        };
        assert_eq!(
            challenge.to_header(),
            "DPoP algs=\"ES256 ES384 EdDSA PS256 PS384 PS512 RS256 RS384 RS512\", error=\"invalid_dpop_proof\""
        );
    }
}
