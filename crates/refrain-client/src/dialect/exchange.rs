//! Replies of a server that uses a draft.

use super::{DialectError, Translator};
use crate::error::ErrorKind;
use crate::large_message;
use crate::legacy::{PING, respond_to_stray};
use crate::retry::before_timeout;
use crate::transport::{
    IncomingMessage, LinkError, LinkExchange, LinkResponse, LinkResult, OutgoingMessage,
};
use http::HeaderValue;
use refrain_wire::client::{CallReply, ReadError, check_no_asks};
use serde_json::Value;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct TranslatorExchange {
    translator: Arc<Translator>,
    /// `None` if the response is already available.
    pub(super) inner: Option<LinkExchange>,
    /// A message that was received and not returned yet.
    ready: Option<IncomingMessage>,
    is_call: bool,
    silence: Duration,
}

impl TranslatorExchange {
    pub(super) fn ready(translator: &Arc<Translator>, response: LinkResponse) -> Self {
        Self {
            translator: Arc::clone(translator),
            inner: None,
            ready: Some(IncomingMessage::Response(response)),
            is_call: false,
            silence: Duration::ZERO,
        }
    }

    pub(super) async fn begin(
        translator: &Arc<Translator>,
        request: &OutgoingMessage,
        inner: LinkExchange,
    ) -> LinkResult<Self> {
        let may_lack_session = inner.is_not_found();
        let mut exchange = Self {
            translator: Arc::clone(translator),
            inner: Some(inner),
            ready: None,
            is_call: request.is_call,
            silence: request.silence,
        };
        if may_lack_session {
            exchange.ready = Some(before_timeout(request.silence, exchange.next()).await?);
        }
        Ok(exchange)
    }

    pub(super) fn is_session_unknown(&self) -> bool {
        matches!(&self.ready, Some(IncomingMessage::Response(response)) if response.is_session_unknown())
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(&self.inner, Some(LinkExchange::Http(exchange)) if exchange.is_done)
    }

    pub(super) fn session(&self) -> Option<HeaderValue> {
        self.inner.as_ref()?.session()
    }

    /// The response. Notifications before it are skipped.
    pub(super) async fn response(&mut self) -> LinkResult<LinkResponse> {
        loop {
            if let IncomingMessage::Response(response) =
                before_timeout(self.silence, self.next()).await?
            {
                return Ok(response);
            }
        }
    }

    pub(crate) async fn next(&mut self) -> LinkResult<IncomingMessage> {
        if let Some(message) = self.ready.take() {
            return Ok(message);
        }
        let Some(inner) = &mut self.inner else {
            let why = "no more messages after the response";
            return Err(LinkError::Final(ErrorKind::ConnectionLost(why.into())));
        };
        loop {
            match inner.next().await? {
                IncomingMessage::Request { id, method, .. } => {
                    self.translator.handle_request(&id, &method).await?;
                }
                IncomingMessage::Response(mut response) => {
                    if let (true, Ok(raw)) = (self.is_call, &mut response.outcome) {
                        let result = mem::take(raw);
                        *raw = large_message::parse(result.get().len(), move || {
                            if let CallReply::Complete(result) = CallReply::read(&result)? {
                                // A server that does not speak this draft could send asks inside the result.
                                check_no_asks(&result)?;
                            }
                            Ok::<_, ReadError>(result)
                        })
                        .await?;
                    }
                    return Ok(IncomingMessage::Response(response));
                }
                message => return Ok(message),
            }
        }
    }
}

impl Translator {
    /// Answers a ping, and fails after any other request: only servers of a legacy revision send
    /// other requests.
    async fn handle_request(&self, id: &Value, method: &str) -> LinkResult<()> {
        if let Err(error) = self.send(respond_to_stray(id, method, None)).await {
            tracing::debug!(?error, "failed to send response");
        }
        if method == PING {
            return Ok(());
        }
        Err(DialectError::NotSpoken {
            address: self.link.address().to_owned(),
            dialect: self.draft.into(),
            why: "it treated this client as a legacy client".to_owned(),
        }
        .into())
    }
}
