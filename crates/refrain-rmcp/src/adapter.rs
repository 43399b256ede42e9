//! [`Adapter`]: an rmcp handler as a Refrain server.

use crate::handler::RmcpHandler;
use refrain::server::{Icon, Server, ServerBuilder, Tool};
use rmcp::ServerHandler;
use rmcp::service::ServiceExt;
use std::sync::Arc;

/// An rmcp handler to be served by Refrain, with settings for its tools.
///
/// ```
/// use refrain_rmcp::Adapter;
/// use rmcp::ServerHandler;
/// use std::time::Duration;
///
/// struct Shop;
/// // With `#[tool_handler]`, and tools in an impl with `#[tool_router]`.
/// impl ServerHandler for Shop {}
///
/// let server = Adapter::new(Shop)
///     .replay(["order", "cancel_order"])
///     .each_tool(|tool| match tool.info().name.as_str() {
///         "refund" => tool.scopes(["shop:admin"]),
///         "import" => tool.task_after(Duration::from_secs(5)),
///         _ => tool,
///     })
///     .into_builder()
///     .build()?;
/// # Ok::<(), refrain::server::BuildError>(())
/// ```
pub struct Adapter(RmcpHandler);

impl Adapter {
    /// Adapts a handler. One handler serves the calls of all clients.
    pub fn new(handler: impl ServerHandler) -> Self {
        Self(RmcpHandler::new(handler.into_dyn()))
    }

    /// Sets the home of these tools to `replay`: at a request to the client the tool's future is dropped, and the next
    /// round runs the tool from the top on any instance, with the answers so far. Without this, the future waits in the
    /// memory of its instance (home `live`).
    ///
    /// The code of such a tool runs again in each round, so wrap effects in a [`step`](crate::step()).
    ///
    /// ```
    /// # struct Shop;
    /// # impl rmcp::ServerHandler for Shop {}
    /// let adapter = refrain_rmcp::Adapter::new(Shop).replay(["order"]);
    /// ```
    pub fn replay<S: Into<String>>(mut self, tools: impl IntoIterator<Item = S>) -> Self {
        self.0.replay.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Changes the registration of each tool: its scopes, when it becomes a task, its time limit. Applies also to tools that
    /// the handler adds later.
    ///
    /// ```
    /// # struct Shop;
    /// # impl rmcp::ServerHandler for Shop {}
    /// use std::time::Duration;
    ///
    /// let adapter = refrain_rmcp::Adapter::new(Shop);
    /// let adapter = adapter.each_tool(|tool| tool.round_time(Duration::from_secs(600)));
    /// ```
    pub fn each_tool(mut self, configure: impl Fn(Tool) -> Tool + Send + Sync + 'static) -> Self {
        self.0.configure.push(Box::new(configure));
        self
    }

    /// Reads the lists of the handler, and returns a builder for the server. Its name, version,
    /// description and instructions are those of [`ServerHandler::get_info`]. Entries can be added
    /// to the builder, for example Refrain's own tools.
    ///
    /// The lists are read in a separate tokio runtime. A list that fails is logged and empty.
    ///
    /// ```
    /// # struct Shop;
    /// # impl rmcp::ServerHandler for Shop {}
    /// use refrain::prelude::*;
    ///
    /// /// Returns the opening hours.
    /// #[tool]
    /// async fn hours(_: Cx) -> Result<&'static str> {
    ///     Ok("9 to 5")
    /// }
    ///
    /// let server = refrain_rmcp::Adapter::new(Shop).into_builder().tool(hours()).build()?;
    /// # Ok::<(), refrain::server::BuildError>(())
    /// ```
    pub fn into_builder(self) -> ServerBuilder {
        let handler = Arc::new(self.0);
        let entries = block_on(handler.list_all());
        let info = handler.service.get_info();
        let server = info.server_info;
        let mut builder = Server::builder(server.name, server.version);
        if let Some(title) = server.title {
            builder = builder.title(title);
        }
        if let Some(description) = server.description {
            builder = builder.describe(description);
        }
        if let Some(url) = server.website_url {
            builder = builder.website(url);
        }
        for icon in server.icons.iter().flatten() {
            if let Ok(icon) = crate::asks::convert::<_, Icon>(icon) {
                builder = builder.icon(icon);
            }
        }
        if let Some(instructions) = info.instructions {
            builder = builder.instructions(instructions);
        }
        builder.register(entries)
    }
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter")
            .field("replay", &self.0.replay)
            .finish_non_exhaustive()
    }
}

/// Runs a future on its own thread, so that the caller may be inside a runtime or not.
pub(crate) fn block_on<F: Future<Output: Send> + Send>(future: F) -> F::Output {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a tokio runtime starts")
                .block_on(future)
        });
        match thread.join() {
            Ok(output) => output,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
