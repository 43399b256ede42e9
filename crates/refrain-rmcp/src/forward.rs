//! Forwards the messages of a running handler: requests become asks; notifications go to
//! the client, or update the server's lists and resources.

use crate::asks::{AskName, ask, convert};
use crate::connection::Connection;
use crate::handler::RmcpHandler;
use refrain::Cx;
use refrain::content::LogLevel;
use refrain::server::Server;
use rmcp::model::{
    ClientResult, ErrorData, RequestId, ServerJsonRpcMessage, ServerNotification, ServerRequest,
};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

type AnswerFuture = Pin<Box<dyn Future<Output = Result<ClientResult, ErrorData>> + Send>>;

/// The messages of one running handler.
pub(crate) struct Forwarder {
    pub(crate) connection: Connection,
    cx: Cx,
    server: Server,
    handler: Arc<RmcpHandler>,
    asks: Vec<(RequestId, AnswerFuture)>,
    counts: AskCounts,
}

/// The number of requests so far, by method.
#[derive(Default)]
struct AskCounts {
    elicitation: u32,
    sampling: u32,
    roots: u32,
}

impl AskCounts {
    /// The name of the next ask. A handler that runs again asks in the same order, so it gets the same names.
    fn next_name(&mut self, request: &ServerRequest) -> AskName {
        let (kind, count) = match request {
            ServerRequest::CreateMessageRequest(_) => ("sampling", &mut self.sampling),
            ServerRequest::ListRootsRequest(_) => ("roots", &mut self.roots),
            _ => ("elicitation", &mut self.elicitation),
        };
        *count += 1;
        AskName::Numbered(format!("{kind}-{count}"))
    }
}

impl Forwarder {
    pub(crate) fn new(
        connection: Connection,
        cx: &Cx,
        server: &Server,
        handler: &Arc<RmcpHandler>,
    ) -> Self {
        Self {
            connection,
            cx: cx.clone(),
            server: server.clone(),
            handler: handler.clone(),
            asks: Vec::new(),
            counts: AskCounts::default(),
        }
    }

    /// Forwards new messages, and the answers of open asks.
    pub(crate) fn poll(&mut self, task: &mut Context<'_>) {
        while let Poll::Ready(Some(message)) = self.connection.from_handler.poll_recv(task) {
            self.forward(message);
        }
        let connection = &self.connection;
        self.asks
            .retain_mut(|(id, answer)| match answer.as_mut().poll(task) {
                Poll::Ready(answer) => {
                    connection.answer(id.clone(), answer);
                    false
                }
                Poll::Pending => true,
            });
    }

    /// Forwards the notifications that the handler sent before it ended.
    pub(crate) fn finish(mut self) {
        while let Ok(message) = self.connection.from_handler.try_recv() {
            if let ServerJsonRpcMessage::Notification(_) = &message {
                self.forward(message);
            }
        }
    }

    fn forward(&mut self, message: ServerJsonRpcMessage) {
        match message {
            ServerJsonRpcMessage::Request(message) => {
                let name = self.counts.next_name(&message.request);
                let answer = Box::pin(ask(self.cx.clone(), name, message.request));
                self.asks.push((message.id, answer));
            }
            ServerJsonRpcMessage::Notification(message) => self.notify(message.notification),
            _ => {}
        }
    }

    fn notify(&mut self, notification: ServerNotification) {
        match notification {
            ServerNotification::ProgressNotification(notification) => {
                let progress = notification.params;
                let message = progress.message.unwrap_or_default();
                self.cx
                    .progress(progress.progress, progress.total, &message);
            }
            ServerNotification::LoggingMessageNotification(notification) => {
                let params = notification.params;
                let level = convert(&params.level).unwrap_or(LogLevel::Info);
                self.cx.log(level, params.data);
            }
            // The handler no longer waits for this answer.
            ServerNotification::CancelledNotification(notification) => {
                let withdrawn = notification.params.request_id;
                self.asks.retain(|(id, _)| Some(id) != withdrawn.as_ref());
            }
            notification => self.handler.apply(&self.server, &notification),
        }
    }
}
