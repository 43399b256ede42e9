//! [`Client`]: the connection to one server, and its shared state.

use crate::ask::without_arguments;
use crate::builder::ClientBuilder;
use crate::cache::ResultCache;
use crate::legacy::Legacy;
use crate::output_schema::OutputSchema;
use crate::transport::Link;
use parking_lot::Mutex;
use refrain_wire::client::ServerInfo;
use refrain_wire::{ParamHeaderError, ParamHeaders, ToolInfo};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A client of one server; see the [crate documentation](crate) for an example. Clones share the connection.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<ClientInner>,
}

pub(crate) struct ClientInner {
    pub(crate) link: Link,
    pub(crate) setup: ClientBuilder,
    pub(crate) server: ServerInfo,
    pub(crate) legacy: Option<Legacy>,
    pub(crate) ids: RequestIds,
    /// How often the server process was restarted. Locked during a restart.
    pub(crate) restarts: tokio::sync::Mutex<u64>,
    /// The listed tools by name. A tool with an invalid definition must not be called.
    pub(crate) tools: Mutex<HashMap<String, ToolDefinition>>,
    pub(crate) cache: Mutex<ResultCache>,
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
        &self.inner.server
    }

    /// The server's URL, or the command that was started.
    pub fn address(&self) -> &str {
        self.inner.link.address()
    }

    /// Closes the connection, and waits until the server process has exited or the legacy session is closed.
    ///
    /// Does nothing while other clones exist. Dropping the last clone closes the connection without waiting: if the
    /// program exits right afterwards, the process is killed.
    pub async fn close(self) {
        if let Some(inner) = Arc::into_inner(self.inner) {
            if let Some(legacy) = inner.legacy {
                legacy.close().await;
            }
            inner.link.close().await;
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &without_arguments(self.address()))
            .field("server", &self.inner.server)
            .finish_non_exhaustive()
    }
}

impl ClientInner {
    pub(crate) fn new(link: Link, setup: ClientBuilder, ids: RequestIds) -> Self {
        Self {
            link,
            setup,
            server: ServerInfo::default(),
            legacy: None,
            ids,
            restarts: tokio::sync::Mutex::new(0),
            tools: Mutex::default(),
            cache: Mutex::default(),
        }
    }

    pub(crate) fn tool(&self, name: &str) -> Option<ToolDefinition> {
        self.tools.lock().get(name).cloned()
    }
}
