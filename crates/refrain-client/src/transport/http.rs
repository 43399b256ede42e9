//! Messages over Streamable HTTP: each is a POST of its own, answered by one message or by a stream of events.
//!
//! An older server may also send a stream that no POST has opened, and go on with one that broke.

mod exchange;
mod resume;

pub(crate) use exchange::HttpExchange;

use super::{LinkError, Outgoing, Watcher, Wire};
use crate::auth::{AuthError, Authorize, Refusal};
use crate::error::{ErrorKind, cause};
use crate::retry::in_time;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use reqwest::redirect;
use resume::Resume;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// The content type of a stream of events.
const EVENT_STREAM: &str = "text/event-stream";
/// Time for a connection to be made.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How many redirects within the server are followed.
const REDIRECTS_MAX: usize = 4;
/// How much of a stream is looked at, and for how long, to see whether it is of the transport before this one.
const FIRST_EVENT: usize = 4096;
const FIRST_EVENT_TIME: Duration = Duration::from_secs(5);

/// A server at a URL.
pub(crate) struct HttpLink {
    http: reqwest::Client,
    url: Url,
    authorize: Option<Arc<dyn Authorize>>,
    watcher: Watcher,
    message_max: usize,
    shown: Mutex<Shown>,
}

/// The authorization that was last shown to the server, and how often it was another one than before.
#[derive(Default)]
struct Shown {
    last: Option<HeaderValue>,
    changes: u64,
}

