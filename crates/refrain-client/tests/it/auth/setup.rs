//! What cannot work is said before it is tried.

use super::support::{by_browser, pem, say_yes};
use refrain_client::{AuthError, Bearer, IdentityProvider, OAuth, RegisteredClient};
use url::Url;

fn url(url: &str) -> Url {
    Url::parse(url).expect("a URL")
}

fn assert_setup(outcome: Result<impl Sized, AuthError>, reason: &str) {
    match outcome {
        Err(AuthError::Setup(why)) => assert!(why.to_string().contains(reason), "{why}"),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("{reason:?} is not missed"),
    }
}

#[test]
fn a_redirect_uri_is_https_or_here() {
    for good in [
        "https://app.example.com/cb",
        "http://127.0.0.1/cb",
        "http://localhost:1/",
    ] {
        OAuth::by_browser(url(good), say_yes).build().unwrap();
    }
    for bad in [
        "http://app.example.com/cb",
        "myapp://cb",
        "https://app.example.com/cb#x",
    ] {
        assert_setup(OAuth::by_browser(url(bad), say_yes).build(), "redirect URI");
    }
}

#[test]
fn a_metadata_url_is_https_and_has_a_path() {
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
fn a_client_with_rights_of_its_own_must_prove_itself() {
    let nobody = RegisteredClient::new("me");
    assert_setup(
        OAuth::by_credentials(nobody.clone()).build(),
        "a secret or a private key",
    );
    OAuth::by_credentials(nobody.secret("x")).build().unwrap();
}

#[test]
fn an_identity_provider_is_https_or_here() {
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
fn a_private_key_fits_its_algorithm() {
    let pem = &pem();
    let key = |pem: &str, algorithm: &str| RegisteredClient::new("me").private_key(pem, algorithm);
    key(pem, "ES256").unwrap();
    assert_setup(key(pem, "ES384"), "no key for ES384");
    assert_setup(key(pem, "RS256"), "no PEM of a key for RS256");
    assert_setup(key(pem, "HS256"), "HS256 has no private key");
    assert_setup(key(pem, "none"), "no algorithm \"none\"");
    assert_setup(key("nonsense", "ES256"), "no PEM of a key for ES256");
}

#[test]
fn a_bearer_is_one_visible_word() {
    Bearer::new("abc-._~+/=").unwrap();
    for bad in ["", "a b", "a\n", "ä"] {
        assert!(
            matches!(Bearer::new(bad), Err(AuthError::BadToken)),
            "{bad:?}"
        );
    }
}
