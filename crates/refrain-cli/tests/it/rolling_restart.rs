//! A rolling restart under load loses no call and repeats no step.

use crate::support::tasks::in_the_middle;
use crate::support::{Balancer, Files, Instance, Ledger, Load, Serve};
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const CLIENTS: usize = 9;

/// The files that the instances share.
struct Shared {
    keys: PathBuf,
    ledger: PathBuf,
    config: PathBuf,
}

impl Shared {
    async fn start(&self, name: &str) -> Instance {
        let serve = Serve::new().keys(&self.keys).ledger(&self.ledger);
        serve.config(&self.config).named(name).start().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_loses_no_call() {
    in_the_middle(async |pause_ms| restart(Duration::from_millis(2 * pause_ms)).await).await;
}

/// A rolling restart with this grace period. `None` means that the balancer noticed a draining instance too late.
async fn restart(grace: Duration) -> Option<()> {
    let files = Files::new();
    let limits = format!("[limits]\ndrain_grace_ms = {}\n", grace.as_millis());
    let shared = Shared {
        keys: files.keys("fleet.keys"),
        ledger: files.write("ledger", ""),
        config: files.write("config.toml", &limits),
    };
    let mut instances = Vec::new();
    for name in ["a1", "b1", "c1"] {
        instances.push(shared.start(name).await);
    }
    let balancer = Balancer::start(instances.iter().map(|i| i.address)).await;
    let load = Load::start(balancer.address, CLIENTS);
    for name in ["a1", "b1", "c1"] {
        load.served_by(name).await;
    }
    for (at, name) in ["a2", "b2", "c2"].into_iter().enumerate() {
        let begun = Instant::now();
        instances[at].signal(Signal::TERM);
        balancer.skips(at).await;
        // The other half is for requests in flight.
        if begun.elapsed() >= grace / 2 {
            return None;
        }
        let status = instances[at].ended().await;
        let log = &instances[at].log;
        assert!(status.success(), "{status}\n{log:?}");
        assert_eq!(log.count("dropped"), 0, "{log:?}");
        instances[at] = shared.start(name).await;
        balancer.put(at, instances[at].address);
        load.served_by(name).await;
    }
    load.stop(&Ledger::at(&shared.ledger)).await;
    Some(())
}

/// A supervisor may send a signal as soon as the instance reports that it listens.
#[tokio::test]
async fn signal_right_after_start_drains_the_instance() {
    let files = Files::new();
    let config = files.write("config.toml", "[limits]\ndrain_grace_ms = 0\n");
    for _ in 0..5 {
        let mut instance = Serve::new().config(&config).start().await;
        instance.stop().await;
        assert_eq!(instance.log.count("draining"), 1, "{:?}", instance.log);
    }
}
