//! Disrupts the workers and the database during a run.

use crate::clock::{micros, retry};
use crate::error::Error;
use crate::fleet::WORKERS;
use crate::random::Random;
use crate::run::CrashRun;
use crate::worker::LEASE;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Separates the random numbers of the trouble from others of the same seed.
const PURPOSE: u64 = 0x74_72_6f_75;
/// How often a worker is killed, about.
const KILL_EVERY: Duration = Duration::from_secs(1);
/// Connections cut at a time, at most.
const CUT: u64 = 6;

impl CrashRun {
    /// Causes disruptions until it is dropped or fails.
    pub(crate) async fn make_trouble(&self) -> Result<Infallible, Error> {
        let mut random = Random::new(self.seed, PURPOSE);
        let (mut kill_all, mut restart) = (true, self.cluster.is_some());
        // In a fixed order, so that a short run has all kinds.
        let mut turn = 0;
        loop {
            tokio::time::sleep(random.about(KILL_EVERY)).await;
            self.fleet.must_run()?;
            let over = self.over.load(Ordering::Relaxed);
            if kill_all && over >= self.options.tasks / 2 {
                kill_all = false;
                for at in 0..WORKERS {
                    self.fleet.kill(at)?;
                }
                continue;
            }
            if restart && over >= self.options.tasks / 4 {
                restart = false;
                self.restart_database().await?;
                continue;
            }
            turn += 1;
            match turn % 8 {
                0 | 4 => self.stop_worker(&mut random).await?,
                2 | 6 => self.cut_connections(random.between(1, CUT)).await?,
                _ => {}
            }
            let at = random.below(WORKERS as u64) as usize;
            self.fleet.kill(at)?;
        }
    }

    /// Stops a worker for longer than its lease. The others are killed meanwhile.
    async fn stop_worker(&self, random: &mut Random) -> Result<(), Error> {
        let at = random.below(WORKERS as u64) as usize;
        let time = random.about(LEASE) + LEASE;
        let mut stop = std::pin::pin!(self.fleet.stop(at, time));
        loop {
            let wait = tokio::time::sleep(random.about(KILL_EVERY));
            tokio::select! {
                stopped = &mut stop => return stopped,
                () = wait => {
                    let other = random.below(WORKERS as u64) as usize;
                    if other != at {
                        self.fleet.kill(other)?;
                    }
                }
            }
        }
    }

    /// Cuts up to so many connections to Postgres. A file has none.
    async fn cut_connections(&self, most: u64) -> Result<(), Error> {
        const CUT: &str = "
            SELECT count(pg_terminate_backend(pid)) FROM (
                SELECT pid FROM pg_stat_activity
                WHERE pid <> pg_backend_pid() AND datname = current_database()
                  AND backend_type = 'client backend'
                ORDER BY random() LIMIT $1) AS chosen";
        let Some(options) = &self.postgres else {
            return Ok(());
        };
        let mut connection = retry(|_| true, || PgConnection::connect_with(options)).await?;
        let cut = sqlx::query_scalar(CUT).bind(most as i64);
        let cut: i64 = cut.fetch_one(&mut connection).await?;
        self.fleet.disruptions.lock().cuts += cut.unsigned_abs();
        Ok(())
    }

    async fn restart_database(&self) -> Result<(), Error> {
        let Some(cluster) = self.cluster.clone() else {
            return Ok(());
        };
        let from = micros();
        let restarted = tokio::task::spawn_blocking(move || cluster.restart()).await;
        restarted.map_err(|error| Error::system("a restart")(error.into()))??;
        self.fleet
            .disruptions
            .lock()
            .restarts
            .push((from, micros()));
        Ok(())
    }
}
