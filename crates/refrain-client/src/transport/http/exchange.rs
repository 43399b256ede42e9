//! What comes back to a message.

use super::resume::Resume;
use super::{HttpLink, is_stream, retry_after};
use crate::error::ErrorKind;
use crate::transport::events::Events;
use crate::transport::{Incoming, LinkError, Outgoing, Translate, Wire, read};
use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use refrain_wire::client::{ReadError, split_messages};
use std::collections::VecDeque;
use std::sync::Arc;
use url::Url;

/// How much of an answer that makes no sense is shown.
const SHOWN: usize = 300;

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
    translate: Option<Translate>,
    /// Whether the request is done without a response.
    is_done: bool,
}

impl HttpExchange {
    pub(super) fn new(
        link: Arc<HttpLink>,
        id: Option<u64>,
        response: reqwest::Response,
        resume: Option<Resume>,
    ) -> Self {
        Self {
            link,
            id,
            events: is_stream(&response).then(Events::default),
            response,
            ready: VecDeque::new(),
            read: 0,
            resume,
            translate: None,
            is_done: false,
        }
    }

    /// Looks at the head of the response to a message, and at all of it if it is one message.
    pub(super) async fn begin(
        link: &Arc<HttpLink>,
        message: &Outgoing,
        response: reqwest::Response,
    ) -> Result<Self, LinkError> {
        let resume = message
            .is_resumable
            .then(|| Resume::new(message.headers.clone()));
        let mut exchange = Self::new(Arc::clone(link), message.id, response, resume);
        exchange.translate = message.translate.clone();
        if exchange.events.is_none() {
            let body = exchange.whole_body().await?;
            if message.is_silent && exchange.status().is_success() && body.trim().is_empty() {
                exchange.is_done = true;
                return Ok(exchange);
            }
            exchange.judge(&link.url, &body)?;
            exchange.ready.extend(split_messages(body));
        }
        Ok(exchange)
    }

    pub(in crate::transport) fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Whether there will be no response, and none is wanted.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// The session that an older server has opened.
    pub(in crate::transport) fn session(&self) -> Option<HeaderValue> {
        self.response.headers().get("mcp-session-id").cloned()
    }

    /// The next message that belongs to the request, or a sign of life: a comment, or what goes to somebody else.
    pub(crate) async fn next(&mut self) -> Result<Incoming, LinkError> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                let status = Some(self.status().as_u16());
                self.link.watcher.see(Wire::Received {
                    message: &text,
                    status,
                });
                let (id, mut message) = read(&text, status, self.translate.as_ref())
                    .map_err(|error| self.unreadable(&text, error))?;
                let is_other = id.is_some_and(|id| {
                    !id.is_null() && Some(&id) != self.id.map(Into::into).as_ref()
                });
                if !is_other {
                    return Ok(message);
                }
                if self.refuses_as_a_whole(&message) {
                    if let Incoming::Response(response) = &mut message {
                        response.names_request = false;
                    }
                    return Ok(message);
                }
                if self.events.is_none() {
                    return Err(ReadError::OtherRequest.into());
                }
            } else {
                self.read_more().await?;
                if self.ready.is_empty() {
                    return Ok(Incoming::Alive);
                }
            }
        }
    }

    /// Why something in the stream is no message. If the server has failed, that is why.
    fn unreadable(&self, text: &str, error: ReadError) -> LinkError {
        let is_good = self.status().is_success();
        let failed = (!is_good).then(|| self.judge(&self.link.url, text).err());
        failed.flatten().unwrap_or_else(|| error.into())
    }

    /// Whether this is the error of a refused POST: it belongs to its request, though some servers give it an id of
    /// their own.
    fn refuses_as_a_whole(&self, message: &Incoming) -> bool {
        let is_error = matches!(message, Incoming::Response(response) if response.outcome.is_err());
        is_error && self.events.is_none() && !self.status().is_success()
    }

    /// Reads on. There may be another message then.
    async fn read_more(&mut self) -> Result<(), LinkError> {
        let Some(events) = &mut self.events else {
            return Err(ended());
        };
        let chunk = match self.response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) if !self.status().is_success() => {
                self.judge(&self.link.url, "")?;
                return Err(ended());
            }
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
            let text = String::from_utf8(event.data).map_err(ReadError::from)?;
            self.ready.extend(split_messages(text));
        }
        Ok(())
    }

    /// Goes on with a stream that broke or was closed, after the last event that was seen.
    async fn resume(&mut self, error: LinkError) -> Result<(), LinkError> {
        let response = match &mut self.resume {
            Some(resume) => resume.go_on(&self.link).await,
            None => None,
        };
        self.response = response.ok_or(error)?;
        self.events = Some(Events::default());
        Ok(())
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
            read(body, None, self.translate.as_ref()).is_ok()
        };
        let shown: String = body.chars().take(SHOWN).collect();
        let says_when = self.response.headers().contains_key(RETRY_AFTER);
        // Gateways say so too when they lost a server that was at work. Only one that says when to come again has not
        // begun, in whatever form it says that it is busy.
        let is_unavailable = status == StatusCode::SERVICE_UNAVAILABLE && says_when;
        if is_unavailable || (status == StatusCode::TOO_MANY_REQUESTS && !is_message) {
            let kind = ErrorKind::Status {
                status: status.as_u16(),
                body: shown,
            };
            let retry_after = retry_after(&self.response);
            return Err(LinkError::Busy { kind, retry_after });
        }
        if is_message {
            return Ok(());
        }
        if matches!(
            status,
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
        ) {
            return Err(LinkError::Lost(ErrorKind::Status {
                status: status.as_u16(),
                body: shown,
            }));
        }
        if status.is_redirection() {
            let to = self.response.headers().get(LOCATION);
            let to = to.and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
            return Err(LinkError::Final(ErrorKind::NotMcp {
                address: url.to_string(),
                why: format!("it sends on to {to}; use that URL if you trust it"),
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

fn ended() -> LinkError {
    LinkError::Lost(ErrorKind::Broken(
        "the stream ended without a response".into(),
    ))
}

fn broken(error: reqwest::Error) -> LinkError {
    LinkError::Lost(ErrorKind::Broken(error.into()))
}

fn too_large(limit: usize) -> LinkError {
    LinkError::Final(ErrorKind::TooLarge {
        what: "a message",
        limit,
    })
}
