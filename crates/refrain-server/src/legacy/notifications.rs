//! Notifications of a session outside of calls: changed lists and resources.

use super::state::SessionState;
use super::{LegacySessions, Session};
use crate::auth::Caller;
use crate::subscriptions::{SubscribeError, Subscription};
use crate::wire_recorder;
use refrain_core::limited_event;
use refrain_wire::{Change, Filter, legacy};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, sleep_until};

/// How often a changed subscription is retried while the limit of subscriptions is reached.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct SessionNotifications {
    legacy: Arc<LegacySessions>,
    session: Session,
    caller: Caller,
    state: watch::Receiver<SessionState>,
    /// Whether the sender of `state` still exists.
    can_change: bool,
    /// The URIs of the current subscription.
    uris: Vec<String>,
    subscription: Subscription,
    /// The previous subscription, with undelivered changes.
    previous: Option<Subscription>,
    /// Whether a changed subscription waits for a permit. It is retried at each tick of `retry`.
    is_waiting: bool,
    retry: Interval,
    /// When the session expires. `None` if that is beyond the range of `Instant`.
    expires: Option<Instant>,
}

impl LegacySessions {
    /// Subscribes to changes of the lists and of the session's resources.
    pub(crate) fn listen(
        self: &Arc<Self>,
        session: &Session,
        caller: Caller,
    ) -> Result<SessionNotifications, SubscribeError> {
        let mut state = self.watch(session);
        let uris = state.borrow_and_update().uris.clone();
        let subscription = self.subscribe_to(&uris, &caller);
        let subscription = subscription.inspect_err(|_| self.unwatch(session))?;
        let mut retry = tokio::time::interval(RETRY_INTERVAL);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(SessionNotifications {
            subscription,
            state,
            can_change: true,
            uris,
            previous: None,
            is_waiting: false,
            retry,
            expires: Instant::now().checked_add(self.time_left(session)),
            legacy: self.clone(),
            session: session.clone(),
            caller,
        })
    }

    fn subscribe_to(
        &self,
        uris: &[String],
        caller: &Caller,
    ) -> Result<Subscription, SubscribeError> {
        let filter = Filter {
            tools: true,
            prompts: true,
            resources: true,
            uris: uris.to_vec(),
            tasks: Vec::new(),
        };
        self.subscriptions
            .registry
            .subscribe(filter, None, caller.clone())
    }
}

impl SessionNotifications {
    /// The next notification. `None` if the session has ended or the server shuts down.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(previous) = &mut self.previous {
                if let Some(change) = previous.take_change(write_change) {
                    return Some(change);
                }
                self.previous = None;
            }
            let subscription = &mut self.subscription;
            tokio::select! {
                change = poll_fn(|cx| subscription.poll_change(cx, write_change)) => {
                    let change = change?;
                    wire_recorder::record_legacy(self.session.revision, "", &change);
                    return Some(change);
                }
                changed = self.state.changed(), if self.can_change => {
                    self.can_change = changed.is_ok();
                    self.update_subscription()?;
                }
                _ = self.retry.tick(), if self.is_waiting => self.update_subscription()?,
                () = sleep_until(self.expires.unwrap_or_else(Instant::now)), if self.expires.is_some() => return None,
            }
        }
    }

    /// Subscribes to the session's current resources. Returns `None` if the session has ended.
    fn update_subscription(&mut self) -> Option<()> {
        let SessionState { ended, uris, .. } = self.state.borrow_and_update().clone();
        if ended {
            return None;
        }
        if uris == self.uris {
            self.is_waiting = false;
            return Some(());
        }
        match self.legacy.subscribe_to(&uris, &self.caller) {
            Ok(subscription) => {
                self.previous = Some(std::mem::replace(&mut self.subscription, subscription));
                self.uris = uris;
                self.is_waiting = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_waiting, true) {
                    limited_event!(WARN, %error, "changed subscription waits for a permit");
                }
            }
        }
        Some(())
    }
}

impl Drop for SessionNotifications {
    fn drop(&mut self) {
        self.legacy.unwatch(&self.session);
    }
}

fn write_change(change: Change<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    legacy::write_change(&mut out, change);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Scopes;
    use crate::legacy::session::tests::open;
    use crate::limits::ServerLimits;
    use crate::server::Server;
    use refrain_core::Principal;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing::{Event, Level, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Warnings {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            if *event.metadata().level() == Level::WARN {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changed_subscription_waits_for_a_permit_and_logs_once() {
        let limits = ServerLimits {
            subscriptions: 2,
            ..ServerLimits::default()
        };
        let builder = Server::builder("legacy", "1").limits(limits);
        let server = builder.build().expect("a valid server");
        let warnings = Warnings::default();
        let registry = tracing_subscriber::registry().with(warnings.clone());
        let _guard = tracing::subscriber::set_default(registry);
        let legacy = &server.0.legacy;
        let session = open(&server);
        let caller = Caller {
            scopes: Scopes::everything(),
            ..Principal::anonymous().into()
        };
        let mut notifications = legacy.listen(&session, caller.clone()).expect("a permit");
        let other = legacy.subscribe_to(&[], &caller).expect("a permit");
        assert_eq!(
            legacy.subscribe(&session, caller.limit_key(), "notes://today"),
            Ok(())
        );
        // The clock is paused, so the time of ten retries passes at once.
        let next = tokio::time::timeout(10 * RETRY_INTERVAL, notifications.next()).await;
        assert!(next.is_err(), "unexpected notification");
        assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
        drop(other);
        let next = tokio::time::timeout(2 * RETRY_INTERVAL, notifications.next()).await;
        assert!(next.is_err(), "unexpected notification");
        server.resource_updated("notes://today");
        let next = tokio::time::timeout(RETRY_INTERVAL, notifications.next()).await;
        let message = next.expect("no timeout").expect("a notification");
        assert!(String::from_utf8_lossy(&message).contains("notes://today"));
    }
}
