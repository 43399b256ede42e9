//! Webhooks: endpoints that are notified when a task has ended.
//!
//! A request is signed by the convention of Standard Webhooks: `webhook-id`, `webhook-timestamp` and `webhook-signature`,
//! an HMAC-SHA256 of the first two and the body. It contains nothing of the task's arguments, answers, messages or results.

use crate::auth::url::{HttpUrlError, SafeUrl};
use crate::timer::within;
use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use refrain_http::{HttpClient, HttpError};
use refrain_store::Delivery;
use refrain_wire::timestamp;
use serde_json::json;
use std::fmt;
use std::time::Duration;

/// The prefix of a secret, before its bytes in base64.
const SECRET_PREFIX: &str = "whsec_";
/// The number of bytes of a secret.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// The maximum length of a webhook's name.
const MAX_NAME: usize = 64;
/// How many bytes of a response body are read, so that its connection can be used again.
const MAX_RESPONSE: usize = 64 * 1024;
/// How long a response body is read.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(250);

/// An endpoint that is notified when a task has ended.
///
/// ```
/// # use refrain::server::Server;
/// use refrain::store::MemoryStore;
/// use refrain::task::{TaskOptions, Webhook};
/// use std::sync::Arc;
///
/// let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// let server = Server::builder("docs", "1.0")
///     .tasks(Arc::new(MemoryStore::new()), TaskOptions::default())
///     .webhook(Webhook::new("billing", "http://127.0.0.1:9000/tasks", secret)?)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Webhook {
    pub(crate) name: String,
    url: SafeUrl,
    keys: Vec<Key>,
}

/// Why a webhook is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// The name is empty, longer than 64 bytes, or has characters other than ASCII letters, digits, `-` and `_`.
    #[error("invalid name: expected 1 to {MAX_NAME} characters: ASCII letters, digits, `-` or `_`")]
    Name,
    /// The URL is invalid.
    #[error("invalid URL: {0}")]
    Url(#[from] HttpUrlError),
    /// There is no secret.
    #[error("missing secret: expected `{SECRET_PREFIX}` and base64")]
    NoSecret,
    /// A secret is malformed, too short or too long.
    #[error(
        "invalid secret: expected `{SECRET_PREFIX}` and {} to {} bytes in base64",
        SECRET_BYTES.start(), SECRET_BYTES.end()
    )]
    Secret,
}

impl Webhook {
    /// Makes a webhook. Its deliveries are stored under its name, so all instances must use the same one. The URL must be
    /// `https`, or `http` with a loopback host. `secrets` are separated by white space; each request has a signature by
    /// every one of them, so that a secret can be replaced while receivers still know the old one.
    pub fn new(name: impl Into<String>, url: &str, secrets: &str) -> Result<Self, WebhookError> {
        let name = name.into();
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_valid) {
            return Err(WebhookError::Name);
        }
        let url = SafeUrl::parse(url)?;
        url.check_tls()?;
        let keys = secrets.split_whitespace().map(parse_secret);
        let keys: Vec<Key> = keys.collect::<Result<_, _>>()?;
        match keys.is_empty() {
            true => Err(WebhookError::NoSecret),
            false => Ok(Self { name, url, keys }),
        }
    }

    fn signatures(&self, id: &str, seconds: u64, body: &str) -> String {
        let content = format!("{id}.{seconds}.{body}");
        let sign = |key| format!("v1,{}", STANDARD.encode(sign(key, content.as_bytes())));
        let signatures: Vec<String> = self.keys.iter().map(sign).collect();
        signatures.join(" ")
    }

    /// Posts a delivery. `seconds` is the current time since 1970, which is signed. `tool` is the name that clients know.
    pub(super) async fn send(
        &self,
        client: &HttpClient,
        delivery: &Delivery,
        tool: &str,
        seconds: u64,
    ) -> Result<(), DeliveryError> {
        let body = request_body(delivery, tool);
        let request = Request::post(&self.url.uri)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("refrain/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", &delivery.id)
            .header("webhook-timestamp", seconds)
            .header(
                "webhook-signature",
                self.signatures(&delivery.id, seconds, &body),
            )
            .body(Full::new(Bytes::from(body)))
            .expect("the URL and the headers are valid");
        let response = client.send(request).await?;
        let status = response.status();
        // Only the status matters. If the body is long or slow, the connection is closed.
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect();
        let _ = within(RESPONSE_TIMEOUT, body).await;
        match status.is_success() {
            true => Ok(()),
            false => Err(DeliveryError::Status(status)),
        }
    }
}

