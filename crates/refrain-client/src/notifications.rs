//! Progress and log notifications of calls.

use refrain_wire::LogLevel;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;

/// The progress of a call.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Progress {
    /// The amount of work done.
    pub progress: f64,
    /// The total amount of work, if it is known.
    #[serde(default)]
    pub total: Option<f64>,
    /// A description of the current step.
    #[serde(default)]
    pub message: Option<String>,
}

/// A log message of a call.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LogMessage {
    /// The severity.
    pub level: String,
    /// The name of the logger.
    #[serde(default)]
    pub logger: Option<String>,
    /// The message.
    #[serde(default)]
    pub data: Value,
}

type NotificationHandler<T> = Arc<dyn Fn(T) + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Notifications {
    pub(crate) progress: Option<NotificationHandler<Progress>>,
    pub(crate) log: Option<(LogLevel, NotificationHandler<LogMessage>)>,
}

impl Notifications {
    /// Calls the handler for a notification. Malformed notifications are ignored.
    pub(crate) fn handle(&self, method: &str, params: Option<&RawValue>) {
        let log = self.log.as_ref().map(|(_, handler)| handler);
        match method {
            "notifications/progress" => call(self.progress.as_ref(), params),
            "notifications/message" => call(log, params),
            other => tracing::debug!(method = other, "notification ignored"),
        }
    }
}

fn call<T: DeserializeOwned>(handler: Option<&NotificationHandler<T>>, params: Option<&RawValue>) {
    let params = params.and_then(|params| serde_json::from_str(params.get()).ok());
    if let (Some(handler), Some(params)) = (handler, params) {
        handler(params);
    }
}
