//! Tools.

use super::Rules;
use super::builder_macros::impl_entry;
use super::entry::{CatalogEntry, Pin};
use super::listed::Listed;
use crate::builder::BuildError;
use crate::handler::Handler;
use crate::reply::ToolCall;
use refrain_wire::client::AsSent;
use refrain_wire::{TaskSupport, ToolAnnotations, ToolInfo};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A tool: a name, a description and a handler.
///
/// ```
/// use refrain::server::Tool;
/// use refrain::{Cx, Result};
///
/// async fn ping(_: Cx) -> Result<&'static str> {
///     Ok("pong")
/// }
/// let tool = Tool::new("ping", ping).describe("Replies with pong.");
/// assert_eq!(tool.info().name, "ping");
/// ```
pub struct Tool {
    pub(crate) info: Listed<ToolInfo>,
    pub(crate) version: Arc<str>,
    pub(crate) once: bool,
    pub(crate) single_use: bool,
    pub(crate) task: TaskPolicy,
    pub(crate) live: bool,
    pub(crate) round_time: Option<Duration>,
    pub(super) checks: SchemaChecks,
    pub(crate) entry: CatalogEntry,
}

/// Whether arguments and results are checked against the schemas of the tool. [`Tool::listing`] switches both checks off.
#[derive(Clone, Copy)]
pub(super) struct SchemaChecks {
    pub(super) input: bool,
    pub(super) output: bool,
}

impl Tool {
    /// Creates a tool. The schema of its arguments is derived from the handler's argument struct.
    pub fn new<M, H: Handler<M, ToolCall>>(name: impl Into<String>, handler: H) -> Self {
        let no_arguments =
            || json!({"type": "object", "properties": {}, "additionalProperties": false});
        Self {
            info: ToolInfo {
                name: name.into(),
                input_schema: H::schema().unwrap_or_else(no_arguments),
                output_schema: H::output_schema(),
                ..ToolInfo::default()
            }
            .into(),
            version: "1".into(),
            once: false,
            single_use: false,
            task: TaskPolicy::default(),
            live: false,
            round_time: None,
            checks: SchemaChecks {
                input: true,
                output: true,
            },
            entry: CatalogEntry::new(handler),
        }
    }

    /// The tool's entry in `tools/list`.
    pub fn info(&self) -> &ToolInfo {
        &self.info
    }

