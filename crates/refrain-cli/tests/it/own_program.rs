//! A program with its own settings, an asynchronous build, hooks, and its own command to serve.

use crate::support::{Call, Client, Files, sqlite, without_settings};
use clap::{Args, Parser, Subcommand};
use refrain::prelude::{Cx, Server, Tool};
use refrain_app::{App, AppError, ServeOptions, Setup, print_error, with_hint};
use refrain_testkit::net::process::{Log, Output, Process};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::process::Command;

/// The command line of the program, as a JSON array.
const ARGUMENTS: &str = "REFRAIN_TEST_ARGUMENTS";
const LISTENING: &str = "listening";

const SETTINGS: &str = r#"[proxy]
build = "connect"                     # or "fail", "hang"
stop = "close"                        # or "hang"

# [backends.NAME]
# url = "http://127.0.0.1:1/mcp"      # of its endpoint
# weight = 2                          # 1 if not set
"#;

#[derive(Debug, Serialize, Deserialize)]
struct Config {
    proxy: Proxy,
    #[serde(default)]
    backends: BTreeMap<String, Backend>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct Proxy {
    build: Build,
    stop: Stop,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Build {
    Connect,
    Fail,
    Hang,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stop {
    Close,
    Hang,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct Backend {
    url: String,
    #[serde(default = "one")]
    weight: u32,
}

fn one() -> u32 {
    1
}

#[derive(Args)]
struct Flags {
    /// The tool `wait` ends when this file exists.
    #[arg(long)]
    until: Option<PathBuf>,
    /// A command.
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: OwnCommand,
}

#[derive(Subcommand)]
enum OwnCommand {
    #[command(flatten)]
    App(refrain_app::Command<Flags>),
    /// Serve with other defaults.
    #[command(mut_arg("store", |store| store.help("The store [default: memory:]")))]
    Proxy(Box<ServeOptions<Flags>>),
}

fn app(name: &'static str) -> App<Flags, Config> {
    App::configured(name, SETTINGS, async |flags: &Flags, config: Config| {
        // The future is polled inside the runtime.
        tokio::task::yield_now().await;
        eprintln!("building {:?} {config:?}", flags.command);
        match config.proxy.build {
            Build::Connect => {}
            Build::Fail => {
                return Err(with_hint(
                    "cannot connect to a backend",
                    "start the backend",
                ));
            }
            Build::Hang => std::future::pending().await,
        }
        let until = flags.until.clone().unwrap_or_default();
        let wait = Tool::new("wait", move |_: Cx| wait(until.clone()));
        let stop = async move {
            eprintln!("stopping");
            if let Stop::Hang = config.proxy.stop {
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
            eprintln!("stopped");
        };
        let start = |server: Server| {
            // The hook runs inside the runtime: `spawn` panics elsewhere.
            tokio::spawn(async {});
            let metrics = server.metrics_text();
            eprintln!("started with metrics: {}", metrics.contains("proxy"));
        };
        let builder = Server::builder("proxy", "1").tool(wait);
        Ok(Setup::new(builder).on_start(start).on_stop(stop))
    })
}

async fn wait(until: PathBuf) -> refrain::prelude::Result<String> {
    eprintln!("call started");
    while !until.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    eprintln!("call ended");
    Ok("waited".into())
}

/// Runs the program if this process was started as one. Otherwise it tests nothing.
#[test]
fn program() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments: Vec<String> = serde_json::from_str(&arguments).expect("arguments");
    let cli = Cli::try_parse_from(arguments).unwrap_or_else(|error| error.exit());
    let done = match cli.command {
        OwnCommand::App(command) => app("own").run(command),
        OwnCommand::Proxy(options) => app("own proxy").default_store("memory:").serve(&options),
    };
    let code = done.unwrap_or_else(|error: AppError| {
        print_error(&error.to_string());
        ExitCode::FAILURE
    });
    std::process::exit(i32::from(code != ExitCode::SUCCESS));
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    let arguments: Vec<&str> = [&["own"], arguments].concat();
    command
        .args(["--exact", "own_program::program", "--nocapture"])
        .env(ARGUMENTS, json!(arguments).to_string());
    without_settings(command)
}

async fn start(arguments: &[&str], directory: &Path) -> (Process, SocketAddr) {
    let mut command = command(arguments);
    command.current_dir(directory);
    let (process, line) = Process::start(command, LISTENING, None).await;
    let address = line
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once("/mcp"))
        .and_then(|(address, _)| address.parse().ok());
    (process, address.expect("the address"))
}

/// The position of the line with a text in a log.
fn line_of(log: &Log, text: &str) -> usize {
    let at = log.lines().iter().position(|line| line.contains(text));
    at.unwrap_or_else(|| panic!("no line with {text:?}\n{log:?}"))
}

#[tokio::test]
async fn own_command_serves_with_its_own_defaults() {
    let files = Files::new();
    let arguments = ["proxy", "--listen", "127.0.0.1:0", "--", "server", "--flag"];
    let (mut process, _) = start(&arguments, files.path("").as_path()).await;
    let log = process.log.clone();
    log.wait_for("started with metrics: true", 1).await;
    process.stop().await;
    let text = log.text();
    assert!(text.contains("own proxy: listening on http://"), "{text}");
    assert!(
        text.contains(r#"building ["server", "--flag"] Config"#),
        "{text}"
    );
    assert!(text.contains("backends: {}"), "{text}");
    assert!(!text.contains("store"), "{text}");
    let left = std::fs::read_dir(files.path("")).expect("the directory");
    assert_eq!(left.count(), 0);
    let help = Output::of(command(&["proxy", "--help"])).await;
    assert!(
        help.out.contains("The store [default: memory:]"),
        "{help:?}"
    );
    assert!(!help.out.contains("--drafts"), "{help:?}");
}

#[tokio::test]
async fn stop_hook_runs_after_draining() {
    let files = Files::new();
    let until = files.path("until");
    let until_flag = until.to_str().expect("a path in UTF-8");
    let arguments = ["proxy", "--listen", "127.0.0.1:0", "--until", until_flag];
    let (mut process, address) = start(&arguments, files.path("").as_path()).await;
    let log = process.log.clone();
    let call = tokio::spawn(async move {
        let mut call = Call::new("wait", json!({}));
        Client::new(address).round(&mut call).await
    });
    log.wait_for("call started", 1).await;
    process.signal(Signal::TERM);
    log.wait_for("draining", 1).await;
    assert_eq!(log.count("stopping"), 0, "{log:?}");
    files.write("until", "");
    let status = process.ended().await;
    assert!(status.success(), "{log:?}");
    assert!(line_of(&log, "call ended") < line_of(&log, "stopping"));
    assert!(line_of(&log, "stopping") < line_of(&log, "stopped"));
    call.await.expect("the call is answered");
}

#[tokio::test]
async fn stop_hook_has_a_time_limit() {
    let files = Files::new();
    let config = files.write("config.toml", "[proxy]\nstop = \"hang\"\n");
    let config = config.to_str().expect("a path in UTF-8");
    let arguments = ["proxy", "--listen", "127.0.0.1:0", "--config", config];
    let (mut process, _) = start(&arguments, files.path("").as_path()).await;
    process.stop().await;
    let log = &process.log;
    assert!(line_of(log, "stopping") < line_of(log, "stop hook timed out"));
    assert_eq!(log.count("stopped"), 0, "{log:?}");
}

#[tokio::test]
async fn stop_hook_runs_over_standard_input_and_after_an_error() {
    let stdio = Output::of(command(&["proxy", "--stdio"])).await;
    assert!(
        stdio.ok && stdio.err.ends_with("stopping\nstopped\n"),
        "{stdio:?}"
    );
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = busy.local_addr().expect("an address").to_string();
    let failed = Output::of(command(&["proxy", "--listen", &address])).await;
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(
        failed.err.contains("stopped\nerror: cannot listen on"),
        "{failed:?}"
    );
}

#[tokio::test]
async fn failed_build_is_reported() {
    let files = Files::new();
    let config = files.write("config.toml", "[proxy]\nbuild = \"fail\"\n");
    let config = config.to_str().expect("a path in UTF-8");
    let store = sqlite(&files.path("refrain.db"));
    for name in ["serve", "worker", "proxy"] {
        let arguments = [name, "--store", &store, "--config", config];
        let output = Output::of(command(&arguments)).await;
        assert_eq!(output.code, 1, "{output:?}");
        let expected = "error: cannot connect to a backend\nhint: start the backend\n";
        assert!(output.err.ends_with(expected), "{output:?}");
    }
}

#[tokio::test]
async fn signal_ends_a_build_that_takes_long() {
    let files = Files::new();
    let config = files.write("config.toml", "[proxy]\nbuild = \"hang\"\n");
    let config = config.to_str().expect("a path in UTF-8");
    let command = command(&["proxy", "--config", config]);
    let (mut process, _) = Process::start(command, "building", None).await;
    process.stop().await;
    assert_eq!(process.log.count("stopping"), 0, "{:?}", process.log);
}

#[tokio::test]
async fn own_settings_are_checked_and_printed() {
    let files = Files::new();
    let text = "log = 5\n[backends.files]\nurl = \"http://127.0.0.1:1/mcp\"\nwieght = 2\n[backends.mail]\n\
                weight = 2\n[proxy]\nbuild = \"conect\"\n";
    let bad = files.write("bad.toml", text);
    let path = bad.to_str().expect("a path in UTF-8");
    let expected = format!(
        "error: {path}:1:7: log must be a string, not integer `5`
  log = 5
        ^
error: {path}:4:1: unknown setting \"wieght\" in [backends.files]; did you mean \"weight\"?
  wieght = 2
  ^^^^^^
error: {path}:5:1: missing setting \"url\" in [backends.mail]
  [backends.mail]
  ^^^^^^^^^^^^^^^
error: {path}:8:9: proxy.build must be one of `connect`, `fail`, `hang`, not `conect`
  build = \"conect\"
          ^^^^^^^^
"
    );
    for arguments in [
        ["config", "check", path],
        ["serve", "--config", path],
        ["worker", "--config", path],
        ["proxy", "--config", path],
    ] {
        let output = Output::of(command(&arguments)).await;
        assert_eq!(output.code, 1, "{output:?}");
        assert_eq!(output.err, expected, "{arguments:?}");
    }

    let defaults = Output::of(command(&["config", "defaults"])).await;
    let (built_in, own) = defaults
        .out
        .split_at(defaults.out.find("[proxy]").expect("own"));
    assert!(built_in.contains("\n[limits]"), "{built_in}");
    assert!(own.starts_with(SETTINGS), "{own}");
    let text = "[backends.files]\nurl = \"http://127.0.0.1:1/mcp\"\n[limits]\nrounds = 5\n";
    let good = files.write("good.toml", text);
    let good = good.to_str().expect("a path in UTF-8");
    let check = Output::of(command(&["config", "check", good])).await;
    assert!(check.ok, "{check:?}");
    for (name, value, from) in [
        ("limits.rounds", "5", "line 4"),
        ("proxy.stop", "\"close\"", "default"),
        ("backends.files.url", "\"http://127.0.0.1:1/mcp\"", "line 2"),
        ("backends.files.weight", "1", "default"),
    ] {
        let is_row = |line: &str| {
            let words: Vec<&str> = line.split("  ").map(str::trim).collect();
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            words == [name, value, from]
        };
        assert!(check.out.lines().any(is_row), "{name}: {check:?}");
    }
    // `store tasks` reads the store of the same file. Its former name still works.
    let with_store = files.write("store.toml", &format!("store = \"memory:\"\n{text}"));
    let with_store = with_store.to_str().expect("a path in UTF-8");
    for name in [&["store", "tasks"][..], &["tasks"]] {
        let args = [name, &["list", "--config", with_store]].concat();
        let tasks = Output::of(command(&args)).await;
        let why = "error: a memory store belongs to one process";
        assert!(tasks.code == 1 && tasks.err.contains(why), "{tasks:?}");
    }
}
