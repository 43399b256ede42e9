//! The worker processes: start, call over HTTP, kill, stop and restart. To stop a worker is to send it SIGSTOP, and later
//! SIGCONT. Times are in microseconds.
//!
//! Workers are killed when the fleet is dropped, and end when their standard input closes. A restarted worker has the
//! addresses of the one before it.

use crate::clock::micros;
use crate::error::{CrashError, failed};
use parking_lot::Mutex;
use refrain::runtime::SystemSource;
use refrain::server::KeyRing;
use refrain_testkit::net::{Request, http};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::process::{Child, Command};

/// The number of workers that run at the same time.
pub(crate) const WORKERS: usize = 3;
/// The number of a worker's last log lines that an error shows.
const LOG_TAIL: usize = 20;
/// The time limit of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerKill {
    /// The number of the process among all workers of the run.
    pub(crate) process: u32,
    /// The time just before the kill.
    pub(crate) at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerStop {
    pub(crate) process: u32,
    /// The time just before the stop.
    pub(crate) from: u64,
    /// The time just after it continued.
    pub(crate) to: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Disruptions {
    pub(crate) kills: Vec<WorkerKill>,
    pub(crate) stops: Vec<WorkerStop>,
    /// The number of database connections that were cut.
    pub(crate) cuts: u64,
    /// Database restarts and failovers: start and end.
    pub(crate) restarts: Vec<(u64, u64)>,
    pub(crate) failovers: Vec<Failover>,
}

/// A failover of the database.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Failover {
    /// From the kill of the server until a task was written to its standby.
    pub(crate) seconds: f64,
    /// Plain calls with an ask that were made meanwhile.
    pub(crate) calls: u64,
}

