//! One server, and the requests to it.

use crate::builder::ClientBuilder;
use crate::cache::Cache;
use crate::error::{ErrorKind, RpcFailure};
use crate::older::{Older, PING, Session, is_not_found, said_why, secret, take_stray};
use crate::promise::Promise;
use crate::random;
use crate::server::Server;
use crate::transport::{Exchange, Incoming, Link, LinkError, Outgoing, Response, in_time};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use refrain_wire::{
    AskKind, CALL_ID_KEY, CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, CallKind, ErrorCode,
    LOG_LEVEL_KEY, PROTOCOL_VERSION, PROTOCOL_VERSION_KEY, ParamHeaderError, ParamHeaders,
    TASKS_EXTENSION, ToolInfo, encode_header,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The request that asks a server what it speaks.
pub(crate) const DISCOVER: &str = "server/discover";

/// How much of what tasks were told is kept in mind, since it may be refused.
const SILENT_MAX: usize = 1024;
/// The pause before the first request that is sent again; each further one takes twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause before a request is sent again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause that a server may wish for. One that wants to be left alone for longer is given up.
pub(crate) const LONGEST_WISH: Duration = Duration::from_secs(60);

/// A client of one server. Cloning it is cheap, and the clones share everything.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use refrain_client::{Answer, Client};
/// use serde_json::json;
///
/// let client = Client::builder()
///     .on_form(|ask| async move {
///         println!("{} asks: {}", ask.asker.address, ask.message);
///         Ok(Answer::accept(json!({"name": "Ada"}))?)
///     })
///     .connect("http://127.0.0.1:8080/mcp")
///     .await?;
/// let result = client.call_tool("greet", json!({})).await?;
/// println!("{:?}", result.content);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) link: Link,
    pub(crate) setup: ClientBuilder,
    pub(crate) server: Server,
    /// What was agreed with a server of an earlier revision.
    pub(crate) older: Option<Older>,
    /// The session that was opened in a draft.
    draft_session: Mutex<Option<HeaderValue>>,
    /// What tasks were told without an answer, by the tasks' ids: each may still be refused.
    silent: Mutex<VecDeque<(String, Exchange)>>,
    last_id: AtomicU64,
    /// How often the server's process was started again, held while it is.
    starts: tokio::sync::Mutex<u64>,
    /// What is known of the tools that were listed, or why the tool must not be used.
    tools: Mutex<HashMap<String, Result<Arc<Known>, ParamHeaderError>>>,
    pub(crate) cache: Mutex<Cache>,
}

/// What is known of a tool.
#[derive(Debug)]
pub(crate) struct Known {
    /// The arguments that are repeated in headers.
    pub(crate) headers: ParamHeaders,
    /// What it promises of its results.
    pub(crate) promise: Option<Promise>,
}

/// A request of which the rest is still to be written.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) params: Map<String, Value>,
    /// What else goes into headers.
    pub(crate) headers: HeaderMap,
    /// The id of the call it is a round of.
    pub(crate) call_id: Option<&'a str>,
    /// Whether it may be sent again when its response was lost.
    pub(crate) may_repeat: bool,
}

impl<'a> Request<'a> {
    /// A request that changes nothing.
    pub(crate) fn harmless(method: &'a str, params: Map<String, Value>) -> Self {
        Self {
            method,
            params,
            headers: HeaderMap::new(),
            call_id: None,
            may_repeat: true,
        }
    }

    /// Whether it changes nothing, however often it is sent.
    fn is_harmless(&self) -> bool {
        self.may_repeat && self.call_id.is_none()
    }
}

impl Client {
    /// Sets up a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// What the server says of itself.
    pub fn server(&self) -> &Server {
        &self.inner.server
    }

    /// Where the server is: its URL, or the command that was started.
    pub fn address(&self) -> &str {
        self.inner.link.address()
    }

    /// Ends the connection, and waits for that: a process that was started has ended after it, and an older server
    /// knows that the session is over.
    ///
    /// Dropping the last clone ends the connection too, but without waiting: where the program ends right after it, a
    /// process that was started is killed. While there are other clones, this does nothing.
    pub async fn close(self) {
        if let Some(inner) = Arc::into_inner(self.inner) {
            if let Some(older) = inner.older {
                older.close().await;
            }
            inner.link.close().await;
        }
    }
}

impl Inner {
    /// A client that does not know its server yet.
    pub(crate) fn new(link: Link, setup: ClientBuilder) -> Self {
        Self {
            link,
            setup,
            server: Server::default(),
            older: None,
            draft_session: Mutex::default(),
            silent: Mutex::default(),
            last_id: AtomicU64::new(0),
            starts: tokio::sync::Mutex::new(0),
            tools: Mutex::default(),
            cache: Mutex::default(),
        }
    }

