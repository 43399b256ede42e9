//! The cost of the gateway: the same calls of one server directly, through the gateway, and through other proxies.
//!
//! A target is one of these ways to the server. One connection to it makes calls one after the other. Slices of all
//! targets alternate. The CPU time "proxy + server" includes the processes that the proxy started, such as its server over
//! stdio.

use crate::error::{Error, failed};
use crate::server::{Program, ServerProcess, cpu_seconds, resident_kib};
use crate::table::{grid, number};
use futures_util::future::try_join_all;
use refrain_client::{AskAnswer, AskKind, CallSpec, Client, Dialect, PendingCall, RoundOutcome};
use serde_json::{Map, Value};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::process::Command;

/// How long the gateway may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(crate) struct GatewayBenchOptions {
    /// The URL of the server to put behind the gateway.
    #[arg(long, value_name = "URL", required_unless_present = "command")]
    url: Option<String>,
    /// The process id of the server at URL, to measure its CPU time.
    #[arg(long, value_name = "PID", requires = "url")]
    server_pid: Option<u32>,
    /// The command of a server to start over stdio, instead of URL.
    #[arg(last = true, conflicts_with = "url")]
    command: Vec<String>,
    /// The dialect of all connections of this program [default: the newest that the target has].
    #[arg(long, value_parser = |text: &str| Dialect::try_from(text.to_owned()))]
    dialect: Option<Dialect>,
    /// A tool of the server that returns at once.
    #[arg(long, value_name = "TOOL", default_value = "echo")]
    tool: String,
    /// The arguments of the tool.
    #[arg(long, value_name = "JSON", default_value = r#"{"message": "hello"}"#)]
    arguments: String,
    /// Another proxy in front of the same server, and its process id; may be given several times.
    #[arg(long = "compare", value_name = "NAME=URL[,PID]", value_parser = parse_proxy)]
    others: Vec<Proxy>,
    /// A tool of the server that asks, to measure the memory of calls that wait.
    #[arg(long, value_name = "TOOL")]
    asks: Option<String>,
    /// The number of waiting calls, and of processes of a stdio server, whose memory is measured.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    parked: usize,
    /// Instead of all other measurements: compares calls while no call waits with calls while COUNT calls of the tool
    /// `--asks` wait for an answer.
    #[arg(long, value_name = "COUNT", requires = "asks")]
    waiting: Option<usize>,
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

/// A name, a URL, and a process id.
type Proxy = (String, String, Option<u32>);

fn parse_proxy(text: &str) -> Result<Proxy, String> {
    let (name, url) = text.split_once('=').ok_or("expected NAME=URL[,PID]")?;
    let (url, pid) = url.rsplit_once(',').unwrap_or((url, ""));
    Ok((name.to_owned(), url.to_owned(), pid.parse().ok()))
}

