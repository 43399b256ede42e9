//! The replies to one POST.

use super::resume::StreamResumption;
use super::{HttpLink, connection_lost, is_stream, retry_after, status_error};
use crate::budget::ReservedBytes;
use crate::error::{ErrorKind, QUOTE_MAX};
use crate::large_message;
use crate::pace::Pace;
use crate::transport::events::{EventKind, EventParser};
use crate::transport::{
    IncomingMessage, LinkError, LinkResult, OutgoingMessage, ReplyTranslator, WireMessage,
    check_message, read,
};
use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use refrain_http::ResponseBody;
use refrain_wire::client::{ReadError, split_messages};
use serde_json::Value;
use std::collections::VecDeque;
use std::string::FromUtf8Error;
use std::sync::Arc;

/// The maximum number of characters that an error quotes from an invalid body.
const EXCERPT_MAX: usize = 300;

/// The outcome of checking a body or event, in one run of [`large_message::parse`].
struct CheckedText {
    excerpt: String,
    size: Result<(), ErrorKind>,
    /// Whether it is a message: on success a guess (true without a request id).
    is_message: bool,
    /// Empty if it has too many values.
    messages: Vec<String>,
}

/// The replies to one POST, or the messages on the session stream.
pub(crate) struct HttpExchange {
    link: Arc<HttpLink>,
    /// The id of the request; `None` for a notification, a response or the session stream.
    id: Option<u64>,
    response: Response<ResponseBody>,
    events: Option<EventParser>,
    /// How many more bytes the response may have; `None` for no limit.
    remaining: Option<usize>,
    pace: Pace,
    /// The bytes in memory, counted in the budget.
    reserved: ReservedBytes,
    /// Messages that were received and not returned yet.
    ready: VecDeque<String>,
    resume: Option<StreamResumption>,
    translate: Option<ReplyTranslator>,
    /// Whether the response to a [silent](OutgoingMessage::is_silent) message was empty: it reported no error.
    pub(crate) is_done: bool,
}

impl HttpExchange {
    pub(super) fn new(
        link: &Arc<HttpLink>,
        message: &OutgoingMessage,
        response: Response<ResponseBody>,
    ) -> Self {
        let is_limited = message.id.is_some() && !message.is_subscription;
        let resume = || StreamResumption::new(message.headers.clone());
        Self {
            link: Arc::clone(link),
            id: message.id,
            events: is_stream(&response).then(EventParser::default),
            response,
            remaining: is_limited.then_some(link.limits.response),
            pace: Pace::of_messages(),
            reserved: ReservedBytes::new(message.budget.clone()),
            ready: VecDeque::new(),
            resume: message.is_resumable.then(resume),
            translate: message.translate.clone(),
            is_done: false,
        }
    }

    /// Checks the status of the response, and its body unless it is an event stream.
    pub(super) async fn begin(
        link: &Arc<HttpLink>,
        message: &OutgoingMessage,
        response: Response<ResponseBody>,
    ) -> LinkResult<Self> {
        let mut exchange = Self::new(link, message, response);
        if exchange.events.is_none() {
            let body = exchange.whole_body().await?;
            if message.is_silent && exchange.status().is_success() && body.trim().is_empty() {
                exchange.is_done = true;
                return Ok(exchange);
            }
            let checked = exchange.check_text(body).await;
            if exchange.status().is_success() {
                checked.size.map_err(LinkError::Final)?;
            }
            exchange.check_status(&checked.excerpt, checked.is_message)?;
            exchange.ready.extend(checked.messages);
        }
        Ok(exchange)
    }

    pub(in crate::transport) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(in crate::transport) fn session(&self) -> Option<HeaderValue> {
        self.response.headers().get("mcp-session-id").cloned()
    }

    /// The next message that belongs to the request, or a keep-alive.
    pub(crate) async fn next(&mut self) -> LinkResult<IncomingMessage> {
        loop {
            let Some(text) = self.ready.pop_front() else {
                self.read_more().await?;
                if self.ready.is_empty() {
                    return Ok(IncomingMessage::KeepAlive);
                }
                continue;
            };
            let status = Some(self.status().as_u16());
            (self.link.watch)(WireMessage::Received {
                message: &text,
                status,
            });
            let (text, message) = self.parse(text, status).await;
            let (id, mut message) = message.map_err(|error| self.invalid_message(&text, error))?;
            let own = self.id.map(Into::into);
            if id.is_none_or(|id| id.is_null() || Some(id) == own) {
                return Ok(message);
            }
            if self.events.is_some() {
                continue;
            }
            // The error of a rejected POST belongs to its request, although some servers give it another id.
            match &mut message {
                IncomingMessage::Response(response)
                    if response.outcome.is_err() && !self.status().is_success() =>
                {
                    response.has_request_id = false;
                    return Ok(message);
                }
                _ => return Err(ReadError::OtherRequest.into()),
            }
        }
    }

    async fn parse(
        &self,
        text: String,
        status: Option<u16>,
    ) -> (String, Result<(Option<Value>, IncomingMessage), ReadError>) {
        let translate = self.translate.clone();
        large_message::parse(self.parsed_bytes(&text), move || {
            let message = read(&text, status, translate.as_ref());
            (text, message)
        })
        .await
    }

    /// The size that decides where a message is parsed. On a subscription or session stream,
    /// messages are parsed in place: they must not be lost if the future that waits for the next one
    /// is dropped.
    fn parsed_bytes(&self, text: &str) -> usize {
        self.remaining.map_or(0, |_| text.len())
    }

