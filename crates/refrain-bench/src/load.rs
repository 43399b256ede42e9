//! The load: workloads, and how many of them a server does in a slice of time.
//!
//! Every reply is checked. A connection that gets a wrong one stops, and a slice with a stopped
//! connection is no measurement but an error.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::child::Server;
use crate::error::Error;
use crate::requests::Requests;
pub(crate) use crate::wire::WireError;
use crate::wire::{Connection, expect, token};

/// How long a slice may take beyond its own length.
const GRACE: Duration = Duration::from_secs(60);

const ECHOED: &str = "Echo: what was done is refrained from";
const ASKED: &str = "\"input_required\"";
const ANSWERED: &str = "Temperature: 72";

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Workload {
    /// `echo` with a text.
    Echo,
    /// `get_weather` without state: the server asks and seals.
    Round1,
    /// `get_weather` with an answer and a token: the server opens and replays.
    Round2,
    /// Round 1, then round 2 with the token it gave. Counted as one.
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

/// What one slice showed.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    /// Requests done; for the full exchange, exchanges.
    pub(crate) done: u64,
    /// Seconds from the first request to the last reply.
    pub(crate) seconds: f64,
    /// Seconds of processor time the server used meanwhile.
    pub(crate) cpu_seconds: f64,
}

impl Sample {
    pub(crate) fn per_second(&self) -> f64 {
        self.done as f64 / self.seconds
    }

    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.done as f64
    }
}

/// The serialised requests that all connections of a slice share.
#[derive(Debug)]
struct Prepared {
    requests: Requests,
    echo: Vec<u8>,
    round_1: Vec<u8>,
    round_2: String,
}

impl Prepared {
    /// Serialises the requests, with a token fetched from the server.
    async fn fetch(address: SocketAddr) -> Result<Arc<Self>, WireError> {
        let requests = Requests::new(address);
        let round_1 = requests.round_1();
        let mut connection = Connection::open(address).await?;
        let body = connection.exchange(&round_1).await?;
        expect(body, ASKED)?;
        let mut round_2 = String::new();
        requests.round_2(&mut round_2, token(body)?);
        Ok(Arc::new(Self {
            echo: requests.echo(),
            requests,
            round_1,
            round_2,
        }))
    }
}

/// One connection and what it sends.
#[derive(Debug)]
pub(crate) struct Client {
    connection: Connection,
    prepared: Arc<Prepared>,
    scratch: String,
}

impl Client {
    async fn open(address: SocketAddr, prepared: &Arc<Prepared>) -> Result<Self, WireError> {
        Ok(Self {
            connection: Connection::open(address).await?,
            prepared: Arc::clone(prepared),
            scratch: String::with_capacity(2048),
        })
    }

    /// Does the workload once and checks what comes back.
    async fn once(&mut self, workload: Workload) -> Result<(), WireError> {
        let Self {
            connection,
            prepared,
            scratch,
        } = self;
        match workload {
            Workload::Echo => expect(connection.exchange(&prepared.echo).await?, ECHOED),
            Workload::Round1 => expect(connection.exchange(&prepared.round_1).await?, ASKED),
            Workload::Round2 => {
                let request = prepared.round_2.as_bytes();
                expect(connection.exchange(request).await?, ANSWERED)
            }
            Workload::Exchange => {
                let body = connection.exchange(&prepared.round_1).await?;
                expect(body, ASKED)?;
                prepared.requests.round_2(scratch, token(body)?);
                let body = connection.exchange(scratch.as_bytes()).await?;
                expect(body, ANSWERED)
            }
        }
    }

    /// Does the workload until the time is over, and once at least: on a busy machine a client may begin late.
    async fn until(&mut self, workload: Workload, deadline: Instant) -> Result<u64, WireError> {
        let mut done = 0;
        loop {
            self.once(workload).await?;
            done += 1;
            if Instant::now() >= deadline {
                return Ok(done);
            }
        }
    }

    /// Opens dialogues of their own places and leaves them.
    async fn open_dialogues(&mut self, numbers: std::ops::Range<u64>) -> Result<(), WireError> {
        for number in numbers {
            let location = format!("Town {number}");
            let Self {
                connection,
                prepared,
                scratch,
            } = self;
            prepared.requests.open_dialogue(scratch, &location);
            expect(connection.exchange(scratch.as_bytes()).await?, ASKED)?;
        }
        Ok(())
    }
}

/// The connections to one server.
#[derive(Debug)]
pub(crate) struct Fleet {
    server: &'static str,
    clients: Vec<Client>,
}

