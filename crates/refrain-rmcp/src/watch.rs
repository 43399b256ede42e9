//! Changes that a handler reports outside of calls.
//!
//! With the first call, the handler gets `on_initialized` with a peer that stays open, and a `subscriptions/listen` request
//! for all changes and for the resources that clients are subscribed to. Requests through this peer fail.

use crate::connection::Connection;
use crate::handler::RmcpHandler;
use futures_util::FutureExt;
use futures_util::future::join;
use refrain::runtime::server::WeakServer;
use refrain::server::{Server, SubscribedResources};
use rmcp::model::{
    ClientCapabilities, ClientNotification, ClientRequest, ErrorData, InitializedNotification,
    ServerConfig, ServerJsonRpcMessage, ServerResult, SubscriptionFilter,
    SubscriptionsListenRequest, SubscriptionsListenRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, RoleServer, Service};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a subscription may take to begin. The previous one stays open meanwhile, so that no change is lost.
const OVERLAP: Duration = Duration::from_millis(100);

type ListenFuture<'a> = Pin<Box<dyn Future<Output = Result<ServerResult, ErrorData>> + Send + 'a>>;

/// Passes the notifications of the open connection to the handler.
struct WatchService(Arc<RmcpHandler>);

impl Service<RoleServer> for WatchService {
    async fn handle_request(
        &self,
        request: ClientRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        self.0.service.handle_request(request, context).await
    }

    async fn handle_notification(
        &self,
        notification: ClientNotification,
        context: NotificationContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let service = &self.0.service;
        service.handle_notification(notification, context).await
    }

    fn get_info(&self) -> ServerConfig {
        self.0.service.get_info()
    }
}

impl RmcpHandler {
    /// Starts to watch the handler for this server, unless it is watched already, and waits until its subscription had time
    /// to begin.
    pub(crate) async fn watch(self: &Arc<Self>, server: &Server) {
        let begun = self.watched.get_or_init(|| {
            let (begun, has_begun) = watch::channel(false);
            let (handler, weak) = (self.clone(), server.downgrade());
            tokio::spawn(handler.run_watch(weak, server.subscribed_resources(), begun));
            has_begun
        });
        let _ = begun.clone().wait_for(|begun| *begun).await;
    }

    /// Runs until the server is dropped.
    async fn run_watch(
        self: Arc<Self>,
        server: WeakServer,
        subscribed: SubscribedResources,
        begun: watch::Sender<bool>,
    ) {
        let service = WatchService(self.clone());
        let mut connection = Connection::with_service(service, ClientCapabilities::default());
        connection.notify(InitializedNotification::default().into());
        let mut listening = pin!(self.listen(connection.context(), subscribed, begun));
        loop {
            let message = tokio::select! {
                message = connection.from_handler.recv() => message,
                () = &mut listening => return,
            };
            let Some(server) = server.upgrade() else {
                return;
            };
            match message {
                Some(ServerJsonRpcMessage::Notification(message)) => {
                    self.apply(&server, &message.notification);
                }
                Some(ServerJsonRpcMessage::Request(message)) => {
                    let reason = "this peer belongs to no call; use the peer of the call";
                    let error = ErrorData::invalid_request(reason, None);
                    connection.answer(message.id, Err(error));
                }
                _ => {}
            }
        }
    }

    /// Keeps a subscription to all changes open. A handler without subscriptions rejects it.
    async fn listen(
        &self,
        context: RequestContext<RoleServer>,
        mut subscribed: SubscribedResources,
        begun: watch::Sender<bool>,
    ) {
        let uris = subscribed.uris().into_iter().collect();
        let mut current = self.begin_listening(&context, uris).fuse();
        let _ = timeout(OVERLAP, &mut current).await;
        begun.send_replace(true);
        loop {
            let is_open = tokio::select! {
                is_open = subscribed.changed() => is_open,
                _ = &mut current => subscribed.changed().await,
            };
            if !is_open {
                return;
            }
            let uris = subscribed.uris().into_iter().collect();
            let next = self.begin_listening(&context, uris).fuse();
            let previous = std::mem::replace(&mut current, next);
            let _ = timeout(OVERLAP, join(previous, &mut current)).await;
        }
    }

    fn begin_listening(
        &self,
        context: &RequestContext<RoleServer>,
        uris: Vec<String>,
    ) -> ListenFuture<'_> {
        let filter = SubscriptionFilter::builder()
            .tools_list_changed()
            .prompts_list_changed()
            .resources_list_changed()
            .resource_subscriptions(uris)
            .build();
        let params = SubscriptionsListenRequestParams::new(filter);
        let request = SubscriptionsListenRequest::new(params).into();
        let mut context = context.clone();
        context.ct = context.ct.child_token();
        let cancel_on_drop = context.ct.clone().drop_guard();
        Box::pin(async move {
            let _cancel_on_drop = cancel_on_drop;
            self.service.handle_request(request, context).await
        })
    }
}
