//! Endpoints for clients that speak a draft, wrapped around the ratified ones.
//!
//! A request of a draft is translated to one of 2026-07-28, handled by [`Server::handle`] like any other, and the response
//! is translated back. Requests that have no shape of the draft's own are those of 2025-11-25 and pass unchanged.
//!
//! | module | contents |
//! | --- | --- |
//! | `http` | a tower service around [`HttpService`](crate::HttpService), and the front with an endpoint for each draft |
//! | `tasks` | the drafts' requests about tasks, each as one or more ratified ones |

mod http;
mod tasks;

pub use http::{DraftService, serve};

use crate::builder::ServerBuilder;
use crate::dispatch::{Context, Parsed, Sessions};
use crate::limits::Limiter;
use crate::response::{Handled, Response};
use crate::server::Server;
use crate::stdio::{Endpoint, serve_lines};
use refrain_wire::drafts::{Draft, DraftRequest};
use refrain_wire::legacy::{Revision, is_modern};
use refrain_wire::ratified::Incoming;
use refrain_wire::{Id, Message, RpcError, TasksCapability};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncBufRead, AsyncWrite};

/// Like [`serve_stdio`](crate::serve_stdio), for a client that speaks a draft.
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
    let drafted = Drafted::new(draft, server);
    serve_lines(&drafted.server, &drafted, input, output, shutdown).await
}

impl ServerBuilder {
    /// Builds a server for clients that speak this draft: tokens are bound to the draft's path, and tasks are in a space of
    /// the draft's name unless another is set. Neither can be used elsewhere, even if keys and store are shared. Set the
    /// [audience](Self::audience) first.
    pub fn draft(mut self, draft: Draft) -> Self {
        // The URL is that of the ratified endpoint, which is served beside the draft's.
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
        let tasks = server.0.tasks.as_ref();
        let limit = tasks.map_or(0, |tasks| tasks.options.waiting);
        let waiting = "clients that wait for what becomes of a task";
        Self {
            draft,
            server,
            waiting: Limiter::new(waiting, limit, usize::MAX),
        }
    }

    /// Whether a message in a session is translated. All others are those of 2025-11-25.
    fn claims(&self, bytes: &[u8], message: &Parsed<'_>) -> bool {
        self.draft.is_draft_specific(bytes) || self.shows_task_support(message)
    }

    /// Answers a message outside of a session, or one that the draft claims.
    async fn accept<'a>(
        &self,
        bytes: &[u8],
        message: &Parsed<'a>,
        context: Context<'_>,
    ) -> Handled<'a> {
        let (id, params) = match message {
            Ok(Incoming::Call(id, _)) => (*id, None),
            Ok(Incoming::Message(Message::Request { id, method, params })) => {
                let opens = method == "initialize" && !is_modern(*params);
                (*id, params.filter(|_| opens))
            }
            _ => return self.translate(bytes, message, None, context).await,
        };
        if is_rounded(id) {
            let error = RpcError::invalid_request("id: a number must fit into 64 bits");
            return Handled::Response(Response::refused(&self.server, Some(id), error));
        }
        match params {
            Some(params) => Handled::Response(self.open(id, params, context).await),
            None => self.translate(bytes, message, Some(id), context).await,
        }
    }

    /// Answers a message by translating it.
    async fn translate<'a>(
        &self,
        bytes: &[u8],
        message: &Parsed<'_>,
        id: Option<Id<'a>>,
        context: Context<'_>,
    ) -> Handled<'a> {
        let agreed = match context.sessions {
            Sessions::Open(session) => Some(self.server.0.legacy.agreed(session)),
            _ => None,
        };
        let (request, exchange) = match self.draft.read_session_request(agreed, bytes) {
            Ok(DraftRequest::Request { message, exchange }) => (message, exchange),
            Ok(DraftRequest::Notification) => {
                return Handled::Response(Response::accepted(&self.server));
            }
            Ok(DraftRequest::Replied(reply)) => {
                return Handled::Response(Response::written(&self.server, reply));
            }
            Err(rejection) => {
                let id = rejection.id.as_deref().and_then(Id::from_raw);
                return Handled::Response(Response::refused(&self.server, id, rejection.error));
            }
        };
        let mut response = match self.carry_out(&request, &exchange, context.caller).await {
            Handled::Response(response) => response,
            Handled::Relay(_, relay) => return Handled::Relay(id, relay),
        };
        let lists = self.shows_task_support(message).then(|| self.clone());
        response.map(move |message| {
            let reply = exchange.write_reply(message)?;
            Some(match &lists {
                Some(drafted) => drafted.add_task_support(reply),
                None => reply,
            })
        });
        Handled::Response(response)
    }

    /// Opens a session in the one revision whose handshake the drafts have.
    async fn open(&self, id: Id<'_>, params: &RawValue, context: Context<'_>) -> Response {
        let mut params: Value = serde_json::from_str(params.get()).unwrap_or_default();
        params["protocolVersion"] = Revision::LATEST.as_str().into();
        let params = to_raw_value(&params).ok();
        let method = "initialize".into();
        let params = params.as_deref();
        let message = Incoming::Message(Message::Request { id, method, params });
        let mut response = self.server.handle_message(Ok(message), context).await;
        if self.has_tasks() {
            response.map(|reply| Some(add_tasks(reply).unwrap_or_else(|| reply.to_vec())));
        }
        response
    }

    fn has_tasks(&self) -> bool {
        self.draft.has_tasks() && self.server.0.tasks.is_some()
    }

    /// Whether a message requests the list of tools, and the draft tells there which of them may become tasks.
    fn shows_task_support(&self, message: &Parsed<'_>) -> bool {
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

impl Endpoint for Drafted {
    async fn accept(&self, bytes: &[u8], message: Parsed<'_>, context: Context<'_>) -> Response {
        if matches!(context.sessions, Sessions::Open(_)) && !self.claims(bytes, &message) {
            return Endpoint::accept(&self.server, bytes, message, context).await;
        }
        let handled = Self::accept(self, bytes, &message, context).await;
        handled.here(&self.server)
    }
}

/// Would the translation round this id?
fn is_rounded(id: Id<'_>) -> bool {
    let json = id.as_json();
    let written = serde_json::from_str::<Value>(json).map(|number| number.to_string());
    !json.starts_with('"') && written.ok().as_deref() != Some(json)
}

/// The reply to `initialize`, with the draft's tasks among the capabilities.
fn add_tasks(reply: &[u8]) -> Option<Vec<u8>> {
    let mut reply: Value = serde_json::from_slice(reply).ok()?;
    let capabilities = reply.pointer_mut("/result/capabilities")?.as_object_mut()?;
    capabilities.insert("tasks".to_owned(), json!(TasksCapability::default()));
    Some(reply.to_string().into_bytes())
}
