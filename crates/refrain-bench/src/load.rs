//! The load generator: workloads, and the number of requests that a server completes in a time slice.
//!
//! Every reply is checked. A wrong reply fails the slice.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::error::Error;
use crate::server::{ServerProcess, cpu_seconds};
use crate::stats::Sample;
use crate::wire::{HttpConnection, echo, round_1, round_2, token};

/// The additional time before a slice times out.
const GRACE: Duration = Duration::from_secs(60);

pub(crate) const ECHOED: &str = "Echo: what was done is refrained from";
const ASKED: &str = "\"input_required\"";
const ANSWERED: &str = "Temperature: 72";

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, clap::ValueEnum)]
pub(crate) enum Workload {
    #[strum(to_string = "echo")]
    Echo,
    /// `get_weather` without state: the server asks and seals.
    #[strum(to_string = "round 1")]
    Round1,
    /// `get_weather` with an answer and a token: the server opens and replays.
    #[strum(to_string = "round 2")]
    Round2,
    /// Round 1, then round 2 with its token. The pair counts as one request.
    #[strum(to_string = "full exchange")]
    Exchange,
}

impl Workload {
    pub(crate) const ALL: [Self; 4] = [Self::Echo, Self::Round1, Self::Round2, Self::Exchange];
}

/// Connections to one server, and the requests to send.
#[derive(Debug)]
pub(crate) struct Load<'s> {
    server: &'s ServerProcess,
    workload: Workload,
    /// The first request of the workload, and a text that its reply must contain.
    request: (String, &'static str),
    /// The answer to the dialogue that was opened first.
    round_2: String,
    connections: Vec<HttpConnection>,
}

impl<'s> Load<'s> {
    /// Connects, and sends one warm-up request on each connection.
    pub(crate) async fn open(
        server: &'s ServerProcess,
        workload: Workload,
        connections: u16,
    ) -> Result<Self, Error> {
        let address = server.address;
        let opened = async {
            let asking = round_1(address, "New York");
            let mut first = HttpConnection::open(address).await?;
            let round_2 = round_2(address, token(first.exchange(&asking, ASKED).await?)?);
            let request = match workload {
                Workload::Echo => (echo(address), ECHOED),
                Workload::Round1 | Workload::Exchange => (asking, ASKED),
                Workload::Round2 => (round_2.clone(), ANSWERED),
            };
            let mut open = Vec::new();
            for _ in 0..connections {
                open.push(HttpConnection::open(address).await?);
            }
            Ok((request, round_2, open))
        };
        let (request, round_2, connections) = in_time(server, workload, GRACE, opened).await?;
        let mut load = Self {
            server,
            workload,
            request,
            round_2,
            connections,
        };
        load.repeat(GRACE, |_| true).await?;
        Ok(load)
    }

    /// Runs work on every connection and waits for all of them, or for the first failure.
    async fn run_on_all(
        &mut self,
        limit: Duration,
        work: impl AsyncFn(&mut HttpConnection, u64) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let numbered = self.connections.iter_mut().zip(0..);
        let running = numbered.map(|(connection, index)| work(connection, index));
        let mut running: FuturesUnordered<_> = running.collect();
        let joined = async {
            let mut all = 0;
            while let Some(done) = running.next().await {
                all += done?;
            }
            Ok(all)
        };
        in_time(self.server, self.workload, limit, joined).await
    }

    /// Repeats the workload on each connection, at least once, until `is_done` returns true for its count.
    async fn repeat(
        &mut self,
        limit: Duration,
        is_done: impl Fn(u64) -> bool,
    ) -> Result<u64, Error> {
        let dialogue = self.dialogue();
        let all = self.run_on_all(limit, async |connection, _| {
            let mut done = 0;
            while done == 0 || !is_done(done) {
                dialogue.run(connection).await?;
                done += 1;
            }
            Ok(done)
        });
        all.await
    }

    fn dialogue(&self) -> Dialogue {
        Dialogue {
            address: self.server.address,
            workload: self.workload,
            request: self.request.clone(),
        }
    }

