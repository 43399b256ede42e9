//! One backend: how it is reached, which revision it speaks, and its connections.

use crate::config::{BackendSpec, BackendTransport, Sessions};
use crate::metrics::{BackendMetrics, GatewayMetrics};
use crate::pool::{ConnectionLimits, Pool};
use crate::support::AskSupport;
use parking_lot::Mutex;
use refrain::client::wire::limited_event;
use refrain::client::wire::log_limit::LogLimit;
use refrain::client::wire::{Implementation, Root};
use refrain::client::{
    AskRefusal, AuthError, Client, ClientBuilder, ClientLimits, Dialect, Error, ErrorKind,
    HandlerError, OAuth, RegisteredClient, WireMessage,
};
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// The wait after the first failed start of a backend, and the longest wait.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A backend may ask for the roots after initialization. A new connection checks at this interval whether it has asked,
/// at most this many times.
const ROOTS_CHECK_INTERVAL: Duration = Duration::from_millis(25);
const MAX_ROOTS_CHECKS: u32 = 60;
/// Lines of a backend's standard error that are logged in ten seconds.
const STDERR_LINES: u32 = 1000;
/// The maximum size of a backend's request state, in bytes. Large ones are stored, and count towards the quota of the caller.
const MAX_STATE: usize = 256 * 1024;
const ROOTS_LIST: &str = "\"roots/list\"";
/// The variables with the gateway's own secrets, which no backend process inherits.
const SECRET_VARIABLES: [&str; 7] = [
    "REFRAIN_KEYS",
    "REFRAIN_STORE",
    "REFRAIN_TOKEN",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
];
/// The variables that a backend process gets from the gateway without `inherit_env`.
const BASE_VARIABLES: [&str; 16] = [
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "PATH",
    "REQUESTS_CA_BUNDLE",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
];

/// Why a connection to a backend could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendStartError {
    /// The connection failed.
    #[error("backend {backend:?}: {source}")]
    Connect {
        /// The backend.
        backend: String,
        /// The reason.
        source: Box<Error>,
    },
    /// The backend did not respond in time.
    #[error("backend {backend} did not start within {} seconds", limit.as_secs())]
    Timeout {
        /// The backend.
        backend: String,
        /// The limit.
        limit: Duration,
    },
    /// The last start failed, and it is too early for another.
    #[error("backend {backend} is down; the next start is in {} seconds: {why}", wait.as_secs() + 1)]
    Backoff {
        /// The backend.
        backend: String,
        /// The time until the next start.
        wait: Duration,
        /// Why the last start failed.
        why: Arc<BackendStartError>,
    },
    /// The authorization is invalid.
    #[error("backend {backend}: {source}")]
    Authorization {
        /// The backend.
        backend: String,
        /// The reason.
        source: AuthError,
    },
}

/// Starts connections to one backend, with a pause after failures.
pub(crate) struct Connector {
    spec: Arc<BackendSpec>,
    /// The result of the last negotiation, so that a later start needs none.
    negotiated: Mutex<Option<NegotiatedBackend>>,
    failure: Mutex<Option<StartFailure>>,
    /// Whether the backend asks for the roots after it was initialized, outside of any call.
    asks_for_roots: Arc<AtomicBool>,
    metrics: Arc<BackendMetrics>,
    stderr_limit: Arc<LogLimit>,
}

#[derive(Clone, Copy)]
struct NegotiatedBackend {
    dialect: Dialect,
    /// Whether asks name their call, so that concurrent calls can share a connection.
    is_multiplexed: bool,
}

struct StartFailure {
    count: u32,
    retry_at: Instant,
    error: Arc<BackendStartError>,
}

pub(crate) struct Backend {
    pub(crate) spec: Arc<BackendSpec>,
    pub(crate) connector: Arc<Connector>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) metrics: Arc<BackendMetrics>,
    /// The name in asks, if there are several backends.
    pub(crate) label: Option<String>,
}

impl Backend {
    pub(crate) fn new(
        spec: BackendSpec,
        limits: &Arc<ConnectionLimits>,
        metrics: &Arc<GatewayMetrics>,
        is_only: bool,
    ) -> Arc<Self> {
        let spec = Arc::new(spec);
        let metrics = Arc::new(metrics.backend(&spec.name));
        let connector = Arc::new(Connector {
            spec: spec.clone(),
            negotiated: Mutex::new(None),
            failure: Mutex::new(None),
            asks_for_roots: Arc::default(),
            metrics: metrics.clone(),
            stderr_limit: Arc::new(LogLimit::new(STDERR_LINES)),
        });
        Arc::new(Self {
            pool: Pool::new(spec.clone(), limits.clone(), connector.clone()),
            label: (!is_only).then(|| spec.name.clone()),
            spec,
            connector,
            metrics,
        })
    }

