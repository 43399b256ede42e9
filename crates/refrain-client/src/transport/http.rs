//! Messages over Streamable HTTP: each is a POST of its own, answered by one message or by a stream of events.
//!
//! An older server may also send a stream that no POST has opened, and go on with one that broke.

use super::events::{Event, Events};
use super::{Incoming, LinkError, Outgoing, Watcher, Wire, messages_in, read_message};
use crate::auth::{AuthError, Authorize, Refusal};
use crate::client::back_off;
use crate::error::ErrorKind;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use reqwest::redirect;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Time for a connection to be made.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How many redirects within the server are followed.
const REDIRECTS_MAX: usize = 4;
/// How much of an answer that makes no sense is shown.
const SHOWN: usize = 300;
/// How often, one time after the other, a server may be out of reach when a stream is to go on.
const RESUMES_MAX: u32 = 5;
/// The shortest pause before a stream goes on.
const RESUME_PAUSE: Duration = Duration::from_millis(50);
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
}

/// What comes back to one POST, or on the stream that no POST has opened.
pub(crate) struct HttpExchange {
    link: Arc<HttpLink>,
    id: Option<u64>,
    response: reqwest::Response,
    /// The events of the body, if it is a stream of them.
    events: Option<Events>,
    ready: VecDeque<String>,
    read: usize,
    resume: Option<Resume>,
}

/// How to go on with a stream that broke.
struct Resume {
    headers: HeaderMap,
    /// The last event that was seen.
    after: Option<HeaderValue>,
    /// How long the server wants to be left alone before.
    pause: Option<Duration>,
    /// How often it could not be reached, one time after the other.
    failures: u32,
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
            if !same || attempt.previous().len() > REDIRECTS_MAX {
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
                why: chain(&error),
            })?;
        Ok(Self {
            http,
            url,
            authorize,
            watcher,
            message_max,
        })
    }

    pub(super) fn address(&self) -> &str {
        self.url.as_str()
    }

    /// Posts a request.
    pub(super) async fn open(
        self: &Arc<Self>,
        message: &Outgoing,
    ) -> Result<HttpExchange, LinkError> {
        let response = self.post(message).await?;
        self.opened(message, response).await
    }

    /// Posts something that is not answered.
    pub(crate) async fn tell(&self, message: &Outgoing) -> Result<(), LinkError> {
        let response = self.post(message).await?;
        if response.status().is_success() {
            return Ok(());
        }
        Err(LinkError::Final(ErrorKind::Status {
            status: response.status().as_u16(),
            body: String::new(),
        }))
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
        Ok(Some(self.exchange(None, response, Some(resume))))
    }

    /// Tells an older server that its session is over.
    pub(crate) async fn delete(&self, headers: HeaderMap) -> Result<(), LinkError> {
        self.send(Method::DELETE, headers, String::new()).await?;
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
        tokio::time::timeout(FIRST_EVENT_TIME, look)
            .await
            .is_ok_and(|found| found.is_some())
    }

    async fn post(&self, message: &Outgoing) -> Result<reqwest::Response, LinkError> {
        self.watcher.see(Wire::Sent {
            message: &message.body,
        });
        let mut headers = message.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        self.send(Method::POST, headers, message.body.clone()).await
    }

    /// Gets a stream of events, if there is one.
    async fn get(&self, mut headers: HeaderMap) -> Result<Option<reqwest::Response>, LinkError> {
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let response = self.send(Method::GET, headers, String::new()).await?;
        let is_good = response.status().is_success() && is_stream(&response);
        Ok(is_good.then_some(response))
    }

    /// Sends a request. One that is refused for want of authorization is sent again when there is one.
    async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: String,
    ) -> Result<reqwest::Response, LinkError> {
        let mut earlier = 0;
        loop {
            let sent = match &self.authorize {
                Some(authorize) => authorize.headers(&method, &self.url).await?,
                None => HeaderMap::new(),
            };
            let mut all = headers.clone();
            all.extend(sent.clone());
            let response = self.send_once(method.clone(), all, body.clone()).await?;
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
                        why: chain(&error),
                    })
                } else {
                    LinkError::Lost(ErrorKind::Broken(chain(&error)))
                }
            })
    }

    /// Looks at the head of a response, and at all of it if it is one message.
    async fn opened(
        self: &Arc<Self>,
        message: &Outgoing,
        response: reqwest::Response,
    ) -> Result<HttpExchange, LinkError> {
        let resume = message
            .is_resumable
            .then(|| Resume::new(message.headers.clone()));
        let mut exchange = self.exchange(message.id, response, resume);
        if exchange.events.is_none() {
            let body = exchange.whole_body().await?;
            exchange.judge(&self.url, &body)?;
            exchange.ready.extend(messages_in(body));
        }
        Ok(exchange)
    }

    fn exchange(
        self: &Arc<Self>,
        id: Option<u64>,
        response: reqwest::Response,
        resume: Option<Resume>,
    ) -> HttpExchange {
        HttpExchange {
            link: Arc::clone(self),
            id,
            events: is_stream(&response).then(Events::default),
            response,
            ready: VecDeque::new(),
            read: 0,
            resume,
        }
    }
}

impl HttpExchange {
    fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The session that an older server has opened.
    pub(super) fn session(&self) -> Option<HeaderValue> {
        self.response.headers().get("mcp-session-id").cloned()
    }

