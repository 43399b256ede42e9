//! Tools.

use super::builder_macros::{scoped, shown};
use crate::handler::{Handler, Needs, Start, erase};
use crate::metrics::TargetCounts;
use crate::reply::ToolCall;
use refrain_wire::{TaskSupport, ToolAnnotations, ToolInfo};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A tool: a name, a description and a handler.
///
/// ```
/// use refrain_server::Tool;
/// use refrain_core::{Cx, Result};
///
/// async fn ping(_: Cx) -> Result<&'static str> {
///     Ok("pong")
/// }
/// let tool = Tool::new("ping", ping).describe("Answers pong.");
/// assert_eq!(tool.info().name, "ping");
/// ```
pub struct Tool {
    pub(crate) info: ToolInfo,
    pub(crate) version: Arc<str>,
    pub(crate) once: bool,
    pub(crate) single_use: bool,
    pub(crate) task: AsTask,
    pub(crate) live: bool,
    pub(crate) scopes: Vec<String>,
    pub(crate) needs: Vec<Needs>,
    pub(crate) start: Start,
    /// Handed out when it is registered.
    pub(crate) counts: OnceLock<Arc<TargetCounts>>,
}

impl Tool {
    /// A tool of this name. The schema of its arguments comes from the handler's argument struct.
    pub fn new<M, H: Handler<M, ToolCall>>(name: impl Into<String>, handler: H) -> Self {
        let none = || json!({"type": "object", "properties": {}, "additionalProperties": false});
        Self {
            info: ToolInfo {
                name: name.into(),
                input_schema: H::schema().unwrap_or_else(none),
                output_schema: H::output_schema(),
                ..ToolInfo::default()
            },
            version: "1".into(),
            once: false,
            single_use: false,
            task: AsTask::default(),
            live: false,
            scopes: Vec::new(),
            needs: H::needs(),
            start: erase(handler),
            counts: OnceLock::new(),
        }
    }

    /// The tool as it is listed.
    pub fn info(&self) -> &ToolInfo {
        &self.info
    }

    /// The version of the tool, as it is noted in tokens. Default "1".
    pub fn version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = version.into();
        self
    }

    /// Another schema than that of the argument struct, for what types cannot say.
    pub fn input_schema(mut self, schema: Value) -> Self {
        self.info.input_schema = schema;
        self
    }

    /// Another output schema than that of the handler's `Json<T>`. A result that does not fit it is not sent: the call
    /// fails, and the log says why.
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.info.output_schema = Some(schema);
        self
    }

    /// Hints about what the tool does to the world.
    pub fn annotations(mut self, annotations: ToolAnnotations) -> Self {
        self.info.annotations = Some(annotations);
        self
    }

    /// The handler uses `cx.once(..)`: the server must have a replay log.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// A token of this tool may be used once; a repeated request gets the recorded reply. The server must have a
    /// replay log.
    pub fn single_use(mut self) -> Self {
        self.single_use = true;
        self
    }

    /// The handler of this tool is kept in memory while its client is asked, and goes on where it was: plain async code, whose
    /// work need not be wrapped in steps. The price is that a call depends on the instance where it began; see
    /// [`advertise`](crate::ServerBuilder::advertise). A tool that is live cannot become a task.
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// A call of this tool becomes a task at once, where the client knows tasks and the server has a task store; elsewhere
    /// it runs like any other.
    pub fn task(mut self) -> Self {
        self.task.at_once = true;
        self
    }

    /// The same, and a client that does not know tasks is refused: error -32021. The server must have a task store.
    pub fn task_required(mut self) -> Self {
        self.task.at_once = true;
        self.task.required = true;
        self
    }

    /// A call of this tool becomes a task when a round of it has run for so long, where the client knows tasks and the
    /// server has a task store. The handler notices nothing.
    pub fn task_after(mut self, time: Duration) -> Self {
        self.task.after = Some(time);
        self
    }

    /// Declares that the handler may call `cx.detach()`. It may do so without this, but clients that learn from the list of
    /// tools which calls may become tasks are not told.
    pub fn detaches(mut self) -> Self {
        self.task.detaches = true;
        self
    }

    /// How long a task of this tool may live; otherwise as the server's [`TaskOptions`](crate::TaskOptions) say.
    pub fn task_ttl(mut self, ttl: Duration) -> Self {
        self.task.ttl = Some(ttl);
        self
    }

    /// How often clients should look after a task of this tool; otherwise as the server's
    /// [`TaskOptions`](crate::TaskOptions) say.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.task.poll_interval = Some(interval);
        self
    }
}

/// When a call of a tool becomes a task by itself, and what becomes of it then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AsTask {
    pub(crate) at_once: bool,
    pub(crate) required: bool,
    pub(crate) after: Option<Duration>,
    /// Does its handler say when?
    pub(crate) detaches: bool,
    pub(crate) ttl: Option<Duration>,
    pub(crate) poll_interval: Option<Duration>,
}

impl AsTask {
    /// What is known of whether a call may become a task.
    pub(crate) fn support(self) -> Option<TaskSupport> {
        if self.required {
            return Some(TaskSupport::Required);
        }
        let may = self.at_once || self.after.is_some() || self.detaches;
        may.then_some(TaskSupport::Optional)
    }
}

shown!(Tool);
scoped!(Tool, "call it");

impl std::fmt::Debug for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tool")
            .field("name", &self.info.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
