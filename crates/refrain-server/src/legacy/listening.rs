//! Notifications outside of calls: lists and resources that changed. Nothing is asked there.

use super::Session;
use super::state::SessionState;
use crate::auth::Caller;
use crate::record;
use crate::server::Server;
use crate::subscriptions::{SubscribeError, Subscription};
use refrain_wire::Filter;
use refrain_wire::legacy;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// How often a changed subscription that found no place is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// A session that listens.
pub(crate) struct Listening {
    server: Server,
    session: Session,
    caller: Caller,
    state: watch::Receiver<SessionState>,
    /// Is the state still held?
    is_held: bool,
    uris: Vec<String>,
    subscription: Subscription,
    /// The subscription before it, with undelivered changes.
    before: Option<Subscription>,
    /// Does a changed subscription wait for a place?
    waits: bool,
    retry: Interval,
    /// `None`: it does not expire.
    ends: Option<Instant>,
}

impl Listening {
    /// Listens for the changes that the session is subscribed to.
    pub(crate) fn new(
        server: &Server,
        session: &Session,
        caller: Caller,
    ) -> Result<Self, SubscribeError> {
        let mut state = server.0.legacy.watch(session);
        let uris = state.borrow_and_update().uris.clone();
        let mut retry = tokio::time::interval(RETRY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            subscription: subscribe(server, &uris, &caller)?,
            state,
            is_held: true,
            uris,
            before: None,
            waits: false,
            retry,
            ends: Instant::now().checked_add(session.left(server)),
            server: server.clone(),
            session: session.clone(),
            caller,
        })
    }

    /// The next notification. `None`: the session is over, or the server stops.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(before) = &mut self.before {
                if let Some(told) = before.told_before() {
                    return Some(told);
                }
                self.before = None;
            }
            tokio::select! {
                change = self.subscription.next_older() => {
                    let change = change?;
                    record::sent_older(self.session.revision, "", &change);
                    return Some(change);
                }
                changed = self.state.changed(), if self.is_held => {
                    self.is_held = changed.is_ok();
                    self.follow()?;
                }
                _ = self.retry.tick(), if self.waits => self.follow()?,
                () = until(self.ends) => return None,
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
        match subscribe(&self.server, &uris, &self.caller) {
            Ok(new) => {
                self.before = Some(std::mem::replace(&mut self.subscription, new));
                self.uris = uris;
                self.waits = false;
            }
            Err(_) if self.waits => {}
            Err(_) => {
                tracing::warn!("a changed subscription waits for a place");
                self.waits = true;
            }
        }
        Some(())
    }
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

fn subscribe(
    server: &Server,
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
    let registry = &server.0.subscriptions.registry;
    registry.subscribe(filter, None, caller.clone())
}

impl Subscription {
    /// The next change, as older clients are told. `None`: nobody is told anything more.
    async fn next_older(&mut self) -> Option<Vec<u8>> {
        std::future::poll_fn(|cx| self.poll_change(cx, older)).await
    }

    /// A change that was noted already.
    fn told_before(&mut self) -> Option<Vec<u8>> {
        self.take_change(older)
    }
}

fn older(change: refrain_wire::Change<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    legacy::write_change(&mut out, change);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Scopes;
    use crate::limits::ServerLimits;
    use refrain_core::Principal;
    use refrain_wire::legacy::decode_initialize;
    use serde_json::json;
    use serde_json::value::to_raw_value;
    use std::sync::Arc;
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
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        let params = to_raw_value(&params).expect("JSON");
        let initialize = decode_initialize(Some(&params)).expect("a greeting");
        let (session, _) = server.0.legacy.open(&initialize, &Principal::anonymous());
        let caller = Caller {
            principal: Principal::anonymous(),
            scopes: Scopes::everything(),
            expires: None,
        };
        let mut listening = Listening::new(&server, &session, caller.clone()).expect("a place");
        let stranger = subscribe(&server, &[], &caller).expect("a place");
        let subscribed = server.0.legacy.subscribe(&session, "notes://today");
        assert_eq!(subscribed, Ok(()));
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
