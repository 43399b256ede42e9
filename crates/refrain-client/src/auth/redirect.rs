//! What a person's browser comes back with, and whether it is the answer to what was asked (RFC 9207).

use super::error::AuthError;
use super::metadata::IssuerMetadata;
use oauth2::AuthorizationCode;
use url::Url;

/// The code in the URL that the browser came back to. Nothing in it is believed, its error included, unless it
/// carries the state of this very request and comes from the authorization server that was asked.
pub(super) fn read(
    url: &Url,
    state: &str,
    metadata: &IssuerMetadata,
) -> Result<AuthorizationCode, AuthError> {
    let bad = |reason: &str| AuthError::BadRedirect(reason.to_owned());
    if one(url, "state")?.as_deref() != Some(state) {
        return Err(bad("it is not the answer to this request (state)"));
    }
    match one(url, "iss")? {
        Some(issuer) if issuer != metadata.issuer => {
            return Err(bad("it comes from another authorization server (iss)"));
        }
        None if metadata.authorization_response_iss_parameter_supported => {
            return Err(bad(
                "it does not say which authorization server it comes from (iss)",
            ));
        }
        _ => {}
    }
    if let Some(error) = one(url, "error")? {
        let description = one(url, "error_description")?;
        return Err(AuthError::denied(
            &metadata.issuer,
            "the authorization",
            &error,
            description.as_deref(),
        ));
    }
    let code = one(url, "code")?.ok_or_else(|| bad("it has neither a code nor an error"))?;
    Ok(AuthorizationCode::new(code))
}

/// A parameter, which may be there once.
fn one(url: &Url, name: &str) -> Result<Option<String>, AuthError> {
    let mut values = url.query_pairs().filter(|(key, _)| key == name);
    let value = values.next().map(|(_, value)| value.into_owned());
    match values.next() {
        Some(_) => Err(AuthError::BadRedirect(format!("it has {name} twice"))),
        None => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcome(says_iss: bool, query: &str) -> Result<String, AuthError> {
        let metadata = json!({
            "issuer": "https://as.example.com",
            "authorization_response_iss_parameter_supported": says_iss,
        });
        let metadata = serde_json::from_value(metadata).unwrap();
        let url = Url::parse(&format!("http://localhost/cb?{query}")).unwrap();
        read(&url, "s", &metadata).map(AuthorizationCode::into_secret)
    }

    #[test]
    fn the_issuer_is_compared_letter_by_letter() {
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
            let refused = outcome(true, query);
            assert!(matches!(refused, Err(AuthError::BadRedirect(_))), "{query}");
        }
        let unasked = outcome(false, "code=c&state=s&iss=https://as.example.com/");
        assert!(matches!(unasked, Err(AuthError::BadRedirect(_))));
    }

    #[test]
    fn the_state_comes_first() {
        for query in [
            "code=c",
            "code=c&state=S",
            "error=e&state=x",
            "code=c&state=s&state=s",
        ] {
            let refused = outcome(false, query);
            assert!(matches!(refused, Err(AuthError::BadRedirect(_))), "{query}");
        }
    }

    #[test]
    fn an_error_is_shown_only_if_it_is_theirs() {
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