    /// Sends a request, and gives its result. Whatever the server tells meanwhile, it may not take longer than a whole
    /// call.
    pub(crate) async fn request(&self, request: &Request<'_>) -> Result<Box<RawValue>, ErrorKind> {
        self.request_round(request, &mut false).await
    }

    /// The same for a round of a call. Notes whether the server may have taken it without having been heard.
    pub(crate) async fn request_round(
        &self,
        request: &Request<'_>,
        is_unclear: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let limit = self.setup.limits.deadline;
        tokio::select! {
            result = self.send(request, is_unclear) => result,
            () = over(limit) => Err(ErrorKind::Deadline(limit.unwrap_or_default())),
        }
    }

    /// Sends a request, and again where that is safe and may help.
    async fn send(
        &self,
        request: &Request<'_>,
        is_unclear: &mut bool,
    ) -> Result<Box<RawValue>, ErrorKind> {
        let mut again = 0;
        loop {
            let was_unclear = std::mem::replace(is_unclear, true);
            let error = match self.exchange(request).await {
                Ok(response) => {
                    // A refusal says what came of this sending, and nothing of those before.
                    *is_unclear = was_unclear || response.outcome.is_ok();
                    return response.outcome.map_err(ErrorKind::Refused);
                }
                Err(error) => error,
            };
            *is_unclear = was_unclear || error.may_be_taken();
            let pause = match &error {
                LinkError::NotSent(_) => None,
                LinkError::Busy { retry_after, .. } => retry_after.map(Duration::from_secs),
                LinkError::Lost(_) if request.may_repeat => None,
                LinkError::Final(ErrorKind::Status { status, .. })
                    if request.is_harmless() && may_pass(*status) =>
                {
                    None
                }
                LinkError::Lost(_) | LinkError::Final(_) => return Err(error.into_kind()),
            };
            if again == self.setup.limits.retries || pause > Some(LONGEST_WISH) {
                return Err(error.into_kind());
            }
            again += 1;
            tracing::debug!(method = request.method, again, ?error, "sending it again");
            tokio::time::sleep(pause.unwrap_or_else(|| back_off(again))).await;
        }
    }

    /// Sends a request, and once more if the server at first denies that it speaks the revision.
    pub(crate) async fn exchange(&self, request: &Request<'_>) -> Result<Response, LinkError> {
        self.revive().await?;
        if let Some(older) = &self.older {
            return self.exchange_in_session(older, request).await;
        }
        let session = lock(&self.draft_session).clone();
        let mut outcome = self.exchange_once(request, None).await;
        if session.is_some() && is_not_found(&outcome) {
            // A request in a session that is gone was not looked at.
            *lock(&self.draft_session) = None;
            let greeting = Request::harmless(DISCOVER, Map::new());
            self.exchange_once(&greeting, None).await?;
            outcome = self.exchange_once(request, None).await;
        }
        let response = outcome?;
        if response.outcome.as_ref().is_err_and(offers_our_version) {
            return self.exchange_once(request, None).await;
        }
        Ok(response)
    }

