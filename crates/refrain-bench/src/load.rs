//! The load: workloads, and how many of them a server does in a slice of time.
//!
//! Every reply is checked. A connection that gets a wrong one stops, and then the slice is an error.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::Serialize;
use tokio::time::timeout;

use crate::error::Error;
use crate::server::{Server, cpu_seconds};
use crate::stats::Sample;
use crate::wire::{Connection, WireError, echo, round_1, round_2, token};

/// How long a slice may take beyond its own length.
const GRACE: Duration = Duration::from_secs(60);

pub(crate) const ECHOED: &str = "Echo: what was done is refrained from";
const ASKED: &str = "\"input_required\"";
const ANSWERED: &str = "Temperature: 72";

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Workload {
    /// `echo` with a text.
    Echo,
    /// `get_weather` without state: the server asks and seals.
    Round1,
    /// `get_weather` with an answer and a token: the server opens and replays.
    Round2,
    /// Round 1, then round 2 with its token. Counted as one.
    Exchange,
}

impl Workload {
    pub(crate) const ALL: [Self; 4] = [Self::Echo, Self::Round1, Self::Round2, Self::Exchange];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Round1 => "round 1",
            Self::Round2 => "round 2",
            Self::Exchange => "full exchange",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Connections to one server, and the requests that they share.
#[derive(Debug)]
pub(crate) struct Load<'s> {
    server: &'s Server,
    workload: Workload,
    requests: Requests,
    connections: Vec<Connection>,
}

/// Requests that are serialised before anything is measured.
#[derive(Debug)]
struct Requests {
    echo: String,
    round_1: String,
    round_2: String,
}

impl<'s> Load<'s> {
    /// Connects, and sends one request on each connection so that it is warm.
    pub(crate) async fn open(
        server: &'s Server,
        workload: Workload,
        connections: u16,
    ) -> Result<Self, Error> {
        let opened = async {
            let asking = round_1(server.address, "New York");
            let mut first = Connection::open(server.address).await?;
            let body = first.exchange(&asking, ASKED).await?;
            let mut load = Self {
                server,
                workload,
                requests: Requests {
                    echo: echo(server.address),
                    round_2: round_2(server.address, token(body)?),
                    round_1: asking,
                },
                connections: Vec::new(),
            };
            for _ in 0..connections {
                let mut connection = Connection::open(server.address).await?;
                load.requests
                    .send(server, &mut connection, workload)
                    .await?;
                load.connections.push(connection);
            }
            Ok(load)
        };
        let opened = timeout(GRACE, opened).await;
        let opened = opened.unwrap_or(Err(WireError::TimedOut));
        opened.map_err(|first| Error::WrongReplies {
            server: server.name,
            workload,
            failed: 1,
            connections: connections.into(),
            first,
        })
    }

    /// Gives every connection its share of the work and waits for all of them.
    async fn all(
        &mut self,
        limit: Duration,
        work: impl AsyncFn(&Requests, &mut Connection, u64) -> Result<u64, WireError>,
    ) -> Result<u64, Error> {
        let (server, workload) = (self.server.name, self.workload);
        let connections = self.connections.len();
        let numbered = self.connections.iter_mut().zip(0..);
        let mut running: FuturesUnordered<_> = numbered
            .map(|(connection, index)| work(&self.requests, connection, index))
            .collect();
        let joined = async {
            let (mut done, mut failures) = (0, Vec::new());
            while let Some(ended) = running.next().await {
                match ended {
                    Ok(count) => done += count,
                    Err(failure) => failures.push(failure),
                }
            }
            (done, failures)
        };
        let joined = timeout(limit, joined).await;
        let what = || format!("{server}, {workload}");
        let (done, failures) = joined.map_err(|_| Error::TimedOut {
            what: what(),
            limit,
        })?;
        let failed = failures.len();
        match failures.into_iter().next() {
            None => Ok(done),
            Some(first) => Err(Error::WrongReplies {
                server,
                workload,
                failed,
                connections,
                first,
            }),
        }
    }

    /// Does the workload over and over on each connection, at least once, until `is_over` says so of the number done.
    async fn repeat(
        &mut self,
        limit: Duration,
        is_over: impl Fn(u64) -> bool,
    ) -> Result<u64, Error> {
        let (server, workload) = (self.server, self.workload);
        let all = self.all(limit, async |requests, connection, _| {
            let mut done = 0;
            while done == 0 || !is_over(done) {
                requests.send(server, connection, workload).await?;
                done += 1;
            }
            Ok(done)
        });
        all.await
    }

    /// Opens dialogues for different places and leaves them.
    pub(crate) async fn open_dialogues(&mut self, numbers: Range<u64>) -> Result<(), Error> {
        let connections = self.connections.len().max(1) as u64;
        let count = numbers.end - numbers.start;
        // A thousand a second is far below any server worth measuring.
        let limit = Duration::from_secs(30 + count / 1000);
        let address = self.server.address;
        let opened = self.all(limit, async |_, connection, index| {
            let share = |index| numbers.start + count * index / connections;
            for number in share(index)..share(index + 1) {
                let request = round_1(address, &format!("Town {number}"));
                connection.exchange(&request, ASKED).await?;
            }
            Ok(0)
        });
        opened.await.map(drop)
    }

    /// Answers the dialogue that was opened before these connections.
    pub(crate) async fn answer_the_first(&mut self) -> Result<(), Error> {
        self.workload = Workload::Round2;
        let answered = self.all(GRACE, async |requests, connection, index| {
            if index == 0 {
                connection.exchange(&requests.round_2, ANSWERED).await?;
            }
            Ok(0)
        });
        answered.await.map(drop)
    }
}

impl Requests {
    /// Does the workload once and checks the replies.
    async fn send(
        &self,
        server: &Server,
        connection: &mut Connection,
        workload: Workload,
    ) -> Result<(), WireError> {
        match workload {
            Workload::Echo => connection.exchange(&self.echo, ECHOED).await?,
            Workload::Round1 => connection.exchange(&self.round_1, ASKED).await?,
            Workload::Round2 => connection.exchange(&self.round_2, ANSWERED).await?,
            Workload::Exchange => {
                let body = connection.exchange(&self.round_1, ASKED).await?;
                let answer = round_2(server.address, token(body)?);
                connection.exchange(&answer, ANSWERED).await?
            }
        };
        Ok(())
    }
}

/// Loads one server with one workload for a slice of time.
pub(crate) async fn slice(
    server: &Server,
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

/// Does a workload `count` times, one after the other on one connection.
pub(crate) async fn sequence(
    server: &Server,
    workload: Workload,
    count: u64,
    limit: Duration,
) -> Result<(), Error> {
    let mut load = Load::open(server, workload, 1).await?;
    load.repeat(limit, |done| done >= count).await.map(drop)
}