    /// Whether any connection can take the next round of a call: the backend speaks 2026-07-28 over HTTP.
    ///
    /// A process on pipes is a separate instance, and the request state that it issues may be valid only there. `false`
    /// before the first connection.
    pub(crate) fn has_portable_rounds(&self) -> bool {
        let negotiated = *self.connector.negotiated.lock();
        let is_modern = negotiated.is_some_and(|backend| backend.dialect == Dialect::Modern);
        is_modern && self.connector.is_shared() == Some(true)
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy)]
pub(crate) enum ConnectionPurpose {
    Calls,
    /// Listing the backend's entries. The connection serves no calls.
    Lists,
}

/// Accepts a JSON-RPC error as the response to a ping, since some servers do not know the method.
pub(crate) fn check_response(pinged: Result<(), Error>) -> Result<(), Error> {
    match pinged {
        Err(Error {
            kind: ErrorKind::Rpc(_),
            ..
        }) => Ok(()),
        pinged => pinged,
    }
}

/// Waits until the backend has asked for the roots, for a limited time.
async fn wait_for_roots_ask(asked: &AtomicBool) {
    for _ in 0..MAX_ROOTS_CHECKS {
        if asked.load(Ordering::Relaxed) {
            return;
        }
        sleep(ROOTS_CHECK_INTERVAL).await;
    }
}

/// Declares the asks that the callers of a connection can answer. The handlers here reject them.
/// Each call replaces the handlers for the kinds of asks that its caller can answer.
fn declare(mut builder: ClientBuilder, support: AskSupport) -> ClientBuilder {
    fn refuse<T>() -> Ready<Result<T, HandlerError>> {
        let why = "no client is connected that can answer this request";
        ready(Err(AskRefusal(why.to_owned()).into()))
    }
    if support.form {
        builder = builder.on_form(|_| refuse());
    }
    if support.url {
        builder = builder.on_url(|_| refuse());
    }
    if support.sampling {
        builder = builder.on_sampling(|_| refuse());
    }
    if support.sampling_tools {
        builder = builder.sampling_tools();
    }
    if support.roots {
        builder = builder.on_roots(|_| refuse());
    }
    builder
}

impl Connector {
    /// Whether one connection serves concurrent calls. `None` until a connection was made.
    pub(crate) fn is_shared(&self) -> Option<bool> {
        let negotiated = (*self.negotiated.lock())?;
        Some(negotiated.is_multiplexed && !self.spec.is_exclusive())
    }

    /// Connects for callers with this support.
    pub(crate) async fn connect(
        &self,
        support: AskSupport,
        purpose: ConnectionPurpose,
    ) -> Result<Client, Arc<BackendStartError>> {
        self.check_backoff()?;
        let begun = Instant::now();
        let limit = self.spec.start_timeout;
        let started = match timeout(limit, self.open(support, purpose)).await {
            Ok(started) => started,
            Err(_) => Err(BackendStartError::Timeout {
                backend: self.spec.name.clone(),
                limit,
            }),
        };
        self.metrics.started(started.is_ok());
        match started {
            Ok(client) => {
                *self.failure.lock() = None;
                Ok(client)
            }
            Err(error) => Err(self.record_failure(error, begun)),
        }
    }

    /// Whether the last start failed.
    pub(crate) fn is_down(&self) -> bool {
        self.failure.lock().is_some()
    }

    fn check_backoff(&self) -> Result<(), Arc<BackendStartError>> {
        let failure = self.failure.lock();
        let Some(failure) = &*failure else {
            return Ok(());
        };
        let wait = failure.retry_at.saturating_duration_since(Instant::now());
        match wait.is_zero() {
            true => Ok(()),
            false => Err(Arc::new(BackendStartError::Backoff {
                backend: self.spec.name.clone(),
                wait,
                why: failure.error.clone(),
            })),
        }
    }

    /// Sets the pause until the next start. Starts that fail at the same time count as one.
    fn record_failure(&self, error: BackendStartError, begun: Instant) -> Arc<BackendStartError> {
        let error = Arc::new(error);
        let mut failure = self.failure.lock();
        let count = match &*failure {
            Some(failure) if failure.retry_at > begun => failure.count,
            Some(failure) => failure.count + 1,
            None => 1,
        };
        let backoff = FIRST_BACKOFF.saturating_mul(1 << (count - 1).min(10));
        limited_event!(WARN, backend = self.spec.name, %error, "failed to start backend");
        *failure = Some(StartFailure {
            count,
            retry_at: Instant::now() + backoff.min(MAX_BACKOFF),
            error: error.clone(),
        });
        error
    }