impl Fleet {
    /// Connects, and sends one request on each connection so that it is warm.
    pub(crate) async fn open(
        server: &Server,
        workload: Workload,
        connections: usize,
    ) -> Result<Self, Error> {
        let address = server.address();
        let clients = async {
            let prepared = Prepared::fetch(address).await?;
            let mut clients = Vec::with_capacity(connections);
            for _ in 0..connections {
                let mut client = Client::open(address, &prepared).await?;
                client.once(workload).await?;
                clients.push(client);
            }
            Ok(clients)
        };
        let clients = timeout(GRACE, clients)
            .await
            .unwrap_or(Err(WireError::TimedOut))
            .map_err(|first| Error::WrongReplies {
                server: server.name(),
                workload,
                failed: 1,
                connections,
                first,
            })?;
        Ok(Self {
            server: server.name(),
            clients,
        })
    }

    /// Gives every client its share of the work and waits for all of them.
    async fn all<F, Fut>(
        &mut self,
        workload: Workload,
        limit: Duration,
        mut work: F,
    ) -> Result<u64, Error>
    where
        F: FnMut(Client, u64) -> Fut,
        Fut: Future<Output = (Client, Result<u64, WireError>)> + Send + 'static,
    {
        let connections = self.clients.len();
        let mut running: JoinSet<_> = (0u64..)
            .zip(self.clients.drain(..))
            .map(|(index, client)| work(client, index))
            .collect();
        let joined = async {
            let mut done = 0;
            let mut failures = Vec::new();
            while let Some(ended) = running.join_next().await {
                match ended {
                    Ok((client, Ok(count))) => {
                        done += count;
                        self.clients.push(client);
                    }
                    Ok((_, Err(failure))) => failures.push(failure),
                    Err(ended) => {
                        failures.push(WireError::Io(std::io::Error::other(ended.to_string())));
                    }
                }
            }
            (done, failures)
        };
        let (done, failures) = timeout(limit, joined).await.map_err(|_| Error::Stuck {
            server: self.server,
            workload,
            limit,
        })?;
        let failed = failures.len();
        match failures.into_iter().next() {
            None => Ok(done),
            Some(first) => Err(Error::WrongReplies {
                server: self.server,
                workload,
                failed,
                connections,
                first,
            }),
        }
    }

    /// Opens `count` dialogues that nobody goes on with, each for a place of its own.
    pub(crate) async fn open_dialogues(
        &mut self,
        first: u64,
        count: u64,
        limit: Duration,
    ) -> Result<(), Error> {
        let connections = self.clients.len().max(1) as u64;
        self.all(Workload::Round1, limit, |mut client, index| {
            let from = first + count * index / connections;
            let to = first + count * (index + 1) / connections;
            async move {
                let opened = client.open_dialogues(from..to).await;
                (client, opened.map(|()| to - from))
            }
        })
        .await?;
        Ok(())
    }

    /// Answers the dialogue that was opened when these connections were.
    pub(crate) async fn answer_the_first(&mut self) -> Result<(), Error> {
        self.all(Workload::Round2, GRACE, |mut client, index| async move {
            let answered = match index {
                0 => client.once(Workload::Round2).await,
                _ => Ok(()),
            };
            (client, answered.map(|()| 1))
        })
        .await?;
        Ok(())
    }
}

/// Loads one server with one workload for a slice of time.
pub(crate) async fn slice(
    server: &Server,
    workload: Workload,
    connections: usize,
    length: Duration,
) -> Result<Sample, Error> {
    let mut fleet = Fleet::open(server, workload, connections).await?;
    let cpu_before = server.cpu_seconds()?;
    let start = Instant::now();
    let deadline = start + length;
    let done = fleet
        .all(workload, length + GRACE, |mut client, _| async move {
            let done = client.until(workload, deadline).await;
            (client, done)
        })
        .await?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Sample {
        done,
        seconds,
        cpu_seconds: server.cpu_seconds()? - cpu_before,
    })
}

/// Does a workload `count` times, one after the other on one connection.
pub(crate) async fn sequence(
    server: &Server,
    workload: Workload,
    count: u64,
    limit: Duration,
) -> Result<(), Error> {
    let mut fleet = Fleet::open(server, workload, 1).await?;
    fleet
        .all(workload, limit, |mut client, _| async move {
            for _ in 0..count {
                if let Err(failure) = client.once(workload).await {
                    return (client, Err(failure));
                }
            }
            (client, Ok(count))
        })
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_that_is_looked_for_is_the_one_that_is_sent() {
        assert_eq!(ECHOED, format!("Echo: {}", crate::requests::ECHO_TEXT));
    }

    #[test]
    fn a_sample_is_counted_per_request() {
        let sample = Sample {
            done: 50_000,
            seconds: 2.0,
            cpu_seconds: 1.5,
        };
        assert!((sample.per_second() - 25_000.0).abs() < 1e-9);
        assert!((sample.cpu_micros() - 30.0).abs() < 1e-9);
    }
}
