//! Claims of first requests in the replay log.

use super::lifetime::BrokenClock;
use super::*;
use refrain_core::{
    LogFuture, LogKey, MemoryReplayLog, Principal, RecordState, ReplayLog, Retention,
};

/// A replay log whose replies to fresh claims wait for a signal.
struct SlowLog {
    log: MemoryReplayLog,
    signals: Arc<Signals>,
}

impl ReplayLog for SlowLog {
    fn begin<'a>(
        &'a self,
        key: &'a LogKey,
        account: &'a Principal,
        keep: Retention,
    ) -> LogFuture<'a, RecordState> {
        Box::pin(async move {
            let recorded = self.log.begin(key, account, keep).await?;
            match recorded {
                RecordState::Fresh => {
                    self.signals.say("recorded");
                    self.signals.pass().await;
                }
                _ => self.signals.say("known"),
            }
            Ok(recorded)
        })
    }

    fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
        self.log.finish(key, value)
    }

    fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
        self.log.forget(key)
    }
}

#[tokio::test]
async fn call_rejected_at_shutdown_can_start_on_another_instance() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let (signals, mut received) = signals();
    let log = MemoryReplayLog::new();
    let slow = Arc::new(SlowLog {
        log: log.clone(),
        signals: signals.clone(),
    });
    let instances = fleet(2, || builder(&ledger, &keys).replay_log(slow.clone()), true).await;
    let mut connection = instances[0].connect().await;
    connection.send(&identified("inline")).await;
    within("the log", received.recv()).await;
    instances[0].server.close_live();
    signals.open();
    let message = connection.response().await.error(200, -32603);
    assert_contains(
        &message,
        &["shutting down", "had no effect", "retry the call"],
    );
    assert!(log.is_empty(), "the claim was deleted");
    signals.open();
    let asks = instances[1].send(&identified("inline")).await.reply();
    let done = instances[1]
        .send(&second_round("inline", &token(&asks)))
        .await;
    assert_eq!(text(&done.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn claim_of_disconnected_client_is_deleted() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let (signals, mut received) = signals();
    let log = MemoryReplayLog::new();
    let slow = SlowLog {
        log: log.clone(),
        signals: signals.clone(),
    };
    let instance = start(builder(&ledger, &keys).replay_log(Arc::new(slow))).await;
    let mut connection = instance.connect().await;
    connection.send(&identified("inline")).await;
    within("the log", received.recv()).await;
    drop(connection);
    instance.at_rest().await;
    // Another request without the claim does not delete it.
    let mut connection = instance.connect().await;
    connection.send(&identified("inline")).await;
    expect_signal(&mut received, "known").await;
    drop(connection);
    instance.at_rest().await;
    assert_eq!(log.len(), 1);
    signals.open();
    expect_signal(&mut received, "recorded").await;
    signals.open();
    until("the claim to be deleted", || log.is_empty()).await;
    assert!(ledger.lines().is_empty());
    signals.open();
    let asks = instance.send(&identified("inline")).await.reply();
    let done = instance.send(&second_round("inline", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn concurrent_first_request_waits_for_the_call_to_start() {
    for disconnects in [false, true] {
        let (ledger, keys) = (Arc::<Ledger>::default(), keys());
        let (signals, mut received) = signals();
        let slow = SlowLog {
            log: MemoryReplayLog::new(),
            signals: signals.clone(),
        };
        let instance = start(builder(&ledger, &keys).replay_log(Arc::new(slow))).await;
        let mut one = Some(instance.connect().await);
        let mut other = instance.connect().await;
        for (connection, expected) in [
            (one.as_mut().expect("the connection is open"), "recorded"),
            (&mut other, "known"),
        ] {
            connection.send(&identified("inline")).await;
            expect_signal(&mut received, expected).await;
        }
        one.take_if(|_| disconnects);
        let noticed = async {
            while disconnects && instance.server.running() > 1 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within("the disconnect to be noticed", noticed).await;
        signals.open();
        let again = within("the log", received.recv()).await;
        // It starts the call itself if the other request is gone.
        assert_eq!(again, Some(if disconnects { "recorded" } else { "known" }));
        signals.open();
        let asks = other.response().await.reply();
        if let Some(mut one) = one {
            assert_eq!(one.response().await.reply(), asks);
        }
        let done = instance.send(&second_round("inline", &token(&asks))).await;
        assert_eq!(text(&done.reply()), "Done for Ada.");
        assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
    }
}

#[tokio::test]
async fn crashed_call_is_recorded_as_failed() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let log = Arc::new(MemoryReplayLog::new());
    let clock = Arc::new(BrokenClock::default());
    let build = || {
        let clock = clock.clone();
        let broken = clock.clone();
        let breaks = move |cx: Cx, ledger: LedgerState| {
            let broken = broken.clone();
            async move {
                broken.set(true);
                waits(cx, ledger).await
            }
        };
        let builder = builder(&ledger, &keys).replay_log(log.clone());
        let builder = builder.tool(Tool::new("breaks", breaks).live());
        builder.source(clock)
    };
    let instances = fleet(2, build, true).await;
    let broken = instances[0].send(&identified("breaks")).await;
    clock.set(false);
    assert_contains(&broken.error(200, -32603), &["Internal error"]);
    for instance in &instances {
        let again = instance.send(&identified("breaks")).await;
        assert_eq!(again.reply(), broken.reply(), "the same on every instance");
    }
    assert_eq!(ledger.lines(), ["started", "dropped"]);
}
