//! What a session is told outside of its calls: that lists and resources changed. Nothing is asked there.

use super::{Known, Session};
use crate::auth::Caller;
use crate::listen::{NoPlace, Subscription};
use crate::record;
use crate::server::Server;
use refrain_wire::{Filter, write_older_change};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// How often the notes of a session are looked at, should a word of the store be lost.
const LOOK: Duration = Duration::from_secs(5);

/// A session that listens.
pub(crate) struct Listening {
    server: Server,
    session: Session,
    caller: Caller,
    uris: Vec<String>,
    subscription: Subscription,
    /// What the subscription before it had not told yet.
    before: Option<Subscription>,
    /// Does it wait for a place to listen for what the session wants to hear now?
    waits: bool,
    noted: broadcast::Receiver<String>,
    look: Interval,
    /// `None`: it does not end by itself.
    ends: Option<Instant>,
    /// Does the store still say what was noted?
    speaks: bool,
}

impl Listening {
    /// Begins to listen for what the session wants to hear.
    pub(crate) fn new(
        server: &Server,
        session: &Session,
        known: &Known,
        caller: Caller,
    ) -> Result<Self, NoPlace> {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            // Before the notes are looked at again, so that no word is missed.
            noted: server.0.legacy.notes.changed_with(session),
            subscription: subscribe(server, &known.uris, &caller)?,
            uris: known.uris.clone(),
            before: None,
            waits: false,
            look,
            ends: Instant::now().checked_add(session.left(server)),
            speaks: true,
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
                noted = self.noted.recv(), if self.speaks => match noted {
                    Ok(session) if *session != *self.session.key => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => self.look_at_notes().await?,
                    Err(RecvError::Closed) => self.speaks = false,
                },
                _ = self.look.tick() => self.look_at_notes().await?,
                () = until(self.ends) => return None,
            }
        }
    }

    /// Listens for what the session wants to hear now. `None`: it is over.
    async fn look_at_notes(&mut self) -> Option<()> {
        let known = match self.server.0.legacy.notes.read(&self.session).await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "a session could not be looked up");
                return Some(());
            }
        };
        if known.ended {
            return None;
        }
        if known.uris == self.uris {
            return Some(());
        }
        match subscribe(&self.server, &known.uris, &self.caller) {
            Ok(new) => {
                self.before = Some(std::mem::replace(&mut self.subscription, new));
                self.uris = known.uris;
                self.waits = false;
            }
            // It is tried again with every look.
            Err(_) if self.waits => {}
            Err(_) => {
                tracing::warn!("a session wants to hear of something else, and waits for a place");
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

fn subscribe(server: &Server, uris: &[String], caller: &Caller) -> Result<Subscription, NoPlace> {
    let filter = Filter {
        tools: true,
        prompts: true,
        resources: true,
        uris: uris.to_vec(),
        tasks: Vec::new(),
    };
    server.0.hub.subscribe(filter, None, caller.clone())
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
    write_older_change(&mut out, change);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Scopes;
    use crate::limits::ServerLimits;
    use refrain_core::Principal;
    use refrain_wire::decode_initialize;
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
    async fn whoever_waits_for_a_place_is_named_once_and_gets_it() {
        let limits = ServerLimits {
            subscriptions: 2,
            ..ServerLimits::default()
        };
        let builder = Server::builder("older", "1").limits(limits);
        let server = builder.build().expect("a usable server");
        let warnings = Warnings::default();
        let registry = tracing_subscriber::registry().with(warnings.clone());
        let _guard = tracing::subscriber::set_default(registry);
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        let params = to_raw_value(&params).expect("JSON");
        let initialize = decode_initialize(Some(&params)).expect("a greeting");
        let (session, _) = server.open_session(&initialize, &Principal::anonymous());
        let caller = Caller {
            principal: Principal::anonymous(),
            scopes: Scopes::everything(),
            expires: None,
        };
        let known = Known::default();
        let mut listening =
            Listening::new(&server, &session, &known, caller.clone()).expect("a place");
        let stranger = subscribe(&server, &[], &caller).expect("a place");
        assert!(
            server
                .note_uri(&session, "notes://today")
                .await
                .expect("a store")
        );
        // It is looked many times; the time is not real.
        let looked = tokio::time::timeout(10 * LOOK, listening.next()).await;
        assert!(looked.is_err(), "there is nothing to tell");
        assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
        drop(stranger);
        let looked = tokio::time::timeout(2 * LOOK, listening.next()).await;
        assert!(looked.is_err(), "there is nothing to tell");
        server.resource_updated("notes://today");
        let told = tokio::time::timeout(LOOK, listening.next()).await;
        let told = told.expect("it listens").expect("news");
        assert!(String::from_utf8_lossy(&told).contains("notes://today"));
    }
}