    /// The error for an invalid message. The HTTP status takes precedence.
    fn invalid_message(&self, text: &str, error: ReadError) -> LinkError {
        let is_error = !self.status().is_success();
        let status_error = is_error.then(|| self.check_status(excerpt(text), false).err());
        status_error.flatten().unwrap_or_else(|| error.into())
    }

    /// Checks the number of values in a body or event, and splits it into messages.
    async fn check_text(&self, text: String) -> CheckedText {
        let (link, translate) = (Arc::clone(&self.link), self.translate.clone());
        let (is_success, has_id) = (self.status().is_success(), self.id.is_some());
        large_message::parse(self.parsed_bytes(&text), move || {
            let size = check_message(&text, &link.limits);
            let is_message = match is_success {
                true => !has_id || text.trim_start().starts_with(['{', '[']),
                false => size.is_ok() && read(&text, None, translate.as_ref()).is_ok(),
            };
            CheckedText {
                excerpt: excerpt(&text).to_owned(),
                messages: match size {
                    Ok(()) => split_messages(text),
                    Err(_) => Vec::new(),
                },
                size,
                is_message,
            }
        })
        .await
    }

    async fn read_more(&mut self) -> LinkResult<()> {
        // Before reading, so that a future dropped here loses nothing.
        self.pace.wait().await;
        let Some(events) = &mut self.events else {
            return Err(stream_ended());
        };
        let chunk = match self.response.body_mut().chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) if !self.status().is_success() => {
                self.check_status("", false)?;
                return Err(stream_ended());
            }
            Ok(None) => return self.resume(stream_ended()).await,
            Err(error) => return self.resume(connection_lost(error)).await,
        };
        let limits = &self.link.limits;
        if let Some(remaining) = &mut self.remaining {
            let rest = remaining.checked_sub(chunk.len());
            let limit = limits.response;
            let too_large =
                || ErrorKind::too_large("response", limit, "bytes", "ClientLimits::response");
            *remaining = rest.ok_or_else(|| LinkError::Final(too_large()))?;
        }
        let complete = events.push(&chunk);
        self.pace.count_messages(chunk.len(), complete.len().max(1));
        if events.buffered() > limits.message {
            return Err(LinkError::Final(limits.message_too_large()));
        }
        let complete_bytes: usize = complete.iter().map(|event| event.data.len()).sum();
        let reserved = self.reserved.resize(events.buffered() + complete_bytes);
        reserved.map_err(LinkError::Final)?;
        for event in complete {
            if let Some(resume) = &mut self.resume {
                resume.record(&event);
            }
            if event.kind == EventKind::Message && !event.data.is_empty() {
                let text = String::from_utf8(event.data).map_err(ReadError::from)?;
                let checked = self.check_text(text).await;
                checked.size.map_err(LinkError::Final)?;
                self.ready.extend(checked.messages);
            }
        }
        Ok(())
    }

    /// Resumes an interrupted stream after its last event.
    async fn resume(&mut self, error: LinkError) -> LinkResult<()> {
        let response = match &mut self.resume {
            Some(resume) => resume.reopen(&self.link).await,
            None => None,
        };
        self.response = response.ok_or(error)?;
        self.events = Some(EventParser::default());
        Ok(())
    }

    async fn whole_body(&mut self) -> LinkResult<String> {
        let mut body = Vec::new();
        while let Some(chunk) = self
            .response
            .body_mut()
            .chunk()
            .await
            .map_err(connection_lost)?
        {
            if body.len() + chunk.len() > self.link.limits.message {
                return Err(LinkError::Final(self.link.limits.message_too_large()));
            }
            body.extend_from_slice(&chunk);
            // Each chunk costs time, even a small one.
            self.pace.count_messages(0, 1);
            self.pace.wait().await;
            let reserved = self.reserved.resize(body.len());
            reserved.map_err(LinkError::Final)?;
        }
        let lossy = |error: FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
        Ok(String::from_utf8(body).unwrap_or_else(lossy))
    }

    /// Checks the HTTP status of a response whose body starts with this excerpt.
    fn check_status(&self, excerpt: &str, is_message: bool) -> LinkResult<()> {
        let status = self.status();
        // A gateway may send 503 for a request that the server was executing. With `Retry-After` it was not executed.
        let is_unavailable = status == StatusCode::SERVICE_UNAVAILABLE
            && self.response.headers().contains_key(RETRY_AFTER);
        if is_unavailable || (status == StatusCode::TOO_MANY_REQUESTS && !is_message) {
            let retry_after = retry_after(&self.response);
            let kind = status_error(status, excerpt.to_owned());
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
            502..=504 => LinkError::Lost(status_error(status, excerpt.to_owned())),
            200..=299 => {
                let start: String = excerpt.chars().take(QUOTE_MAX).collect();
                LinkError::Final(not_mcp(format!("the response is {start:?}")))
            }
            300..=399 => {
                let to = self.response.headers().get(LOCATION);
                let to = to
                    .and_then(|to| to.to_str().ok())
                    .unwrap_or("an unknown URL");
                let why = format!("it redirects to {to}; use that URL if you trust it");
                LinkError::Final(not_mcp(why))
            }
            _ => LinkError::Final(status_error(status, excerpt.to_owned())),
        })
    }
}

/// The start of a text, for errors.
fn excerpt(text: &str) -> &str {
    let end = text.char_indices().nth(EXCERPT_MAX);
    &text[..end.map_or(text.len(), |(end, _)| end)]
}

fn stream_ended() -> LinkError {
    let why = "the stream ended without a response";
    LinkError::Lost(ErrorKind::ConnectionLost(why.into()))
}
