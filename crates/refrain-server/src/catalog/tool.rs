//! Tools.

use super::Rules;
use super::builder_macros::entry;
use super::entry::CatalogEntry;
use crate::builder::BuildError;
use crate::handler::Handler;
use crate::reply::ToolCall;
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
    pub(crate) info: ToolInfo,
    pub(crate) version: Arc<str>,
    pub(crate) once: bool,
    pub(crate) single_use: bool,
    pub(crate) task: TaskPolicy,
    pub(crate) live: bool,
    pub(crate) entry: CatalogEntry,
}

impl Tool {
    /// Creates a tool. The schema of its arguments is derived from the handler's argument struct.
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
            task: TaskPolicy::default(),
            live: false,
            entry: CatalogEntry::new(handler),
        }
    }

    /// The tool's entry in `tools/list`.
    pub fn info(&self) -> &ToolInfo {
        &self.info
    }

    /// Sets the version of the tool, which tokens contain. Default "1".
    pub fn version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = version.into();
        self
    }

    /// Replaces the schema of the argument struct.
    pub fn input_schema(mut self, schema: Value) -> Self {
        self.info.input_schema = schema;
        self
    }

    /// Replaces the output schema of the handler's `Json<T>`. A call whose result does not match the schema fails, and the
    /// reason is logged.
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.info.output_schema = Some(schema);
        self
    }

    /// Sets hints about the effects of the tool.
    pub fn annotations(mut self, annotations: ToolAnnotations) -> Self {
        self.info.annotations = Some(annotations);
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
    /// the instance where it started; see [`advertise`](crate::ServerBuilder::advertise). A live tool cannot become a task.
    pub fn live(mut self) -> Self {
        self.live = true;
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

    /// Turns a call of this tool into a task when a round has run for this time, if the client supports tasks and the server
    /// has a task store.
    pub fn task_after(mut self, time: Duration) -> Self {
        self.task.after = Some(time);
        self
    }

    /// Declares in `tools/list` that the handler may call `cx.detach()`. The call works without this declaration too.
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
        if self.live && (self.task.always || self.task.after.is_some()) {
            return Err(BuildError::LiveTask(tool));
        }
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
        let can = self.always || self.after.is_some() || self.detaches;
        can.then_some(TaskSupport::Optional)
    }
}

entry!(Tool, name, "call it", version);