/// The body of the request. Receivers get the result with `tasks/get`, as the owner of the task.
fn request_body(delivery: &Delivery, tool: &str) -> String {
    let ended = timestamp(delivery.ended);
    let body = json!({
        "type": format!("task.{}", delivery.status),
        "timestamp": &ended,
        "data": {
            "taskId": delivery.task.as_str(),
            "tool": tool,
            "status": delivery.status.as_str(),
            "createdAt": timestamp(delivery.created),
            "endedAt": &ended,
        },
    });
    body.to_string()
}

fn parse_secret(text: &str) -> Result<Key, WebhookError> {
    let encoded = text
        .strip_prefix(SECRET_PREFIX)
        .ok_or(WebhookError::Secret)?;
    let bytes = STANDARD.decode(encoded).map_err(|_| WebhookError::Secret)?;
    match SECRET_BYTES.contains(&bytes.len()) {
        true => Ok(Key::new(HMAC_SHA256, &bytes)),
        false => Err(WebhookError::Secret),
    }
}

/// Omits the secrets, and the path of the URL, which may contain one.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("name", &self.name)
            .field("origin", &self.url.origin)
            .finish_non_exhaustive()
    }
}

/// Why a delivery failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("request failed: {0}")]
    Http(#[from] HttpError),
    #[error("unexpected status {0}: expected 2xx; redirects are not followed")]
    Status(StatusCode),
    #[error("no response in time")]
    Timeout,
}

impl DeliveryError {
    /// Whether the endpoint no longer exists, so that a retry does not help.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Status(StatusCode::GONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The example in the specification of Standard Webhooks.
    #[test]
    fn signature_equals_the_published_example() {
        let webhook = Webhook::new("one", "http://127.0.0.1/", SECRET).expect("it is valid");
        let signature = webhook.signatures(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            "{\"test\": 2432232314}",
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn every_secret_signs() {
        let two = format!("{SECRET}\n{SECRET}\n");
        let webhook = Webhook::new("one", "http://127.0.0.1/", &two).expect("it is valid");
        let signatures = webhook.signatures("id", 1, "{}");
        let signatures: Vec<&str> = signatures.split(' ').collect();
        assert_eq!(signatures.len(), 2);
        assert_eq!(signatures[0], signatures[1]);
    }

    #[test]
    fn invalid_webhooks_are_rejected() {
        let url = "http://127.0.0.1/";
        let long = "n".repeat(65);
        for name in ["", "a b", "a:b", "ö", &long] {
            assert_eq!(
                Webhook::new(name, url, SECRET).err(),
                Some(WebhookError::Name)
            );
        }
        for url in ["", "http://example.com/", "https://user@example.com/"] {
            let error = Webhook::new("one", url, SECRET).err();
            assert!(matches!(error, Some(WebhookError::Url(_))), "{url}");
        }
        assert_eq!(
            Webhook::new("one", url, " ").err(),
            Some(WebhookError::NoSecret)
        );
        for secret in [
            "secret",
            "whsec_",
            "whsec_c2hvcnQ=",
            "whsec_*",
            &SECRET[6..],
        ] {
            let error = Webhook::new("one", url, secret).err();
            assert_eq!(error, Some(WebhookError::Secret), "{secret}");
        }
    }

    #[test]
    fn debug_form_omits_secrets() {
        let webhook = Webhook::new("one", "http://127.0.0.1/path-secret", SECRET);
        let shown = format!("{:?}", webhook.expect("it is valid"));
        assert!(
            !shown.contains("path-secret") && !shown.contains("MfKQ"),
            "{shown}"
        );
    }
}
