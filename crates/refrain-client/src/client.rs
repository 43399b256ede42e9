//! The client of one server.

use crate::ask::without_arguments;
use crate::builder::ClientBuilder;
use crate::cache::Cache;
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
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) link: Link,
    pub(crate) setup: ClientBuilder,
    pub(crate) server: ServerInfo,
    pub(crate) legacy: Option<Legacy>,
    pub(crate) ids: Ids,
    /// How often the server's process was restarted; locked meanwhile.
    pub(crate) starts: tokio::sync::Mutex<u64>,
    /// The listed tools. A tool with an error must not be used.
    tools: Mutex<HashMap<String, Result<Arc<KnownTool>, ParamHeaderError>>>,
    pub(crate) cache: Mutex<Cache>,
}

pub(crate) struct KnownTool {
    /// The arguments that are repeated in headers.
    pub(crate) headers: ParamHeaders,
    pub(crate) output_schema: Option<OutputSchema>,
}

#[derive(Clone, Default)]
pub(crate) struct Ids(Arc<AtomicU64>);

impl Ids {
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Client {
    /// Sets up a client.
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

    /// Ends the connection, and waits until a process has ended and a legacy session is closed.
    ///
    /// Dropping the last clone ends the connection too, but without waiting: if the program ends right after it, the
    /// process is killed. While there are other clones, this does nothing.
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

impl Inner {
    pub(crate) fn new(link: Link, setup: ClientBuilder, ids: Ids) -> Self {
        Self {
            link,
            setup,
            server: ServerInfo::default(),
            legacy: None,
            ids,
            starts: tokio::sync::Mutex::new(0),
            tools: Mutex::default(),
            cache: Mutex::default(),
        }
    }

    /// Stores the headers and the output schema of a listed tool. Returns an error if it must not be used.
    pub(crate) fn remember_tool(&self, tool: &ToolInfo) -> Result<(), ParamHeaderError> {
        let known = ParamHeaders::read(&tool.input_schema).map(|headers| {
            let output_schema = tool.output_schema.clone().map(OutputSchema::new);
            Arc::new(KnownTool {
                headers,
                output_schema,
            })
        });
        let verdict = known.as_ref().map(|_| ()).map_err(Clone::clone);
        self.tools.lock().insert(tool.name.clone(), known);
        verdict
    }

    pub(crate) fn tool(&self, name: &str) -> Option<Result<Arc<KnownTool>, ParamHeaderError>> {
        self.tools.lock().get(name).cloned()
    }
}
