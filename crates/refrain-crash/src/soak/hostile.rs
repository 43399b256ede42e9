//! Hostile clients: each connects to one instance, tries to exhaust it, and leaves.
//!
//! They come from another address than the other clients, because limits apply to each address.

use super::check::FIRST_CALL;
use super::{RANDOM_STREAM, Soak};
use crate::client::TaskEnd;
use crate::error::CrashError;
use crate::plan::TaskPlan;
use crate::random::{about, millis_below, random_stream};
use crate::worker::{CALL_TOOL, LIVE_TOOL, RESOURCE};
use fastrand::Rng;
use refrain_testkit::net::{Request, legacy};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// The number of hostile clients.
const CLIENTS: u64 = 3;
/// The mean pause between two attacks of a client.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest time for which an attack holds its connection, in milliseconds.
const MAX_HOLD: u64 = 3000;
/// How long an attack waits for its response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The plan number that all hostile calls share and no other call has. They stop at their first
/// ask, so no effect has this number.
const HOSTILE_NUMBER: u32 = FIRST_CALL - 1;
/// The address of all hostile clients; the other clients have 127.0.0.1.
const HOSTILE_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// More than `limits.json_values`.
const TOO_MANY_VALUES: usize = 100_001;
/// More than `limits.body_bytes`.
const TOO_MANY_BYTES: usize = 5 * 1024 * 1024;

const OK: &str = "HTTP/1.1 200 ";
const BAD_REQUEST: &str = "HTTP/1.1 400 ";
const FORBIDDEN: &str = "HTTP/1.1 403 ";
const TOO_LARGE: &str = "HTTP/1.1 413 ";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Attack {
    ManyValues,
    LargeBody,
    SlowBody,
    SlowHead,
    NotJson,
    ForgedToken,
    ForgedRelay,
    ForeignHost,
    AbandonedLiveCall,
    AbandonedLegacyCall,
    UnreadSubscription,
    IdleConnection,
}

const ATTACKS: [Attack; 12] = [
    Attack::ManyValues,
    Attack::LargeBody,
    Attack::SlowBody,
    Attack::SlowHead,
    Attack::NotJson,
    Attack::ForgedToken,
    Attack::ForgedRelay,
    Attack::ForeignHost,
    Attack::AbandonedLiveCall,
    Attack::AbandonedLegacyCall,
    Attack::UnreadSubscription,
    Attack::IdleConnection,
];

/// The number of attacks of each kind, and of those that a kill interrupted.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct HostileCounts {
    attacks: BTreeMap<Attack, u64>,
    interrupted: u64,
}

impl HostileCounts {
    fn add(&mut self, attack: Attack) {
        *self.attacks.entry(attack).or_default() += 1;
    }

    pub(super) fn sum(&self) -> u64 {
        self.attacks.values().sum()
    }
}

pub(super) fn start(soak: &Arc<Soak>, clients: &mut JoinSet<Result<Vec<TaskEnd>, CrashError>>) {
    for number in 0..CLIENTS {
        let soak = soak.clone();
        clients.spawn(async move {
            attack_all(&soak, number).await;
            Ok(Vec::new())
        });
    }
}

async fn attack_all(soak: &Soak, number: u64) {
    // Above the numbers of the users, so that the random streams differ.
    let mut random = random_stream(soak.run.seed, RANDOM_STREAM ^ ((number + 5000) << 32));
    let mut turn = number as usize * ATTACKS.len() / CLIENTS as usize;
    while !soak.is_over() {
        let addresses = soak.run.fleet.addresses();
        let address = addresses[random.usize(..addresses.len())].endpoint;
        let attack = ATTACKS[turn % ATTACKS.len()];
        turn += 1;
        match attack.run(address, &mut random).await {
            Ok(Ok(())) => soak.counts.lock().hostile.add(attack),
            Ok(Err(fault)) => soak.fault(format!("{attack:?} was answered with {fault}")),
            // The first instance is never killed, so it must answer.
            Err(error) if address == addresses[0].endpoint => {
                soak.fault(format!("{attack:?} had no answer: {error}"));
            }
            Err(_) => soak.counts.lock().hostile.interrupted += 1,
        }
        tokio::time::sleep(about(&mut random, PAUSE)).await;
    }
}