/// A way to the server: direct, through the gateway, or through another proxy.
struct Target {
    name: String,
    client: Client,
    /// The process id of the proxy.
    proxy: Option<u32>,
    /// The process id of the server if it is not a child of the proxy.
    server: Option<u32>,
    /// The times of all calls, in seconds.
    times: Vec<f64>,
    /// The CPU time of all calls in seconds: of the proxy, and of the proxy with the server.
    cpu: (f64, f64),
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
    let connect = || {
        let builder = Client::builder().answer_manually([AskKind::Form]);
        match options.dialect {
            Some(dialect) => builder.dialect(dialect),
            None => builder,
        }
    };
    let direct = match (&options.url, &options.command[..]) {
        (Some(url), _) => connect().connect(url).await,
        (None, words) => {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            connect().spawn(command).await
        }
    };
    let direct = direct.map_err(failed("connect to the server"))?;
    // A server over stdio is the only child so far.
    let child = process_tree(std::process::id())?.get(1).copied();
    let server = options.server_pid;
    let mut targets = vec![Target::new("direct", direct, None, server.or(child))];
    let gateway = start_gateway(options).await?;
    let (pid, url) = (gateway.pid, format!("http://{}/mcp", gateway.address));
    if let (Some(count), Some(tool)) = (options.waiting, &options.asks) {
        let client = connect().connect(&url).await;
        let client = client.map_err(failed("connect to the gateway"))?;
        let names = ["no call waits".to_owned(), format!("{count} calls wait")];
        let mut targets = names.map(|name| Target::new(&name, client.clone(), Some(pid), server));
        compare_waiting(options, &call, tool, count, &mut targets).await?;
        return Ok(GatewayReport {
            rows: rows(&mut targets),
            notes: Vec::new(),
        });
    }
    let idle = resident_kib(pid)?;
    let gateway_proxy = ("refrain gateway".to_owned(), url, Some(pid));
    for (name, url, pid) in [&gateway_proxy].into_iter().chain(&options.others) {
        let client = connect().connect(url).await;
        let client = client.map_err(failed(format!("connect to {name}")))?;
        targets.push(Target::new(name, client, *pid, server));
    }
    for slice in 0..=options.slices {
        for target in &mut targets {
            // The first slice warms up.
            target.run_slice(&call, options.calls, slice > 0).await?;
        }
    }
    let mut notes = vec![format!("The gateway before its first call: {idle} KiB")];
    let client = &targets[1].client;
    if options.url.is_none() {
        notes.push(fill_pool(client, &call, options.parked, pid).await?);
    }
    if let Some(tool) = &options.asks {
        notes.push(park_calls(client, tool, options.parked, pid).await?);
    }
    Ok(GatewayReport {
        rows: rows(&mut targets),
        notes,
    })
}

/// Measures slices of calls while no call waits and while calls wait, in turns.
async fn compare_waiting(
    options: &GatewayBenchOptions,
    call: &CallSpec,
    tool: &str,
    count: usize,
    [idle, waiting]: &mut [Target; 2],
) -> Result<(), Error> {
    for slice in 0..=options.slices {
        idle.run_slice(call, options.calls, slice > 0).await?;
        let client = waiting.client.clone();
        let starting = (0..count).map(|_| start_asking(&client, tool));
        let pending = try_join_all(starting).await?;
        waiting.run_slice(call, options.calls, slice > 0).await?;
        let cancelling = pending.into_iter().map(async |mut pending| {
            for ask in pending.unanswered() {
                pending.answer(ask.key(), AskAnswer::Cancel)?;
            }
            let finished = client.finish(pending).await;
            finished.map_err(failed("cancel a waiting call"))
        });
        try_join_all(cancelling).await?;
    }
    Ok(())
}

/// The first round of a call that asks.
async fn start_asking(client: &Client, tool: &str) -> Result<PendingCall, Error> {
    let started = client.start(CallSpec::tool(tool)).await;
    match started.map_err(failed("start a call that asks"))? {
        RoundOutcome::Pending(pending) => Ok(pending),
        RoundOutcome::Complete(_) => Err(format!("{tool} did not ask").into()),
    }
}

/// Starts a gateway in front of the server.
async fn start_gateway(options: &GatewayBenchOptions) -> Result<ServerProcess, Error> {
    let backend = match &options.url {
        Some(url) => format!("url = {}", serde_json::to_string(url)?),
        None => format!("command = {}", serde_json::to_string(&options.command)?),
    };
    let limits = "connections = 1000\nconnections_each = 1000";
    let mut config = tempfile::Builder::new().suffix(".toml").tempfile()?;
    writeln!(
        config,
        "[gateway]\n{limits}\n[backends.server]\n{backend}\nconnections = 1000\ninherit_env = true"
    )?;
    let program = Program::gateway(options.refrain.clone(), config.path())?;
    program.start(None, &[], START_TIMEOUT).await
}

/// A process and all its descendants.
fn process_tree(root: u32) -> Result<Vec<u32>, Error> {
    let parent = |pid: u32| {
        // The process may have ended.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
        Some((pid, parent.parse::<u32>().ok()?))
    };
    let names = std::fs::read_dir("/proc")?
        .flatten()
        .map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    let parents: Vec<_> = pids.filter_map(parent).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        let children = parents.iter().filter(|(_, parent)| *parent == pid);
        found.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(found)
}

