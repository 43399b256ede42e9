//! The `[webhooks]` tables: endpoints that are notified when a task has ended.

use crate::config::NonBlank;
use crate::input_file;
use refrain::runtime::server::WebhookError;
use refrain::task::Webhook;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct WebhookTable {
    url: NonBlank<String>,
    pub(crate) secret_file: NonBlank<PathBuf>,
}

/// Checks the tables and reads the files with secrets. An error is a setting and a message.
pub(crate) fn read(
    tables: &BTreeMap<String, WebhookTable>,
) -> Result<Vec<Webhook>, Vec<(String, String)>> {
    let mut errors = Vec::new();
    let mut webhooks = Vec::new();
    for (name, table) in tables {
        match table.read(name) {
            Ok(webhook) => webhooks.push(webhook),
            Err((setting, reason)) => {
                let setting = format!("webhooks.{name}{setting}");
                let message = format!("{setting}: {reason}");
                errors.push((setting, message));
            }
        }
    }
    match errors.is_empty() {
        true => Ok(webhooks),
        false => Err(errors),
    }
}

impl WebhookTable {
    /// Reads one table. An error is the suffix of the setting's name, and the reason.
    fn read(&self, name: &str) -> Result<Webhook, (&'static str, String)> {
        const FILE: &str = ".secret_file";
        let file = &self.secret_file.0;
        let secrets = input_file::read_text(file)
            .map_err(|error| (FILE, format!("cannot read {}: {error}", file.display())))?;
        Webhook::new(name, self.url.as_str(), &secrets).map_err(|error| match error {
            WebhookError::Url(_) => (".url", error.to_string()),
            WebhookError::Name => ("", error.to_string()),
            _ => (FILE, format!("{}: {error}", file.display())),
        })
    }
}
