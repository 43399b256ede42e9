//! The client's authorization in each scenario.

use super::{ClientError, Scenario};
use refrain_client::{IdentityProvider, OAuth, OAuthBuilder, RegisteredClient};
use reqwest::header::LOCATION;
use reqwest::redirect::Policy;
use serde::de::Error as _;
use serde_json::Value;
use std::error::Error;
use url::Url;

/// The redirect URI. No server listens on it: [`visit`] reads the URL from the redirect response.
const REDIRECT_URI: &str = "http://localhost:3000/callback";
/// The URL of the client's metadata document. The suite does not fetch it.
const METADATA_URL: &str = "https://conformance-test.local/client-metadata.json";

/// The authorization of a scenario, if it needs one.
pub(super) fn oauth(scenario: Scenario, context: &Value) -> Result<Option<OAuth>, ClientError> {
    let builder = match scenario {
        Scenario::AuthByBrowser => by_browser()?,
        Scenario::AuthByMetadataUrl => by_browser()?.client_metadata_url(url(METADATA_URL)?),
        Scenario::AuthByRegisteredClient => by_browser()?.client(client_with_secret(context)?),
        Scenario::AuthBySecret => OAuth::by_credentials(client_with_secret(context)?),
        Scenario::AuthByKey => {
            let pem = text(context, "private_key_pem")?;
            let algorithm = text(context, "signing_algorithm")?;
            OAuth::by_credentials(client(context)?.private_key(&pem, &algorithm)?)
        }
        Scenario::AuthByProvider => by_provider(context)?,
        Scenario::AuthByWorkload => {
            let assertion = text(context, "valid_jwt")?;
            OAuth::by_workload(client(context)?, move |_| {
                let assertion = assertion.clone();
                async { Ok(assertion) }
            })
        }
        _ => return Ok(None),
    };
    Ok(Some(builder.client_name("refrain-conformance").build()?))
}

fn by_browser() -> Result<OAuthBuilder, ClientError> {
    Ok(OAuth::by_browser(url(REDIRECT_URI)?, visit))
}

/// Simulates the user's consent in a browser.
async fn visit(url: Url) -> Result<Url, Box<dyn Error + Send + Sync>> {
    let browser = reqwest::Client::builder()
        .redirect(Policy::none())
        .build()?;
    let page = browser.get(url).send().await?;
    let location = page.headers().get(LOCATION);
    let location = location.ok_or("the authorization server does not redirect")?;
    Ok(Url::parse(location.to_str()?)?)
}

fn by_provider(context: &Value) -> Result<OAuthBuilder, ClientError> {
    let at_provider = RegisteredClient::new(text(context, "idp_client_id")?);
    let id_token = text(context, "idp_id_token")?;
    let endpoint = url(&text(context, "idp_token_endpoint")?)?;
    let provider = IdentityProvider::new(endpoint, at_provider, move || {
        let id_token = id_token.clone();
        async { Ok(id_token) }
    });
    let client = client_with_secret(context)?;
    Ok(OAuth::by_identity_provider(provider, client))
}

fn client(context: &Value) -> Result<RegisteredClient, ClientError> {
    Ok(RegisteredClient::new(text(context, "client_id")?))
}

fn client_with_secret(context: &Value) -> Result<RegisteredClient, ClientError> {
    Ok(client(context)?.secret(text(context, "client_secret")?))
}

fn text(context: &Value, name: &'static str) -> Result<String, serde_json::Error> {
    let text = context[name].as_str().map(str::to_owned);
    text.ok_or_else(|| serde_json::Error::missing_field(name))
}

fn url(text: &str) -> Result<Url, serde_json::Error> {
    Url::parse(text)
        .map_err(|error| serde_json::Error::custom(format!("invalid URL {text:?}: {error}")))
}
