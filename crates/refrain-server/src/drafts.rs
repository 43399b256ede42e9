//! Endpoints for clients that speak a draft, as wrappers around the server of 2026-07-28.
//!
//! A draft request is translated to 2026-07-28, handled by [`Server::handle`], and its response is translated back.
//! Requests that a draft does not define are 2025-11-25 requests and are not translated.
//!
//! | module | contents |
//! | --- | --- |
//! | `http` | a server with an endpoint for each draft |
//! | `tasks` | task requests, translated to one or more 2026-07-28 requests |

mod http;
mod tasks;

pub use http::serve;

use crate::builder::ServerBuilder;
use crate::dispatch::{Context, ParsedMessage, SessionContext};
use crate::endpoint::Endpoint;
use crate::limits::Limiter;
use crate::response::{Disposition, MessageResponse};
use crate::server::Server;
use crate::stdio::serve_lines;
use refrain_wire::drafts::{Draft, DraftRequest};
use refrain_wire::legacy::{Revision, is_modern};
use refrain_wire::ratified::Incoming;
use refrain_wire::{Id, Message, RpcError, TasksCapability};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncBufRead, AsyncWrite};

/// Serves a client that speaks a draft, like [`serve_stdio`](crate::serve_stdio).
pub async fn serve_stdio<R, W>(
    draft: Draft,
    server: Server,
    input: R,
    output: W,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    serve_lines(&Endpoint::draft(draft, server), input, output, shutdown).await
}

impl ServerBuilder {
    /// Configures the server for clients that speak this draft. Set the [audience](Self::audience) first.
    ///
    /// Tokens are bound to the draft's path. Tasks use a namespace with the draft's name, unless
    /// another is set. So other endpoints accept neither, even with the same keys and store.
    pub fn draft(mut self, draft: Draft) -> Self {
        // The advertised URL is that of `/mcp` on the same port.
        let base = self
            .advertise
            .as_deref()
            .and_then(|url| url.strip_suffix("/mcp"));
        self.advertise = base.map(|base| format!("{base}{}", draft.path()));
        self.sealing.audience.push_str(draft.path());
        if self.task_namespace.is_empty() {
            draft.name().clone_into(&mut self.task_namespace);
        }
        self
    }
}

/// Translates the messages of a draft.
#[derive(Clone, Debug)]
pub(crate) struct DraftEndpoint {
    draft: Draft,
    pub(crate) server: Server,
    /// Limits the number of clients that wait for a task.
    waiting: Arc<Limiter>,
}

impl DraftEndpoint {
    pub(crate) fn new(draft: Draft, server: Server) -> Self {
        let tasks = server.0.tasks.as_ref();
        let limits = tasks.map(|tasks| (tasks.options.waiting, tasks.options.waiting_each));
        let (limit, limit_each) = limits.unwrap_or_default();
        let has_authenticator = server.0.services.limits.has_authenticator;
        Self {
            draft,
            server,
            waiting: Limiter::new("clients waiting for a task", limit, limit_each)
                .reserve_for_principals(has_authenticator),
        }
    }

    /// Whether a message in a session is translated. Other messages are 2025-11-25 messages.
    pub(crate) fn needs_translation(&self, bytes: &[u8], message: &ParsedMessage<'_>) -> bool {
        self.draft.is_draft_specific(bytes) || self.shows_task_support(message)
    }

