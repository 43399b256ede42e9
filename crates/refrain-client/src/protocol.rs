//! Requests in the revision of the server: written, sent, and retried where that is safe.

use crate::client::Inner;
use crate::error::ErrorKind;
use crate::legacy::{Legacy, Session, join_unanswered, take_stray};
use crate::retry::{Retry, by_deadline, in_time};
use crate::transport::{Exchange, Incoming, LinkError, LinkResult, Outgoing, Response};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use refrain_wire::client::{DISCOVER, Request, RequestMeta, RpcFailure};
use refrain_wire::{AskKind, Capabilities, ErrorCode, PROTOCOL_VERSION, encode_header};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A request, and how it may be sent.
pub(crate) struct RequestPlan<'a> {
    pub(crate) request: Request,
    /// The headers that repeat arguments.
    pub(crate) headers: HeaderMap,
    /// The id of the call, if it is a round of one.
    pub(crate) call_id: Option<&'a str>,
    /// Whether it may be sent again after its response was lost.
    pub(crate) may_repeat: bool,
}

/// A request without side effects.
impl From<Request> for RequestPlan<'_> {
    fn from(request: Request) -> Self {
        Self {
            request,
            headers: HeaderMap::new(),
            call_id: None,
            may_repeat: true,
        }
    }
}

impl RequestPlan<'_> {
    fn may_retry(&self, error: &LinkError) -> bool {
        match error {
            LinkError::NotSent(_) | LinkError::Busy { .. } => true,
            LinkError::Lost(_) => self.may_repeat,
            LinkError::Final(ErrorKind::Status { status, .. }) => {
                let is_harmless = self.may_repeat && self.call_id.is_none();
                is_harmless && (500..600).contains(status) && !matches!(status, 501 | 505)
            }
            LinkError::Final(_) => false,
        }
    }
}

impl Inner {
    /// Sends a request, and returns its result. The deadline of a whole call applies.
    pub(crate) async fn request(&self, request: Request) -> Result<Box<RawValue>, ErrorKind> {
        self.request_round(&request.into(), &mut false).await
    }

    /// Sends a round of a call, and retries where that is safe. `is_unclear` is set if the server may have executed it and
    /// its response was lost.
    pub(crate) async fn request_round(
        &self,
        plan: &RequestPlan<'_>,
        is_unclear: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let sent = async {
            let mut retry = Retry::new(self.setup.limits.retries);
            loop {
                let was_unclear = std::mem::replace(is_unclear, true);
                let error = match self.exchange(plan).await {
                    Ok(response) => {
                        // An error is about this attempt, and not about those before.
                        *is_unclear = was_unclear || response.outcome.is_ok();
                        return response.outcome.map_err(ErrorKind::Refused);
                    }
                    Err(error) => error,
                };
                *is_unclear = was_unclear || error.may_be_taken();
                if !plan.may_retry(&error) {
                    return Err(error.into());
                }
                retry.wait(error).await?;
            }
        };
        by_deadline(self.setup.limits.deadline, Box::pin(sent)).await
    }

    /// Sends a request, and once more if the server rejects the version though it offers it.
    pub(crate) async fn exchange(&self, plan: &RequestPlan<'_>) -> LinkResult<Response> {
        self.revive().await?;
        if let Some(legacy) = &self.legacy {
            return self.exchange_in_session(legacy, plan).await;
        }
        let response = self.exchange_once(plan, None).await?;
        if response.outcome.as_ref().is_err_and(offers_our_version) {
            return self.exchange_once(plan, None).await;
        }
        Ok(response)
    }

    pub(crate) async fn exchange_once(
        &self,
        plan: &RequestPlan<'_>,
        session: Option<&Session>,
    ) -> LinkResult<Response> {
        let outgoing = self.write(plan, session)?;
        let mut waiting = Waiting {
            inner: self,
            id: outgoing.id,
        };
        let mut exchange = match self.link.open(&outgoing).await {
            Err(error) if !error.may_be_under_way() => {
                waiting.id = None;
                return Err(error);
            }
            opened => opened?,
        };
        let (response, unanswered) = match session {
            Some(session) if outgoing.is_call => {
                let answered = self.answer_within(&mut exchange, &plan.request, session);
                answered.await?
            }
            _ => {
                let response = self.read_response(&mut exchange, &outgoing.headers);
                (response.await?, Vec::new())
            }
        };
        waiting.id = None;
        join_unanswered(response, unanswered)
    }

    /// Sends a request. The caller reads its messages.
    pub(crate) async fn begin(&self, request: Request) -> LinkResult<Exchange> {
        self.revive().await?;
        let session = self.legacy.as_ref().map(Legacy::session);
        let outgoing = self.write(&request.into(), session.as_ref())?;
        self.link.open(&outgoing).await
    }

