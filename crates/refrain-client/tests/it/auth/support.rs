//! Helpers of the authorization tests.

pub(crate) use refrain_testkit::net::oauth::{CannedResponse, OAuthServer};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use http::{StatusCode, header};
use refrain_client::{AuthError, Authorize, Grant, Grants, OAuth, OAuthBuilder, RejectedRequest};
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

/// Stores one grant as JSON.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Option<Value>>>, Arc<tokio::sync::Mutex<()>>);

impl Memory {
    /// Makes the grant an hour old and valid for 20 more seconds.
    pub(crate) fn age(&self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time");
        let mut grant = self.0.lock().expect("the lock is not poisoned");
        let grant = grant.as_mut().expect("a grant is stored");
        grant["obtained"] = json!(now.as_secs() - 3600);
        grant["expires"] = json!(now.as_secs() + 20);
    }
}

impl Grants for Memory {
    fn get<'a>(&'a self, _server: &'a Url) -> BoxFuture<'a, Result<Option<Grant>, BoxError>> {
        let grant = self.0.lock().expect("the lock is not poisoned").clone();
        Box::pin(async { Ok(grant.map(serde_json::from_value).transpose()?) })
    }

    fn put<'a>(&'a self, _: &'a Url, grant: &'a Grant) -> BoxFuture<'a, Result<(), BoxError>> {
        *self.0.lock().expect("the lock is not poisoned") = Some(json!(grant));
        Box::pin(async { Ok(()) })
    }

    fn lock<'a>(&'a self, _: &'a Url) -> BoxFuture<'a, Result<Box<dyn Send>, BoxError>> {
        let lock = Arc::clone(&self.1).lock_owned();
        Box::pin(async { Ok(Box::new(lock.await) as Box<dyn Send>) })
    }
}

/// Sends a request, and repeats it as long as the authorization says so.
pub(crate) async fn request(oauth: &OAuth, url: &Url) -> Result<StatusCode, AuthError> {
    request_counted(oauth, url, &watch::Sender::new(0)).await
}

/// Like `request`, and counts the rejections.
pub(crate) async fn request_counted(
    oauth: &OAuth,
    url: &Url,
    rejections: &watch::Sender<usize>,
) -> Result<StatusCode, AuthError> {
    let client = reqwest::Client::new();
    for previous in 0.. {
        let method = http::Method::POST;
        let sent = oauth.headers(&method, url).await?;
        let request = client.post(url.clone()).headers(sent.clone()).send();
        let response = within(request).await.expect("an answer");
        let status = response.status();
        if status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN {
            return Ok(status);
        }
        let rejection = RejectedRequest {
            url,
            sent: &sent,
            status,
            headers: response.headers(),
            previous,
        };
        rejections.send_modify(|count| *count += 1);
        if !within(oauth.handle_rejection(rejection)).await? {
            return Ok(status);
        }
    }
    unreachable!("the range is endless")
}

/// A person who approves at once.
pub(crate) async fn approve(url: Url) -> Result<Url, BoxError> {
    let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let page = browser.build()?.get(url).send().await?;
    let location = page.headers().get(header::LOCATION).ok_or("no redirect")?;
    Ok(Url::parse(location.to_str()?)?)
}

pub(crate) fn redirect_uri() -> Url {
    Url::parse("http://127.0.0.1:8085/callback").expect("a URL")
}

pub(crate) fn by_browser() -> OAuthBuilder {
    OAuth::by_browser(redirect_uri(), approve)
}

/// A setup whose person must not be asked.
pub(crate) fn without_person() -> OAuthBuilder {
    OAuth::by_browser(redirect_uri(), |_| async {
        Err("the person must not be asked".into())
    })
}

/// A new private key.
pub(crate) fn pem() -> String {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
    let text = STANDARD.encode(key.expect("a key"));
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
}