    /// Connects in the remembered dialect, and negotiates if the backend no longer speaks it.
    async fn open(
        &self,
        support: AskSupport,
        purpose: ConnectionPurpose,
    ) -> Result<Client, BackendStartError> {
        let asked_for_roots = match purpose {
            // This connection serves no calls, so any ask for the roots is outside of a call.
            ConnectionPurpose::Lists => self.asks_for_roots.clone(),
            ConnectionPurpose::Calls => Arc::default(),
        };
        let failed = |source| BackendStartError::Connect {
            backend: self.spec.name.clone(),
            source: Box::new(source),
        };
        let negotiated = self.negotiated.lock().map(|backend| backend.dialect);
        let dialect = self.spec.dialect.or(negotiated);
        let mut builder = self.builder(support, &asked_for_roots)?;
        if let Some(dialect) = dialect {
            builder = builder.dialect(dialect);
        }
        let mut connected = self.connect_with(builder).await;
        if let (Err(error), Some(_), None) = (&connected, dialect, self.spec.dialect) {
            tracing::debug!(backend = self.spec.name, ?dialect, %error, "reconnecting with negotiation");
            let builder = self.builder(support, &asked_for_roots)?;
            connected = self.connect_with(builder).await;
        }
        let client = connected.map_err(failed)?;
        *self.negotiated.lock() = Some(NegotiatedBackend {
            dialect: client.dialect(),
            is_multiplexed: client.is_multiplexed(),
        });
        if self.is_shared() == Some(false) {
            // Some servers ask for the roots when they are initialized. Such an ask must not come during a call.
            check_response(client.ping().await).map_err(failed)?;
            if self.asks_for_roots.load(Ordering::Relaxed) && support.roots {
                wait_for_roots_ask(&asked_for_roots).await;
            }
        }
        Ok(client)
    }

    async fn connect_with(&self, builder: ClientBuilder) -> Result<Client, Error> {
        match &self.spec.transport {
            BackendTransport::Http { url, .. } => builder.connect(url.as_str()).await,
            BackendTransport::Process { .. } => builder.spawn(self.command()).await,
        }
    }

    fn builder(
        &self,
        support: AskSupport,
        asked_for_roots: &Arc<AtomicBool>,
    ) -> Result<ClientBuilder, BackendStartError> {
        let spec = &self.spec;
        let name = spec.name.clone();
        let stderr_limit = self.stderr_limit.clone();
        let asked_for_roots = asked_for_roots.clone();
        let metrics = self.metrics.clone();
        let mut builder = Client::builder()
            .info(Implementation {
                name: "refrain-gateway".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..Implementation::default()
            })
            .limits(ClientLimits {
                deadline: None,
                silence: spec.silence_timeout,
                rounds: u32::MAX,
                state: MAX_STATE,
                ..ClientLimits::default()
            })
            .on_wire(move |message| {
                if let WireMessage::Received { message, .. } = message
                    && message.contains(ROOTS_LIST)
                {
                    asked_for_roots.store(true, Ordering::Relaxed);
                }
            })
            .on_request(move |request| metrics.requested(request))
            .on_stderr(move |line| {
                if let Some(suppressed) = stderr_limit.admit() {
                    let suppressed = (suppressed > 0).then_some(suppressed);
                    tracing::info!(backend = name, suppressed, line, "backend stderr");
                }
            });
        builder = declare(builder, support);
        if spec.is_exclusive() {
            builder = builder.allow_unassociated_asks();
        }
        if spec.sessions == Sessions::None {
            // A connection without state is closed after an abandoned call, so its asks need no answer.
            builder = builder.leave_dropped_asks();
        }
        if support.roots {
            let roots = spec.roots.iter().map(|uri| Root::new(uri.as_str()));
            builder = builder.connection_roots(roots.collect());
        }
        self.add_authorization(builder)
    }

    /// Adds the headers and the OAuth credentials of a backend over HTTP.
    fn add_authorization(
        &self,
        mut builder: ClientBuilder,
    ) -> Result<ClientBuilder, BackendStartError> {
        let BackendTransport::Http { headers, oauth, .. } = &self.spec.transport else {
            return Ok(builder);
        };
        for (name, value) in headers {
            builder = builder.header(name, value);
        }
        let Some(credentials) = oauth else {
            return Ok(builder);
        };
        let client = RegisteredClient::new(&credentials.client_id)
            .secret(&credentials.secret)
            .issuer(credentials.issuer.as_str());
        let oauth = OAuth::by_credentials(client)
            .scopes(&credentials.scopes)
            .build();
        let oauth = oauth.map_err(|source| BackendStartError::Authorization {
            backend: self.spec.name.clone(),
            source,
        })?;
        Ok(builder.authorize(oauth))
    }

    /// The command of a backend process, with only the variables that it may have.
    fn command(&self) -> Command {
        let BackendTransport::Process {
            program,
            arguments,
            directory,
            inherit_env,
            env,
        } = &self.spec.transport
        else {
            unreachable!("only a backend with a command is started");
        };
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(directory) = directory {
            command.current_dir(directory);
        }
        if *inherit_env {
            for secret in SECRET_VARIABLES {
                command.env_remove(secret);
            }
        } else {
            command.env_clear();
            for name in BASE_VARIABLES {
                if let Some(value) = std::env::var_os(name) {
                    command.env(name, value);
                }
            }
        }
        command.envs(env.iter().map(|(name, value)| (name, value)));
        #[cfg(unix)]
        command.process_group(0);
        command
    }
}
