//! The cost of the gateway: the same calls of one server directly, through the gateway, and through other proxies.
//!
//! One connection makes calls one after the other. Slices of all targets alternate.

use crate::error::{Error, failed};
use crate::server::{cpu_seconds, resident_kib};
use crate::table::{grid, number};
use refrain_client::{AskKind, CallSpec, Client, RoundOutcome};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long the gateway may take to start.
const START: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(crate) struct GatewayBenchOptions {
    /// The URL of the server to put behind the gateway.
    #[arg(long, value_name = "URL")]
    url: String,
    /// A tool of the server that returns at once.
    #[arg(long, value_name = "TOOL", default_value = "echo")]
    tool: String,
    /// The arguments of the tool.
    #[arg(long, value_name = "JSON", default_value = r#"{"message": "hello"}"#)]
    arguments: String,
    /// Another proxy in front of the same server; may be given several times.
    #[arg(long = "compare", value_name = "NAME=URL", value_parser = named)]
    others: Vec<(String, String)>,
    /// A tool of the server that asks, to measure the memory of calls that wait.
    #[arg(long, value_name = "TOOL")]
    asks: Option<String>,
    /// The number of calls that wait.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    parked: usize,
    /// The number of slices of each target.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    slices: usize,
    /// The number of calls in a slice.
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    calls: usize,
    /// The `refrain` program [default: beside this program].
    #[arg(long, value_name = "FILE")]
    refrain: Option<PathBuf>,
}

fn named(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').ok_or("expected NAME=URL")?;
    Ok((parts.0.to_owned(), parts.1.to_owned()))
}

struct Target {
    name: String,
    client: Client,
    /// The times of all calls, in seconds.
    times: Vec<f64>,
}

pub(crate) struct GatewayReport {
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl GatewayReport {
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        grid(&mut out, 1, &self.rows);
        for note in &self.notes {
            out.push_str(note);
            out.push('\n');
        }
        out
    }
}

pub(crate) async fn run(options: &GatewayBenchOptions) -> Result<GatewayReport, Error> {
    let arguments: Map<String, Value> = serde_json::from_str(&options.arguments)?;
    let call = CallSpec::tool(&options.tool).with_arguments(arguments);
    let (gateway, url) = start(options).await?;
    let pid = gateway.id().ok_or("the gateway has exited")?;
    let mut targets = vec![
        connect("direct", &options.url).await?,
        connect("refrain gateway", &url).await?,
    ];
    for (name, url) in &options.others {
        targets.push(connect(name, url).await?);
    }
    let mut cpu = 0.0;
    for slice in 0..=options.slices {
        for (index, target) in targets.iter_mut().enumerate() {
            let before = cpu_seconds(pid)?;
            let times = target.slice(&call, options.calls).await?;
            // The first slice warms up.
            if slice > 0 {
                target.times.extend(times);
                cpu += if index == 1 {
                    cpu_seconds(pid)? - before
                } else {
                    0.0
                };
            }
        }
    }
    let calls = (options.slices * options.calls) as f64;
    let mut notes = vec![format!(
        "CPU of the gateway: {} µs per call",
        number(Some(cpu * 1e6 / calls), 0)
    )];
    if let Some(tool) = &options.asks {
        notes.push(park(&targets[1].client, tool, options.parked, pid).await?);
    }
    Ok(GatewayReport {
        rows: rows(&mut targets),
        notes,
    })
}

/// Starts a gateway in front of the server, and returns its URL.
async fn start(options: &GatewayBenchOptions) -> Result<(Child, String), Error> {
    let program = match &options.refrain {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("refrain"),
    };
    let mut command = Command::new(program);
    command
        .args(["gateway", "--listen", "127.0.0.1:0", "--url", &options.url])
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(failed("start the gateway"))?;
    let stderr = child.stderr.take().ok_or("the gateway has no output")?;
    let mut lines = BufReader::new(stderr).lines();
    let url = timeout(START, async {
        while let Some(line) = lines.next_line().await? {
            if let Some((_, url)) = line.split_once("listening on ") {
                return Ok(url.to_owned());
            }
        }
        Err(Error::from("the gateway ended"))
    });
    let url = url.await.map_err(failed("wait for the gateway"))??;
    // Its log must be read, or it would block.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok((child, url))
}

async fn connect(name: &str, url: &str) -> Result<Target, Error> {
    let builder = Client::builder().answer_manually([AskKind::Form]);
    let client = builder.connect(url).await;
    Ok(Target {
        name: name.to_owned(),
        client: client.map_err(failed(format!("connect to {name}")))?,
        times: Vec::new(),
    })
}

impl Target {
    async fn slice(&self, call: &CallSpec, calls: usize) -> Result<Vec<f64>, Error> {
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let begun = Instant::now();
            let called = self.client.call(call.clone()).await;
            called.map_err(failed(format!("call {}", self.name)))?;
            times.push(begun.elapsed().as_secs_f64());
        }
        Ok(times)
    }
}

fn rows(targets: &mut [Target]) -> Vec<Vec<String>> {
    let head = ["", "median µs", "99 % µs", "median, × direct"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut direct = None;
    for target in targets {
        target.times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (target.times.len() as f64 * share) as usize;
            target.times.get(index).map(|seconds| seconds * 1e6)
        };
        let (median, high) = (at(0.5), at(0.99));
        let direct = *direct.get_or_insert(median);
        let ratio = median.zip(direct).map(|(median, direct)| median / direct);
        rows.push(vec![
            target.name.clone(),
            number(median, 0),
            number(high, 0),
            number(ratio, 2),
        ]);
    }
    rows
}

/// Lets calls wait for an answer, and reports the growth of the gateway.
async fn park(client: &Client, tool: &str, count: usize, pid: u32) -> Result<String, Error> {
    let before = resident_kib(pid)?;
    for _ in 0..count {
        let started = client.start(CallSpec::tool(tool)).await;
        match started.map_err(failed("park a call"))? {
            RoundOutcome::Pending(_) => {}
            RoundOutcome::Complete(_) => return Err(format!("{tool} did not ask").into()),
        }
    }
    let grown = resident_kib(pid)?.saturating_sub(before);
    let each = number(Some(grown as f64 / count as f64), 1);
    Ok(format!(
        "{count} calls that wait: {each} KiB each in the gateway"
    ))
}
