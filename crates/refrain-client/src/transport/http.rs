//! Messages over Streamable HTTP: each is a POST of its own, answered by one message or by a stream of events.

use super::events::Events;
use super::{Incoming, LinkError, Outgoing, Watcher, Wire, read_message};
use crate::auth::{AuthError, Authorize, Refusal};
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

/// A server at a URL.
pub(crate) struct HttpLink {
    http: reqwest::Client,
    url: Url,
    authorize: Option<Arc<dyn Authorize>>,
    watcher: Watcher,
    message_max: usize,
}

/// What comes back to one POST.
pub(crate) struct HttpExchange {
    id: Option<u64>,
    response: reqwest::Response,
    /// The events of the body, if it is a stream of them.
    events: Option<Events>,
    ready: VecDeque<String>,
    read: usize,
    watcher: Watcher,
    message_max: usize,
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

    /// Posts a message. A request that is refused for want of authorization is sent again when there is one.
    pub(super) async fn open(&self, message: &Outgoing) -> Result<HttpExchange, LinkError> {
        self.watcher.see(Wire::Sent {
            message: &message.body,
        });
        let mut earlier = 0;
        loop {
            let sent = self.authorization(&Method::POST).await?;
            let response = self.post(message, sent.clone()).await?;
            let status = response.status();
            if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return self.opened(message, response).await;
            }
            let Some(authorize) = &self.authorize else {
                if status == StatusCode::UNAUTHORIZED {
                    return Err(AuthError::Refused.into());
                }
                return self.opened(message, response).await;
            };
            let refusal = Refusal {
                url: &self.url,
                sent: &sent,
                status,
                headers: response.headers(),
                earlier,
            };
            if !authorize.refused(refusal).await? {
                return self.opened(message, response).await;
            }
            earlier += 1;
        }
    }

    /// What authorizes a request.
    async fn authorization(&self, method: &Method) -> Result<HeaderMap, AuthError> {
        match &self.authorize {
            Some(authorize) => authorize.headers(method, &self.url).await,
            None => Ok(HeaderMap::new()),
        }
    }

    async fn post(
        &self,
        message: &Outgoing,
        authorization: HeaderMap,
    ) -> Result<reqwest::Response, LinkError> {
        let mut headers = message.headers.clone();
        headers.extend(authorization);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        self.send(Method::POST, headers, message.body.clone()).await
    }

    async fn send(
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
        &self,
        message: &Outgoing,
        response: reqwest::Response,
    ) -> Result<HttpExchange, LinkError> {
        let kind = response.headers().get(CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let mut exchange = HttpExchange {
            id: message.id,
            response,
            events: is_stream.then(Events::default),
            ready: VecDeque::new(),
            read: 0,
            watcher: self.watcher.clone(),
            message_max: self.message_max,
        };
        if !is_stream {
            let body = exchange.whole_body().await?;
            exchange.judge(&self.url, &body)?;
            exchange.ready.push_back(body);
        }
        Ok(exchange)
    }
}

impl HttpExchange {
    fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The next message that belongs to the request.
    pub(super) async fn next(&mut self) -> Result<Incoming, LinkError> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                let status = Some(self.status().as_u16());
                self.watcher.see(Wire::Received {
                    message: &text,
                    status,
                });
                let (id, message) = read_message(&text, status)
                    .map_err(|why| LinkError::Final(ErrorKind::BadAnswer(why)))?;
                let is_other = matches!(message, Incoming::Response(_))
                    && id.is_some_and(|id| {
                        !id.is_null() && Some(&id) != self.id.map(Into::into).as_ref()
                    });
                if !is_other {
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
        let chunk = self.response.chunk().await.map_err(broken)?;
        let chunk = chunk.ok_or_else(ended)?;
        for event in events.push(&chunk) {
            if event.data.is_empty() {
                continue;
            }
            let text = String::from_utf8(event.data).map_err(|_| {
                LinkError::Final(ErrorKind::BadAnswer("it is not UTF-8".to_owned()))
            })?;
            self.ready.push_back(text);
        }
        if events.kept() > self.message_max {
            return Err(too_large(self.message_max));
        }
        Ok(())
    }

    async fn whole_body(&mut self) -> Result<String, LinkError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.response.chunk().await.map_err(broken)? {
            self.read += chunk.len();
            if self.read > self.message_max {
                return Err(too_large(self.message_max));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Whether a body is a message at all. If not, says what it is.
    fn judge(&self, url: &Url, body: &str) -> Result<(), LinkError> {
        let status = self.status();
        let is_json = body.trim_start().starts_with('{');
        if is_json || (self.id.is_none() && status.is_success()) {
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
