//! Requests in the revision that the server speaks: written, sent, sent again where that is safe, and answered.

use crate::client::Inner;
use crate::error::ErrorKind;
use crate::older::{Older, Session, said_why, take_stray};
use crate::retry::{Retry, by_deadline, in_time};
use crate::transport::{Exchange, Incoming, LinkError, Outgoing, Response};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use refrain_wire::client::{DISCOVER, Request, RequestMeta, RpcFailure};
use refrain_wire::{AskKind, Capabilities, ErrorCode, PROTOCOL_VERSION, encode_header};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A request, and how it may be sent.
#[derive(Debug)]
pub(crate) struct RequestPlan<'a> {
    pub(crate) request: Request,
    /// The headers that repeat arguments.
    pub(crate) headers: HeaderMap,
    /// The id of the call it is a round of.
    pub(crate) call_id: Option<&'a str>,
    /// Whether it may be sent again when its response was lost.
    pub(crate) may_repeat: bool,
}

/// A request that changes nothing.
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
    /// Whether it may be sent again after this error.
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
    /// Sends a request, and returns its result. It may not take longer than a whole call.
    pub(crate) async fn request(&self, request: Request) -> Result<Box<RawValue>, ErrorKind> {
        self.request_round(&request.into(), &mut false).await
    }

    /// The same for a round of a call. Notes whether the server may have done it without having been heard.
    pub(crate) async fn request_round(
        &self,
        plan: &RequestPlan<'_>,
        is_unclear: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        by_deadline(
            self.setup.limits.deadline,
            Box::pin(self.send(plan, is_unclear)),
        )
        .await
    }

    /// Sends a request, and again where that is safe and may help.
    async fn send(
        &self,
        plan: &RequestPlan<'_>,
        is_unclear: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let mut retry = Retry::new(self.setup.limits.retries);
        loop {
            let was_unclear = std::mem::replace(is_unclear, true);
            let error = match self.exchange(plan).await {
                Ok(response) => {
                    // An error says what came of this attempt, and nothing of those before.
                    *is_unclear = was_unclear || response.outcome.is_ok();
                    return response.outcome.map_err(ErrorKind::Refused);
                }
                Err(error) => error,
            };
            *is_unclear = was_unclear || error.may_be_taken();
            if !plan.may_retry(&error) {
                return Err(error.into_kind());
            }
            retry.wait(error).await.map_err(LinkError::into_kind)?;
        }
    }

    /// Sends a request, and once more if the server at first denies that it speaks the revision.
    pub(crate) async fn exchange(&self, plan: &RequestPlan<'_>) -> Result<Response, LinkError> {
        self.revive().await?;
        if let Some(older) = &self.older {
            return self.exchange_in_session(older, plan).await;
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
    ) -> Result<Response, LinkError> {
        let outgoing = self.write(plan, session)?;
        let mut waiting = Waiting {
            inner: self,
            id: outgoing.id,
        };
        let opened = self.link.open(&outgoing, self.setup.limits.silence).await;
        let mut exchange = match opened {
            Err(error) if !error.may_be_under_way() => {
                waiting.id = None;
                return Err(error);
            }
            opened => opened?,
        };
        let (response, unanswered) = match session {
            Some(session) if outgoing.is_call => {
                self.answer_within(&mut exchange, &plan.request, session)
                    .await?
            }
            _ => (
                self.listen_to(&mut exchange, &outgoing.headers).await?,
                Vec::new(),
            ),
        };
        waiting.id = None;
        said_why(response, unanswered)
    }

    /// Sends a request whose messages the caller reads.
    pub(crate) async fn begin(&self, request: Request) -> Result<Exchange, LinkError> {
        self.revive().await?;
        let session = self.older.as_ref().map(Older::session);
        let outgoing = self.write(&request.into(), session.as_ref())?;
        self.link.open(&outgoing, self.setup.limits.silence).await
    }

    /// Starts a process again that has ended. Requests that were under way in it are not repeated: nobody knows what it
    /// did.
    pub(crate) async fn revive(&self) -> Result<(), LinkError> {
        let Some(link) = self.link.pipe() else {
            return Ok(());
        };
        let mut starts = self.starts.lock().await;
        if link.has_ended() {
            tracing::warn!("server process ended; starting it again");
            link.start_again().map_err(LinkError::Final)?;
            *starts += 1;
        }
        self.greet_again(*starts).await
    }

    /// Reads the messages of a request up to its response. What the server asks is refused.
    pub(crate) async fn listen_to(
        &self,
        exchange: &mut Exchange,
        headers: &HeaderMap,
    ) -> Result<Response, LinkError> {
        loop {
            let message = match self.in_time(exchange.next()).await? {
                Incoming::Response(response) => return Ok(response),
                Incoming::Request { method, .. } if self.server.version == PROTOCOL_VERSION => {
                    tracing::warn!(method, "request from a modern server ignored");
                    continue;
                }
                message => message,
            };
            if let Some(answer) = take_stray(message, &self.setup.news) {
                let answer = Outgoing::unanswered(answer, headers.clone());
                if let Err(error) = self.in_time(self.link.tell(&answer)).await {
                    tracing::debug!(?error, "response not delivered");
                }
            }
        }
    }

    /// Waits for as long as the server may be silent.
    pub(crate) async fn in_time<T>(
        &self,
        waiting: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        in_time(self.setup.limits.silence, waiting).await
    }

    /// The message of a request, with an id of its own.
    fn write(
        &self,
        plan: &RequestPlan<'_>,
        session: Option<&Session>,
    ) -> Result<Outgoing, LinkError> {
        let id = self.ids.next();
        let request = &plan.request;
        let wants_progress = plan.call_id.is_some() && self.setup.news.progress.is_some();
        let progress_token = wants_progress.then_some(id);
        let (meta, headers) = match session {
            Some(session) => {
                let token = progress_token.map(|id| ("progressToken".to_owned(), Value::from(id)));
                (Map::from_iter(token), session.headers())
            }
            None => {
                let meta = RequestMeta {
                    client: &self.setup.info,
                    capabilities: self.capabilities(),
                    log_level: self.setup.news.log.as_ref().map(|(level, _)| *level),
                    call_id: plan.call_id,
                    progress_token,
                };
                let headers = standard_headers(plan).map_err(LinkError::Final)?;
                (meta.to_json(), headers)
            }
        };
        Ok(Outgoing {
            is_call: request.call_kind().is_some(),
            // A server that has not said yet what it speaks might not understand a cancellation.
            is_cancellable: request.method != DISCOVER,
            is_resumable: session.is_some(),
            ..Outgoing::request(id, request.write(id, Some(meta)), headers)
        })
    }

    /// What this client can do.
    fn capabilities(&self) -> Capabilities {
        let can = |kind| self.setup.handlers.has(kind) || self.setup.by_hand.contains(&kind);
        Capabilities {
            tasks: true,
            ..capabilities(can)
        }
    }

    /// What this client can do for a legacy server. It would wait for what is answered by hand.
    pub(crate) fn older_capabilities(&self) -> Capabilities {
        capabilities(|kind| self.setup.handlers.has(kind))
    }
}

fn capabilities(can: impl Fn(AskKind) -> bool) -> Capabilities {
    Capabilities {
        form: can(AskKind::Form),
        url: can(AskKind::Url),
        sampling: can(AskKind::Sampling),
        roots: can(AskKind::Roots),
        ..Capabilities::default()
    }
}

/// Cancels the request of this id at a legacy HTTP server if it is dropped before the response; other servers notice by
/// themselves.
struct Waiting<'a> {
    inner: &'a Inner,
    id: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let (Some(id), Some(older)) = (self.id, &self.inner.older) {
            older.cancel(id);
        }
    }
}

/// Whether a server denies our version and offers it all the same.
fn offers_our_version(refusal: &RpcFailure) -> bool {
    let supported = refusal.data["supported"].as_array();
    refusal.is(ErrorCode::UnsupportedVersion)
        && supported.is_some_and(|list| list.iter().any(|version| version == PROTOCOL_VERSION))
}

/// The headers in which a request repeats its body.
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
