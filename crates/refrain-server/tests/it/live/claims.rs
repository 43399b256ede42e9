//! What the replay log is told of a first request is taken back where nothing was done, and ended where it broke.

use super::ends::Breaking;
use super::*;
use refrain_core::{LogFuture, LogKey, MemoryReplayLog, RecordState, ReplayLog, Retention};

/// A log that says what it recorded only when it is let.
struct Slow {
    log: MemoryReplayLog,
    signals: Arc<Signals>,
}

impl ReplayLog for Slow {
    fn begin<'a>(&'a self, key: &'a LogKey, keep: Retention) -> LogFuture<'a, RecordState> {
        Box::pin(async move {
            let recorded = self.log.begin(key, keep).await?;
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

fn identified(tool: &str) -> Request {
    first(tool).meta("refrain/callId", json!("c-1"))
}

#[tokio::test]
async fn a_call_that_is_not_begun_because_the_instance_stops_can_be_begun_elsewhere() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let (signals, mut said) = signals();
    let log = MemoryReplayLog::new();
    let slow = Arc::new(Slow {
        log: log.clone(),
        signals: signals.clone(),
    });
    let instances = fleet(2, || builder(&ledger, &keys).replay_log(slow.clone()), true).await;
    let mut connection = instances[0].connect().await;
    connection.send(&identified("inline")).await;
    within("the log", said.recv()).await;
    instances[0].server.close_live();
    signals.open();
    let message = connection.response().await.error(200, -32603);
    names(&message, &["is stopping", "nothing was done", "call again"]);
    assert!(log.is_empty(), "it is as if it had not come");
    signals.open();
    let asks = instances[1].send(&identified("inline")).await.reply();
    let done = instances[1].send(&second("inline", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_call_is_begun_can_begin_it_later() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let (signals, mut said) = signals();
    let log = MemoryReplayLog::new();
    let slow = Slow {
        log: log.clone(),
        signals: signals.clone(),
    };
    let instance = start(builder(&ledger, &keys).replay_log(Arc::new(slow))).await;
    let mut connection = instance.connect().await;
    connection.send(&identified("inline")).await;
    within("the log", said.recv()).await;
    drop(connection);
    instance.at_rest().await;
    // Another request of the same call, which did not begin it, takes nothing back.
    let mut connection = instance.connect().await;
    connection.send(&identified("inline")).await;
    assert_eq!(within("the log", said.recv()).await, Some("known"));
    drop(connection);
    instance.at_rest().await;
    assert_eq!(log.len(), 1);
    signals.open();
    assert_eq!(within("the log", said.recv()).await, Some("recorded"));
    signals.open();
    let taken_back = async {
        while !log.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the beginning to be taken back", taken_back).await;
    assert!(ledger.lines().is_empty());
    signals.open();
    let asks = instance.send(&identified("inline")).await.reply();
    let done = instance.send(&second("inline", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn a_request_that_comes_while_its_call_is_about_to_begin_waits_for_it() {
    for goes_away in [false, true] {
        let (ledger, keys) = (Arc::<Ledger>::default(), keys());
        let (signals, mut said) = signals();
        let slow = Slow {
            log: MemoryReplayLog::new(),
            signals: signals.clone(),
        };
        let instance = start(builder(&ledger, &keys).replay_log(Arc::new(slow))).await;
        let mut one = Some(instance.connect().await);
        let mut other = instance.connect().await;
        for (connection, says) in [
            (one.as_mut().expect("a connection"), "recorded"),
            (&mut other, "known"),
        ] {
            connection.send(&identified("inline")).await;
            assert_eq!(within("the log", said.recv()).await, Some(says));
        }
        one.take_if(|_| goes_away);
        let seen = async {
            while goes_away && instance.server.running() > 1 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within("the client to be missed", seen).await;
        signals.open();
        let again = within("the log", said.recv()).await;
        // It begins the call itself, if nobody else does.
        assert_eq!(again, Some(if goes_away { "recorded" } else { "known" }));
        signals.open();
        let asks = other.response().await.reply();
        if let Some(mut one) = one {
            assert_eq!(one.response().await.reply(), asks);
        }
        let done = instance.send(&second("inline", &token(&asks))).await;
        assert_eq!(text(&done.reply()), "Done for Ada.");
        assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
    }
}

#[tokio::test]
async fn a_call_that_broke_is_recorded_as_such() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let log = Arc::new(MemoryReplayLog::new());
    let clock = Arc::new(Breaking::default());
    let build = || {
        let clock = clock.clone();
        let broken = clock.clone();
        let breaks = move |cx: Cx, ledger: Books| {
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
    names(&broken.error(200, -32603), &["Internal error"]);
    for instance in &instances {
        let again = instance.send(&identified("breaks")).await;
        assert_eq!(again.reply(), broken.reply(), "the same, wherever it comes");
    }
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
}