/// The settings of all workers.
#[derive(Debug)]
pub(crate) struct FleetOptions {
    /// The URL of the task store.
    pub(crate) store: String,
    /// The directory of the run's files.
    pub(crate) dir: PathBuf,
    pub(crate) seed: u64,
    /// The lifetime of a task in seconds, if it is not the default.
    pub(crate) ttl: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct WorkerFleet {
    program: PathBuf,
    options: FleetOptions,
    /// The key ring as text.
    keys: String,
    addresses: [WorkerAddresses; WORKERS],
    workers: Mutex<Vec<WorkerProcess>>,
    pub(crate) disruptions: Mutex<Disruptions>,
    processes: AtomicU32,
    next: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerAddresses {
    pub(crate) endpoint: SocketAddr,
    pub(crate) metrics: SocketAddr,
}

impl WorkerAddresses {
    /// Free ports. The workers bind them themselves, so that they can bind them again after a kill.
    fn choose() -> io::Result<Self> {
        let listeners = [
            TcpListener::bind("127.0.0.1:0")?,
            TcpListener::bind("127.0.0.1:0")?,
        ];
        Ok(Self {
            endpoint: listeners[0].local_addr()?,
            metrics: listeners[1].local_addr()?,
        })
    }
}

#[derive(Debug)]
struct WorkerProcess {
    /// The number of this process among all workers of the run.
    process: u32,
    child: Child,
}

impl WorkerFleet {
    pub(crate) fn start(options: FleetOptions) -> Result<Self, CrashError> {
        let choose = |_| WorkerAddresses::choose();
        let addresses: io::Result<Vec<_>> = (0..WORKERS).map(choose).collect();
        let addresses = <[_; WORKERS]>::try_from(addresses?);
        let fleet = Self {
            program: std::env::current_exe()?,
            options,
            keys: KeyRing::generate(&SystemSource::new()).to_text(),
            addresses: addresses.map_err(|_| "wrong number of addresses")?,
            workers: Mutex::default(),
            disruptions: Mutex::default(),
            processes: AtomicU32::new(0),
            next: AtomicUsize::new(0),
        };
        for index in 0..WORKERS {
            let worker = fleet.start_one(index)?;
            fleet.workers.lock().push(worker);
        }
        Ok(fleet)
    }

    fn start_one(&self, index: usize) -> Result<WorkerProcess, CrashError> {
        let process = self.processes.fetch_add(1, Ordering::Relaxed);
        let options = &self.options;
        let log = File::create(log_path(&options.dir, process))?;
        let WorkerAddresses { endpoint, metrics } = self.addresses[index];
        let child = Command::new(&self.program)
            .arg("worker")
            .arg("--dir")
            .arg(&options.dir)
            .args(["--process", &process.to_string()])
            .args(["--seed", &options.seed.to_string()])
            .args(["--listen", &endpoint.to_string()])
            .args(["--metrics", &metrics.to_string()])
            .args(options.ttl.map(|ttl| format!("--ttl={ttl}")))
            // Not arguments: they contain secrets, and every user can see arguments.
            .env("REFRAIN_CRASH_STORE", &options.store)
            .env("REFRAIN_CRASH_KEYS", &self.keys)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        let child = child.map_err(failed("start a worker"))?;
        Ok(WorkerProcess { process, child })
    }

    pub(crate) fn addresses(&self) -> &[WorkerAddresses; WORKERS] {
        &self.addresses
    }

    /// The number of processes started so far.
    pub(crate) fn started_processes(&self) -> u32 {
        self.processes.load(Ordering::Relaxed)
    }

    /// Sends a request to the next worker. `None` if it ended or did not reply in time.
    pub(crate) async fn request(&self, request: &Request) -> Option<Value> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let sent = http::try_send(self.addresses[next % WORKERS].endpoint, request);
        let response = tokio::time::timeout(REPLY_TIMEOUT, sent).await.ok()?.ok()?;
        serde_json::from_slice(&response.body).ok()
    }

    /// Kills a worker with SIGKILL and starts a new one.
    pub(crate) fn kill(&self, index: usize) -> Result<(), CrashError> {
        let mut workers = self.workers.lock();
        let worker = &mut workers[index];
        worker.must_run(&self.options.dir)?;
        let (process, time) = (worker.process, micros());
        worker.child.start_kill().map_err(failed("kill a worker"))?;
        let kill = WorkerKill { process, at: time };
        self.disruptions.lock().kills.push(kill);
        // Tokio reaps the killed process in the background.
        *worker = self.start_one(index)?;
        Ok(())
    }

    /// Stops a worker for this time.
    pub(crate) async fn stop(&self, index: usize, time: Duration) -> Result<(), CrashError> {
        let Some((process, pid)) = self.pid(index)? else {
            return Ok(());
        };
        // The end is unknown until the worker continues.
        let (from, to) = (micros(), u64::MAX);
        self.disruptions
            .lock()
            .stops
            .push(WorkerStop { process, from, to });
        signal(pid, Signal::STOP)?;
        tokio::time::sleep(time).await;
        // It may have been killed meanwhile.
        if let Some((current_process, pid)) = self.pid(index)?
            && current_process == process
        {
            signal(pid, Signal::CONT)?;
        }
        let to = micros();
        let mut disruptions = self.disruptions.lock();
        if let Some(stop) = disruptions
            .stops
            .iter_mut()
            .rfind(|stop| stop.process == process)
        {
            stop.to = to;
        }
        Ok(())
    }

    /// The number and the process id of a worker; `None` if it has just ended.
    pub(crate) fn pid(&self, index: usize) -> Result<Option<(u32, Pid)>, CrashError> {
        let mut workers = self.workers.lock();
        let worker = &mut workers[index];
        worker.must_run(&self.options.dir)?;
        // `id` exists only until the child has been waited for, so the id is not reused.
        let id = worker.child.id().and_then(|id| i32::try_from(id).ok());
        Ok(id.and_then(Pid::from_raw).map(|pid| (worker.process, pid)))
    }

    /// Fails if a worker has exited by itself.
    pub(crate) fn must_run(&self) -> Result<(), CrashError> {
        let mut workers = self.workers.lock();
        let mut workers = workers.iter_mut();
        workers.try_for_each(|worker| worker.must_run(&self.options.dir))
    }

    /// Ends all workers but the first `keep` ones.
    pub(crate) async fn end(&self, keep: usize) {
        let workers = self.workers.lock().split_off(keep);
        for mut worker in workers {
            // It may have ended meanwhile.
            let _ = worker.child.kill().await;
        }
    }
}

impl WorkerProcess {
    fn must_run(&mut self, dir: &Path) -> Result<(), CrashError> {
        let process = self.process;
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let log = std::fs::read_to_string(log_path(dir, process)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n");
        let ended = format!("the worker process {process} ended by itself ({status})");
        Err(format!("{ended}; its last lines:\n{tail}").into())
    }
}

fn log_path(dir: &Path, process: u32) -> PathBuf {
    dir.join(format!("process-{process}.log"))
}

fn signal(pid: Pid, signal: Signal) -> Result<(), CrashError> {
    kill_process(pid, signal).map_err(failed("signal a worker"))
}
