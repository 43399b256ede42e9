//! [`ClientBuilder`]: identity, ask handlers, limits and transport of a client.

use crate::FixedProtocol;
use crate::ask::{AskAnswer, FormAsk, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk};
use crate::auth::Authorize;
use crate::client::{Client, RequestIds};
use crate::error::{Error, ErrorKind};
use crate::handlers::{HandlerError, Handlers};
use crate::legacy::UnassociatedAsks;
use crate::limits::ClientLimits;
use crate::notifications::{LogMessage, Notifications, Progress};
use crate::pending::PendingCall;
use crate::retry::Retry;
use crate::transport::{
    HttpLink, Link, PipeLink, PipeSetup, StderrObserver, WireMessage, WireObserver,
};
use futures_util::FutureExt;
use refrain_wire::{AskKind, Implementation, LogLevel, Root, SamplingAnswer};
use std::fmt;
use std::sync::Arc;
use tokio::process::Command;
use url::{ParseError, Url};

/// Builds a [`Client`]: its identity, the asks it can answer, and its limits.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    pub(crate) info: Implementation,
    pub(crate) handlers: Handlers,
    pub(crate) manual_kinds: Vec<AskKind>,
    pub(crate) unassociated: UnassociatedAsks,
    pub(crate) limits: ClientLimits,
    pub(crate) notifications: Notifications,
    pub(crate) watch: WireObserver,
    pub(crate) protocol: Option<FixedProtocol>,
    pub(crate) on_pending: Arc<dyn Fn(&PendingCall) + Send + Sync>,
    pub(crate) on_retry: Arc<dyn Fn(&Retry<'_>) + Send + Sync>,
    pub(crate) on_stderr: StderrObserver,
    pub(crate) authorize: Option<Arc<dyn Authorize>>,
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
            unassociated: UnassociatedAsks::default(),
            limits: ClientLimits::default(),
            notifications: Notifications::default(),
            watch: Arc::new(|_| {}),
            protocol: None,
            on_pending: Arc::new(|_| {}),
            on_retry: Arc::new(|_| {}),
            on_stderr: Arc::new(|_| {}),
            authorize: None,
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

    /// Lists the roots, and declares the roots capability.
    pub fn on_roots<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(RootsAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Root>, HandlerError>> + Send + 'static,
    {
        self.handlers.roots = Some(Arc::new(move |ask| handle(ask).boxed()));
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

    /// Passes asks on the session stream of a legacy server to the newest call. They do not name their call, so this is
    /// only for the official conformance suite.
    #[cfg(feature = "suite-unassociated-asks")]
    #[doc(hidden)]
    pub fn allow_unassociated_asks(mut self) -> Self {
        self.unassociated = UnassociatedAsks::allowed();
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

    /// Authorizes the requests to a URL.
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize = Some(Arc::new(authorize));
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: ClientLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Connects to the server at an `http` or `https` URL.
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
            return Err(invalid("it must not contain a user name or password").into());
        }
        let link = HttpLink::new(parsed, &self)?;
        self.open(Link::Http(Arc::new(link))).await
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
        let setup = PipeSetup {
            watch: Arc::clone(&self.watch),
            on_stderr: Arc::clone(&self.on_stderr),
            notifications: self.notifications.clone(),
            limits: self.limits.clone(),
        };
        let link = PipeLink::spawn(command.into(), setup)?;
        self.open(Link::Pipe(Box::new(link))).await
    }

    async fn open(self, link: Link) -> Result<Client, Error> {
        let ids = RequestIds::default();
        let link = match self.protocol {
            Some(protocol) => protocol.wrap(link, ids.clone()),
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
