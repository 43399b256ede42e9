//! [`Client`]: the connection to one server, and the settings of one user of it.

use crate::ask::without_arguments;
use crate::builder::ClientBuilder;
use crate::cache::ResultCache;
use crate::error::{Error, ErrorKind};
use crate::legacy::{Legacy, PING};
use crate::output_schema::OutputSchema;
use crate::transport::{Link, PipeLink};
use parking_lot::Mutex;
use refrain_wire::client::{Request, ServerInfo};
use refrain_wire::{Capabilities, Implementation, ParamHeaderError, ParamHeaders, Root, ToolInfo};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

/// A client of one server; see the [crate documentation](crate) for an example. Clones and [scoped](Self::scoped) clients
/// share the connection.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<ClientInner>,
}

pub(crate) struct ClientInner {
    pub(crate) connection: Arc<Connection>,
    pub(crate) setup: ClientBuilder,
    /// The number of this scoped client, unique within the connection.
    pub(crate) scope: u64,
}

/// The state that all scoped clients share.
pub(crate) struct Connection {
    pub(crate) link: Link,
    /// The name and capabilities of the client that connected, for `initialize`.
    pub(crate) identity: (Implementation, Capabilities),
    pub(crate) roots: Option<Arc<[Root]>>,
    negotiated: OnceLock<Negotiated>,
    pub(crate) ids: RequestIds,
    /// The number of scoped clients created so far.
    scopes: AtomicU64,
    /// How often the server process was restarted. Locked during a restart.
    pub(crate) restarts: tokio::sync::Mutex<u64>,
    /// The listed tools by name. A tool with an invalid definition must not be called.
    pub(crate) tools: Mutex<HashMap<String, ToolDefinition>>,
    pub(crate) cache: Mutex<ResultCache>,
}

struct Negotiated {
    server: ServerInfo,
    legacy: Option<Legacy>,
}

pub(crate) struct ListedTool {
    pub(crate) headers: ParamHeaders,
    pub(crate) output_schema: Option<OutputSchema>,
}

type ToolDefinition = Result<Arc<ListedTool>, ParamHeaderError>;

impl ListedTool {
    pub(crate) fn read(tool: &ToolInfo) -> ToolDefinition {
        Ok(Arc::new(Self {
            headers: ParamHeaders::read(&tool.input_schema)?,
            output_schema: tool.output_schema.clone().map(OutputSchema::new),
        }))
    }
}

#[derive(Clone, Default)]
pub(crate) struct RequestIds(Arc<AtomicU64>);

impl RequestIds {
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Client {
    /// A builder with default settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The server's name, version and capabilities.
    pub fn server(&self) -> &ServerInfo {
        self.inner.connection.server()
    }

    /// The server's URL, or the command that was started.
    pub fn address(&self) -> &str {
        self.inner.connection.link.address()
    }

    /// Checks that the server responds: sends `ping` to a legacy server, and `server/discover` to any other.
    pub async fn ping(&self) -> Result<(), Error> {
        Ok(self.inner.ping().await?)
    }

    /// A client on the same connection with different handlers and limits, for example for one user of a gateway.
    ///
    /// `configure` receives a builder with the settings of this client. Calls through the new client answer asks and
    /// report progress and log messages with the handlers of the new client only.
    ///
    /// ```no_run
    /// # async fn run(client: refrain_client::Client) -> Result<(), refrain_client::Error> {
    /// let of_ada = client.scoped(|ada| ada.on_progress(|step| println!("Ada: {step:?}")));
    /// let of_bob = client.scoped(|bob| bob.on_progress(|step| println!("Bob: {step:?}")));
    /// let arguments = serde_json::json!({});
    /// let (ada, bob) = tokio::join!(
    ///     of_ada.call_tool("build", arguments.clone()),
    ///     of_bob.call_tool("build", arguments),
    /// );
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// - Each request of 2026-07-28 declares the capabilities of its scoped client. A legacy server knows only those of
    ///   the client that connected, so that client must have handlers for all kinds of asks; the same applies to the log
    ///   level.
    /// - A legacy server process does not name the call of an ask or a log message. While calls of several scoped clients
    ///   are in flight, its asks are rejected, and its log messages go to the client that connected. After a cancelled
    ///   call, a late ask cannot be distinguished from an ask of the next call.
    /// - Settings of the connection cannot be changed: the dialect, the authorization and headers, `connection_roots`,
    ///   `on_wire`, `on_stderr`, and the limits `message`, `values` and `response`.
    pub fn scoped(&self, configure: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        let connection = Arc::clone(&self.inner.connection);
        let mut setup = configure(self.inner.setup.clone());
        setup.dialect = self.inner.setup.dialect;
        setup.notifications.changes = Arc::clone(&self.inner.setup.notifications.changes);
        let scope = connection.scopes.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            inner: Arc::new(ClientInner {
                connection,
                setup,
                scope,
            }),
        }
    }