    /// Sets the entry in `tools/list` to `entry`, which another server sent. A proxy uses this for its tools. All members
    /// are kept, also those that Refrain does not know, except the name. Methods that set single members change the entry
    /// if they are called afterwards.
    ///
    /// The schemas of the other server are listed but not applied: the other server checks arguments itself, and its results
    /// are not checked. [`input_schema`](Self::input_schema) and [`output_schema`](Self::output_schema) set schemas that are
    /// applied. Headers for arguments (`x-mcp-header`) are checked, because clients send them to this server. The other
    /// server's `execution.taskSupport` is left out, because this server decides about tasks.
    ///
    /// ```
    /// use refrain::prelude::*;
    /// use refrain::runtime::wire::ToolInfo;
    /// use refrain::runtime::wire::client::AsSent;
    /// use refrain::server::RawResult;
    /// use serde_json::{Map, Value};
    ///
    /// async fn proxy(_: Cx, arguments: Map<String, Value>) -> Result<RawResult> {
    ///     // Call the other server with the arguments, and return its result.
    /// #   drop(arguments);
    ///     Ok(RawResult(Map::new()))
    /// }
    ///
    /// let sent = r#"{"name": "add", "inputSchema": {"type": "object"}, "x-cost": 3}"#;
    /// let entry: AsSent<ToolInfo> = AsSent::read(serde_json::from_str(sent)?)?;
    /// let tool = Tool::new("math.add", proxy).listing(&entry);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listing(mut self, entry: &AsSent<ToolInfo>) -> Self {
        let name = self.info.name.clone();
        self.info = Listed::as_sent(entry, &["name"], |info| info.name = name);
        self.info.change_foreign("execution", |execution| {
            execution.shift_remove("taskSupport");
        });
        self.checks = SchemaChecks {
            input: false,
            output: false,
        };
        self
    }

    /// Sets the version of the tool. Tokens and the journals of tasks record it, but the server does not compare it.
    /// Default "1".
    pub fn version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = version.into();
        self
    }

    /// Replaces the schema of the argument struct.
    pub fn input_schema(mut self, schema: Value) -> Self {
        self.info
            .set("inputSchema", |info| info.input_schema = schema);
        self.checks.input = true;
        self
    }

    /// Replaces the output schema of the handler's `Json<T>`. A call whose result does not match the schema fails, and the
    /// reason is logged.
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.info
            .set("outputSchema", |info| info.output_schema = Some(schema));
        self.checks.output = true;
        self
    }

    /// Sets hints about the effects of the tool.
    pub fn annotations(mut self, annotations: ToolAnnotations) -> Self {
        let annotations = Some(annotations);
        self.info
            .set("annotations", |info| info.annotations = annotations);
        self
    }

    /// Allows the handler to use `cx.once(..)`. The server must have a replay log.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Makes the tokens of this tool single-use: a repeated request gets the recorded reply. The server must have a replay
    /// log.
    pub fn single_use(mut self) -> Self {
        self.single_use = true;
        self
    }

    /// Keeps the handler in memory between rounds, so that it can be plain async code without steps. A call then depends on
    /// the instance where it started; see [`advertise`](crate::ServerBuilder::advertise).
    ///
    /// A call that becomes a task stays in the memory of its instance too, and runs at most once: if the instance is lost or
    /// shuts down before the handler ends, the task fails with "outcome unknown".
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Sets how long one round of this tool may take, instead of [`ServerLimits::round_time`](crate::ServerLimits::round_time).
    pub fn round_time(mut self, time: Duration) -> Self {
        self.round_time = Some(time);
        self
    }

    /// Runs a call on the instance that made the handle in this argument; see
    /// [`Server::seal_handle`](crate::Server::seal_handle). Other instances relay the request to it. If that instance is gone,
    /// the call fails with an error that says that the state is lost. A call without the argument runs where it arrives.
    pub fn pin_by_handle(mut self, argument: impl Into<String>) -> Self {
        self.entry.pin = Some(Pin::Handle(argument.into()));
        self
    }

    /// Turns every call of this tool into a task, if the client supports tasks and the server has a task store.
    pub fn task(mut self) -> Self {
        self.task.always = true;
        self
    }

    /// Like [`task`](Self::task), but a client that does not support tasks gets error -32021. The server must have a task
    /// store.
    pub fn task_required(mut self) -> Self {
        self.task.always = true;
        self.task.required = true;
        self
    }

    /// Turns a call of this tool into a task when a round has run for this time. Applies only if the client supports
    /// tasks and the server has a task store.
    pub fn task_after(mut self, time: Duration) -> Self {
        self.task.after = Some(time);
        self
    }

    /// Declares that the handler may call `cx.detach()`. In a live tool, and for clients of drafts, `cx.detach()` has no effect
    /// without this declaration.
    pub fn detaches(mut self) -> Self {
        self.task.detaches = true;
        self
    }

    /// Sets the maximum lifetime of a task of this tool, instead of [`TaskOptions::ttl`](crate::TaskOptions::ttl).
    pub fn task_ttl(mut self, ttl: Duration) -> Self {
        self.task.ttl = Some(ttl);
        self
    }

    /// Sets how often clients should poll a task of this tool, instead of
    /// [`TaskOptions::poll_interval`](crate::TaskOptions::poll_interval).
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.task.poll_interval = Some(interval);
        self
    }

    pub(super) fn check(&self, rules: &Rules) -> Result<(), BuildError> {
        let tool = self.info.name.clone();
        if self.task.required && !rules.has_task_store {
            return Err(BuildError::NeedsTaskStore { tool });
        }
        if (self.once || self.single_use) && !rules.has_replay_log {
            return Err(BuildError::NeedsReplayLog { tool });
        }
        Ok(())
    }
}

/// When a call of a tool becomes a task, and the options of that task.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskPolicy {
    pub(crate) always: bool,
    pub(crate) required: bool,
    pub(crate) after: Option<Duration>,
    pub(crate) detaches: bool,
    pub(crate) ttl: Option<Duration>,
    pub(crate) poll_interval: Option<Duration>,
}

impl TaskPolicy {
    /// The declared support for tasks.
    pub(crate) fn support(self) -> Option<TaskSupport> {
        if self.required {
            return Some(TaskSupport::Required);
        }
        let is_optional = self.always || self.after.is_some() || self.detaches;
        is_optional.then_some(TaskSupport::Optional)
    }
}

impl_entry!(Tool, name, "call it", version);
