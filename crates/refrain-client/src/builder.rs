//! Setting up a client.

use crate::ask::{Answer, FormAsk, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk};
use crate::auth::Authorize;
use crate::client::{Client, Ids};
use crate::dialect::Dialect;
use crate::error::{Error, ErrorKind};
use crate::handlers::{HandlerError, Handlers};
use crate::limits::Limits;
use crate::news::{LogMessage, News, Progress};
use crate::older::Beside;
use crate::pending::{Onlooker, PendingCall};
use crate::transport::{HttpLink, Link, PipeLink, Watcher, Wire};
use futures_util::FutureExt;
use refrain_wire::{AskKind, Implementation, LogLevel, Root, SamplingAnswer};
use std::sync::Arc;
use tokio::process::Command;
use url::Url;

/// Sets up a [`Client`]: who it is, what it can answer, and what a call may take.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    pub(crate) info: Implementation,
    pub(crate) handlers: Handlers,
    /// What is answered by hand.
    pub(crate) by_hand: Vec<AskKind>,
    /// Whether asks of older servers that come on no call's stream are answered: never, but for the official suite.
    pub(crate) beside: Beside,
    pub(crate) limits: Limits,
    pub(crate) news: News,
    pub(crate) watcher: Watcher,
    /// What to speak, in place of the newest that the server has.
    pub(crate) dialect: Option<Dialect>,
    pub(crate) onlooker: Onlooker,
    authorize: Option<AuthorizeRef>,
}

#[derive(Clone)]
struct AuthorizeRef(Arc<dyn Authorize>);

impl std::fmt::Debug for AuthorizeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authorize")
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
            beside: Beside::default(),
            limits: Limits::default(),
            news: News::default(),
            watcher: Watcher::default(),
            dialect: None,
            onlooker: Onlooker::default(),
            authorize: None,
        }
    }
}

impl ClientBuilder {
    /// What the client tells servers about itself.
    pub fn info(mut self, info: Implementation) -> Self {
        self.info = info;
        self
    }

    /// Has forms filled in. Declares that this client can show forms.
    pub fn on_form<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(FormAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer, HandlerError>> + Send + 'static,
    {
        self.handlers.form = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Has people sent to URLs. Declares that this client can do so.
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

    /// Has a model asked. Declares that this client has one.
    pub fn on_sampling<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(SamplingAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<SamplingAnswer, HandlerError>> + Send + 'static,
    {
        self.handlers.sampling = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Tells the roots. Declares that this client has some.
    pub fn on_roots<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(RootsAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Root>, HandlerError>> + Send + 'static,
    {
        self.handlers.roots = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Declines or cancels what a person is asked and this client cannot show, such as a form outside the subset. Nothing
    /// else answers it. Without this, what cannot be shown stops the call, and calls off a task.
    pub fn on_unknown<F, Fut>(mut self, handle: F) -> Self
    where
        F: Fn(UnknownAsk) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer, HandlerError>> + Send + 'static,
    {
        self.handlers.unknown = Some(Arc::new(move |ask| handle(ask).boxed()));
        self
    }

    /// Answers also what an older server asks on the stream of the session, while a call is under way: it is taken for
    /// the call that began last. One scenario of the official suite cannot be passed without; nobody else may do this,
    /// since nothing says which call such an ask belongs to.
    #[cfg(feature = "suite-asks-beside-calls")]
    #[doc(hidden)]
    pub fn asks_beside_calls(mut self) -> Self {
        self.beside = Beside::allowed();
        self
    }

    /// Declares that asks of these kinds can be answered, though no handler does: the call comes back as a
    /// [`PendingCall`](crate::PendingCall) that is answered by hand.
    pub fn by_hand(mut self, kinds: impl IntoIterator<Item = AskKind>) -> Self {
        self.by_hand.extend(kinds);
        self
    }

    /// Hears of the progress of calls.
    pub fn on_progress(mut self, hear: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.news.progress = Some(Arc::new(hear));
        self
    }

    /// Hears of what calls log, from this level on.
    pub fn on_log(
        mut self,
        level: LogLevel,
        hear: impl Fn(LogMessage) + Send + Sync + 'static,
    ) -> Self {
        self.news.log = Some((level, Arc::new(hear)));
        self
    }

    /// Sees every message as it is sent and received. Messages have secrets in them.
    pub fn on_wire(mut self, watch: impl Fn(Wire<'_>) + Send + Sync + 'static) -> Self {
        self.watcher = Watcher(Some(Arc::new(watch)));
        self
    }

    /// Sees a call each time that it waits anew: for what a round asks, with one more answer, for a task to end. What
    /// is stored of it then can be taken up even if this process ends without a word.
    pub fn on_pending(mut self, look: impl Fn(&PendingCall) + Send + Sync + 'static) -> Self {
        self.onlooker = Onlooker(Some(Arc::new(look)));
        self
    }

    /// Authorizes the requests to a URL.
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize = Some(AuthorizeRef(Arc::new(authorize)));
        self
    }

    /// Speaks this dialect, whatever else the server might speak: it is not asked. For servers of old, and to try the
    /// drafts out.
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

    /// What a call may take.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Connects to the server at an `http` or `https` URL, and finds out what it speaks.
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
        let authorize = self.authorize.as_ref().map(|given| Arc::clone(&given.0));
        let link = HttpLink::new(parsed, authorize, self.watcher.clone(), self.limits.message)?;
        self.open(Link::Http(Arc::new(link))).await
    }

    /// Starts a server as a child process, and finds out what it speaks. Messages go through its standard input and
    /// output, which are set here; what it writes to its standard error is told where it matters, and logged.
    ///
    /// The process ends with the client: see [`Client::close`]. If it ends before, the calls under way end with
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
        let (watcher, news) = (self.watcher.clone(), self.news.clone());
        let link = PipeLink::spawn(command.into(), watcher, news, self.limits.message)?;
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

/// A URL without the user name and the password that it may have in it. In one that cannot be read, everything up to the
/// last `@` may be part of them.
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
