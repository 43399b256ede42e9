//! Notifications outside of calls: lists and resources that changed. Nothing is asked there.

use super::state::SessionState;
use super::{LegacySessions, Session};
use crate::auth::Caller;
use crate::record;
use crate::subscriptions::{SubscribeError, Subscription};
use refrain_wire::{Change, Filter, legacy};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, sleep_until};

/// How often a changed subscription is retried while the limit of subscriptions is reached.
const RETRY: Duration = Duration::from_secs(5);

/// A session that is notified of changes.
pub(crate) struct Listening {
    legacy: Arc<LegacySessions>,
    session: Session,
    caller: Caller,
    state: watch::Receiver<SessionState>,
    /// Is the state still held?
    is_held: bool,
    uris: Vec<String>,
    subscription: Subscription,
    /// The subscription before it, with undelivered changes.
    before: Option<Subscription>,
    /// Does a changed subscription wait for a permit?
    waits: bool,
    retry: Interval,
    /// When the session expires, unless that is too far away for the clock.
    ends: Option<Instant>,
}

impl LegacySessions {
    /// Subscribes to the changes that the session wants.
    pub(crate) fn listen(
        self: &Arc<Self>,
        session: &Session,
        caller: Caller,
    ) -> Result<Listening, SubscribeError> {
        let mut state = self.watch(session);
        let uris = state.borrow_and_update().uris.clone();
        let mut retry = tokio::time::interval(RETRY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Listening {
            subscription: self.subscribe_to(&uris, &caller)?,
            state,
            is_held: true,
            uris,
            before: None,
            waits: false,
            retry,
            ends: Instant::now().checked_add(self.left(session)),
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

impl Listening {
    /// The next notification. `None`: the session is over, or the server stops.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(before) = &mut self.before {
                if let Some(change) = before.take_change(write_change) {
                    return Some(change);
                }
                self.before = None;
            }
            let subscription = &mut self.subscription;
            tokio::select! {
                change = poll_fn(|cx| subscription.poll_change(cx, write_change)) => {
                    let change = change?;
                    record::sent_older(self.session.revision, "", &change);
                    return Some(change);
                }
                changed = self.state.changed(), if self.is_held => {
                    self.is_held = changed.is_ok();
                    self.follow()?;
                }
                _ = self.retry.tick(), if self.waits => self.follow()?,
                () = sleep_until(self.ends.unwrap_or_else(Instant::now)), if self.ends.is_some() => return None,
            }
        }
    }

    /// Follows the subscriptions of the session. `None`: it has ended.
    fn follow(&mut self) -> Option<()> {
        let SessionState { ended, uris, .. } = self.state.borrow_and_update().clone();
        if ended {
            return None;
        }
        if uris == self.uris {
            self.waits = false;
            return Some(());
        }
        match self.legacy.subscribe_to(&uris, &self.caller) {
            Ok(new) => {
                self.before = Some(std::mem::replace(&mut self.subscription, new));
                self.uris = uris;
                self.waits = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.waits, true) {
                    tracing::warn!(%error, "changed subscription waits");
                }
            }
        }
        Some(())
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

    /// Counts warnings.
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
    async fn changed_subscription_waits_for_a_place_and_is_logged_once() {
        let limits = ServerLimits {
            subscriptions: 2,
            ..ServerLimits::default()
        };
        let builder = Server::builder("legacy", "1").limits(limits);
        let server = builder.build().expect("a usable server");
        let warnings = Warnings::default();
        let registry = tracing_subscriber::registry().with(warnings.clone());
        let _guard = tracing::subscriber::set_default(registry);
        let legacy = &server.0.legacy;
        let session = open(&server);
        let caller = Caller {
            principal: Principal::anonymous(),
            scopes: Scopes::everything(),
            expires: None,
        };
        let mut listening = legacy.listen(&session, caller.clone()).expect("a permit");
        let stranger = legacy.subscribe_to(&[], &caller).expect("a permit");
        assert_eq!(legacy.subscribe(&session, "notes://today"), Ok(()));
        // It is tried many times; the time is not real.
        let looked = tokio::time::timeout(10 * RETRY, listening.next()).await;
        assert!(looked.is_err(), "there is nothing to tell");
        assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
        drop(stranger);
        let looked = tokio::time::timeout(2 * RETRY, listening.next()).await;
        assert!(looked.is_err(), "there is nothing to tell");
        server.resource_updated("notes://today");
        let told = tokio::time::timeout(RETRY, listening.next()).await;
        let told = told.expect("it listens").expect("news");
        assert!(String::from_utf8_lossy(&told).contains("notes://today"));
    }
}
