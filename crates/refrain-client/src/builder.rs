//! [`ClientBuilder`]: identity, ask handlers, limits and transport of a client.

use crate::ask::{AskAnswer, FormAsk, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk, check_root};
use crate::auth::Authorize;
use crate::budget::ByteBudget;
use crate::client::{Client, RequestIds};
use crate::dialect::Dialect;
use crate::error::{Error, ErrorKind};
use crate::handlers::{HandlerError, Handlers};
use crate::limits::ClientLimits;
use crate::notifications::{LogMessage, Notifications, Progress};
use crate::pending::PendingCall;
use crate::request_span::RequestReport;
use crate::retry::Retry;
use crate::transport::{
    HttpLink, Link, PipeLink, PipeSetup, StderrObserver, WireMessage, WireObserver,
};
use futures_util::FutureExt;
use refrain_wire::client::Task;
use refrain_wire::{AskKind, Implementation, LogLevel, Root, SamplingAnswer};
use std::fmt;
use std::sync::Arc;
use tokio::process::Command;
use url::{ParseError, Url};

type RequestObserver = dyn Fn(&RequestReport<'_>) + Send + Sync;

/// Builds a [`Client`]: its identity, the asks it can answer, and its limits.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    pub(crate) info: Implementation,
    pub(crate) handlers: Handlers,
    pub(crate) manual_kinds: Vec<AskKind>,
    pub(crate) connection_roots: Option<Arc<[Root]>>,
    pub(crate) allows_unassociated_asks: bool,
    pub(crate) leaves_dropped_asks: bool,
    pub(crate) limits: ClientLimits,
    pub(crate) response_budget: Option<ByteBudget>,
    pub(crate) notifications: Notifications,
    pub(crate) watch: WireObserver,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) on_pending: Arc<dyn Fn(&PendingCall) + Send + Sync>,
    pub(crate) on_task: Arc<dyn Fn(&Task) + Send + Sync>,
    pub(crate) on_retry: Arc<dyn Fn(&Retry<'_>) + Send + Sync>,
    pub(crate) on_request: Option<Arc<RequestObserver>>,
    pub(crate) on_stderr: StderrObserver,
    pub(crate) authorize: Option<Arc<dyn Authorize>>,
    /// Names and secret values.
    pub(crate) headers: Vec<(String, String)>,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("info", &self.info)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            info: Implementation {
                name: env!("CARGO_PKG_NAME").to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..Implementation::default()
            },
            handlers: Handlers::default(),
            manual_kinds: Vec::new(),
            connection_roots: None,
            allows_unassociated_asks: false,
            leaves_dropped_asks: false,
            limits: ClientLimits::default(),
            response_budget: None,
            notifications: Notifications::default(),
            watch: Arc::new(|_| {}),
            dialect: None,
            on_pending: Arc::new(|_| {}),
            on_task: Arc::new(|_| {}),
            on_retry: Arc::new(|_| {}),
            on_request: None,
            on_stderr: Arc::new(|_| {}),
            authorize: None,
            headers: Vec::new(),
        }
    }
}

impl ClientBuilder {
    /// Sets the name and version that are sent to servers.
    pub fn info(mut self, info: Implementation) -> Self {
        self.info = info;
        self
    }