    /// Handles a message that is outside of a session or needs translation.
    pub(crate) async fn accept<'a>(
        &self,
        bytes: &[u8],
        message: &ParsedMessage<'a>,
        context: Context<'_>,
    ) -> Disposition<'a> {
        let (id, params) = match message {
            Ok(Incoming::Call(id, _)) => (*id, None),
            Ok(Incoming::Message(Message::Request { id, method, params })) => {
                let is_initialize = method == "initialize" && !is_modern(*params);
                (*id, params.filter(|_| is_initialize))
            }
            _ => return self.translate(bytes, message, None, context).await,
        };
        if would_be_rounded(id) {
            let error = RpcError::invalid_request("id: a number must fit in 64 bits");
            return Disposition::Response(MessageResponse::rejected(&self.server, Some(id), error));
        }
        match params {
            Some(params) => Disposition::Response(self.open_session(id, params, context).await),
            None => self.translate(bytes, message, Some(id), context).await,
        }
    }

    async fn translate<'a>(
        &self,
        bytes: &[u8],
        message: &ParsedMessage<'_>,
        id: Option<Id<'a>>,
        context: Context<'_>,
    ) -> Disposition<'a> {
        let settings = match context.sessions {
            SessionContext::Open(session) => Some(self.server.0.legacy.settings(session)),
            _ => None,
        };
        let (request, exchange) = match self.draft.read_session_request(settings, bytes) {
            Ok(DraftRequest::Request { message, exchange }) => (message, exchange),
            Ok(DraftRequest::Notification) => {
                return Disposition::Response(MessageResponse::accepted(&self.server));
            }
            Ok(DraftRequest::Replied(reply)) => {
                return Disposition::Response(MessageResponse::serialized(&self.server, reply));
            }
            Err(rejection) => {
                let id = rejection.id.as_deref().and_then(Id::from_raw);
                let response = MessageResponse::rejected(&self.server, id, rejection.error);
                return Disposition::Response(response);
            }
        };
        let translated = self.handle_translated(&request, &exchange, context.caller);
        let mut response = match translated.await {
            Disposition::Response(response) => response,
            Disposition::Relay(_, relay) => return Disposition::Relay(id, relay),
        };
        let (this, is_tool_list) = (self.clone(), self.shows_task_support(message));
        response.translate(move |message| {
            let reply = exchange.write_reply(message)?;
            Some(match is_tool_list {
                true => this.add_task_support(reply),
                false => reply,
            })
        });
        Disposition::Response(response)
    }

    /// Opens a session of 2025-11-25, because the drafts use the same `initialize`.
    async fn open_session(
        &self,
        id: Id<'_>,
        params: &RawValue,
        context: Context<'_>,
    ) -> MessageResponse {
        let mut params: Value = serde_json::from_str(params.get()).unwrap_or_default();
        params["protocolVersion"] = Revision::LATEST.as_str().into();
        let params = to_raw_value(&params).ok();
        let message = Incoming::Message(Message::Request {
            id,
            method: "initialize".into(),
            params: params.as_deref(),
        });
        let mut response = self.server.handle_message(Ok(message), context).await;
        if self.has_tasks() {
            response.translate(|reply| {
                let with_tasks = add_tasks_capability(reply);
                Some(with_tasks.unwrap_or_else(|| reply.to_vec()))
            });
        }
        response
    }

    fn has_tasks(&self) -> bool {
        self.draft.has_tasks() && self.server.0.tasks.is_some()
    }

    /// Whether a message requests the list of tools, and the draft shows in it which tools support tasks.
    fn shows_task_support(&self, message: &ParsedMessage<'_>) -> bool {
        let is_list = matches!(message, Ok(Incoming::Message(Message::Request { method, .. })) if method == "tools/list");
        is_list && self.has_tasks()
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

/// Whether the translation would round this numeric id.
fn would_be_rounded(id: Id<'_>) -> bool {
    let json = id.as_json();
    let written = serde_json::from_str::<Value>(json).map(|number| number.to_string());
    !json.starts_with('"') && written.ok().as_deref() != Some(json)
}

/// Adds the capability `tasks` to a reply to `initialize`. `None` if the reply is an error.
fn add_tasks_capability(reply: &[u8]) -> Option<Vec<u8>> {
    let mut reply: Value = serde_json::from_slice(reply).ok()?;
    let capabilities = reply.pointer_mut("/result/capabilities")?.as_object_mut()?;
    capabilities.insert("tasks".to_owned(), json!(TasksCapability::default()));
    Some(reply.to_string().into_bytes())
}