    pub(crate) async fn exchange_once(
        &self,
        request: &Request<'_>,
        session: Option<&Session>,
    ) -> Result<Response, LinkError> {
        let outgoing = self.write(request, session)?;
        if outgoing.is_silent() {
            return self.tell_task(request, &outgoing).await;
        }
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
                self.answer_within(&mut exchange, request, session).await?
            }
            _ => (
                self.listen_to(&mut exchange, &outgoing.headers).await?,
                Vec::new(),
            ),
        };
        waiting.id = None;
        if request.method == DISCOVER && outgoing.draft.is_some() {
            *lock(&self.draft_session) = exchange.session().map(secret);
        }
        said_why(response, unanswered)
    }

    /// Tells a task something that is answered only if it is refused. What is refused later is kept for whoever looks
    /// after the task.
    async fn tell_task(
        &self,
        request: &Request<'_>,
        outgoing: &Outgoing,
    ) -> Result<Response, LinkError> {
        let silence = self.setup.limits.silence;
        match self.link.open_silent(outgoing, silence).await? {
            None => {}
            Some(mut exchange @ Exchange::Http(_)) => {
                return self.listen_to(&mut exchange, &outgoing.headers).await;
            }
            Some(exchange @ Exchange::Pipe(_)) => {
                let task = request.params.get("taskId").and_then(Value::as_str);
                let mut silent = lock(&self.silent);
                if silent.len() >= SILENT_MAX {
                    silent.pop_front();
                }
                silent.push_back((task.unwrap_or_default().to_owned(), exchange));
            }
        }
        Ok(Response::nothing())
    }

    /// Whether something that a task was told has been refused since.
    pub(crate) fn refused_by_task(&self, id: &str) -> Result<(), ErrorKind> {
        let mut silent = lock(&self.silent);
        let of_task = silent.iter_mut().filter(|(task, _)| task == id);
        let refusal = of_task
            .filter_map(|(_, exchange)| exchange.refusal())
            .next();
        match refusal {
            Some(refusal) => Err(ErrorKind::Refused(refusal)),
            None => Ok(()),
        }
    }

    /// Nobody looks after a task any longer.
    pub(crate) fn forget_task(&self, id: &str) {
        // They are dropped when the lock is no longer held.
        let mut gone = Vec::new();
        let mut silent = lock(&self.silent);
        for (task, exchange) in std::mem::take(&mut *silent) {
            if task == id {
                gone.push(exchange);
            } else {
                silent.push_back((task, exchange));
            }
        }
    }

    /// Sends a request whose messages somebody else hears.
    pub(crate) async fn begin(&self, request: &Request<'_>) -> Result<Exchange, LinkError> {
        self.revive().await?;
        let session = self.older.as_ref().map(Older::session);
        let outgoing = self.write(request, session.as_ref())?;
        self.link.open(&outgoing, self.setup.limits.silence).await
    }

    /// Starts a process again that has ended. What was under way in it is not repeated: nobody knows what it did.
    pub(crate) async fn revive(&self) -> Result<(), LinkError> {
        let Link::Pipe(link) = &self.link else {
            return Ok(());
        };
        let mut starts = self.starts.lock().await;
        if link.has_ended() {
            tracing::warn!("the server has ended; starting it again");
            link.start_again().map_err(LinkError::Final)?;
            *starts += 1;
        }
        self.greet_again(*starts).await
    }

    /// Hears what the server says up to the response. What it asks is refused.
    pub(crate) async fn listen_to(
        &self,
        exchange: &mut Exchange,
        headers: &HeaderMap,
    ) -> Result<Response, LinkError> {
        loop {
            let message = match self.in_time(exchange.next()).await? {
                Incoming::Response(response) => return Ok(response),
                Incoming::Request { method, .. } if self.server.version == PROTOCOL_VERSION => {
                    tracing::warn!(method, "the server must not send requests; passed over");
                    continue;
                }
                message => message,
            };
            let is_ask = matches!(&message, Incoming::Request { method, .. } if method != PING);
            if let Some(answer) = take_stray(message, &self.setup.news) {
                let answer = Outgoing::unanswered(answer, headers.clone());
                if let Err(error) = self.in_time(self.link.tell(&answer)).await {
                    tracing::debug!(?error, "the server was not told");
                }
            }
            // Drafts ask in replies.
            if let Some(draft) = self.setup.draft().filter(|_| is_ask) {
                return Err(LinkError::Final(self.not_spoken(draft)));
            }
        }
    }

    /// The server may be silent for so long and no longer.
    pub(crate) async fn in_time<T>(
        &self,
        waiting: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        in_time(self.setup.limits.silence, waiting).await
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The message of a request, with an id of its own.
    fn write(
        &self,
        request: &Request<'_>,
        session: Option<&Session>,
    ) -> Result<Outgoing, LinkError> {
        let id = self.next_id();
        let mut params = request.params.clone();
        let (meta, headers) = match session {
            Some(session) => (self.older_meta(id, request.call_id), Ok(session.headers())),
            None => (self.meta(id, request.call_id), standard_headers(request)),
        };
        if meta.as_object().is_some_and(|meta| !meta.is_empty()) {
            params.insert("_meta".to_owned(), meta);
        }
        let headers = headers.map_err(|why| LinkError::Final(ErrorKind::BadArgument(why)))?;
        let body = json!({"jsonrpc": "2.0", "id": id, "method": request.method, "params": params});
        let mut body = body.to_string();
        let mut draft = None;
        if let Some(spoken) = self.setup.draft() {
            let written = spoken.write_request(&body);
            let (text, exchange) =
                written.map_err(|why| LinkError::Final(ErrorKind::Draft(why.to_string())))?;
            (body, draft) = (text, Some(Arc::new(exchange)));
        }
        Ok(Outgoing {
            id: Some(id),
            is_call: CallKind::from_method(request.method).is_some(),
            // A server that is still to say what it speaks might not understand.
            is_cancellable: request.method != DISCOVER,
            is_resumable: session.is_some(),
            body,
            headers: if draft.is_some() {
                self.draft_headers()
            } else {
                headers
            },
            draft,
        })
    }

    /// The headers of a message in a draft.
    pub(crate) fn draft_headers(&self) -> HeaderMap {
        let session = lock(&self.draft_session).clone();
        let session = session.map(|id| (HeaderName::from_static("mcp-session-id"), id));
        session.into_iter().collect()
    }

    /// What a request to an older server says beside its parameters.
    fn older_meta(&self, id: u64, call_id: Option<&str>) -> Value {
        if call_id.is_some() && self.setup.news.progress.is_some() {
            json!({"progressToken": id})
        } else {
            json!({})
        }
    }

    fn meta(&self, id: u64, call_id: Option<&str>) -> Value {
        let mut meta = json!({
            PROTOCOL_VERSION_KEY: PROTOCOL_VERSION,
            CLIENT_INFO_KEY: self.setup.info,
            CLIENT_CAPABILITIES_KEY: self.capabilities(),
        });
        if let Some((level, _)) = &self.setup.news.log {
            meta[LOG_LEVEL_KEY] = level.as_str().into();
        }
        if let Some(call_id) = call_id {
            meta[CALL_ID_KEY] = call_id.into();
            if self.setup.news.progress.is_some() {
                meta["progressToken"] = id.into();
            }
        }
        meta
    }

    /// What this client can do.
    pub(crate) fn capabilities(&self) -> Value {
        let can = |kind| self.setup.handlers.has(kind) || self.setup.by_hand.contains(&kind);
        let mut capabilities = json!({"extensions": {TASKS_EXTENSION: {}}});
        let mut elicitation = Map::new();
        for (kind, member) in [(AskKind::Form, "form"), (AskKind::Url, "url")] {
            if can(kind) {
                elicitation.insert(member.to_owned(), json!({}));
            }
        }
        if !elicitation.is_empty() {
            capabilities["elicitation"] = elicitation.into();
        }
        for (kind, member) in [(AskKind::Sampling, "sampling"), (AskKind::Roots, "roots")] {
            if can(kind) {
                capabilities[member] = json!({});
            }
        }
        capabilities
    }

    /// Remembers what a listed tool wants in headers, and what it promises. Says why, if it must not be used.
    pub(crate) fn remember_tool(&self, tool: &ToolInfo) -> Result<(), ParamHeaderError> {
        let known = ParamHeaders::read(&tool.input_schema).map(|headers| {
            Arc::new(Known {
                headers,
                promise: tool.output_schema.clone().map(Promise::new),
            })
        });
        let verdict = known.as_ref().map(|_| ()).map_err(Clone::clone);
        lock(&self.tools).insert(tool.name.clone(), known);
        verdict
    }

    /// What is known of a tool, if it was listed.
    pub(crate) fn known_tool(&self, name: &str) -> Option<Result<Arc<Known>, ParamHeaderError>> {
        lock(&self.tools).get(name).cloned()
    }
}

