//! The worker processes: started, talked to, killed, stopped and started again.
//!
//! A worker is ended by its own handle whenever the fleet goes away, on errors and on interrupts too; and it ends by
//! itself when its standard input does.

use crate::clock::micros;
use crate::error::Error;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

/// How many of a worker's last lines an error shows.
const TAIL: usize = 20;

/// What all workers are told.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) store: String,
    pub(crate) dir: PathBuf,
    pub(crate) seed: u64,
    pub(crate) lease: Duration,
}

/// A worker that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kill {
    pub(crate) run: u32,
    /// Just before it was.
    pub(crate) at: u64,
}

/// A worker that was stopped for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) run: u32,
    /// Just before it was.
    pub(crate) from: u64,
    /// Just after it went on.
    pub(crate) to: u64,
}

/// What was done to the workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Harm {
    pub(crate) kills: Vec<Kill>,
    pub(crate) stops: Vec<Stop>,
}

/// The workers.
#[derive(Debug)]
pub(crate) struct Fleet {
    setting: Setting,
    program: PathBuf,
    workers: Mutex<Vec<Worker>>,
    harm: Mutex<Harm>,
    runs: AtomicU32,
    next: AtomicU32,
}

#[derive(Debug)]
struct Worker {
    run: u32,
    child: Child,
    requests: mpsc::UnboundedSender<Request>,
}

#[derive(Debug)]
struct Request {
    id: u64,
    line: Vec<u8>,
    reply: oneshot::Sender<Value>,
}

impl Fleet {
    /// Starts so many workers.
    pub(crate) fn start(setting: Setting, count: usize) -> Result<Self, Error> {
        let program = std::env::current_exe();
        let fleet = Self {
            setting,
            program: program.map_err(Error::system("this program has no path"))?,
            workers: Mutex::default(),
            harm: Mutex::default(),
            runs: AtomicU32::new(0),
            next: AtomicU32::new(0),
        };
        for _ in 0..count {
            let worker = fleet.start_one()?;
            fleet.workers.lock().push(worker);
        }
        Ok(fleet)
    }