impl Target {
    fn new(name: &str, client: Client, proxy: Option<u32>, server: Option<u32>) -> Self {
        Self {
            name: name.to_owned(),
            client,
            proxy,
            server,
            times: Vec::new(),
            cpu: (0.0, 0.0),
        }
    }

    /// The CPU time so far: of the proxy, and of the proxy with the server.
    fn cpu(&self) -> Result<(f64, f64), Error> {
        let proxy_cpu = self.proxy.map_or(Ok(0.0), cpu_seconds)?;
        let roots = self.proxy.into_iter().chain(self.server);
        let all = roots.flat_map(process_tree).flatten().flat_map(cpu_seconds);
        Ok((proxy_cpu, all.sum()))
    }

    async fn run_slice(
        &mut self,
        call: &CallSpec,
        calls: usize,
        is_counted: bool,
    ) -> Result<(), Error> {
        let mut times = Vec::with_capacity(calls);
        let before = self.cpu()?;
        for _ in 0..calls {
            let begun = Instant::now();
            let called = self.client.call(call.clone()).await;
            called.map_err(failed(format!("call {}", self.name)))?;
            times.push(begun.elapsed().as_secs_f64());
        }
        let after = self.cpu()?;
        if is_counted {
            self.times.extend(times);
            self.cpu.0 += after.0 - before.0;
            self.cpu.1 += after.1 - before.1;
        }
        Ok(())
    }
}

fn rows(targets: &mut [Target]) -> Vec<Vec<String>> {
    let head = [
        "",
        "median µs",
        "99 % µs",
        "median, × first row",
        "99 %, × first row",
        "CPU per call, µs: proxy",
        "proxy + server",
        "proxy + server, × first row",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut first = None;
    for target in targets {
        target.times.sort_by(f64::total_cmp);
        let calls = target.times.len() as f64;
        let percentile = |share: f64| {
            let time = target.times.get((calls * share) as usize);
            time.map(|seconds| seconds * 1e6)
        };
        let each = |seconds: f64| Some(seconds * 1e6 / calls);
        let (median, high) = (percentile(0.5), percentile(0.99));
        let proxy_cpu = target.proxy.and(each(target.cpu.0));
        let all = each(target.cpu.1);
        // Without the process id of the server, its CPU time is unknown.
        let first = *first.get_or_insert((median, high, target.server.and(all)));
        let ratio = |value: Option<f64>, base: Option<f64>| Some(value? / base?);
        rows.push(vec![
            target.name.clone(),
            number(median, 0),
            number(high, 0),
            number(ratio(median, first.0), 2),
            number(ratio(high, first.1), 2),
            number(proxy_cpu, 0),
            number(first.2.and(all), 0),
            number(ratio(all, first.2), 2),
        ]);
    }
    rows
}

/// Makes calls at the same time, so that each gets its own process, and reports the growth of the gateway.
async fn fill_pool(
    client: &Client,
    call: &CallSpec,
    count: usize,
    pid: u32,
) -> Result<String, Error> {
    let before = (resident_kib(pid)?, process_tree(pid)?.len());
    let calls = (0..count).map(|_| client.call(call.clone()));
    try_join_all(calls).await.map_err(failed("fill the pool"))?;
    let grown = resident_kib(pid)?.saturating_sub(before.0);
    let started = process_tree(pid)?.len().saturating_sub(before.1);
    let each = number(Some(grown as f64 / started as f64), 1);
    Ok(format!(
        "{started} more processes in the pool: {each} KiB each in the gateway"
    ))
}

/// Lets calls wait for an answer, and reports the growth of the gateway.
async fn park_calls(client: &Client, tool: &str, count: usize, pid: u32) -> Result<String, Error> {
    let before = resident_kib(pid)?;
    for _ in 0..count {
        start_asking(client, tool).await?;
    }
    let grown = resident_kib(pid)?.saturating_sub(before);
    let each = number(Some(grown as f64 / count as f64), 1);
    Ok(format!(
        "{count} calls that wait: {each} KiB each in the gateway"
    ))
}
