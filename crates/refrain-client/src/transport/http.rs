//! Streamable HTTP: each message is a POST, and the response is one message or an event stream.
//!
//! Legacy servers may also offer a session stream (GET), and resume interrupted streams.

mod exchange;
mod resume;

pub(crate) use exchange::HttpExchange;

use super::{LinkError, LinkResult, OutgoingMessage, WireMessage, WireObserver};
use crate::auth::{AuthError, Authorize, RejectedRequest};
use crate::builder::ClientBuilder;
use crate::error::{ErrorKind, cause};
use crate::limits::ClientLimits;
use crate::retry::{before_timeout, within};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use reqwest::redirect;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls;
use url::Url;

const EVENT_STREAM: &str = "text/event-stream";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REDIRECTS_MAX: usize = 4;
/// Limits for recognising the HTTP+SSE transport by its first event.
const FIRST_EVENT_MAX: usize = 4096;
const FIRST_EVENT_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct HttpLink {
    http: reqwest::Client,
    url: Url,
    authorize: Option<Arc<dyn Authorize>>,
    watch: WireObserver,
    limits: ClientLimits,
    /// The last authorization header sent, and how often it has changed.
    authorization: Mutex<(Option<HeaderValue>, u64)>,
}

impl HttpLink {
    pub(crate) fn new(url: Url, setup: &ClientBuilder) -> Result<Self, ErrorKind> {
        // Tokens and answers must not be sent to another server.
        let same_origin = redirect::Policy::custom(|attempt| {
            let first = attempt.previous().first();
            let is_same = first.is_some_and(|first| first.origin() == attempt.url().origin());
            // Other redirects turn a POST into a GET.
            let keeps_method = matches!(attempt.status().as_u16(), 307 | 308);
            if !is_same || !keeps_method || attempt.previous().len() > REDIRECTS_MAX {
                attempt.stop()
            } else {
                attempt.follow()
            }
        });
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(same_origin)
            .build()
            .map_err(|error| ErrorKind::InvalidAddress {
                address: url.to_string(),
                why: cause(&error).to_string(),
            })?;
        Ok(Self {
            http,
            url,
            authorize: setup.authorize.clone(),
            watch: Arc::clone(&setup.watch),
            limits: setup.limits.clone(),
            authorization: Mutex::default(),
        })
    }

    pub(super) fn authorization(&self) -> u64 {
        self.authorization.lock().1
    }

    pub(super) fn address(&self) -> &str {
        self.url.as_str()
    }

    pub(super) async fn open(
        self: &Arc<Self>,
        message: &OutgoingMessage,
    ) -> LinkResult<HttpExchange> {
        let response = self.post(message, Some(message.silence)).await?;
        let exchange = HttpExchange::begin(self, message, response);
        before_timeout(message.silence, exchange).await
    }

    pub(crate) async fn send_message(&self, message: &OutgoingMessage) -> LinkResult<()> {
        let response = self.post(message, None).await?;
        let retry_after = retry_after(&response);
        match response.status() {
            status if status.is_success() => Ok(()),
            // Without `Retry-After` the server may have processed it.
            status if status == StatusCode::SERVICE_UNAVAILABLE && retry_after.is_some() => {
                let kind = status_error(status, String::new());
                Err(LinkError::Busy { kind, retry_after })
            }
            status => Err(LinkError::Final(status_error(status, String::new()))),
        }
    }

