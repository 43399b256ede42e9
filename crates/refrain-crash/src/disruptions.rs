//! Kills and stops of workers, cut connections, database restarts and failovers during a run.

use crate::clock::{PATIENCE, micros, retry};
use crate::error::CrashError;
use crate::fleet::{Failover, WORKERS};
use crate::random::{about, random_stream};
use crate::run::CrashRun;
use crate::worker::LEASE;
use fastrand::Rng;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The random stream of the disruptions.
const RANDOM_STREAM: u64 = 0x74_72_6f_75;
/// The mean interval between kills.
const KILL_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of connections cut at once.
const MAX_CUTS: u64 = 6;

impl CrashRun {
    /// Disrupts the run until this future is dropped.
    pub(crate) async fn disrupt(&self) -> Result<Infallible, CrashError> {
        let mut random = random_stream(self.seed, RANDOM_STREAM);
        let (mut kill_all, mut restart) = (true, self.cluster.is_some());
        // A fixed order, so that a short run has every kind.
        let mut turn = 0;
        loop {
            tokio::time::sleep(about(&mut random, KILL_INTERVAL)).await;
            self.fleet.must_run()?;
            let ended = self.tasks_ended.load(Ordering::Relaxed);
            if kill_all && ended >= self.options.tasks / 2 {
                kill_all = false;
                for index in 0..WORKERS {
                    self.fleet.kill(index)?;
                }
                continue;
            }
            if restart && ended >= self.options.tasks / 4 {
                restart = false;
                match self.options.failover {
                    true => self.fail_over().await?,
                    false => self.restart_database().await?,
                }
                continue;
            }
            turn += 1;
            match turn % 8 {
                0 | 4 => self.stop_worker(&mut random).await?,
                2 | 6 => self.cut_connections(random.u64(1..=MAX_CUTS)).await?,
                _ => {}
            }
            let index = random.usize(..WORKERS);
            self.fleet.kill(index)?;
        }
    }

    /// Stops a worker for longer than its lease, and kills others meanwhile.
    async fn stop_worker(&self, random: &mut Rng) -> Result<(), CrashError> {
        let index = random.usize(..WORKERS);
        let time = about(random, LEASE) + LEASE;
        let mut stop = std::pin::pin!(self.fleet.stop(index, time));
        loop {
            let wait = tokio::time::sleep(about(random, KILL_INTERVAL));
            tokio::select! {
                stopped = &mut stop => return stopped,
                () = wait => {
                    let other = random.usize(..WORKERS);
                    if other != index {
                        self.fleet.kill(other)?;
                    }
                }
            }
        }
    }

    async fn cut_connections(&self, max: u64) -> Result<(), CrashError> {
        const TERMINATE: &str = "
            SELECT count(pg_terminate_backend(pid)) FROM (
                SELECT pid FROM pg_stat_activity
                WHERE pid <> pg_backend_pid() AND datname = current_database()
                  AND backend_type = 'client backend'
                ORDER BY random() LIMIT $1) AS chosen";
        let Some(options) = self.postgres.lock().clone() else {
            return Ok(());
        };
        let mut connection = retry(|_| true, || PgConnection::connect_with(&options)).await?;
        let cut = sqlx::query_scalar(TERMINATE).bind(max as i64);
        let cut: i64 = cut.fetch_one(&mut connection).await?;
        self.fleet.disruptions.lock().cuts += cut.unsigned_abs();
        Ok(())
    }

    async fn restart_database(&self) -> Result<(), CrashError> {
        let Some(cluster) = self.cluster.clone() else {
            return Ok(());
        };
        let from = micros();
        let restarted = tokio::task::spawn_blocking(move || cluster.restart()).await;
        restarted??;
        self.fleet
            .disruptions
            .lock()
            .restarts
            .push((from, micros()));
        Ok(())
    }

    /// Kills the database server, promotes its standby, and waits until a task is written there. Plain calls go on meanwhile.
    async fn fail_over(&self) -> Result<(), CrashError> {
        let options = self.postgres.lock().clone();
        let (Some(cluster), Some(options)) = (self.cluster.clone(), options) else {
            return Ok(());
        };
        let from = micros();
        let written = async {
            let port = tokio::task::spawn_blocking(move || cluster.fail_over()).await??;
            let options = options.port(port);
            first_write(&options).await?;
            *self.postgres.lock() = Some(options);
            Ok(())
        };
        let mut calls = 0;
        tokio::select! {
            written = written => written,
            failed = self.make_calls(&mut calls) => failed.map(|never| match never {}),
        }?;
        let (to, mut disruptions) = (micros(), self.fleet.disruptions.lock());
        disruptions.restarts.push((from, to));
        let seconds = (to - from) as f64 / 1e6;
        disruptions.failovers.push(Failover { seconds, calls });
        Ok(())
    }
}

/// Waits until a task has been written after this call.
async fn first_write(options: &PgConnectOptions) -> Result<(), CrashError> {
    const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    const WRITTEN: &str = "SELECT EXISTS (SELECT 1 FROM refrain_tasks WHERE updated > $1)";
    let mut connection = retry(|_| true, || PgConnection::connect_with(options)).await?;
    let since: i64 = sqlx::query_scalar(NOW).fetch_one(&mut connection).await?;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let written = sqlx::query_scalar(WRITTEN).bind(since);
        if written.fetch_one(&mut connection).await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("no task was written after the failover".into())
}
