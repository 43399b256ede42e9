//! What the tests of authorization share besides the servers of `refrain_testkit::net`.

pub(crate) use refrain_testkit::net::oauth::{Answer, OAuthServer};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use http::{StatusCode, header};
use refrain_client::{AuthError, AuthRejection, Authorize, Grant, Grants, OAuth, OAuthBuilder};
use refrain_testkit::net;
use serde_json::{Value, json};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use url::Url;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    net::within("an answer", future).await
}

/// Keeps a grant as JSON.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Option<Value>>>);

impl Memory {
    /// Makes the grant an hour old and valid for some seconds more.
    pub(crate) fn age(&self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time");
        let mut grant = self.0.lock().expect("no panic");
        let grant = grant.as_mut().expect("something is kept");
        grant["obtained"] = json!(now.as_secs() - 3600);
        grant["expires"] = json!(now.as_secs() + 20);
    }
}

impl Grants for Memory {
    fn get<'a>(&'a self, _server: &'a Url) -> BoxFuture<'a, Result<Option<Grant>, BoxError>> {
        let grant = self.0.lock().expect("no panic").clone();
        Box::pin(async { Ok(grant.map(serde_json::from_value).transpose()?) })
    }

    fn put<'a>(&'a self, _: &'a Url, grant: &'a Grant) -> BoxFuture<'a, Result<(), BoxError>> {
        *self.0.lock().expect("no panic") = Some(json!(grant));
        Box::pin(async { Ok(()) })
    }
}

/// Sends a request to the server, and again as long as the authorization says so.
pub(crate) async fn request(oauth: &OAuth, url: &Url) -> Result<StatusCode, AuthError> {
    request_counted(oauth, url, &watch::Sender::new(0)).await
}

/// The same, and counts the refusals that the authorization got.
pub(crate) async fn request_counted(
    oauth: &OAuth,
    url: &Url,
    heard: &watch::Sender<usize>,
) -> Result<StatusCode, AuthError> {
    let client = reqwest::Client::new();
    for earlier in 0.. {
        let method = http::Method::POST;
        let sent = oauth.headers(&method, url).await?;
        let request = client.post(url.clone()).headers(sent.clone()).send();
        let response = within(request).await.expect("an answer");
        let status = response.status();
        if status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN {
            return Ok(status);
        }
        let refusal = AuthRejection {
            url,
            sent: &sent,
            status,
            headers: response.headers(),
            earlier,
        };
        heard.send_modify(|heard| *heard += 1);
        if !within(oauth.handle_rejection(refusal)).await? {
            return Ok(status);
        }
    }
    unreachable!("there is no end of numbers")
}

/// A user who agrees at once.
pub(crate) async fn say_yes(url: Url) -> Result<Url, BoxError> {
    let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let page = browser.build()?.get(url).send().await?;
    let location = page.headers().get(header::LOCATION).ok_or("no redirect")?;
    Ok(Url::parse(location.to_str()?)?)
}

pub(crate) fn redirect_uri() -> Url {
    Url::parse("http://127.0.0.1:8085/callback").expect("a URL")
}

pub(crate) fn by_browser() -> OAuthBuilder {
    OAuth::by_browser(redirect_uri(), say_yes)
}

/// A user who must not be asked.
pub(crate) fn by_nobody() -> OAuthBuilder {
    OAuth::by_browser(redirect_uri(), |_| async {
        Err("nobody may be asked".into())
    })
}

/// A new private key.
pub(crate) fn pem() -> String {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
    let text = STANDARD.encode(key.expect("a key"));
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
}