impl HttpLink {
    pub(crate) fn new(
        url: Url,
        authorize: Option<Arc<dyn Authorize>>,
        watcher: Watcher,
        message_max: usize,
    ) -> Result<Self, ErrorKind> {
        // A token must not travel to another server, and neither must what people answered.
        let stay = redirect::Policy::custom(|attempt| {
            let same = attempt
                .previous()
                .first()
                .is_some_and(|first| first.origin() == attempt.url().origin());
            // The others would turn a message into a request for a page.
            let keeps = matches!(attempt.status().as_u16(), 307 | 308);
            if !same || !keeps || attempt.previous().len() > REDIRECTS_MAX {
                attempt.stop()
            } else {
                attempt.follow()
            }
        });
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME)
            .redirect(stay)
            .build()
            .map_err(|error| ErrorKind::Address {
                address: url.to_string(),
                why: cause(&error).to_string(),
            })?;
        Ok(Self {
            http,
            url,
            authorize,
            watcher,
            message_max,
            shown: Mutex::default(),
        })
    }

    /// Which of the authorizations there have been is the present one.
    pub(super) fn authorization(&self) -> u64 {
        self.shown.lock().changes
    }

    fn show(&self, authorization: Option<&HeaderValue>) {
        let mut shown = self.shown.lock();
        if shown.last.as_ref() != authorization {
            shown.last = authorization.cloned();
            shown.changes += 1;
        }
    }

    pub(super) fn address(&self) -> &str {
        self.url.as_str()
    }

    /// Posts a request.
    pub(super) async fn open(
        self: &Arc<Self>,
        message: &Outgoing,
        silence: Duration,
    ) -> Result<HttpExchange, LinkError> {
        let response = self.post(message, Some(silence)).await?;
        in_time(silence, HttpExchange::begin(self, message, response)).await
    }

    /// Posts something that is not answered.
    pub(crate) async fn tell(&self, message: &Outgoing) -> Result<(), LinkError> {
        let response = self.post(message, None).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let kind = ErrorKind::Status {
            status: status.as_u16(),
            body: String::new(),
        };
        let retry_after = retry_after(&response);
        // Only a server that says when to come again has not taken it.
        if status == StatusCode::SERVICE_UNAVAILABLE && retry_after.is_some() {
            return Err(LinkError::Busy { kind, retry_after });
        }
        Err(LinkError::Final(kind))
    }

    /// Opens the stream of an older server that belongs to no request, or nothing if the server has none.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        headers: &HeaderMap,
    ) -> Result<Option<HttpExchange>, LinkError> {
        let Some(response) = self.get(headers.clone()).await? else {
            return Ok(None);
        };
        let resume = Resume::new(headers.clone());
        let exchange = HttpExchange::new(Arc::clone(self), None, response, Some(resume));
        Ok(Some(exchange))
    }

    /// Tells an older server that its session is over.
    pub(crate) async fn delete(&self, headers: HeaderMap) -> Result<(), LinkError> {
        self.send(Method::DELETE, headers, String::new(), None)
            .await?;
        Ok(())
    }

    /// Whether this is a server of 2024-11-05, whose stream begins by saying where to post.
    pub(crate) async fn is_of_the_first_transport(&self) -> bool {
        let look = async {
            let mut response = self.get(HeaderMap::new()).await.ok()??;
            let mut start = Vec::new();
            while start.len() < FIRST_EVENT {
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
        let looked = tokio::time::timeout(FIRST_EVENT_TIME, look).await;
        looked.is_ok_and(|found| found.is_some())
    }

    async fn post(
        &self,
        message: &Outgoing,
        silence: Option<Duration>,
    ) -> Result<reqwest::Response, LinkError> {
        self.watcher.see(Wire::Sent {
            message: &message.body,
        });
        let mut headers = message.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        self.send(Method::POST, headers, message.body.clone(), silence)
            .await
    }

    /// Gets a stream of events, if there is one. A server that fails, or asks to come again, may have it later; one that
    /// does not know how (501) has none.
    async fn get(&self, mut headers: HeaderMap) -> Result<Option<reqwest::Response>, LinkError> {
        headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        let response = self.send(Method::GET, headers, String::new(), None).await?;
        let status = response.status();
        let fails = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        if fails || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(LinkError::Busy {
                kind: ErrorKind::Status {
                    status: status.as_u16(),
                    body: String::new(),
                },
                retry_after: retry_after(&response),
            });
        }
        let is_good = status.is_success() && is_stream(&response);
        Ok(is_good.then_some(response))
    }

    /// Sends a request. One that is refused for want of authorization is sent again when there is one. Whoever logs in
    /// for that may take longer than the server may be silent.
    async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: String,
        silence: Option<Duration>,
    ) -> Result<reqwest::Response, LinkError> {
        let mut earlier = 0;
        loop {
            let sent = match &self.authorize {
                Some(authorize) => authorize.headers(&method, &self.url).await?,
                None => HeaderMap::new(),
            };
            self.show(sent.get(AUTHORIZATION));
            let mut all = headers.clone();
            all.extend(sent.clone());
            let sending = self.send_once(method.clone(), all, body.clone());
            let response = match silence {
                Some(silence) => in_time(silence, sending).await?,
                None => sending.await?,
            };
            let status = response.status();
            if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return Ok(response);
            }
            let Some(authorize) = &self.authorize else {
                if status == StatusCode::UNAUTHORIZED {
                    return Err(AuthError::Refused.into());
                }
                return Ok(response);
            };
            let refusal = Refusal {
                url: &self.url,
                sent: &sent,
                status,
                headers: response.headers(),
                earlier,
            };
            if !authorize.refused(refusal).await? {
                return Ok(response);
            }
            earlier += 1;
        }
    }

    async fn send_once(
        &self,
        method: Method,
        headers: HeaderMap,
        body: String,
    ) -> Result<reqwest::Response, LinkError> {
        self.http
            .request(method, self.url.clone())
            .headers(headers)
            .body(body)
            .send()
            .await
            .map_err(|error| {
                if error.is_connect() {
                    LinkError::NotSent(ErrorKind::Unreachable {
                        address: self.url.to_string(),
                        source: error.into(),
                    })
                } else {
                    LinkError::Lost(ErrorKind::Broken(error.into()))
                }
            })
    }
}

/// Whether a response is a stream of events.
fn is_stream(response: &reqwest::Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    let start = kind.and_then(|kind| kind.as_bytes().get(..EVENT_STREAM.len()));
    start.is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM.as_bytes()))
}

/// How long a server wants to be left alone.
fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let wait = response.headers().get(RETRY_AFTER)?;
    wait.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

impl fmt::Debug for HttpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpLink")
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}
