//! Progress and log notifications of calls, and changes that a legacy server announces.

use crate::legacy::ChangeHub;
use crate::listen::read_change;
use refrain_wire::{LogLevel, SUBSCRIPTION_ID_KEY};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const PROGRESS: &str = "notifications/progress";

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
    /// The subscriptions of a legacy connection.
    pub(crate) changes: Arc<ChangeHub>,
}

impl Notifications {
    /// Calls the handler for a notification. Malformed notifications are ignored.
    pub(crate) fn handle(&self, method: &str, params: Option<&RawValue>) {
        match method {
            PROGRESS => call(self.progress.as_ref(), params),
            "notifications/message" => self.handle_log(params),
            _ => match read_change(method, params) {
                Some(change) => self.changes.announce(&change),
                None => tracing::debug!(method, "notification ignored"),
            },
        }
    }

    /// Drops lower levels: a legacy server has one level for all scoped clients. Unknown levels pass.
    fn handle_log(&self, params: Option<&RawValue>) {
        let message: Option<LogMessage> = read(params);
        if let (Some((min_level, handler)), Some(message)) = (&self.log, message) {
            let mut levels = LogLevel::ALL.into_iter();
            let level = levels.find(|level| level.as_str() == message.level);
            if level.is_none_or(|level| level >= *min_level) {
                handler(message);
            }
        }
    }
}

fn call<T: DeserializeOwned>(handler: Option<&NotificationHandler<T>>, params: Option<&RawValue>) {
    if let (Some(handler), Some(params)) = (handler, read(params)) {
        handler(params);
    }
}

fn read<T: DeserializeOwned>(params: Option<&RawValue>) -> Option<T> {
    serde_json::from_str(params?.get()).ok()
}

/// The id of the request that a notification belongs to: its progress token, subscription id or request id.
pub(crate) fn related_request(params: Option<&RawValue>) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct NotificationParams {
        progress_token: Option<Value>,
        request_id: Option<Value>,
        #[serde(rename = "_meta", default)]
        meta: BTreeMap<String, Value>,
    }
    let params: NotificationParams = serde_json::from_str(params?.get()).ok()?;
    let subscription = params.meta.get(SUBSCRIPTION_ID_KEY);
    let id = params.progress_token.as_ref().or(subscription);
    let id = id.or(params.request_id.as_ref())?;
    id.as_u64().or_else(|| id.as_str()?.parse().ok())
}
