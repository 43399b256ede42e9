//! Validation of the redirect from the browser (RFC 9207).

use super::error::{AuthResult, OAuthFailure, RedirectError};
use super::metadata::IssuerMetadata;
use url::Url;

/// The code in the redirect. Neither a code nor an error is trusted unless the state and the issuer
/// are the expected ones. The issuer may be missing if the server does not announce `iss`.
pub(super) fn read(url: &Url, state: &str, metadata: &IssuerMetadata) -> AuthResult<String> {
    if param(url, "state")?.as_deref() != Some(state) {
        return Err(RedirectError::StateMismatch.into());
    }
    match param(url, "iss")? {
        Some(issuer) if issuer != metadata.issuer => {
            return Err(RedirectError::IssuerMismatch.into());
        }
        None if metadata.authorization_response_iss_parameter_supported => {
            return Err(RedirectError::MissingIssuer.into());
        }
        _ => {}
    }
    if let Some(error) = param(url, "error")? {
        let error_description = param(url, "error_description")?;
        let failure = OAuthFailure {
            error,
            error_description,
        };
        return Err(failure.into_error(&metadata.issuer, "the authorization request"));
    }
    Ok(param(url, "code")?.ok_or(RedirectError::MissingCode)?)
}

fn param(url: &Url, name: &'static str) -> Result<Option<String>, RedirectError> {
    let mut values = url.query_pairs().filter(|(key, _)| key == name);
    let value = values.next().map(|(_, value)| value.into_owned());
    match values.next() {
        Some(_) => Err(RedirectError::RepeatedParameter(name)),
        None => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::AuthError;
    use super::*;
    use serde_json::json;

    fn outcome(announces_iss: bool, query: &str) -> Result<String, AuthError> {
        let metadata = json!({
            "issuer": "https://as.example.com",
            "authorization_response_iss_parameter_supported": announces_iss,
        });
        let metadata = serde_json::from_value(metadata).unwrap();
        let url = Url::parse(&format!("http://localhost/cb?{query}")).unwrap();
        read(&url, "s", &metadata)
    }

    #[test]
    fn issuer_must_match_exactly() {
        let good = "code=c&state=s&iss=https%3A%2F%2Fas.example.com";
        assert_eq!(outcome(true, good).unwrap(), "c");
        assert_eq!(outcome(false, good).unwrap(), "c");
        assert_eq!(outcome(false, "code=c&state=s").unwrap(), "c");
        for query in [
            "code=c&state=s",
            "code=c&state=s&iss=https://as.example.com/",
            "code=c&state=s&iss=HTTPS://as.example.com",
            "code=c&state=s&iss=https://evil.example.com",
            "code=c&state=s&iss=https://as.example.com&iss=https://as.example.com",
        ] {
            let outcome = outcome(true, query);
            assert!(
                matches!(outcome, Err(AuthError::InvalidRedirect(_))),
                "{query}"
            );
        }
        let unannounced = outcome(false, "code=c&state=s&iss=https://as.example.com/");
        assert!(matches!(unannounced, Err(AuthError::InvalidRedirect(_))));
    }

    #[test]
    fn state_is_checked_first() {
        for query in [
            "code=c",
            "code=c&state=S",
            "error=e&state=x",
            "code=c&state=s&state=s",
        ] {
            let outcome = outcome(false, query);
            assert!(
                matches!(outcome, Err(AuthError::InvalidRedirect(_))),
                "{query}"
            );
        }
    }

    #[test]
    fn error_is_reported_only_from_the_right_issuer() {
        let error = outcome(false, "error=access_denied&error_description=no%1b&state=s");
        let text = error.unwrap_err().to_string();
        assert!(text.contains("access_denied (no)"), "{text}");
        let forged = outcome(
            false,
            "error=click_here&state=s&iss=https://evil.example.com",
        );
        assert!(!forged.unwrap_err().to_string().contains("click"));
    }
}
