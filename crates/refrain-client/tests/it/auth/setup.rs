//! Invalid OAuth setups are rejected by the builder.

use super::support::{approve, by_browser, pem};
use refrain_client::{AuthError, Bearer, IdentityProvider, OAuth, RegisteredClient};
use url::Url;

fn url(url: &str) -> Url {
    Url::parse(url).expect("a URL")
}

fn assert_setup(outcome: Result<impl Sized, AuthError>, reason: &str) {
    match outcome {
        Err(AuthError::Setup(why)) => assert!(why.to_string().contains(reason), "{why}"),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("expected an error with {reason:?}"),
    }
}

#[test]
fn redirect_uri_must_be_https_or_loopback() {
    for good in [
        "https://app.example.com/cb",
        "http://127.0.0.1/cb",
        "http://localhost:1/",
    ] {
        OAuth::by_browser(url(good), approve).build().unwrap();
    }
    for bad in [
        "http://app.example.com/cb",
        "myapp://cb",
        "https://app.example.com/cb#x",
    ] {
        assert_setup(OAuth::by_browser(url(bad), approve).build(), "redirect URI");
    }
}

#[test]
fn client_metadata_url_must_be_https_with_a_path() {
    let at = |at: &str| by_browser().client_metadata_url(url(at)).build();
    at("https://app.example.com/client.json").unwrap();
    for bad in [
        "http://localhost/client.json",
        "https://app.example.com",
        "https://x/y#z",
    ] {
        assert_setup(at(bad), "client metadata URL");
    }
}

#[test]
fn client_credentials_require_a_secret_or_key() {
    let client = RegisteredClient::new("me");
    assert_setup(
        OAuth::by_credentials(client.clone()).build(),
        "a secret or a private key",
    );
    OAuth::by_credentials(client.secret("x")).build().unwrap();
}

#[test]
fn identity_provider_must_be_https() {
    let at = |at: &str| {
        let client = RegisteredClient::new("me");
        let provider =
            IdentityProvider::new(url(at), client.clone(), || async { Ok(String::new()) });
        OAuth::by_identity_provider(provider, client).build()
    };
    at("https://idp.example.com/token").unwrap();
    assert_setup(at("http://idp.example.com/token"), "must be https");
}

#[test]
fn private_key_must_match_its_algorithm() {
    let pem = &pem();
    let key = |pem: &str, algorithm: &str| RegisteredClient::new("me").private_key(pem, algorithm);
    key(pem, "ES256").unwrap();
    assert_setup(key(pem, "ES384"), "does not work with ES384");
    assert_setup(key(pem, "RS256"), "not a PEM key for RS256");
    assert_setup(key(pem, "HS256"), "HS256 has no private key");
    assert_setup(key(pem, "none"), "unknown signing algorithm \"none\"");
    assert_setup(key("nonsense", "ES256"), "not a PEM key for ES256");
}

#[test]
fn bearer_token_must_be_visible_ascii() {
    Bearer::new("abc-._~+/=").unwrap();
    for bad in ["", "a b", "a\n", "ä"] {
        assert!(
            matches!(Bearer::new(bad), Err(AuthError::InvalidToken)),
            "{bad:?}"
        );
    }
}