    fn start_one(&self) -> Result<Worker, Error> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let path = log_path(&self.setting.dir, run);
        let log = File::create(&path).map_err(Error::system(path.display().to_string()))?;
        let mut command = Command::new(&self.program);
        command
            .arg("worker")
            .arg("--dir")
            .arg(&self.setting.dir)
            .args(["--run", &run.to_string()])
            .args(["--seed", &self.setting.seed.to_string()])
            .args(["--lease", &self.setting.lease.as_millis().to_string()])
            // Not an argument: there may be a password in it, and arguments are for everyone to see.
            .env("REFRAIN_CRASH_STORE", &self.setting.store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true);
        let child = command.spawn();
        let mut child = child.map_err(Error::system("a worker could not be started"))?;
        let (requests, received) = mpsc::unbounded_channel();
        if let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) {
            tokio::spawn(talk(stdin, stdout, received));
        }
        Ok(Worker {
            run,
            child,
            requests,
        })
    }

    /// How many workers there are.
    pub(crate) fn len(&self) -> usize {
        self.workers.lock().len()
    }

    /// How many processes there were in all.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::Relaxed)
    }

    /// What was done to the workers so far.
    pub(crate) fn harm(&self) -> Harm {
        self.harm.lock().clone()
    }

    /// Sends a request to the next worker. `None`: it ended, or did not reply in time.
    pub(crate) async fn request(
        &self,
        id: u64,
        line: Vec<u8>,
        patience: Duration,
    ) -> Option<Value> {
        let (reply, replied) = oneshot::channel();
        {
            let workers = self.workers.lock();
            let next = self.next.fetch_add(1, Ordering::Relaxed) as usize;
            let worker = workers.get(next % workers.len().max(1))?;
            worker.requests.send(Request { id, line, reply }).ok()?;
        }
        tokio::time::timeout(patience, replied).await.ok()?.ok()
    }

    /// Kills a worker with SIGKILL, which it cannot see coming, and starts another in its place.
    pub(crate) fn kill(&self, at: usize) -> Result<(), Error> {
        let mut workers = self.workers.lock();
        let Some(worker) = workers.get_mut(at) else {
            return Ok(());
        };
        worker.must_run(&self.setting.dir)?;
        let killed = Kill {
            run: worker.run,
            at: micros(),
        };
        let kill = worker.child.start_kill();
        kill.map_err(Error::system("a worker could not be killed"))?;
        self.harm.lock().kills.push(killed);
        // The handle of the one that was killed waits for its end by itself.
        *worker = self.start_one()?;
        Ok(())
    }

    /// Has a worker do nothing for so long.
    pub(crate) async fn stop(&self, at: usize, time: Duration) -> Result<(), Error> {
        let Some((run, pid)) = self.pid(at)? else {
            return Ok(());
        };
        let from = micros();
        self.harm.lock().stops.push(Stop {
            run,
            from,
            to: u64::MAX,
        });
        signal(pid, Signal::STOP)?;
        tokio::time::sleep(time).await;
        // It may have been killed meanwhile: then there is nobody to go on.
        if let Some((same, pid)) = self.pid(at)?
            && same == run
        {
            signal(pid, Signal::CONT)?;
        }
        let to = micros();
        let mut harm = self.harm.lock();
        if let Some(stop) = harm.stops.iter_mut().rfind(|stop| stop.run == run) {
            stop.to = to;
        }
        Ok(())
    }

    fn pid(&self, at: usize) -> Result<Option<(u32, Pid)>, Error> {
        let mut workers = self.workers.lock();
        let Some(worker) = workers.get_mut(at) else {
            return Ok(None);
        };
        worker.must_run(&self.setting.dir)?;
        // There is an id only as long as the child has not been waited for, so the id is its own.
        let id = worker.child.id().and_then(|id| i32::try_from(id).ok());
        Ok(id.and_then(Pid::from_raw).map(|pid| (worker.run, pid)))
    }

    /// Have any workers ended by themselves?
    pub(crate) fn must_run(&self) -> Result<(), Error> {
        let mut workers = self.workers.lock();
        workers
            .iter_mut()
            .try_for_each(|worker| worker.must_run(&self.setting.dir))
    }

    /// Ends all workers.
    pub(crate) async fn end(&self) {
        let workers = std::mem::take(&mut *self.workers.lock());
        for mut worker in workers {
            // One that has ended meanwhile is as good.
            let _ = worker.child.kill().await;
        }
    }
}

impl Worker {
    fn must_run(&mut self, dir: &Path) -> Result<(), Error> {
        let ended = self.child.try_wait();
        match ended.map_err(Error::system("a worker could not be looked after"))? {
            Some(status) => Err(Error::WorkerEnded {
                run: self.run,
                status,
                tail: tail(&log_path(dir, self.run)),
            }),
            None => Ok(()),
        }
    }
}

fn signal(pid: Pid, signal: Signal) -> Result<(), Error> {
    kill_process(pid, signal)
        .map_err(|error| Error::system("a worker could not be signalled")(error.into()))
}

/// Passes on requests and replies until the worker ends. Whoever waits for a reply then is told.
async fn talk(
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    mut requests: mpsc::UnboundedReceiver<Request>,
) {
    let mut lines = BufReader::new(stdout).lines();
    let mut waiting: HashMap<u64, oneshot::Sender<Value>> = HashMap::new();
    loop {
        tokio::select! {
            request = requests.recv() => {
                let Some(Request { id, mut line, reply }) = request else {
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
                    // Nobody may wait any more.
                    let _ = waits.send(reply);
                }
            }
        }
    }
}

fn log_path(dir: &Path, run: u32) -> PathBuf {
    dir.join(format!("run-{run}.log"))
}

fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}