    /// Opens the session stream of a legacy server, if it offers one.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        headers: &HeaderMap,
    ) -> LinkResult<Option<HttpExchange>> {
        let response = self.get(headers.clone()).await?;
        let opening = OutgoingMessage {
            headers: headers.clone(),
            is_resumable: true,
            ..OutgoingMessage::default()
        };
        Ok(response.map(|response| HttpExchange::new(self, &opening, response)))
    }

    pub(crate) async fn delete(&self, headers: HeaderMap) -> LinkResult<()> {
        let sent = self.send(Method::DELETE, headers, String::new(), None);
        sent.await.map(|_| ())
    }

    /// Whether the server uses the HTTP+SSE transport of 2024-11-05, whose stream starts with an `endpoint` event.
    pub(crate) async fn is_http_sse(&self) -> bool {
        let look = async {
            let mut response = self.get(HeaderMap::new()).await.ok()??;
            let mut start = Vec::new();
            while start.len() < FIRST_EVENT_MAX {
                start.extend_from_slice(&response.chunk().await.ok()??);
                let is_endpoint = |line: &[u8]| {
                    let value = line.strip_prefix(b"event:").unwrap_or_default();
                    value.trim_ascii() == b"endpoint"
                };
                if start.split(|byte| *byte == b'\n').any(is_endpoint) {
                    return Some(());
                }
            }
            None
        };
        within(FIRST_EVENT_TIMEOUT, look).await.flatten().is_some()
    }

    async fn post(
        &self,
        message: &OutgoingMessage,
        silence: Option<Duration>,
    ) -> LinkResult<reqwest::Response> {
        (self.watch)(WireMessage::Sent {
            message: &message.body,
        });
        let mut headers = message.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let accept = "application/json, text/event-stream";
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let sent = self.send(Method::POST, headers, message.body.clone(), silence);
        sent.await
    }

    /// Opens an event stream, if the server offers one. Server errors other than 501 are transient.
    async fn get(&self, mut headers: HeaderMap) -> LinkResult<Option<reqwest::Response>> {
        headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        let response = self.send(Method::GET, headers, String::new(), None).await?;
        let status = response.status();
        let has_failed = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        if has_failed || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(LinkError::Busy {
                kind: status_error(status, String::new()),
                retry_after: retry_after(&response),
            });
        }
        let is_usable = status.is_success() && is_stream(&response);
        Ok(is_usable.then_some(response))
    }

    /// Sends a request, and repeats it after authorization, to which the silence timeout does not apply.
    async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: String,
        silence: Option<Duration>,
    ) -> LinkResult<reqwest::Response> {
        let mut previous = 0;
        loop {
            let sent = match &self.authorize {
                Some(authorize) => authorize.headers(&method, &self.url).await?,
                None => HeaderMap::new(),
            };
            self.record_authorization(sent.get(AUTHORIZATION));
            let request = self.http.request(method.clone(), self.url.clone());
            let request = request.headers(headers.clone()).headers(sent.clone());
            let request = request.body(body.clone()).send();
            let sending = async { request.await.map_err(|error| self.send_error(error)) };
            let response = match silence {
                Some(silence) => before_timeout(silence, sending).await?,
                None => sending.await?,
            };
            let status = response.status();
            if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return Ok(response);
            }
            let Some(authorize) = &self.authorize else {
                if status == StatusCode::UNAUTHORIZED {
                    return Err(AuthError::Unauthorized.into());
                }
                return Ok(response);
            };
            let rejection = RejectedRequest {
                url: &self.url,
                sent: &sent,
                status,
                headers: response.headers(),
                previous,
            };
            if !authorize.handle_rejection(rejection).await? {
                return Ok(response);
            }
            previous += 1;
        }
    }

    fn record_authorization(&self, authorization: Option<&HeaderValue>) {
        let mut last = self.authorization.lock();
        if last.0.as_ref() != authorization {
            *last = (authorization.cloned(), last.1 + 1);
        }
    }

    fn send_error(&self, error: reqwest::Error) -> LinkError {
        if !error.is_connect() {
            return LinkError::Lost(ErrorKind::ConnectionLost(error.into()));
        }
        let address = self.url.to_string();
        LinkError::NotSent(match is_not_tls(&error) {
            true => ErrorKind::NotTls { address },
            false => ErrorKind::Unreachable {
                address,
                source: error.into(),
            },
        })
    }
}

/// Whether the response to the TLS handshake is not a TLS message.
fn is_not_tls(error: &(dyn Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return matches!(error, rustls::Error::InvalidMessage(_));
    }
    // The source of an I/O error skips the error inside it.
    let inside = error.downcast_ref().and_then(io::Error::get_ref);
    match inside {
        Some(inside) => is_not_tls(inside),
        None => error.source().is_some_and(is_not_tls),
    }
}

fn is_stream(response: &reqwest::Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    let start = kind.and_then(|kind| kind.as_bytes().get(..EVENT_STREAM.len()));
    start.is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM.as_bytes()))
}

fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let wait = response.headers().get(RETRY_AFTER)?;
    wait.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

fn status_error(status: StatusCode, body: String) -> ErrorKind {
    let status = status.as_u16();
    ErrorKind::HttpStatus { status, body }
}