impl Attack {
    /// Attacks once. Returns the response if it is not the expected one.
    async fn run(self, address: SocketAddr, random: &mut Rng) -> io::Result<Result<(), String>> {
        let hold = millis_below(random, MAX_HOLD);
        let live = Request::tool(LIVE_TOOL, json!(TaskPlan::call(HOSTILE_NUMBER)));
        let (request, expected) = match self {
            Self::ManyValues => {
                let values = vec!["0"; TOO_MANY_VALUES].join(",");
                (Request::bytes(format!("[{values}]")), TOO_LARGE)
            }
            Self::LargeBody => (Request::bytes(vec![b' '; TOO_MANY_BYTES]), TOO_LARGE),
            Self::NotJson => (Request::bytes("{\"jsonrpc\": "), BAD_REQUEST),
            Self::ForgedToken => {
                let call = Request::tool(CALL_TOOL, json!(TaskPlan::call(HOSTILE_NUMBER)));
                let token = "A".repeat(400);
                (call.again(&token, json!({})), "\"code\":-32602")
            }
            Self::ForgedRelay => (live.header("Refrain-Relay", "nonsense"), FORBIDDEN),
            Self::ForeignHost => (live.header("Host", "example.com"), FORBIDDEN),
            Self::AbandonedLiveCall => (live, OK),
            Self::AbandonedLegacyCall => return abandon_legacy_call(address, hold).await,
            Self::UnreadSubscription => {
                let filter = json!({"resourceSubscriptions": [RESOURCE]});
                let listen = Request::rpc("subscriptions/listen", json!({}));
                (listen.param("notifications", filter), OK)
            }
            Self::SlowBody | Self::SlowHead | Self::IdleConnection => {
                let bytes = live.to_bytes(&address.to_string());
                let sent = match self {
                    Self::SlowBody => bytes.len() - 10,
                    Self::SlowHead => 30,
                    _ => 0,
                };
                let mut stream = connect(address).await?;
                stream.write_all(&bytes[..sent]).await?;
                tokio::time::sleep(hold).await;
                return Ok(Ok(()));
            }
        };
        let (stream, response) = send(address, request, expected).await?;
        if self == Self::UnreadSubscription {
            tokio::time::sleep(hold).await;
        }
        drop(stream);
        Ok(expect(expected, response))
    }
}

/// Opens a legacy session and leaves its call at the first ask.
async fn abandon_legacy_call(
    address: SocketAddr,
    hold: Duration,
) -> io::Result<Result<(), String>> {
    let initialize = legacy::initialize("2025-11-25", &json!({"elicitation": {"form": {}}}));
    let initialize = Request::post("/mcp", initialize.to_string());
    let (_, response) = send(address, initialize, "\r\n\r\n").await?;
    let lines = response.lines().filter_map(|line| line.split_once(": "));
    let mut lines = lines.filter(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id"));
    let Some((_, session)) = lines.next() else {
        return Ok(Err(response));
    };
    let call = legacy::call(1, CALL_TOOL, json!(TaskPlan::call(HOSTILE_NUMBER)));
    let call = Request::post("/mcp", call.to_string()).header("Mcp-Session-Id", session);
    let (stream, response) = send(address, call, OK).await?;
    tokio::time::sleep(hold).await;
    drop(stream);
    Ok(expect(OK, response))
}

fn expect(expected: &str, response: String) -> Result<(), String> {
    match response.contains(expected) {
        true => Ok(()),
        false => Err(response),
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((HOSTILE_ADDRESS, 0).into())?;
    socket.connect(address).await
}

/// Sends a request and reads its response up to the expected text, or to the end.
async fn send(
    address: SocketAddr,
    request: Request,
    expected: &str,
) -> io::Result<(TcpStream, String)> {
    let mut stream = connect(address).await?;
    let request = request.header("Connection", "close");
    let bytes = request.to_bytes(&address.to_string());
    let exchange = async {
        let (mut reader, mut writer) = stream.split();
        let mut read = Vec::new();
        let response = async {
            loop {
                let end = reader.read_buf(&mut read).await? == 0;
                let text = String::from_utf8_lossy(&read);
                match end && text.is_empty() {
                    true => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    false if end || text.contains(expected) => return Ok(text.into_owned()),
                    false => {}
                }
            }
        };
        let write = async {
            // A rejected body is not read to its end; the response says why.
            let _ = writer.write_all(&bytes).await;
            std::future::pending().await
        };
        tokio::select! {
            response = response => response,
            never = write => never,
        }
    };
    let response = tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await??;
    Ok((stream, response))
}
