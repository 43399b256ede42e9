//! What a server tells while a call is under way.

use refrain_wire::LogLevel;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;

/// How far a call is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Progress {
    /// How much is done.
    pub progress: f64,
    /// How much there is to do, if that is known.
    #[serde(default)]
    pub total: Option<f64>,
    /// What is being done.
    #[serde(default)]
    pub message: Option<String>,
}

/// Something a call logged.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LogMessage {
    /// How much it matters.
    pub level: String,
    /// Which part of the server says it.
    #[serde(default)]
    pub logger: Option<String>,
    /// What it says.
    #[serde(default)]
    pub data: Value,
}

type Hear<T> = Arc<dyn Fn(T) + Send + Sync>;

/// Whoever wants to hear.
#[derive(Clone, Default)]
pub(crate) struct News {
    pub(crate) progress: Option<Hear<Progress>>,
    pub(crate) log: Option<(LogLevel, Hear<LogMessage>)>,
}

impl News {
    /// Tells a notification to whoever wants to hear it. One that makes no sense is passed over.
    pub(crate) fn tell(&self, method: &str, params: Option<&RawValue>) {
        let Some(params) = params else { return };
        match method {
            "notifications/progress" => {
                if let (Some(hear), Ok(progress)) =
                    (&self.progress, serde_json::from_str(params.get()))
                {
                    hear(progress);
                }
            }
            "notifications/message" => {
                if let (Some((_, hear)), Ok(message)) =
                    (&self.log, serde_json::from_str(params.get()))
                {
                    hear(message);
                }
            }
            other => tracing::debug!(method = other, "a notification nobody waits for"),
        }
    }
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("News")
            .field("progress", &self.progress.is_some())
            .field("log", &self.log.is_some())
            .finish()
    }
}
