//! Deliveries to webhooks, from the outbox of the store.
//!
//! Each endpoint has its own loop, so that an endpoint that does not respond delays no other. A delivery is leased: if this
//! instance stops before it is finished, another instance repeats it after the lease. So a crash loses no delivery, but an
//! endpoint may get one twice. Deliveries are given up after `webhook_age`, and dropped if there are more
//! than `webhook_rows`.

use super::Tasks;
use super::webhooks::{DeliveryError, Webhook};
use crate::backoff::Backoff;
use crate::metrics::WebhookEvent;
use crate::timer::within;
use refrain_core::limited_event;
use refrain_http::HttpClient;
use refrain_store::Delivery;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Maximum number of concurrent requests from one instance to one endpoint.
const MAX_IN_FLIGHT: usize = 8;
/// Time limit for connecting to an endpoint.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long stopping waits for requests in flight.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait between two attempts.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// The webhooks of a server.
pub(super) struct Webhooks {
    endpoints: Vec<Arc<Webhook>>,
    /// Changes when a task has ended on this instance.
    ended: watch::Sender<()>,
}

impl Webhooks {
    pub(super) fn new(webhooks: Vec<Webhook>) -> Self {
        Self {
            endpoints: webhooks.into_iter().map(Arc::new).collect(),
            ended: watch::Sender::new(()),
        }
    }

    pub(super) fn task_ended(&self) {
        if !self.endpoints.is_empty() {
            self.ended.send_replace(());
        }
    }
}

impl Tasks {
    /// The configured endpoints' names as they are stored, with the namespace.
    pub(super) fn endpoint_names(&self) -> Vec<String> {
        let names = self.webhooks.endpoints.iter().map(|webhook| &webhook.name);
        names.map(|name| self.namespace.stored_name(name)).collect()
    }

    /// Delivers until the worker stops.
    pub(super) async fn deliver(self: &Arc<Self>, stopped: &watch::Receiver<bool>) {
        let endpoints = &self.webhooks.endpoints;
        if endpoints.is_empty() {
            return;
        }
        let client = HttpClient::new(CONNECT_TIMEOUT, IDLE_TIMEOUT);
        let mut loops = JoinSet::new();
        for webhook in endpoints {
            let worker = Arc::new(EndpointWorker {
                tasks: self.clone(),
                endpoint: self.namespace.stored_name(&webhook.name),
                webhook: webhook.clone(),
                client: client.clone(),
            });
            loops.spawn(worker.run(stopped.clone()));
        }
        while loops.join_next().await.is_some() {}
    }
}

/// Makes the deliveries to one endpoint.
struct EndpointWorker {
    tasks: Arc<Tasks>,
    /// The endpoint's name as it is stored, with the namespace.
    endpoint: String,
    webhook: Arc<Webhook>,
    client: HttpClient,
}

impl EndpointWorker {
    async fn run(self: Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let mut ended = self.tasks.webhooks.ended.subscribe();
        let mut in_flight = JoinSet::new();
        while !*stopped.borrow() {
            let free = MAX_IN_FLIGHT.saturating_sub(in_flight.len());
            if free > 0 {
                for delivery in self.claim(free).await {
                    in_flight.spawn(self.clone().deliver(delivery));
                }
            }
            let is_full = in_flight.len() >= MAX_IN_FLIGHT;
            tokio::select! {
                _ = stopped.changed() => {}
                Some(_) = in_flight.join_next() => {}
                _ = ended.changed(), if !is_full => {}
                () = tokio::time::sleep(self.tasks.options.store_poll), if !is_full => {}
            }
        }
        // Other instances repeat deliveries that take longer.
        let drained = async { while in_flight.join_next().await.is_some() {} };
        let _ = within(STOP_TIMEOUT, drained).await;
    }

    async fn claim(&self, most: usize) -> Vec<Delivery> {
        let tasks = &self.tasks;
        let claim = tasks
            .store
            .claim_deliveries(&self.endpoint, tasks.options.lease, most);
        claim.await.unwrap_or_else(|error| {
            limited_event!(WARN, webhook = %self.webhook.name, %error, "failed to claim deliveries");
            Vec::new()
        })
    }

    async fn deliver(self: Arc<Self>, delivery: Delivery) {
        let tasks = &self.tasks;
        let now = tasks.services.source.unix_seconds();
        let tool = tasks.namespace.tool_of(&delivery.tool);
        let tool = tool.unwrap_or(&delivery.tool);
        let sent = self.webhook.send(&self.client, &delivery, tool, now);
        // The other half of the lease is for storing the outcome.
        let sent = within(tasks.options.lease / 2, sent).await;
        let (event, retry) = match sent.unwrap_or(Err(DeliveryError::Timeout)) {
            Ok(()) => (WebhookEvent::Delivered, None),
            Err(error) => self.retry_or_give_up(&delivery, &error),
        };
        tasks.services.metrics.webhooks.add(event);
        let stored = within(tasks.options.lease / 2, self.finish(&delivery, retry)).await;
        if stored.is_none() {
            limited_event!(WARN, webhook = %self.webhook.name, "webhook delivery not recorded: it will be repeated");
        }
    }

    /// The event of a failed attempt, and the wait before the next one. `None`: the delivery is given up.
    fn retry_or_give_up(
        &self,
        delivery: &Delivery,
        error: &DeliveryError,
    ) -> (WebhookEvent, Option<Duration>) {
        let (tasks, webhook) = (&self.tasks, &self.webhook.name);
        let (task, attempt) = (&delivery.task, delivery.attempt);
        let wait = tasks.backoff_after(attempt, MAX_WAIT);
        let now = tasks.services.source.now();
        let age = now.duration_since(delivery.ended).unwrap_or_default();
        if error.is_final() || age + wait > tasks.options.webhook_age {
            tracing::warn!(%webhook, ?task, attempt, %error, "webhook delivery given up");
            return (WebhookEvent::GivenUp, None);
        }
        limited_event!(WARN, %webhook, ?task, attempt, %error, "webhook delivery failed");
        (WebhookEvent::Retried, Some(wait))
    }

    async fn finish(&self, delivery: &Delivery, retry: Option<Duration>) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        while let Err(error) = self.tasks.store.finish_delivery(delivery, retry).await {
            limited_event!(WARN, webhook = %self.webhook.name, %error, "failed to record delivery");
            backoff.wait().await;
        }
    }
}
