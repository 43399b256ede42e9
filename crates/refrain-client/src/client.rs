//! The client of one server.

use crate::builder::ClientBuilder;
use crate::cache::Cache;
use crate::older::Older;
use crate::promise::Promise;
use crate::transport::Link;
use parking_lot::Mutex;
use refrain_wire::client::ServerInfo;
use refrain_wire::{ParamHeaderError, ParamHeaders, ToolInfo};
use std::collections::HashMap;
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
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) link: Link,
    pub(crate) setup: ClientBuilder,
    pub(crate) server: ServerInfo,
    /// What was agreed with a legacy server.
    pub(crate) older: Option<Older>,
    pub(crate) ids: Ids,
    /// How often the server's process was started again; locked while it is.
    pub(crate) starts: tokio::sync::Mutex<u64>,
    /// The tools that were listed, or why a tool must not be used.
    tools: Mutex<HashMap<String, Result<Arc<KnownTool>, ParamHeaderError>>>,
    pub(crate) cache: Mutex<Cache>,
}

/// A tool that was listed.
#[derive(Debug)]
pub(crate) struct KnownTool {
    /// The arguments that are repeated in headers.
    pub(crate) headers: ParamHeaders,
    /// Its output schema.
    pub(crate) promise: Option<Promise>,
}

/// The ids of requests.
#[derive(Debug, Clone, Default)]
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

    /// What the server says of itself.
    pub fn server(&self) -> &ServerInfo {
        &self.inner.server
    }

    /// Where the server is: its URL, or the command that was started.
    pub fn address(&self) -> &str {
        self.inner.link.address()
    }

    /// Ends the connection, and waits for that: a process that was started has ended after it, and a legacy server
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
    pub(crate) fn new(link: Link, setup: ClientBuilder, ids: Ids) -> Self {
        Self {
            link,
            setup,
            server: ServerInfo::default(),
            older: None,
            ids,
            starts: tokio::sync::Mutex::new(0),
            tools: Mutex::default(),
            cache: Mutex::default(),
        }
    }

    /// Remembers the headers and the output schema of a listed tool. An error if it must not be used.
    pub(crate) fn remember_tool(&self, tool: &ToolInfo) -> Result<(), ParamHeaderError> {
        let known = ParamHeaders::read(&tool.input_schema).map(|headers| {
            Arc::new(KnownTool {
                headers,
                promise: tool.output_schema.clone().map(Promise::new),
            })
        });
        let verdict = known.as_ref().map(|_| ()).map_err(Clone::clone);
        self.tools.lock().insert(tool.name.clone(), known);
        verdict
    }

    /// What is known of a tool, if it was listed.
    pub(crate) fn known_tool(
        &self,
        name: &str,
    ) -> Option<Result<Arc<KnownTool>, ParamHeaderError>> {
        self.tools.lock().get(name).cloned()
    }
}
