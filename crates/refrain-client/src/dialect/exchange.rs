//! Replies of a server that speaks a draft.

use super::{DialectError, Translator};
use crate::error::ErrorKind;
use crate::legacy::{PING, refuse_stray};
use crate::retry::in_time;
use crate::transport::{Exchange, Incoming, LinkError, LinkResult, Outgoing, Response};
use http::HeaderValue;
use refrain_wire::client::{CallReply, check_no_asks};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct TranslatorExchange {
    translator: Arc<Translator>,
    /// `None` if the response is ready.
    pub(super) inner: Option<Exchange>,
    ready: Option<Incoming>,
    is_call: bool,
    silence: Duration,
}

impl TranslatorExchange {
    pub(super) fn ready(translator: &Arc<Translator>, response: Response) -> Self {
        Self {
            translator: Arc::clone(translator),
            inner: None,
            ready: Some(Incoming::Response(response)),
            is_call: false,
            silence: Duration::ZERO,
        }
    }

    pub(super) async fn begin(
        translator: &Arc<Translator>,
        request: &Outgoing,
        inner: Exchange,
    ) -> LinkResult<Self> {
        let may_be_unknown = inner.is_not_found();
        let mut exchange = Self {
            translator: Arc::clone(translator),
            inner: Some(inner),
            ready: None,
            is_call: request.is_call,
            silence: request.silence,
        };
        if may_be_unknown {
            exchange.ready = Some(in_time(request.silence, exchange.next()).await?);
        }
        Ok(exchange)
    }

    pub(super) fn is_session_unknown(&self) -> bool {
        matches!(&self.ready, Some(Incoming::Response(response)) if response.is_session_unknown())
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(&self.inner, Some(Exchange::Http(exchange)) if exchange.is_done)
    }

    pub(super) fn session(&self) -> Option<HeaderValue> {
        self.inner.as_ref()?.session()
    }

    /// The response, without the notifications before it.
    pub(super) async fn response(&mut self) -> LinkResult<Response> {
        loop {
            if let Incoming::Response(response) = in_time(self.silence, self.next()).await? {
                return Ok(response);
            }
        }
    }

    pub(crate) async fn next(&mut self) -> LinkResult<Incoming> {
        if let Some(message) = self.ready.take() {
            return Ok(message);
        }
        let Some(inner) = &mut self.inner else {
            let why = "there is nothing after the response";
            return Err(LinkError::Final(ErrorKind::Broken(why.into())));
        };
        loop {
            match inner.next().await? {
                Incoming::Request { id, method, .. } => {
                    self.translator.refuse(&id, &method).await?;
                }
                Incoming::Response(response) => {
                    if let (true, Ok(raw)) = (self.is_call, &response.outcome)
                        && let CallReply::Complete(result) = CallReply::read(raw)?
                    {
                        // It must not ask in the form of another draft.
                        check_no_asks(&result)?;
                    }
                    return Ok(Incoming::Response(response));
                }
                message => return Ok(message),
            }
        }
    }
}

impl Translator {
    /// Answers a ping. A server that sends another request speaks a legacy revision: drafts ask in replies.
    async fn refuse(&self, id: &Value, method: &str) -> LinkResult<()> {
        if let Err(error) = self.tell(refuse_stray(id, method)).await {
            tracing::debug!(?error, "response not delivered");
        }
        if method == PING {
            return Ok(());
        }
        let (address, dialect) = (self.link.address().to_owned(), self.draft.into());
        Err(DialectError::NotSpoken { address, dialect }.into())
    }
}