    /// Starts the workload once per arrival, on the next free connection. Returns the times from each arrival to the end
    /// of its reply, so that an arrival that waits for a connection counts as late.
    pub(crate) async fn at_arrivals(
        &mut self,
        arrivals: impl Iterator<Item = Duration>,
        limit: Duration,
    ) -> Result<Vec<Duration>, Error> {
        let dialogue = self.dialogue();
        let start = Instant::now();
        // Only one free connection waits for the next arrival.
        let arrivals = tokio::sync::Mutex::new(arrivals);
        let times = parking_lot::Mutex::new(Vec::new());
        let next_arrival = async || {
            let mut arrivals = arrivals.lock().await;
            let due = start + arrivals.next()?;
            // Timers are too coarse for tens of thousands of arrivals per second.
            while Instant::now() < due {
                yield_now().await;
            }
            Some(due)
        };
        let all = self.run_on_all(limit, async |connection, _| {
            let mut done = 0;
            while let Some(due) = next_arrival().await {
                dialogue.run(connection).await?;
                times.lock().push(due.elapsed());
                done += 1;
            }
            Ok(done)
        });
        all.await?;
        Ok(times.into_inner())
    }

    /// Opens dialogues with different arguments and does not answer them.
    pub(crate) async fn open_dialogues(&mut self, numbers: Range<u64>) -> Result<(), Error> {
        let connections = self.connections.len().max(1) as u64;
        let count = numbers.end - numbers.start;
        // Any server opens at least a thousand dialogues per second.
        let limit = Duration::from_secs(30 + count / 1000);
        let address = self.server.address;
        let opened = self.run_on_all(limit, async |connection, index| {
            let share = |index| numbers.start + count * index / connections;
            for number in share(index)..share(index + 1) {
                let request = round_1(address, &format!("Town {number}"));
                connection.exchange(&request, ASKED).await?;
            }
            Ok(0)
        });
        opened.await.map(drop)
    }

    /// Answers the dialogue that was opened first.
    pub(crate) async fn answer_first(mut self) -> Result<(), Error> {
        self.connections.truncate(1);
        self.workload = Workload::Round2;
        self.request = (self.round_2.clone(), ANSWERED);
        self.repeat(GRACE, |_| true).await.map(drop)
    }
}

/// The requests of a workload.
struct Dialogue {
    address: SocketAddr,
    workload: Workload,
    request: (String, &'static str),
}

impl Dialogue {
    async fn run(&self, connection: &mut HttpConnection) -> Result<(), Error> {
        let (request, expected) = &self.request;
        let body = connection.exchange(request, expected).await?;
        if self.workload == Workload::Exchange {
            let answer = round_2(self.address, token(body)?);
            connection.exchange(&answer, ANSWERED).await?;
        }
        Ok(())
    }
}

async fn in_time<T>(
    server: &ServerProcess,
    workload: Workload,
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let done = timeout(limit, work).await;
    let done = done.unwrap_or_else(|_| Err(format!("no reply within {limit:?}").into()));
    done.map_err(|error| format!("{}, {workload}: {error}", server.name).into())
}

/// Loads one server with one workload for a slice of time.
pub(crate) async fn run_slice(
    server: &ServerProcess,
    workload: Workload,
    connections: u16,
    length: Duration,
) -> Result<Sample, Error> {
    let mut load = Load::open(server, workload, connections).await?;
    let (cpu, start) = (cpu_seconds(server.pid)?, Instant::now());
    let done = load.repeat(length + GRACE, |_| start.elapsed() >= length);
    Ok(Sample {
        done: done.await?,
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds(server.pid)? - cpu,
    })
}

/// Runs a workload `count` times sequentially on one connection.
pub(crate) async fn sequence(
    server: &ServerProcess,
    workload: Workload,
    count: u64,
    limit: Duration,
) -> Result<(), Error> {
    let mut load = Load::open(server, workload, 1).await?;
    load.repeat(limit, |done| done >= count).await.map(drop)
}
