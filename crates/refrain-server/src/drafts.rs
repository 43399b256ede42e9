//! Endpoints for clients that speak a draft, wrapped around the ratified ones.
//!
//! A request of a draft is translated to one of 2026-07-28, handled by [`Server::handle`] like any other, and the response
//! is translated back. Requests that have no shape of the draft's own are those of 2025-11-25 and pass unchanged.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `http` | a tower service around [`HttpService`](crate::HttpService) |
//! | `serve` | the HTTP front with an endpoint for each draft |
//! | `stdio` | a filter of lines around [`serve_stdio`](crate::serve_stdio) |
//! | `tasks` | the drafts' requests about tasks, each as one or more ratified ones |

mod http;
mod serve;
mod stdio;
mod tasks;

pub use http::DraftService;
pub use serve::serve;
pub use stdio::serve_stdio;

use crate::auth::Caller;
use crate::builder::ServerBuilder;
use crate::limits::Limiter;
use crate::response::Response;
use crate::server::Server;
use refrain_wire::drafts::{Draft, DraftRequest};
use refrain_wire::legacy::{Agreed, Revision, is_modern};
use refrain_wire::{Id, Message, TasksCapability, parse};
use serde_json::{Value, json};
use std::sync::Arc;

impl ServerBuilder {
    /// Builds a server for clients that speak this draft: tokens are bound to the draft's path, and tasks are in a space of
    /// the draft's name unless another is set. Neither can be used elsewhere, even if keys and store are shared. Set the
    /// [audience](Self::audience) first.
    pub fn draft(mut self, draft: Draft) -> Self {
        // The URL is that of the ratified endpoint.
        self.advertise = None;
        self.sealing.audience.push_str(draft.path());
        if self.task_space.is_empty() {
            draft.name().clone_into(&mut self.task_space);
        }
        self
    }
}

/// A server together with the draft that its clients speak.
#[derive(Clone, Debug)]
struct Drafted {
    draft: Draft,
    server: Server,
    /// Clients that wait for a task to end.
    waiting: Arc<Limiter>,
}

impl Drafted {
    fn new(draft: Draft, server: Server) -> Self {
        let limit = server
            .0
            .tasks
            .as_ref()
            .map_or(0, |tasks| tasks.options.waiting);
        let waiting = "clients that wait for what becomes of a task";
        Self {
            draft,
            server,
            waiting: Limiter::new(waiting, limit, usize::MAX),
        }
    }

    /// Whether a message in a session is translated. All others are those of 2025-11-25.
    fn claims(&self, message: &[u8]) -> bool {
        self.draft.has_own_shape(message) || self.shows_task_support(message)
    }

    /// Answers a message by translating it.
    async fn handle(&self, message: &[u8], agreed: Option<Agreed>, caller: Caller) -> Response {
        let (request, exchange) = match self.draft.read_request_of(agreed, message) {
            Ok(DraftRequest::Request { message, exchange }) => (message, exchange),
            Ok(DraftRequest::Notification) => return Response::accepted(&self.server),
            Ok(DraftRequest::Known(reply)) => return Response::written(&self.server, reply),
            Err(rejection) => {
                let id = rejection.id.as_deref().and_then(Id::from_raw);
                return Response::refused(&self.server, id, rejection.error);
            }
        };
        let mut response = self.carry_out(&request, &exchange, caller).await;
        let lists = self.shows_task_support(message).then(|| self.clone());
        response.map(move |message| {
            let reply = exchange.write_reply(message)?;
            Some(match &lists {
                Some(drafted) => drafted.add_task_support(reply),
                None => reply,
            })
        });
        response
    }

    /// The request to open a session, with the one revision whose handshake the drafts have. `None`: another message.
    fn read_initialize(&self, message: &[u8]) -> Option<Vec<u8>> {
        match parse(message) {
            Ok(Message::Request { method, params, .. })
                if method == "initialize" && !is_modern(params) => {}
            _ => return None,
        }
        let mut message: Value = serde_json::from_slice(message).ok()?;
        if let Some(params) = message.get_mut("params").and_then(Value::as_object_mut) {
            let revision = Revision::LATEST.as_str();
            params.insert("protocolVersion".to_owned(), revision.into());
        }
        Some(message.to_string().into_bytes())
    }

    /// The reply to `initialize`, with the draft's tasks among the capabilities.
    fn write_initialized(&self, reply: &[u8]) -> Option<Vec<u8>> {
        let mut reply: Value = serde_json::from_slice(reply).ok()?;
        if !self.has_tasks() {
            return None;
        }
        let capabilities = reply.pointer_mut("/result/capabilities")?.as_object_mut()?;
        capabilities.insert("tasks".to_owned(), json!(TasksCapability::default()));
        Some(reply.to_string().into_bytes())
    }

    fn has_tasks(&self) -> bool {
        self.draft.has_tasks() && self.server.has_tasks()
    }

    /// Whether a message asks for the list of tools, and the draft tells there which of them may become tasks.
    fn shows_task_support(&self, message: &[u8]) -> bool {
        self.has_tasks()
            && matches!(parse(message), Ok(Message::Request { method, .. }) if method == "tools/list")
    }

    fn add_task_support(&self, reply: Vec<u8>) -> Vec<u8> {
        let Ok(mut list) = serde_json::from_slice::<Value>(&reply) else {
            return reply;
        };
        let tools = list.pointer_mut("/result/tools");
        for tool in tools.and_then(Value::as_array_mut).into_iter().flatten() {
            let name = tool["name"].as_str().unwrap_or_default();
            if let Some(support) = self.server.task_support(name) {
                tool["execution"] = json!({ "taskSupport": support });
            }
        }
        list.to_string().into_bytes()
    }
}
