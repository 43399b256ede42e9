//! The builder of a client.

use crate::ask::{Answer, FormAsk, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk};
use crate::auth::Authorize;
use crate::client::{Client, Ids};
use crate::dialect::Dialect;
use crate::error::{Error, ErrorKind};
use crate::handlers::{HandlerError, Handlers};
use crate::legacy::UnassociatedAsks;
use crate::limits::Limits;
use crate::notifications::{LogMessage, Notifications, Progress};
use crate::pending::PendingCall;
use crate::transport::{HttpLink, Link, PipeLink, PipeSetup, Watch, Wire};
use futures_util::FutureExt;
use refrain_wire::{AskKind, Implementation, LogLevel, Root, SamplingAnswer};
use std::fmt;
use std::sync::Arc;
use tokio::process::Command;
use url::Url;

/// Sets up a [`Client`]: its identity, the asks it can answer, and its limits.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    pub(crate) info: Implementation,
    pub(crate) handlers: Handlers,
    pub(crate) by_hand: Vec<AskKind>,
    pub(crate) unassociated: UnassociatedAsks,
    pub(crate) limits: Limits,
    pub(crate) notifications: Notifications,
    pub(crate) watch: Watch,
    pub(crate) dialect: Option<Dialect>,
    pub(crate) on_pending: Arc<dyn Fn(&PendingCall) + Send + Sync>,
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
            by_hand: Vec::new(),
            unassociated: UnassociatedAsks::default(),
            limits: Limits::default(),
            notifications: Notifications::default(),
            watch: Arc::new(|_| {}),
            dialect: None,
            on_pending: Arc::new(|_| {}),
            authorize: None,
        }
    }
}

impl ClientBuilder {
    /// The name and version that servers are sent.
    pub fn info(mut self, info: Implementation) -> Self {
        self.info = info;
        self
    }

    /// Handles forms. Declares that this client can show forms.
    pub fn on_form<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(FormAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer, HandlerError>> + Send + 'static,
    {
        self.handlers.form = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Handles URLs to visit. Declares that this client can open URLs.
    ///
    /// The handler shows the whole URL, and opens it only with the person's consent.
    pub fn on_url<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(UrlAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer, HandlerError>> + Send + 'static,
    {
        self.handlers.url = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Handles questions to a model. Declares that this client has one.
    pub fn on_sampling<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(SamplingAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<SamplingAnswer, HandlerError>> + Send + 'static,
    {
        self.handlers.sampling = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Lists the roots. Declares that this client has some.
    pub fn on_roots<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(RootsAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Root>, HandlerError>> + Send + 'static,
    {
        self.handlers.roots = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Declines or cancels asks for a person that this client cannot show, such as a form outside the subset. Without
    /// it, such an ask stops the call, and cancels a task.
    pub fn on_unknown<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(UnknownAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer, HandlerError>> + Send + 'static,
    {
        self.handlers.unknown = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Hands asks on the session stream of a legacy server to the newest call. Only for a scenario of the official suite:
    /// such an ask does not name its call.
    #[cfg(feature = "suite-asks-beside-calls")]
    #[doc(hidden)]
    pub fn asks_beside_calls(mut self) -> Self {
        self.unassociated = UnassociatedAsks::allowed();
        self
    }

    /// Declares asks of these kinds that no handler answers: the call is returned as a [`PendingCall`].
    pub fn by_hand(mut self, kinds: impl IntoIterator<Item = AskKind>) -> Self {
        self.by_hand.extend(kinds);
        self
    }

    /// Handles the progress of calls.
    pub fn on_progress(mut self, handle: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.notifications.progress = Some(Arc::new(handle));
        self
    }

    /// Handles log messages of calls, from this level on.
    pub fn on_log(
        mut self,
        level: LogLevel,
        handle: impl Fn(LogMessage) + Send + Sync + 'static,
    ) -> Self {
        self.notifications.log = Some((level, Arc::new(handle)));
        self
    }

    /// Observes every message. Messages may contain secrets.
    pub fn on_wire(mut self, watch: impl Fn(Wire<'_>) + Send + Sync + 'static) -> Self {
        self.watch = Arc::new(watch);
        self
    }

    /// Observes a call each time that its state changes: new asks, one more answer, a task. If it is stored then, the call
    /// can be taken up even after a crash of this process.
    pub fn on_pending(mut self, observe: impl Fn(&PendingCall) + Send + Sync + 'static) -> Self {
        self.on_pending = Arc::new(observe);
        self
    }

    /// Authorizes the requests to a URL.
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize = Some(Arc::new(authorize));
        self
    }

    /// Speaks this dialect, without asking the server what it speaks. For legacy servers, and to try the drafts.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), refrain_client::Error> {
    /// use refrain_client::{Client, wire::drafts::Draft};
    /// let builder = Client::builder().dialect(Draft::Second);
    /// let client = builder.connect("http://127.0.0.1:8080/drafts/2/mcp").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn dialect(mut self, dialect: impl Into<Dialect>) -> Self {
        self.dialect = Some(dialect.into());
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Connects to the server at an `http` or `https` URL.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        let bad = |why: &str| ErrorKind::Address {
            address: without_user(url),
            why: why.to_owned(),
        };
        let parsed = Url::parse(url)
            .map_err(|error| bad(&format!("{error}; it must begin with http:// or https://")))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(bad("it must begin with http:// or https://").into());
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(bad("it must not have a user name or a password in it").into());
        }
        let link = HttpLink::new(parsed, &self)?;
        self.open(Link::Http(Arc::new(link))).await
    }

    /// Starts a server as a child process. Messages go through its standard input and output; its standard error is
    /// logged.
    ///
    /// The process ends with the client: see [`Client::close`]. If it ends before, the calls in flight end with
    /// [`ErrorKind::Exited`], and the next request starts it again.
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
            notifications: self.notifications.clone(),
            message_max: self.limits.message,
        };
        let link = PipeLink::spawn(command.into(), setup)?;
        self.open(Link::Pipe(Box::new(link))).await
    }

    async fn open(self, link: Link) -> Result<Client, Error> {
        let ids = Ids::default();
        let link = match self.dialect {
            Some(dialect) => dialect.wrap(link, ids.clone()),
            None => link,
        };
        Client::open(link, self, ids).await
    }
}

/// A URL without its user name and password. In an invalid one, everything up to the last `@` may be part of them.
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
