//! The worker processes: start, call, kill, stop and restart.
//!
//! Workers are killed when the fleet is dropped, and end when their standard input closes.

use crate::clock::micros;
use crate::error::{CrashError, failed};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

pub(crate) const WORKERS: usize = 3;
/// The number of a worker's last log lines that an error shows.
const TAIL: usize = 20;
/// The time limit of a reply.
const REPLY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerKill {
    pub(crate) run: u32,
    /// The time just before the kill.
    pub(crate) at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerStop {
    pub(crate) run: u32,
    /// The time just before the stop.
    pub(crate) from: u64,
    /// The time just after it continued.
    pub(crate) to: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Disruptions {
    pub(crate) kills: Vec<WorkerKill>,
    pub(crate) stops: Vec<WorkerStop>,
    pub(crate) cuts: u64,
    /// Database restarts: start and end.
    pub(crate) restarts: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct WorkerFleet {
    program: PathBuf,
    /// The URL of the task store.
    store: String,
    dir: PathBuf,
    seed: u64,
    workers: Mutex<Vec<WorkerProcess>>,
    pub(crate) disruptions: Mutex<Disruptions>,
    runs: AtomicU32,
    next: AtomicUsize,
}

#[derive(Debug)]
struct WorkerProcess {
    run: u32,
    child: Child,
    requests: mpsc::UnboundedSender<WorkerRequest>,
}

#[derive(Debug)]
struct WorkerRequest {
    id: u64,
    line: Vec<u8>,
    reply: oneshot::Sender<Value>,
}

impl WorkerFleet {
    pub(crate) fn start(store: String, dir: &Path, seed: u64) -> Result<Self, CrashError> {
        let fleet = Self {
            program: std::env::current_exe()?,
            store,
            dir: dir.to_owned(),
            seed,
            workers: Mutex::default(),
            disruptions: Mutex::default(),
            runs: AtomicU32::new(0),
            next: AtomicUsize::new(0),
        };
        for _ in 0..WORKERS {
            let worker = fleet.start_one()?;
            fleet.workers.lock().push(worker);
        }
        Ok(fleet)
    }

    fn start_one(&self) -> Result<WorkerProcess, CrashError> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let path = log_path(&self.dir, run);
        let log = File::create(&path)?;
        let child = Command::new(&self.program)
            .arg("worker")
            .arg("--dir")
            .arg(&self.dir)
            .args(["--run", &run.to_string()])
            .args(["--seed", &self.seed.to_string()])
            // Not an argument: it may contain a password, and every user can see arguments.
            .env("REFRAIN_CRASH_STORE", &self.store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        let mut child = child.map_err(failed("start a worker"))?;
        let (requests, received) = mpsc::unbounded_channel();
        if let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) {
            tokio::spawn(talk(stdin, stdout, received));
        }
        Ok(WorkerProcess {
            run,
            child,
            requests,
        })
    }

    /// The number of processes started so far.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Sends a request to the next worker. `None` if it ended or did not reply in time.
    pub(crate) async fn request(&self, id: u64, line: Vec<u8>) -> Option<Value> {
        let (reply, replied) = oneshot::channel();
        {
            let workers = self.workers.lock();
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let worker = &workers[next % WORKERS];
            worker
                .requests
                .send(WorkerRequest { id, line, reply })
                .ok()?;
        }
        tokio::time::timeout(REPLY, replied).await.ok()?.ok()
    }

    /// Kills a worker with SIGKILL and starts a new one.
    pub(crate) fn kill(&self, at: usize) -> Result<(), CrashError> {
        let mut workers = self.workers.lock();
        let worker = &mut workers[at];
        worker.must_run(&self.dir)?;
        let (run, at) = (worker.run, micros());
        worker.child.start_kill().map_err(failed("kill a worker"))?;
        self.disruptions.lock().kills.push(WorkerKill { run, at });
        // The handle of the killed worker waits for its end by itself.
        *worker = self.start_one()?;
        Ok(())
    }

    pub(crate) async fn stop(&self, at: usize, time: Duration) -> Result<(), CrashError> {
        let Some((run, pid)) = self.pid(at)? else {
            return Ok(());
        };
        let (from, to) = (micros(), u64::MAX);
        self.disruptions
            .lock()
            .stops
            .push(WorkerStop { run, from, to });
        signal(pid, Signal::STOP)?;
        tokio::time::sleep(time).await;
        // It may have been killed meanwhile.
        if let Some((same, pid)) = self.pid(at)?
            && same == run
        {
            signal(pid, Signal::CONT)?;
        }
        let to = micros();
        let mut disruptions = self.disruptions.lock();
        if let Some(stop) = disruptions.stops.iter_mut().rfind(|stop| stop.run == run) {
            stop.to = to;
        }
        Ok(())
    }

    fn pid(&self, at: usize) -> Result<Option<(u32, Pid)>, CrashError> {
        let mut workers = self.workers.lock();
        let worker = &mut workers[at];
        worker.must_run(&self.dir)?;
        // `id` exists only until the child has been waited for, so the id is not reused.
        let id = worker.child.id().and_then(|id| i32::try_from(id).ok());
        Ok(id.and_then(Pid::from_raw).map(|pid| (worker.run, pid)))
    }

    /// Fails if a worker has exited by itself.
    pub(crate) fn must_run(&self) -> Result<(), CrashError> {
        let mut workers = self.workers.lock();
        let mut workers = workers.iter_mut();
        workers.try_for_each(|worker| worker.must_run(&self.dir))
    }

    pub(crate) async fn end(&self) {
        let workers = std::mem::take(&mut *self.workers.lock());
        for mut worker in workers {
            // It may have ended meanwhile.
            let _ = worker.child.kill().await;
        }
    }
}

impl WorkerProcess {
    fn must_run(&mut self, dir: &Path) -> Result<(), CrashError> {
        let run = self.run;
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let log = std::fs::read_to_string(log_path(dir, run)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
        let ended = format!("the worker of run {run} ended by itself ({status})");
        Err(format!("{ended}; its last lines:\n{tail}").into())
    }
}

fn log_path(dir: &Path, run: u32) -> PathBuf {
    dir.join(format!("run-{run}.log"))
}

fn signal(pid: Pid, signal: Signal) -> Result<(), CrashError> {
    kill_process(pid, signal).map_err(failed("signal a worker"))
}

/// Forwards requests and replies until the worker ends, which fails the pending requests.
async fn talk(
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    mut requests: mpsc::UnboundedReceiver<WorkerRequest>,
) {
    let mut lines = BufReader::new(stdout).lines();
    let mut waiting: HashMap<u64, oneshot::Sender<Value>> = HashMap::new();
    loop {
        tokio::select! {
            request = requests.recv() => {
                let Some(WorkerRequest { id, mut line, reply }) = request else {
                    return;
                };
                line.push(b'\n');
                waiting.insert(id, reply);
                if stdin.write_all(&line).await.is_err() {
                    return;
                }
            }
            line = lines.next_line() => {
                let Ok(Some(line)) = line else { return };
                let Ok(reply) = serde_json::from_str::<Value>(&line) else { return };
                let waits = reply["id"].as_u64().and_then(|id| waiting.remove(&id));
                if let Some(waits) = waits {
                    // The client may have timed out.
                    let _ = waits.send(reply);
                }
            }
        }
    }
}
