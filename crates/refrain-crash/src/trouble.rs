//! What is done to the workers and to the database while they work.

use crate::clock::micros;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::ledger::Ledger;
use crate::random::Random;
use parking_lot::Mutex;
use refrain::runtime::store::cluster::Cluster;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The purpose that trouble draws its chance for.
const PURPOSE: u64 = 0x74_72_6f_75;
/// Connections cut at a time, at most.
const CUT: u64 = 6;

/// Whoever makes trouble.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) ledger: Ledger,
    /// The Postgres that can be restarted, if there is one.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) seed: u64,
    /// How often something happens, about.
    pub(crate) every: Duration,
    pub(crate) lease: Duration,
    pub(crate) tasks: usize,
    /// How many tasks are over.
    pub(crate) over: Arc<AtomicUsize>,
    pub(crate) cuts: AtomicU64,
    pub(crate) restarts: Mutex<Vec<(u64, u64)>>,
}

impl Trouble {
    /// Makes trouble for as long as it is let.
    pub(crate) async fn make(&self) -> Result<(), Error> {
        let mut random = Random::new(self.seed, PURPOSE);
        let (mut massacre, mut restart) = (true, self.cluster.is_some());
        // Chosen one after another, so that a short run has some of each.
        let mut turn = 0;
        loop {
            tokio::time::sleep(random.about(self.every)).await;
            self.fleet.must_run()?;
            let over = self.over.load(Ordering::Relaxed);
            if massacre && over >= self.tasks / 2 {
                massacre = false;
                for at in 0..self.fleet.len() {
                    self.fleet.kill(at)?;
                }
                continue;
            }
            if restart && over >= self.tasks / 4 {
                restart = false;
                self.restart().await?;
                continue;
            }
            turn += 1;
            match turn % 8 {
                0 | 4 => self.stop(&mut random).await?,
                2 | 6 => self.cut(&mut random).await?,
                _ => {}
            }
            let at = random.below(self.fleet.len() as u64) as usize;
            self.fleet.kill(at)?;
        }
    }

    /// Stops a worker for longer than its lease. The others are killed meanwhile.
    async fn stop(&self, random: &mut Random) -> Result<(), Error> {
        let all = self.fleet.len() as u64;
        let at = random.below(all) as usize;
        let time = random.about(self.lease) + self.lease;
        let mut stop = std::pin::pin!(self.fleet.stop(at, time));
        loop {
            let wait = tokio::time::sleep(random.about(self.every));
            tokio::select! {
                stopped = &mut stop => return stopped,
                () = wait => {
                    let other = random.below(all) as usize;
                    if other != at {
                        self.fleet.kill(other)?;
                    }
                }
            }
        }
    }

    /// Cuts connections to the database, those of the workers and all others.
    async fn cut(&self, random: &mut Random) -> Result<(), Error> {
        let most = random.between(1, CUT);
        let cut = self.ledger.cut_connections(most as i64).await?;
        self.cuts.fetch_add(cut, Ordering::Relaxed);
        Ok(())
    }

    async fn restart(&self) -> Result<(), Error> {
        let Some(cluster) = self.cluster.clone() else {
            return Ok(());
        };
        let from = micros();
        let restart = tokio::task::spawn_blocking(move || cluster.restart());
        let restarted = restart.await;
        restarted.map_err(|error| Error::system("a restart")(error.into()))??;
        self.restarts.lock().push((from, micros()));
        Ok(())
    }
}