    /// Returns whether the server process has exited, or the event stream of an HTTP+SSE server was lost. The server's state
    /// is then lost. The next request starts the process, or opens the stream, again.
    ///
    /// ```
    /// # use refrain_client::Client;
    /// fn is_usable(client: &Client) -> bool {
    ///     !client.has_exited()
    /// }
    /// ```
    pub fn has_exited(&self) -> bool {
        let link = self.inner.connection.link.pipe();
        link.is_some_and(PipeLink::has_exited)
    }

    /// Returns whether each message of the server belongs to a known call. Over Streamable HTTP, it arrives on the response
    /// stream of its call. Over pipes and HTTP+SSE, all calls share one stream, so a legacy server should not ask during
    /// several concurrent calls.
    ///
    /// ```
    /// # use refrain_client::Client;
    /// fn concurrent_calls(client: &Client) -> usize {
    ///     if client.is_multiplexed() { 100 } else { 1 }
    /// }
    /// ```
    pub fn is_multiplexed(&self) -> bool {
        self.inner.connection.link.pipe().is_none()
    }

    /// Closes the connection, and waits until the server process has exited or the legacy session is closed.
    ///
    /// Does nothing while clones or scoped clients exist. Dropping the last of them closes the connection without
    /// waiting: if the program exits right afterwards, the process is killed.
    pub async fn close(self) {
        let inner = Arc::into_inner(self.inner);
        let Some(connection) = inner.and_then(|inner| Arc::into_inner(inner.connection)) else {
            return;
        };
        let negotiated = connection.negotiated.into_inner();
        if let Some(legacy) = negotiated.and_then(|negotiated| negotiated.legacy) {
            legacy.close().await;
        }
        connection.link.close().await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &without_arguments(self.address()))
            .field("server", self.server())
            .finish_non_exhaustive()
    }
}

impl ClientInner {
    pub(crate) fn new(link: Link, setup: ClientBuilder, ids: RequestIds) -> Self {
        let connection = Connection {
            link,
            identity: (setup.info.clone(), setup.capabilities(true)),
            roots: setup.connection_roots.clone(),
            negotiated: OnceLock::new(),
            ids,
            scopes: AtomicU64::new(0),
            restarts: tokio::sync::Mutex::new(0),
            tools: Mutex::default(),
            cache: Mutex::default(),
        };
        Self {
            connection: Arc::new(connection),
            setup,
            scope: 0,
        }
    }

    pub(crate) async fn ping(&self) -> Result<(), ErrorKind> {
        let request = match self.connection.legacy() {
            Some(_) => Request::new(PING, []),
            None => Request::discover(),
        };
        self.request(request).await.map(|_| ())
    }
}

impl Connection {
    /// Records the result of the negotiation. Later results are ignored.
    pub(crate) fn set_negotiated(&self, server: ServerInfo, legacy: Option<Legacy>) {
        self.negotiated
            .get_or_init(|| Negotiated { server, legacy });
    }

    /// The server's name, version and capabilities. Empty during the negotiation.
    pub(crate) fn server(&self) -> &ServerInfo {
        static UNKNOWN: LazyLock<ServerInfo> = LazyLock::new(ServerInfo::default);
        let negotiated = self.negotiated.get();
        negotiated.map_or(&UNKNOWN, |negotiated| &negotiated.server)
    }

    /// The legacy session. `None` during the negotiation.
    pub(crate) fn legacy(&self) -> Option<&Legacy> {
        self.negotiated.get()?.legacy.as_ref()
    }

    pub(crate) fn tool(&self, name: &str) -> Option<ToolDefinition> {
        self.tools.lock().get(name).cloned()
    }
}