    /// The next message that belongs to the request.
    pub(crate) async fn next(&mut self) -> Result<Incoming, LinkError> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                let status = Some(self.status().as_u16());
                self.link.watcher.see(Wire::Received {
                    message: &text,
                    status,
                });
                let (id, message) = read_message(&text, status)
                    .map_err(|why| LinkError::Final(ErrorKind::BadAnswer(why)))?;
                let is_other = id.is_some_and(|id| {
                    !id.is_null() && Some(&id) != self.id.map(Into::into).as_ref()
                });
                if !is_other || self.refuses_as_a_whole(&message) {
                    return Ok(message);
                }
                if self.events.is_none() {
                    return Err(LinkError::Final(ErrorKind::BadAnswer(
                        "it has the id of another request".to_owned(),
                    )));
                }
            } else {
                self.read_more().await?;
            }
        }
    }

    /// Whether this is the error of a refused POST: it belongs to its request, though some servers give it an id of
    /// their own.
    fn refuses_as_a_whole(&self, message: &Incoming) -> bool {
        let is_error = matches!(message, Incoming::Response(response) if response.outcome.is_err());
        is_error && self.events.is_none() && !self.status().is_success()
    }

    /// Reads on until there is another message.
    async fn read_more(&mut self) -> Result<(), LinkError> {
        let ended = || {
            LinkError::Lost(ErrorKind::Broken(
                "the stream ended without a response".to_owned(),
            ))
        };
        let Some(events) = &mut self.events else {
            return Err(ended());
        };
        let chunk = match self.response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return self.resume(ended()).await,
            Err(error) => return self.resume(broken(error)).await,
        };
        let complete = events.push(&chunk);
        if events.kept() > self.link.message_max {
            return Err(too_large(self.link.message_max));
        }
        for event in complete {
            if let Some(resume) = &mut self.resume {
                resume.seen(&event);
            }
            if event.data.is_empty() {
                continue;
            }
            let text = String::from_utf8(event.data).map_err(|_| {
                LinkError::Final(ErrorKind::BadAnswer("it is not UTF-8".to_owned()))
            })?;
            self.ready.extend(messages_in(text));
        }
        Ok(())
    }

    /// Goes on with a stream that broke or was closed, after the last event that was seen.
    async fn resume(&mut self, error: LinkError) -> Result<(), LinkError> {
        let Some(resume) = &mut self.resume else {
            return Err(error);
        };
        let Some(after) = resume.after.clone() else {
            return Err(error);
        };
        while resume.failures < RESUMES_MAX {
            let pause = resume
                .pause
                .unwrap_or_else(|| back_off(resume.failures + 1));
            tokio::time::sleep(pause.max(RESUME_PAUSE)).await;
            let mut headers = resume.headers.clone();
            headers.insert("last-event-id", after.clone());
            match self.link.get(headers).await {
                Ok(Some(response)) => {
                    self.response = response;
                    self.events = Some(Events::default());
                    return Ok(());
                }
                Err(LinkError::NotSent(_) | LinkError::Lost(_)) => resume.failures += 1,
                _ => return Err(error),
            }
        }
        Err(error)
    }

    async fn whole_body(&mut self) -> Result<String, LinkError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.response.chunk().await.map_err(broken)? {
            self.read += chunk.len();
            if self.read > self.link.message_max {
                return Err(too_large(self.link.message_max));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Whether a body is a message at all. If not, says what it is.
    fn judge(&self, url: &Url, body: &str) -> Result<(), LinkError> {
        let status = self.status();
        let is_message = if status.is_success() {
            self.id.is_none() || body.trim_start().starts_with(['{', '['])
        } else {
            read_message(body, None).is_ok()
        };
        if is_message {
            return Ok(());
        }
        let shown: String = body.chars().take(SHOWN).collect();
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            let wait = self.response.headers().get(RETRY_AFTER);
            let kind = ErrorKind::Status {
                status: status.as_u16(),
                body: shown,
            };
            let retry_after = wait.and_then(|wait| wait.to_str().ok()?.parse().ok());
            return Err(LinkError::Busy { kind, retry_after });
        }
        if matches!(
            status,
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT
        ) {
            return Err(LinkError::Lost(ErrorKind::Status {
                status: status.as_u16(),
                body: shown,
            }));
        }
        if status.is_redirection() {
            let to = self.response.headers().get(http::header::LOCATION);
            let to = to.and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
            return Err(LinkError::Final(ErrorKind::NotMcp {
                address: url.to_string(),
                why: format!(
                    "it sends on to {to}, which is another server; use that URL if you trust it"
                ),
            }));
        }
        let kind = if status.is_success() {
            ErrorKind::NotMcp {
                address: url.to_string(),
                why: format!("it answered with {shown:?}"),
            }
        } else {
            ErrorKind::Status {
                status: status.as_u16(),
                body: shown,
            }
        };
        Err(LinkError::Final(kind))
    }
}

impl Resume {
    fn new(headers: HeaderMap) -> Self {
        Self {
            headers,
            after: None,
            pause: None,
            failures: 0,
        }
    }

    fn seen(&mut self, event: &Event) {
        self.failures = 0;
        if let Some(id) = &event.id {
            // An empty id takes back the one before.
            self.after = HeaderValue::from_str(id).ok().filter(|id| !id.is_empty());
        }
        if let Some(pause) = event.retry {
            self.pause = Some(Duration::from_millis(pause));
        }
    }
}

/// Whether a response is a stream of events.
fn is_stream(response: &reqwest::Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

fn broken(error: reqwest::Error) -> LinkError {
    LinkError::Lost(ErrorKind::Broken(chain(&error)))
}

fn too_large(limit: usize) -> LinkError {
    LinkError::Final(ErrorKind::TooLarge {
        what: "a message",
        limit,
    })
}

/// What an error says, down to its cause, without the URL: it is said already.
fn chain(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl fmt::Debug for HttpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpLink")
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}
