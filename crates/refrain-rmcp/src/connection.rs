//! Connections between an rmcp handler and Refrain.
//!
//! A handler reaches its client through the rmcp `Peer` of a connection. Each call has its own connection, which is closed
//! when the call ends. Lists and [`watch`](crate::watch) use a connection without a call, on which requests of the handler are rejected.

use refrain::Cx;
use refrain::runtime::wire::{Capabilities, Capability};
use rmcp::ServerHandler;
use rmcp::model::{
    ClientCapabilities, ClientJsonRpcMessage, ClientNotification, ClientResult, ErrorData,
    Implementation, InitializeRequestParams, LoggingLevel, MetaObject, NumberOrString,
    ProgressToken, ProtocolVersion, RequestId, RequestMetaObject, ServerJsonRpcMessage,
};
use rmcp::service::{
    RequestContext, RoleServer, RunningService, RxJsonRpcMessage, Service, serve_directly,
};
use rmcp::transport::Transport;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, error::SendError};

/// An open connection. It is closed when it is dropped.
pub(crate) struct Connection<S: Service<RoleServer> = NoService> {
    pub(crate) from_handler: UnboundedReceiver<ServerJsonRpcMessage>,
    to_handler: UnboundedSender<ClientJsonRpcMessage>,
    running: RunningService<RoleServer, S>,
    capabilities: ClientCapabilities,
}

impl Connection {
    /// Opens a connection for a client with these capabilities. Needs a tokio runtime.
    pub(crate) fn open(capabilities: ClientCapabilities) -> Self {
        Self::with_service(NoService, capabilities)
    }
}

impl<S: Service<RoleServer>> Connection<S> {
    /// Opens a connection on which the service receives the client's notifications.
    pub(crate) fn with_service(service: S, capabilities: ClientCapabilities) -> Self {
        let (sender, from_handler) = mpsc::unbounded_channel();
        let (to_handler, receiver) = mpsc::unbounded_channel();
        // rmcp allows requests of a server only to peers of older revisions.
        let client = InitializeRequestParams::new(capabilities.clone(), client())
            .with_protocol_version(ProtocolVersion::V_2025_11_25);
        let transport = ChannelTransport { sender, receiver };
        Self {
            from_handler,
            to_handler,
            running: serve_directly(service, transport, Some(client)),
            capabilities,
        }
    }

    /// The context of a request. It names the revision 2026-07-28, so that the handler may return
    /// `InputRequiredResult`.
    pub(crate) fn context(&self) -> RequestContext<RoleServer> {
        let mut context = RequestContext::new(RequestId::Number(0), self.running.peer().clone());
        let capabilities = self.capabilities.clone();
        let version = ProtocolVersion::V_2026_07_28;
        context.meta = RequestMetaObject::with_client_context(version, client(), capabilities);
        context
    }

    /// The context of a request of a call. Progress and logs are always requested; the `Cx` drops what the client did not
    /// ask for.
    pub(crate) fn context_of(&self, cx: &Cx) -> RequestContext<RoleServer> {
        let mut context = self.context();
        let mut meta = RequestMetaObject(MetaObject(cx.meta()));
        let trace = cx.trace();
        meta.0.set_traceparent(trace.traceparent().to_string());
        if let Some(state) = trace.tracestate() {
            meta.0.set_tracestate(state);
        }
        meta.set_progress_token(ProgressToken(NumberOrString::Number(0)));
        meta.set_log_level(LoggingLevel::Debug);
        context.meta.extend(meta);
        context.extensions.insert(cx.clone());
        context
    }

    /// Sends a notification to the service.
    pub(crate) fn notify(&self, notification: ClientNotification) {
        let _ = self
            .to_handler
            .send(ClientJsonRpcMessage::notification(notification));
    }

    /// Answers a request of the handler.
    pub(crate) fn answer(&self, id: RequestId, answer: Result<ClientResult, ErrorData>) {
        let message = match answer {
            Ok(result) => ClientJsonRpcMessage::response(result, id),
            Err(error) => ClientJsonRpcMessage::error(error, Some(id)),
        };
        // The service runs as long as the connection.
        let _ = self.to_handler.send(message);
    }
}

/// The client's declared capabilities that rmcp knows: forms, URLs, sampling, sampling with tools, and roots.
pub(crate) fn capabilities_of(cx: &Cx) -> ClientCapabilities {
    let declared = [
        (Capability::Form, cx.can_elicit()),
        (Capability::Url, cx.can_elicit_url()),
        (Capability::Sampling, cx.can_sample()),
        (Capability::SamplingTools, cx.can_sample_with_tools()),
        (Capability::Roots, cx.can_list_roots()),
    ];
    let declared = declared.into_iter().filter(|(_, is_declared)| *is_declared);
    let declared: Capabilities = declared.map(|(capability, _)| capability).collect();
    let json = serde_json::to_value(declared);
    json.and_then(serde_json::from_value).unwrap_or_default()
}

/// The client name and version that handlers see.
fn client() -> Implementation {
    Implementation::new("refrain-rmcp", env!("CARGO_PKG_VERSION"))
}

/// A service that does nothing, for connections on which the client only answers requests.
pub(crate) struct NoService;

impl ServerHandler for NoService {}

/// A transport of typed messages.
struct ChannelTransport {
    sender: UnboundedSender<ServerJsonRpcMessage>,
    receiver: UnboundedReceiver<ClientJsonRpcMessage>,
}

impl Transport<RoleServer> for ChannelTransport {
    type Error = SendError<ServerJsonRpcMessage>;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        // Sent now, so that messages keep their order.
        std::future::ready(self.sender.send(message))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        self.receiver.recv().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}