    /// Handles forms, and declares the form capability.
    pub fn on_form<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(FormAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<AskAnswer, HandlerError>> + Send + 'static,
    {
        self.handlers.form = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Handles URLs to visit, and declares the URL capability.
    ///
    /// The handler must show the whole URL, and open it only with the person's consent.
    pub fn on_url<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(UrlAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<AskAnswer, HandlerError>> + Send + 'static,
    {
        self.handlers.url = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Handles questions to a model, and declares the sampling capability.
    pub fn on_sampling<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(SamplingAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<SamplingAnswer, HandlerError>> + Send + 'static,
    {
        self.handlers.sampling = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Declares sampling with tools: [`on_sampling`](Self::on_sampling) also receives questions whose `params` have tools
    /// or results of tools, and may answer with [tool uses](refrain_wire::ToolUse). Without this, they are rejected.
    pub fn sampling_tools(mut self) -> Self {
        self.handlers.sampling_tools = true;
        self
    }

    /// Declares sampling with context: [`on_sampling`](Self::on_sampling) supports `params.include_context`.
    pub fn sampling_context(mut self) -> Self {
        self.handlers.sampling_context = true;
        self
    }

    /// Lists the roots, and declares the roots capability.
    pub fn on_roots<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(RootsAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Root>, HandlerError>> + Send + 'static,
    {
        self.handlers.roots = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Sets the roots for legacy servers that send `roots/list` outside of any call, and declares the roots capability to
    /// them. Some servers ask right after the connection is initialized.
    ///
    /// During a call, `roots/list` goes to [`on_roots`](Self::on_roots), and is answered with these roots only if that
    /// handler is missing. Without this setting, requests outside of calls are rejected.
    ///
    /// ```no_run
    /// # async fn run(command: std::process::Command) -> Result<(), refrain_client::Error> {
    /// use refrain_client::{Client, Root};
    /// let roots = vec![Root::new("file:///srv/project")];
    /// let client = Client::builder().connection_roots(roots).spawn(command).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connection_roots(mut self, roots: Vec<Root>) -> Self {
        self.connection_roots = Some(roots.into());
        self
    }

    /// Declines or cancels asks that this client cannot show, such as a form with an unsupported schema. Without this
    /// handler, such an ask fails the call, and cancels a task.
    pub fn on_unknown<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(UnknownAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<AskAnswer, HandlerError>> + Send + 'static,
    {
        self.handlers.unknown = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Lets a legacy HTTP server ask on its session stream (the response to `GET`): the newest call gets such asks.
    /// By default they are rejected, because they do not name their call. Use this only for
    /// connections that make one call at a time.
    ///
    /// Servers on version 1 of the TypeScript SDK ask there, if their tools use `server.elicitInput(..)`.
    ///
    /// ```
    /// # use refrain_client::Client;
    /// let builder = Client::builder().allow_unassociated_asks();
    /// ```
    pub fn allow_unassociated_asks(mut self) -> Self {
        self.allows_unassociated_asks = true;
        self
    }

    /// Leaves an ask of a server process unanswered if its call is dropped. By default the ask is
    /// rejected, so that the server does not wait for an answer; but some servers then run the rest
    /// of the tool. Use this only if you close the connection after a dropped call.
    ///
    /// ```
    /// # use refrain_client::Client;
    /// let builder = Client::builder().leave_dropped_asks();
    /// ```
    pub fn leave_dropped_asks(mut self) -> Self {
        self.leaves_dropped_asks = true;
        self
    }

    /// Declares the capabilities for these kinds of asks without a handler. A call with such an ask is returned as a
    /// [`PendingCall`].
    pub fn answer_manually(mut self, kinds: impl IntoIterator<Item = AskKind>) -> Self {
        self.manual_kinds.extend(kinds);
        self
    }

    /// Handles the progress of calls.
    pub fn on_progress(mut self, handle: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.notifications.progress = Some(Arc::new(handle));
        self
    }

    /// Handles log messages of calls, at this level or above.
    pub fn on_log(
        mut self,
        level: LogLevel,
        handle: impl Fn(LogMessage) + Send + Sync + 'static,
    ) -> Self {
        self.notifications.log = Some((level, Arc::new(handle)));
        self
    }

    /// Observes every message. Messages may contain secrets.
    pub fn on_wire(mut self, watch: impl Fn(WireMessage<'_>) + Send + Sync + 'static) -> Self {
        self.watch = Arc::new(watch);
        self
    }

    /// Observes a call whenever its state changes: new asks, one more answer, a task. Store the call here to resume it
    /// after a crash of this process.
    pub fn on_pending(mut self, observe: impl Fn(&PendingCall) + Send + Sync + 'static) -> Self {
        self.on_pending = Arc::new(observe);
        self
    }

    /// Observes a task that a call waits for, whenever its state was read: its id, status and status message.
    ///
    /// ```
    /// # use refrain_client::Client;
    /// let builder = Client::builder().on_task(|task| {
    ///     let message = task.message.as_deref().unwrap_or_default();
    ///     println!("task {}: {} {message}", task.id, task.status.as_str());
    /// });
    /// ```
    pub fn on_task(mut self, observe: impl Fn(&Task) + Send + Sync + 'static) -> Self {
        self.on_task = Arc::new(observe);
        self
    }

    /// Observes requests that are sent again. A tool call whose response was lost is sent again only if the server
    /// recognises call ids.
    pub fn on_retry(mut self, observe: impl Fn(&Retry<'_>) + Send + Sync + 'static) -> Self {
        self.on_retry = Arc::new(observe);
        self
    }

    /// Observes the lines that a server process writes to its standard error. A line is cut after 4 KiB.
    pub fn on_stderr(mut self, observe: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_stderr = Arc::new(observe);
        self
    }

    /// Authorizes the HTTP requests to the server. Not used for a server process.
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize = Some(Arc::new(authorize));
        self
    }

    /// Calls `observe` after each attempt of a request, for metrics such as OpenTelemetry's
    /// `mcp.client.operation.duration`.
    ///
    /// ```
    /// # use refrain_client::Client;
    /// let builder = Client::builder().on_request(|request| {
    ///     println!("{} took {:?}", request.method, request.elapsed);
    /// });
    /// ```
    pub fn on_request(
        mut self,
        observe: impl Fn(&RequestReport<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.on_request = Some(Arc::new(observe));
        self
    }

    /// Adds a header to every HTTP request to the server, such as an API key. Not used for a server process, nor for requests
    /// to an authorization server. The value is a secret: it is never part of an error, a log or `Debug` output.
    ///
    /// Connecting fails with [`ErrorKind::InvalidArgument`] if the name or the value is invalid, or if the client sets this
    /// header itself.
    ///
    /// ```no_run
    /// # async fn run(key: &str) -> Result<(), refrain_client::Error> {
    /// let builder = refrain_client::Client::builder().header("X-Api-Key", key);
    /// let client = builder.connect("https://example.com/mcp").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: ClientLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Limits the memory of incomplete HTTP responses, together with the other clients that share this budget.
    pub fn response_budget(mut self, budget: ByteBudget) -> Self {
        self.response_budget = Some(budget);
        self
    }

    /// Connects to the server at an `http` or `https` URL. Servers of 2024-11-05 that use the HTTP+SSE transport are
    /// recognised.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        const EXPECTED: &str = "expected an http:// or https:// URL";
        let invalid = |why: &str| ErrorKind::InvalidAddress {
            address: without_user(url),
            why: why.to_owned(),
        };
        let parsed = Url::parse(url).map_err(|error| match error {
            ParseError::RelativeUrlWithoutBase => invalid(EXPECTED),
            error => invalid(&format!("{error}; {EXPECTED}")),
        })?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(invalid(EXPECTED).into());
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(invalid("a user name or password in the URL is not supported").into());
        }
        let setup = self.for_connection();
        let link = HttpLink::new(parsed, &setup)?;
        setup.open(Link::Http(Arc::new(link))).await
    }

    /// Starts a server as a child process, and talks to it over its standard input and output. Its standard error is
    /// logged.
    ///
    /// [`Client::close`] ends the process. If it exits earlier, calls in flight fail with [`ErrorKind::Exited`], and
    /// the next request restarts it.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), refrain_client::Error> {
    /// use std::process::Command;
    /// let mut command = Command::new("refrain");
    /// command.args(["serve", "--stdio"]);
    /// let client = refrain_client::Client::builder().spawn(command).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn spawn(self, command: impl Into<Command>) -> Result<Client, Error> {
        let setup = self.for_connection();
        let link = PipeLink::spawn(command.into(), setup.pipe())?;
        setup.open(Link::Pipe(Box::new(link))).await
    }

    pub(crate) fn pipe(&self) -> PipeSetup {
        PipeSetup {
            watch: Arc::clone(&self.watch),
            on_stderr: Arc::clone(&self.on_stderr),
            notifications: self.notifications.clone(),
            roots: self.connection_roots.clone(),
            leaves_dropped_asks: self.leaves_dropped_asks,
            limits: self.limits.clone(),
        }
    }

    /// Separates the subscriptions of a new connection from those of other clones of the builder.
    fn for_connection(mut self) -> Self {
        self.notifications.changes = Arc::default();
        self
    }

    async fn open(self, link: Link) -> Result<Client, Error> {
        for root in self.connection_roots.iter().flat_map(|roots| roots.iter()) {
            check_root(root).map_err(|error| ErrorKind::InvalidArgument(error.to_string()))?;
        }
        let ids = RequestIds::default();
        let link = match self.dialect {
            Some(dialect) => dialect.wrap(link, ids.clone()),
            None => link,
        };
        Client::open(link, self, ids).await
    }
}

/// A URL without its user name and password. In an invalid URL, everything up to the last `@` may belong to them.
fn without_user(url: &str) -> String {
    if let Ok(mut parsed) = Url::parse(url)
        && parsed.has_authority()
    {
        if parsed.username().is_empty() && parsed.password().is_none() {
            return url.to_owned();
        }
        if parsed.set_username("***").is_ok() && parsed.set_password(None).is_ok() {
            return parsed.to_string();
        }
    }
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = url.split_at(start);
    match rest.rfind('@') {
        Some(at) => format!("{scheme}***{}", &rest[at..]),
        None => url.to_owned(),
    }
}