/// Somebody waits for the response to the request of this id. Of servers that do not see it by themselves, older ones
/// over HTTP are told when nobody does any longer.
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

/// Locks even after a panic elsewhere: every critical section here leaves its data whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for this long, or for ever.
pub(crate) async fn over(limit: Option<Duration>) {
    match limit {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// How long to wait before something is tried again: longer each time, and not for everybody the same.
pub(crate) fn back_off(times: u32) -> Duration {
    let whole = FIRST_PAUSE
        .saturating_mul(1 << times.saturating_sub(1).min(10))
        .min(LONGEST_PAUSE);
    whole.mul_f64(random::between(0.5, 1.0))
}

/// Whether a server that answers with this status has failed, and may not the next time.
fn may_pass(status: u16) -> bool {
    (500..600).contains(&status) && !matches!(status, 501 | 505)
}

/// A server that denies our version and offers it all the same.
fn offers_our_version(refusal: &RpcFailure) -> bool {
    let supported = refusal.data["supported"].as_array();
    refusal.code == i64::from(ErrorCode::UnsupportedVersion.as_i32())
        && supported.is_some_and(|list| list.iter().any(|version| version == PROTOCOL_VERSION))
}

/// The headers in which a request repeats what it says.
fn standard_headers(request: &Request<'_>) -> Result<HeaderMap, String> {
    let mut headers = request.headers.clone();
    let mut add = |name, value| headers.insert(HeaderName::from_static(name), value);
    add(
        "mcp-protocol-version",
        HeaderValue::from_static(PROTOCOL_VERSION),
    );
    let unfit = |what: &str| format!("{what:?} cannot be put into a header");
    let method = HeaderValue::from_str(request.method).map_err(|_| unfit(request.method))?;
    add("mcp-method", method);
    let subject = match request.method {
        "tools/call" | "prompts/get" => request.params.get("name"),
        "resources/read" => request.params.get("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => request.params.get("taskId"),
        _ => None,
    };
    if let Some(subject) = subject.and_then(Value::as_str) {
        let value = HeaderValue::from_str(&encode_header(subject));
        add("mcp-name", value.map_err(|_| unfit(subject))?);
    }
    Ok(headers)
}
