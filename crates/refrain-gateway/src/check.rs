//! A report about each backend: whether it starts, its entries, and how its tools run.

use crate::backend::Backend;
use crate::catalog::{Availability, BackendLists, OfferedNames, describe_tools};
use crate::gateway::{Gateway, check_collisions};
use crate::service::{Service, ServiceError};
use crate::support::AskSupport;
use futures_util::future::join_all;
use refrain::client::wire::Implementation;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// The result of the check of one backend.
#[derive(Debug, Default, Serialize)]
pub struct BackendReport {
    /// The backend.
    pub backend: String,
    /// The server's own name and version.
    pub server: Option<String>,
    /// The protocol revision.
    pub revision: Option<String>,
    /// How long it took to start and to list, in seconds.
    pub start_seconds: f64,
    /// The tools.
    pub tools: Vec<ToolReport>,
    /// Rules for tools that the backend does not have.
    pub unknown_rules: Vec<String>,
    /// The number of prompts.
    pub prompts: usize,
    /// The number of resources and resource templates.
    pub resources: usize,
    /// Why it could not be started or listed.
    pub error: Option<String>,
}

/// How a tool is offered.
#[derive(Debug, Serialize)]
pub struct ToolReport {
    /// The name at the backend.
    pub tool: String,
    /// The name that is offered; `None` if it is not.
    pub offered_as: Option<String>,
    /// How a call waits for an answer: `live`, `replay`, or `client`, if the client keeps the
    /// backend's own request state.
    pub home: &'static str,
    /// After how many seconds a call becomes a task; `None` for never.
    pub task_after: Option<u64>,
    /// Whether the backend offers it only to clients that answer asks. Other tools may ask too.
    pub asks: bool,
}

impl Gateway {
    /// Starts each backend, lists what it offers, and stops it again.
    pub async fn check(&self) -> Vec<BackendReport> {
        let checked = join_all(self.backends().iter().map(report)).await;
        let mut offered: Vec<(String, OfferedNames)> = Vec::new();
        let mut reports = Vec::new();
        for (mut report, names) in checked {
            let others = offered.iter().map(|(backend, names)| (backend, names));
            if let Err(collision) = check_collisions(others, &report.backend, &names) {
                report.error.get_or_insert(collision.to_string());
            }
            offered.push((report.backend.clone(), names));
            reports.push(report);
        }
        reports
    }
}

/// Checks a backend. Also returns the names that it offers.
async fn report(backend: &Arc<Backend>) -> (BackendReport, OfferedNames) {
    let begun = Instant::now();
    let mut report = BackendReport {
        backend: backend.spec.name.clone(),
        ..BackendReport::default()
    };
    let listed = list(backend, AskSupport::ALL, Some(&mut report)).await;
    report.start_seconds = begun.elapsed().as_secs_f64();
    let mut names = OfferedNames::default();
    match listed {
        Ok(listing) => {
            // Some servers offer tools that ask only to clients that can answer.
            let without_asks = list(backend, AskSupport::NONE, None).await;
            report.unknown_rules = listing.unknown_rules(&backend.spec).cloned().collect();
            report.prompts = listing.prompts.len();
            report.resources = listing.resources.len() + listing.templates.len();
            report.tools = describe_tools(backend, &listing, without_asks.ok().as_ref());
            (_, names) = listing.offer(backend, Availability::Up);
        }
        Err(error) => report.error = Some(error.to_string()),
    }
    (report, names)
}

/// Lists a backend over a new connection. Adds the server's name and revision to the report.
async fn list(
    backend: &Backend,
    support: AskSupport,
    report: Option<&mut BackendReport>,
) -> Result<BackendLists, ServiceError> {
    let mut service = Service::connect(backend, None, support).await?;
    if let Some(report) = report {
        let server = service.client.server();
        let name = |info: &Implementation| format!("{} {}", info.name, info.version);
        report.server = server.info.as_ref().map(name);
        report.revision = Some(server.version.clone());
    }
    let listing = service.list(backend).await;
    service.close().await;
    listing
}
