//! The messages that come back to one POST.

use super::resume::Resume;
use super::{HttpLink, is_stream, retry_after, status_error};
use crate::error::ErrorKind;
use crate::transport::events::Events;
use crate::transport::{Incoming, LinkError, LinkResult, Outgoing, Translate, Wire, read};
use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use refrain_wire::client::{ReadError, split_messages};
use std::collections::VecDeque;
use std::sync::Arc;

/// How much of an invalid body is shown.
const SHOWN: usize = 300;

/// The messages that come back to one POST, or on the session stream.
pub(crate) struct HttpExchange {
    link: Arc<HttpLink>,
    id: Option<u64>,
    response: reqwest::Response,
    /// The parser of the body, if it is a stream of events.
    events: Option<Events>,
    ready: VecDeque<String>,
    resume: Option<Resume>,
    translate: Option<Translate>,
    pub(crate) is_done: bool,
}

impl HttpExchange {
    pub(super) fn new(
        link: &Arc<HttpLink>,
        message: &Outgoing,
        response: reqwest::Response,
    ) -> Self {
        let resume = || Resume::new(message.headers.clone());
        Self {
            link: Arc::clone(link),
            id: message.id,
            events: is_stream(&response).then(Events::default),
            response,
            ready: VecDeque::new(),
            resume: message.is_resumable.then(resume),
            translate: message.translate.clone(),
            is_done: false,
        }
    }

    /// Checks the head of the response, and all of it if it is one message.
    pub(super) async fn begin(
        link: &Arc<HttpLink>,
        message: &Outgoing,
        response: reqwest::Response,
    ) -> LinkResult<Self> {
        let mut exchange = Self::new(link, message, response);
        if exchange.events.is_none() {
            let body = exchange.whole_body().await?;
            if message.is_silent && exchange.status().is_success() && body.trim().is_empty() {
                exchange.is_done = true;
                return Ok(exchange);
            }
            exchange.check(&body)?;
            exchange.ready.extend(split_messages(body));
        }
        Ok(exchange)
    }

    pub(in crate::transport) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(in crate::transport) fn session(&self) -> Option<HeaderValue> {
        self.response.headers().get("mcp-session-id").cloned()
    }

    /// The next message that belongs to the request, or a sign of life.
    pub(crate) async fn next(&mut self) -> LinkResult<Incoming> {
        loop {
            let Some(text) = self.ready.pop_front() else {
                self.read_more().await?;
                if self.ready.is_empty() {
                    return Ok(Incoming::Alive);
                }
                continue;
            };
            let status = Some(self.status().as_u16());
            (self.link.watch)(Wire::Received {
                message: &text,
                status,
            });
            let (id, mut message) = read(&text, status, self.translate.as_ref())
                .map_err(|error| self.unreadable(&text, error))?;
            let own = self.id.map(Into::into);
            if id.is_none_or(|id| id.is_null() || Some(id) == own) {
                return Ok(message);
            }
            if self.events.is_some() {
                continue;
            }
            // The error of a refused POST belongs to its request, though some servers give it another id.
            match &mut message {
                Incoming::Response(response)
                    if response.outcome.is_err() && !self.status().is_success() =>
                {
                    response.names_request = false;
                    return Ok(message);
                }
                _ => return Err(ReadError::OtherRequest.into()),
            }
        }
    }

    /// The error for an invalid message. The HTTP status takes precedence.
    fn unreadable(&self, text: &str, error: ReadError) -> LinkError {
        let is_good = self.status().is_success();
        let failed = (!is_good).then(|| self.check(text).err());
        failed.flatten().unwrap_or_else(|| error.into())
    }

    async fn read_more(&mut self) -> LinkResult<()> {
        let Some(events) = &mut self.events else {
            return Err(ended());
        };
        let chunk = match self.response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) if !self.status().is_success() => {
                self.check("")?;
                return Err(ended());
            }
            Ok(None) => return self.resume(ended()).await,
            Err(error) => return self.resume(broken(error)).await,
        };
        let complete = events.push(&chunk);
        if events.buffered() > self.link.message_max {
            return Err(self.too_large());
        }
        for event in complete {
            if let Some(resume) = &mut self.resume {
                resume.seen(&event);
            }
            if !event.data.is_empty() {
                let text = String::from_utf8(event.data).map_err(ReadError::from)?;
                self.ready.extend(split_messages(text));
            }
        }
        Ok(())
    }

    /// Resumes a stream that broke after the last event.
    async fn resume(&mut self, error: LinkError) -> LinkResult<()> {
        let response = match &mut self.resume {
            Some(resume) => resume.reopen(&self.link).await,
            None => None,
        };
        self.response = response.ok_or(error)?;
        self.events = Some(Events::default());
        Ok(())
    }

    async fn whole_body(&mut self) -> LinkResult<String> {
        let mut body = Vec::new();
        while let Some(chunk) = self.response.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > self.link.message_max {
                return Err(self.too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Checks that a body is a message, and returns the error that it stands for otherwise.
    fn check(&self, body: &str) -> LinkResult<()> {
        let status = self.status();
        let is_message = if status.is_success() {
            self.id.is_none() || body.trim_start().starts_with(['{', '['])
        } else {
            read(body, None, self.translate.as_ref()).is_ok()
        };
        let shown: String = body.chars().take(SHOWN).collect();
        // Gateways send 503 too when they lost a server that was at work. With `Retry-After` it has not begun.
        let is_unavailable = status == StatusCode::SERVICE_UNAVAILABLE
            && self.response.headers().contains_key(RETRY_AFTER);
        if is_unavailable || (status == StatusCode::TOO_MANY_REQUESTS && !is_message) {
            let retry_after = retry_after(&self.response);
            let kind = status_error(status, shown);
            return Err(LinkError::Busy { kind, retry_after });
        }
        if is_message {
            return Ok(());
        }
        let not_mcp = |why| ErrorKind::NotMcp {
            address: self.link.url.to_string(),
            why,
        };
        Err(match status.as_u16() {
            502..=504 => LinkError::Lost(status_error(status, shown)),
            200..=299 => LinkError::Final(not_mcp(format!("it answered with {shown:?}"))),
            300..=399 => {
                let to = self.response.headers().get(LOCATION);
                let to = to.and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
                let why = format!("it sends on to {to}; use that URL if you trust it");
                LinkError::Final(not_mcp(why))
            }
            _ => LinkError::Final(status_error(status, shown)),
        })
    }

    fn too_large(&self) -> LinkError {
        LinkError::Final(ErrorKind::TooLarge {
            what: "a message",
            limit: self.link.message_max,
        })
    }
}

fn ended() -> LinkError {
    let why = "the stream ended without a response";
    LinkError::Lost(ErrorKind::Broken(why.into()))
}

fn broken(error: reqwest::Error) -> LinkError {
    LinkError::Lost(ErrorKind::Broken(error.into()))
}