    /// Restarts a process that has ended. Requests that were in flight are not repeated: they may have been executed.
    pub(crate) async fn revive(&self) -> LinkResult<()> {
        let Some(link) = self.link.pipe() else {
            return Ok(());
        };
        let mut starts = self.starts.lock().await;
        if link.has_ended() {
            tracing::warn!("server process ended; starting it again");
            link.restart().map_err(LinkError::Final)?;
            *starts += 1;
        }
        self.initialize_again(*starts).await
    }

    /// Reads the messages of a request up to its response. Requests of the server are refused.
    pub(crate) async fn read_response(
        &self,
        exchange: &mut Exchange,
        headers: &HeaderMap,
    ) -> LinkResult<Response> {
        let silence = self.setup.limits.silence;
        loop {
            let message = match in_time(silence, exchange.next()).await? {
                Incoming::Response(response) => return Ok(response),
                Incoming::Request { method, .. } if self.server.version == PROTOCOL_VERSION => {
                    tracing::warn!(method, "request from a modern server ignored");
                    continue;
                }
                message => message,
            };
            if let Some(answer) = take_stray(message, &self.setup.notifications) {
                let answer = Outgoing::unanswered(answer, headers.clone());
                if let Err(error) = in_time(silence, self.link.tell(&answer)).await {
                    tracing::debug!(?error, "response not delivered");
                }
            }
        }
    }

    /// The message of a request, with a new id.
    fn write(&self, plan: &RequestPlan<'_>, session: Option<&Session>) -> LinkResult<Outgoing> {
        let id = self.ids.next();
        let request = &plan.request;
        let wants_progress = plan.call_id.is_some() && self.setup.notifications.progress.is_some();
        let progress_token = wants_progress.then_some(id);
        let (meta, headers) = match session {
            Some(session) => {
                let token = progress_token.map(|id| ("progressToken".to_owned(), Value::from(id)));
                (Map::from_iter(token), session.headers())
            }
            None => {
                let meta = RequestMeta {
                    client: &self.setup.info,
                    capabilities: self.capabilities(false),
                    log_level: self.setup.notifications.log.as_ref().map(|log| log.0),
                    call_id: plan.call_id,
                    progress_token,
                };
                let headers = standard_headers(plan).map_err(LinkError::Final)?;
                (meta.to_json(), headers)
            }
        };
        Ok(Outgoing {
            id: Some(id),
            silence: self.setup.limits.silence,
            is_call: request.call_kind().is_some(),
            // A server whose revision is unknown might not understand a cancellation.
            is_cancellable: request.method != DISCOVER,
            is_resumable: session.is_some(),
            body: request.write(id, Some(meta)),
            headers,
            ..Outgoing::default()
        })
    }

    /// The capabilities of this client. A legacy server cannot wait for answers by hand.
    pub(crate) fn capabilities(&self, is_legacy: bool) -> Capabilities {
        let by_hand = |kind| !is_legacy && self.setup.by_hand.contains(&kind);
        let can = |kind| self.setup.handlers.has(kind) || by_hand(kind);
        Capabilities {
            form: can(AskKind::Form),
            url: can(AskKind::Url),
            sampling: can(AskKind::Sampling),
            roots: can(AskKind::Roots),
            tasks: !is_legacy,
            ..Capabilities::default()
        }
    }
}

/// Cancels a request at a legacy HTTP server if it is dropped before the response; other servers notice by themselves.
struct Waiting<'a> {
    inner: &'a Inner,
    id: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let (Some(id), Some(legacy)) = (self.id, &self.inner.legacy) {
            legacy.cancel(id);
        }
    }
}

/// Whether a server rejects our version and offers it all the same.
fn offers_our_version(refusal: &RpcFailure) -> bool {
    let supported = refusal.data["supported"].as_array();
    refusal.is(ErrorCode::UnsupportedVersion)
        && supported.is_some_and(|list| list.iter().any(|version| version == PROTOCOL_VERSION))
}

fn standard_headers(plan: &RequestPlan<'_>) -> Result<HeaderMap, ErrorKind> {
    let mut headers = plan.headers.clone();
    let mut add = |name: &'static str, value: &str| {
        let invalid = || ErrorKind::BadArgument(format!("{value:?} cannot be put into a header"));
        let value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        headers.insert(HeaderName::from_static(name), value);
        Ok::<(), ErrorKind>(())
    };
    add("mcp-protocol-version", PROTOCOL_VERSION)?;
    add("mcp-method", plan.request.method)?;
    if let Some(subject) = plan.request.subject() {
        add("mcp-name", &encode_header(subject))?;
    }
    Ok(headers)
}
