//! Saved calls.

use super::{assert_prints, assert_says, json, saved_call};
use crate::support::{
    FakeServer, Files, Ledger, Output, Respond, Serve, ended, program, run, run_command,
    serve_forever, until, within, without_settings,
};
use refrain::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::net::unix::pipe::OpenOptions;
use tokio::process::{Child, Command};

/// The path of a file, and the path as text.
fn file_and_name(files: &Files, name: &str) -> (PathBuf, String) {
    let file = files.path(name);
    let name = file.display().to_string();
    (file, name)
}

fn pipe(files: &Files, name: &str) -> String {
    let (file, name) = file_and_name(files, name);
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, file, FileType::Fifo, mode, 0).expect("a pipe");
    name
}

/// A running command.
struct Running(Child);

impl Running {
    fn start(args: &[&str]) -> Self {
        // The tests may run under `nohup`, whose processes ignore SIGHUP.
        let mut command = without_settings(Command::new("env"));
        command
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_refrain")])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Self(command.spawn().expect("the binary starts"))
    }

    fn signal(&self, signal: Signal) {
        let id = self.0.id().and_then(|id| Pid::from_raw(id as i32));
        kill_process(id.expect("the process runs"), signal).expect("the signal can be sent");
    }

    async fn ended(self) -> Output {
        let output = within("the command ends", self.0.wait_with_output()).await;
        output.expect("the process can be waited for").into()
    }

    async fn killed(mut self) {
        self.signal(Signal::KILL);
        ended(&mut self.0).await;
    }
}

/// A sampler that never answers. Dropping it kills the process.
struct Sleeper {
    command: String,
    id: PathBuf,
}

impl Sleeper {
    fn new(files: &Files) -> Self {
        let id = files.path("sleeper");
        let command = format!(
            "echo $$ >'{0}.new'; mv '{0}.new' '{0}'; exec sleep 1000",
            id.display()
        );
        Self { command, id }
    }

    async fn started(&self) {
        until("the sampler sleeps", || self.id.exists()).await;
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let id = std::fs::read_to_string(&self.id).ok();
        let id = id.and_then(|id| Pid::from_raw(id.trim().parse().ok()?));
        if let Some(id) = id {
            // The process may have been killed already.
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

fn lines(ledger: &Path) -> usize {
    let text = std::fs::read_to_string(ledger).expect("the ledger is readable");
    text.lines().count()
}

#[tokio::test]
async fn saved_call_continues_on_a_server_that_moved() {
    let files = Files::new();
    let (keys, ledger) = (files.keys("fleet.keys"), files.write("ledger", ""));
    let (file, name) = file_and_name(&files, "order.json");
    let mut first = Serve::new().keys(&keys).ledger(&ledger).start().await;
    let second = Serve::new().keys(&keys).ledger(&ledger);
    let output = run([
        "call",
        &first.url(),
        "place_order",
        "item=lamp",
        "--save",
        &name,
    ])
    .await;
    assert_says(
        &output,
        3,
        &[
            "confirm_order",
            "Order one lamp?",
            &format!("note: the call is saved in {name}"),
            &format!(r#"refrain resume {name} --answer 'confirm_order={{"confirm":true}}'"#),
        ],
    );
    let mode = std::fs::metadata(&file)
        .expect("the file is readable")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    first.stop().await;

    // The old address is unreachable, and the call stays saved.
    let before = std::fs::read(&file).expect("the file is readable");
    let answer = ["--answer", r#"confirm_order={"confirm": true}"#];
    let output = run([&["resume", &name][..], &answer].concat()).await;
    assert_says(
        &output,
        4,
        &["could not connect to", "the call is still saved in"],
    );
    assert_eq!(std::fs::read(&file).expect("the file is readable"), before);

    let second = second.start().await;
    assert_ne!(first.address, second.address);
    let moved = ["resume", &name, "--url", &second.url()];
    let output = run([&moved[..], &answer].concat()).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(
        output.out.starts_with("Ordered one lamp: reservation "),
        "{output:?}"
    );
    assert!(!file.exists(), "the call is done");
    Ledger::at(&ledger).assert_ordered_once(&["lamp".into()]);
}

#[tokio::test]
async fn each_round_replaces_the_saved_call() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let (file, name) = file_and_name(&files, "item.json");
    let item = r#"{"workItemId": 7, "fields": {"System.State": "Resolved"}}"#;
    let output = run([
        "call",
        &instance.url(),
        "update_work_item",
        item,
        "--save",
        &name,
    ])
    .await;
    assert_eq!(output.code, 3, "{output:?}");
    assert_eq!(saved_call(&file).round(), 1);
    let duplicate = r#"resolution={"resolution": "Duplicate"}"#;
    let output = run(["resume", &name, "--answer", duplicate, "--json"]).await;
    assert_eq!(output.code, 3, "{output:?}");
    assert_eq!(json(&output)["asked"][0]["key"], "duplicate_of");
    assert_eq!(json(&output)["saved"], json!(name));
    assert_eq!(saved_call(&file).round(), 2);
    let original = r#"duplicate_of={"duplicateOfId": 4301}"#;
    let output = run(["resume", &name, "--answer", original]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.out.contains("Duplicate of Bug #4301"), "{output:?}");
    assert!(!file.exists());
}

#[tokio::test]
async fn saved_answers_are_kept() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let name = files.path("accounts.json").display().to_string();
    let github = ["--answer", r#"github_login={"name": "Ada"}"#];
    let call = ["call", &instance.url(), "accounts", "--save", &name];
    let output = run([&call[..], &github].concat()).await;
    assert_says(&output, 3, &["google_login"]);
    assert!(!output.err.contains("github_login"), "{output:?}");
    let output = run(["resume", &name, "--answer", r#"google_login={"name": 1}"#]).await;
    assert_says(&output, 3, &["must be a string"]);
    let output = run([
        "resume",
        &name,
        "--answer",
        r#"google_login={"name": "ada"}"#,
    ])
    .await;
    assert_eq!(
        output.out, "Linked GitHub Ada and Google ada.\n",
        "{output:?}"
    );
}

#[tokio::test]
async fn saved_answer_can_be_replaced() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let (file, name) = file_and_name(&files, "accounts.json");
    let github = ["--answer", r#"github_login={"name": "Ada"}"#];
    let call = ["call", &instance.url(), "accounts", "--save", &name];
    assert_eq!(run([&call[..], &github].concat()).await.code, 3);

    // An invalid answer does not replace the earlier one.
    let before = std::fs::read(&file).expect("the call is saved");
    let invalid = ["--answer", r#"github_login={"name": 1}"#];
    let output = run([&["resume", &name][..], &invalid].concat()).await;
    assert_says(&output, 3, &["github_login  form", "must be a string"]);
    assert_eq!(std::fs::read(&file).expect("the call is saved"), before);

    let grace = ["--answer", r#"github_login={"name": "Grace"}"#];
    let output = run([&["resume", &name][..], &grace].concat()).await;
    assert_says(&output, 3, &["google_login"]);
    assert!(!output.err.contains("unused answer"), "{output:?}");
    let google = ["--answer", r#"google_login={"name": "ada"}"#];
    let output = run([&["resume", &name][..], &google].concat()).await;
    assert_eq!(
        output.out, "Linked GitHub Grace and Google ada.\n",
        "{output:?}"
    );
}

#[tokio::test]
async fn existing_file_is_not_overwritten() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let url = instance.url();
    let file = files.write("call.json", "precious");
    let name = file.display().to_string();
    let output = run(["call", &url, "echo", "--save", &name]).await;
    assert_says(&output, 2, &["already exists", "refrain resume"]);
    assert_eq!(
        std::fs::read_to_string(&file).expect("the file is readable"),
        "precious"
    );
    let output = run(["resume", &name]).await;
    assert_says(&output, 2, &["call.json is not a saved call"]);
    let other = files.write("other.json", "{\"a\": 1}");
    let output = run(["resume", &other.display().to_string()]).await;
    assert_says(&output, 2, &["other.json is not a saved call"]);
    let output = run(["resume", "/nowhere.json"]).await;
    assert_says(&output, 2, &["cannot read saved call /nowhere.json"]);
    let other = json!({"format": 99, "address": url, "call": {"method": "tools/call", "target": "echo"},
        "callId": "1", "round": 1});
    let other = files
        .write("other.json", &other.to_string())
        .display()
        .to_string();
    let output = run(["resume", &other]).await;
    assert_says(&output, 2, &["format 99"]);

    // No call is made if it cannot be saved.
    let ledger = files.write("ledger", "");
    let instance = Serve::new().ledger(&ledger).start().await;
    let order = ["call", &instance.url(), "place_order", "item=lamp"];
    let output = run([&order[..], &["--save", "/nowhere/call.json"]].concat()).await;
    assert_says(&output, 2, &["cannot write saved call /nowhere/call.json"]);
    assert_eq!(lines(&ledger), 0);
}

#[tokio::test]
async fn finished_call_leaves_no_file() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let url = instance.url();
    let (file, name) = file_and_name(&files, "call.json");
    let output = run(["call", &url, "echo", "text=x", "--save", &name]).await;
    assert_eq!((output.code, file.exists()), (0, false), "{output:?}");
    let output = run(["call", &url, "nope", "--save", &name]).await;
    assert_eq!((output.code, file.exists()), (1, false), "{output:?}");
    let declined = ["--answer", "github_login=decline", "--save", &name];
    let output = run([&["call", &url, "get_weather", "location=x"][..], &declined].concat()).await;
    assert_eq!((output.code, file.exists()), (1, false), "{output:?}");
}

/// The server is restarted at the same URL, and no longer holds the call.
#[tokio::test]
async fn call_that_the_server_lost_is_not_saved() {
    let files = Files::new();
    let (keys, free) = (files.keys("fleet.keys"), TcpListener::bind("127.0.0.1:0"));
    let address = free.await.and_then(|free| free.local_addr());
    let address = address.expect("a free port").to_string();
    let advertised = format!("http://{address}/mcp");
    let serve = || {
        let flags = ["--listen", &address, "--advertise", &advertised];
        Serve::without_address().args(flags).keys(&keys)
    };
    let (file, name) = file_and_name(&files, "seat.json");
    let mut instance = serve().start().await;
    let output = run(["call", &instance.url(), "change_seat", "--save", &name]).await;
    assert_says(&output, 3, &["the call is saved in", "refrain resume"]);
    instance.kill().await;
    let instance = serve().start().await;
    let answer = ["--answer", r#"seat={"seat": "12A"}"#];
    let output = run([&["resume", &name][..], &answer].concat()).await;
    assert_says(
        &output,
        1,
        &["no longer in memory", "before you start a new call"],
    );
    assert!(!output.err.contains("refrain resume"), "{output:?}");
    assert!(!file.exists(), "the call cannot be continued");
    drop(instance);
}

#[tokio::test]
async fn server_without_the_keys_keeps_the_saved_call() {
    let files = Files::new();
    let (first, second) = (Serve::new().start().await, Serve::new().start().await);
    for (tool, arguments, key) in [
        ("place_order", r#"{"item": "lamp"}"#, "confirm_order"),
        ("echo_task", "{}", "echo_input"),
    ] {
        let file = files.path(tool);
        let name = file.display().to_string();
        let call = ["call", &first.url(), tool, arguments, "--save", &name];
        assert_says(&run(call).await, 3, &[key]);
        let answer = format!("{key}=decline");
        let output = run(["resume", &name, "--url", &second.url(), "--answer", &answer]).await;
        let again = format!("refrain resume {name} --url URL");
        assert_says(
            &output,
            1,
            &["the keys or the store", "make a new call", &again],
        );
        assert_eq!(output.err.matches("hint:").count(), 1, "{output:?}");
        assert!(file.exists(), "another server may continue it");
    }
}

/// Counts started handlers, and handlers that were dropped before their end.
#[derive(Default)]
struct Handlers {
    started: AtomicUsize,
    dropped: AtomicUsize,
}

impl Handlers {
    async fn wait_for_start(&self, count: usize) {
        let is_started = || self.started.load(Ordering::SeqCst) == count;
        until("the tool works", is_started).await;
    }

    async fn wait_for_drop(&self, count: usize) {
        let is_dropped = || self.dropped.load(Ordering::SeqCst) == count;
        until("the handler is gone", is_dropped).await;
    }
}

struct Dropped(Arc<Handlers>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// Starts a server with a tool that never ends.
async fn endless(handlers: &Arc<Handlers>) -> String {
    let handlers = Arc::clone(handlers);
    let wait = move |_: Cx| {
        handlers.started.fetch_add(1, Ordering::SeqCst);
        let guard = Dropped(Arc::clone(&handlers));
        async move {
            let _guard = guard;
            std::future::pending::<()>().await;
            Ok::<_, Error>(String::new())
        }
    };
    let server = Server::builder("endless", "1").tool(Tool::new("wait", wait));
    serve_forever(server).await
}

#[tokio::test]
async fn interrupt_cancels_the_request_and_saves_the_call() {
    let files = Files::new();
    let handlers = Arc::<Handlers>::default();
    let url = endless(&handlers).await;
    let (file, name) = file_and_name(&files, "call.json");
    let running = Running::start(&["call", &url, "wait", "--save", &name]);
    handlers.wait_for_start(1).await;
    running.signal(Signal::INT);
    let output = running.ended().await;
    assert_says(
        &output,
        130,
        &["interrupted", &format!("refrain resume {name}")],
    );
    assert_eq!(output.out, "");
    assert_eq!(saved_call(&file).call().target(), "wait");
    handlers.wait_for_drop(1).await;

    // Without a file, the call cannot be continued.
    let running = Running::start(&["call", &url, "wait"]);
    handlers.wait_for_start(2).await;
    running.signal(Signal::TERM);
    assert_says(&running.ended().await, 130, &["interrupted"]);
    handlers.wait_for_drop(2).await;
}

#[tokio::test]
async fn saved_call_survives_a_killed_process() {
    let files = Files::new();
    let ledger = files.write("ledger", "");
    let instance = Serve::new().ledger(&ledger).start().await;
    let (file, name) = file_and_name(&files, "call.json");
    // The second ask is never answered: the sampler sleeps.
    let sleeper = Sleeper::new(&files);
    let call = [
        "call",
        &instance.url(),
        "weather_and_capital",
        "location=Paris",
    ];
    let answers = ["--answer", r#"github_login={"name": "Ada"}"#];
    let sampler = ["--sampler", &sleeper.command, "--save", &name];
    let running = Running::start(&[&call[..], &answers, &sampler].concat());
    until("one answer is saved", || {
        file.exists() && saved_call(&file).unanswered().len() == 1
    })
    .await;
    sleeper.started().await;
    running.killed().await;
    let output = run(["resume", &name, "--answer", r#"capital_of_france="Paris""#]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.out.ends_with("Partly cloudy\nParis\n"), "{output:?}");
    assert!(!file.exists());
}

#[tokio::test]
async fn call_over_its_deadline_is_saved() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let (file, name) = file_and_name(&files, "sum.json");
    let sum = ["call", &instance.url(), "sum", "to=20000", "pause_ms=1000"];
    let output = run([&sum[..], &["--deadline", "1", "--save", &name]].concat()).await;
    assert_says(
        &output,
        4,
        &[
            "call exceeded its deadline of 1 s",
            "--deadline",
            "refrain resume",
        ],
    );
    assert_eq!(saved_call(&file).round(), 0);
}

#[tokio::test]
async fn saved_call_is_locked_by_one_command() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let url = instance.url();
    let (file, name) = file_and_name(&files, "call.json");
    let sleeper = Sleeper::new(&files);
    let call = ["call", &url, "analyze_data", "data=1", "--save", &name];
    let busy = "another command is continuing the call";
    let answer = ["resume", &name, "--answer", r#"analysis="Flat.""#];

    // The command that made the call holds the lock.
    let first = Running::start(&[&call[..], &["--sampler", &sleeper.command]].concat());
    sleeper.started().await;
    let before = std::fs::read(&file).expect("the call is saved");
    assert_says(&run(answer).await, 2, &[&name, busy]);
    first.signal(Signal::INT);
    assert_eq!(first.ended().await.code, 130);
    drop(sleeper);
    std::fs::remove_file(files.path("sleeper")).expect("the sampler slept");

    // The command that resumed the call holds the lock.
    let sleeper = Sleeper::new(&files);
    let second = Running::start(&["resume", &name, "--sampler", &sleeper.command]);
    sleeper.started().await;
    assert_says(&run(answer).await, 2, &[&name, busy]);
    second.killed().await;
    assert_eq!(std::fs::read(&file).expect("the call is saved"), before);
    let output = run(answer).await;
    assert_prints(&output, "Flat.\n");
    assert!(!file.exists());
}

#[tokio::test]
async fn rejected_repeat_keeps_the_saved_call() {
    let files = Files::new();
    let handlers = Arc::<Handlers>::default();
    let url = endless(&handlers).await;
    let (file, name) = file_and_name(&files, "call.json");
    let running = Running::start(&["call", &url, "wait", "--save", &name]);
    handlers.wait_for_start(1).await;
    running.signal(Signal::INT);
    assert_eq!(running.ended().await.code, 130);
    // This server does not have the tool.
    let instance = Serve::new().start().await;
    let output = run(["resume", &name, "--url", &instance.url()]).await;
    assert_says(
        &output,
        1,
        &["the call is still saved in", "remove the file"],
    );
    assert_eq!(saved_call(&file).call().target(), "wait");
}

/// Starts a server whose first response to a call is lost. `then` returns the response to a later request by its number.
async fn losing(
    capabilities: serde_json::Value,
    then: impl Fn(usize) -> Respond + Send + Sync + 'static,
) -> FakeServer {
    let calls = AtomicUsize::new(0);
    FakeServer::start_raw(move |request| match request["method"].as_str() {
        Some("server/discover") => Respond::Result(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
            "ttlMs": 0, "cacheScope": "private",
        })),
        _ => match calls.fetch_add(1, Ordering::SeqCst) + 1 {
            1 => Respond::cut(": at work\n\n"),
            number => then(number),
        },
    })
    .await
}

fn paid() -> Respond {
    let content = json!([{"type": "text", "text": "Paid."}]);
    Respond::Result(json!({"resultType": "complete", "content": content}))
}

#[tokio::test]
async fn rejected_retry_after_a_lost_response_keeps_the_call() {
    let files = Files::new();
    let (file, name) = file_and_name(&files, "call.json");
    let capabilities = json!({"tools": {}, "extensions": {"refrain/callId": {}}});
    let server = losing(capabilities, |number| match number {
        2 => Respond::Error(-32603, "the store is down"),
        _ => paid(),
    })
    .await;
    let output = run(["call", &server.url(), "pay", "--save", &name]).await;
    let words = [
        "the store is down",
        "the call is still saved in",
        "remove the file",
    ];
    assert_says(&output, 1, &words);
    let output = run(["resume", &name]).await;
    assert_prints(&output, "Paid.\n");
    assert!(!output.err.contains("may run twice"), "{output:?}");
    assert!(!file.exists());
    assert_eq!(server.count("tools/call"), 3);
}

#[tokio::test]
async fn possible_repetition_causes_a_warning() {
    let files = Files::new();
    let name = files.path("call.json").display().to_string();
    let server = losing(json!({"tools": {}}), |_| paid()).await;
    let output = run(["call", &server.url(), "pay", "--save", &name]).await;
    assert_says(&output, 4, &["the call is saved in"]);
    assert_eq!(server.count("tools/call"), 1, "the request is not repeated");
    let output = run(["resume", &name]).await;
    assert_says(&output, 0, &["warning: the call may run twice"]);
}

#[tokio::test]
async fn failed_write_leaves_no_partial_file() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let file = files.path("call.json");
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" call \"$1\" echo --save \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_refrain")]);
    command.args([&instance.url(), &file.display().to_string()]);
    let output = run_command(command).await;
    assert_says(&output, 2, &["cannot write saved call"]);
    assert!(!file.exists());
}

#[tokio::test]
async fn environment_token_is_not_sent_to_a_saved_address() {
    let files = Files::new();
    let server = FakeServer::start_raw(|_| Respond::Status(401)).await;
    let url = server.url();
    let call = json!({"format": 1, "address": url, "call": {"method": "tools/call", "target": "echo"},
        "callId": "1", "round": 1});
    let name = files.write("call.json", &call.to_string());
    let name = name.display().to_string();
    let token = files.write("token", "of-a-file").display().to_string();
    for (flags, sent) in [
        (vec![], None),
        (vec!["--url", &url], Some("Bearer of-mine")),
        (vec!["--bearer-file", &token], Some("Bearer of-a-file")),
    ] {
        let mut command = program();
        command.args(["resume", &name]).args(&flags);
        command.env("REFRAIN_TOKEN", "of-mine");
        let output = run_command(command).await;
        assert_says(&output, 5, &["--bearer-file"]);
        let withheld = "$REFRAIN_TOKEN is not sent";
        assert_eq!(output.err.contains(withheld), sent.is_none(), "{output:?}");
        let rejected = "the server rejected the access token";
        assert_eq!(output.err.contains(rejected), sent.is_some(), "{output:?}");
        assert_eq!(output.err.matches("hint:").count(), 1, "{output:?}");
        let received = server.all();
        let received = received.last().expect("a request");
        match sent {
            Some(sent) => assert_eq!(received.header("authorization"), Some(sent)),
            None => assert!(!format!("{received:?}").contains("of-mine"), "{received:?}"),
        }
    }
}

#[tokio::test]
async fn printed_resume_command_sends_the_access_token() {
    const SECRET: &str = "secret-of-alice-1";
    let files = Files::new();
    let tokens = files.write("tokens", &format!("alice {SECRET}\n"));
    let instance = Serve::new().tokens(&tokens).start().await;
    let url = instance.url();
    let token = files.write("token", SECRET).display().to_string();
    let in_environment: &[(&str, &str)] = &[("REFRAIN_TOKEN", SECRET)];
    for (name, env, flags) in [
        ("environment", in_environment, &[][..]),
        ("file", &[], &["--bearer-file", &token]),
    ] {
        let file = files.path(name).display().to_string();
        let mut command = program();
        command.args(["call", &url, "place_order", "item=lamp", "--save", &file]);
        command.args(flags).envs(env.iter().copied());
        let asked = run_command(command).await;
        assert_eq!(asked.code, 3, "{asked:?}");
        let mut lines = asked.err.lines();
        let resume = lines.find_map(|line| line.strip_prefix("  refrain "));
        let resume = resume.expect("a command");

        let mut command = Command::new("sh");
        let script = format!("exec \"$0\" {resume}");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_refrain")]);
        command
            .env_remove("REFRAIN_TOKEN")
            .envs(env.iter().copied());
        let done = run_command(command).await;
        assert_eq!(done.code, 0, "{resume}: {done:?}");
    }
}

#[tokio::test]
async fn started_commands_do_not_inherit_secrets() {
    let files = Files::new();
    let seen = files.path("seen").display().to_string();
    let serve = format!(
        "echo \"secrets:$REFRAIN_TOKEN$REFRAIN_KEYS$REFRAIN_STORE$OTEL_EXPORTER_OTLP_HEADERS.\" >'{seen}'; exec '{}' serve --stdio",
        env!("CARGO_BIN_EXE_refrain")
    );
    let sampler =
        "echo \"secrets:$REFRAIN_TOKEN$REFRAIN_KEYS$REFRAIN_STORE$OTEL_EXPORTER_OTLP_HEADERS.\"";
    let mut command = program();
    command.args(["call", "--stdio", "analyze_data", "data=1"]);
    command.args(["--sampler", sampler, "--", "sh", "-c", &serve]);
    let own = ["REFRAIN_TOKEN", "REFRAIN_KEYS", "REFRAIN_STORE"];
    for name in own.into_iter().chain(["OTEL_EXPORTER_OTLP_HEADERS"]) {
        command.env(name, "of-mine");
    }
    let output = run_command(command).await;
    assert_prints(&output, "secrets:.\n");
    let seen = std::fs::read_to_string(seen).expect("the server was started");
    assert_eq!(seen, "secrets:.\n");
}

#[tokio::test]
async fn reading_of_files_ends_at_the_deadline_and_at_the_size_limit() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let (url, pipe) = (instance.url(), pipe(&files, "pipe"));
    let call = ["call", &url, "analyze_data", "data=1"];
    let with = |flag, file| [&call[..], &[flag, file]].concat();
    for args in [
        vec!["resume", &pipe],
        with("--answers", &pipe),
        with("--bearer-file", &pipe),
    ] {
        let output = run([&args[..], &["--deadline", "1"]].concat()).await;
        assert_says(&output, 4, &["the command exceeded its deadline of 1 s"]);
    }
    for args in [
        vec!["resume", "/dev/zero"],
        with("--answers", "/dev/zero"),
        with("--bearer-file", "/dev/zero"),
    ] {
        assert_says(&run(args).await, 2, &["/dev/zero: larger than "]);
    }

    // A pipe with an end is a file like others.
    let written = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, r#"{"analysis": "Flat."}"#)
    });
    assert_prints(&run(with("--answers", &pipe)).await, "Flat.\n");
    written.join().expect("a thread").expect("the pipe is read");
}

#[tokio::test]
async fn saved_call_with_too_many_asks_or_values_is_rejected() {
    let files = Files::new();
    let server = FakeServer::start(|_| Respond::Error(-32603, "not expected")).await;
    let schema = json!({"type": "object", "properties": {}});
    let params = json!({"mode": "form", "message": "Well?", "requestedSchema": schema});
    let ask = json!({"method": "elicitation/create", "params": params});
    let asks: serde_json::Map<_, _> = (0..101).map(|n| (format!("k{n}"), ask.clone())).collect();
    let saved = json!({"format": 1, "address": server.url(), "call": {"method": "tools/call", "target": "t"},
        "callId": "1", "round": 1, "asks": asks});
    let file = files.write("call.json", &saved.to_string());
    let output = run(["resume", &file.display().to_string()]).await;
    assert_says(&output, 4, &["101 asks"]);
    // Reading so many asks would take minutes.
    let many = vec![r#""k":{"method":"roots/list"}"#; 400_000].join(",");
    let saved = saved
        .to_string()
        .replacen(r#""asks":{"#, &format!(r#""asks":{{{many},"#), 1);
    let file = files.write("call.json", &saved);
    let output = run(["resume", &file.display().to_string()]).await;
    assert_says(&output, 2, &["more than 200000 JSON values"]);
    assert_eq!(server.count("tools/call"), 0);
}

#[tokio::test]
async fn children_of_the_sampler_end_with_the_call() {
    let files = Files::new();
    let instance = Serve::new().start().await;
    let url = instance.url();
    let stops = [
        None,
        Some(Signal::INT),
        Some(Signal::TERM),
        Some(Signal::HUP),
    ];
    for (index, stop) in stops.into_iter().enumerate() {
        let pipe = pipe(&files, &format!("pipe-{index}"));
        let reading = OpenOptions::new().open_receiver(&pipe).expect("a pipe");
        let mut reading = BufReader::new(reading);
        // The pipe is open until the last child has ended.
        let sampler = format!("(echo started; sleep 100) >'{pipe}' & wait");
        let mut call = vec![
            "call",
            &url,
            "analyze_data",
            "data=1",
            "--sampler",
            &sampler,
        ];
        if stop.is_none() {
            call.extend(["--deadline", "2"]);
        }
        let running = Running::start(&call);
        let mut text = String::new();
        let started = within("the sampler starts", reading.read_line(&mut text)).await;
        started.expect("the pipe is readable");
        assert_eq!(text, "started\n");
        if let Some(signal) = stop {
            running.signal(signal);
        }
        let output = running.ended().await;
        let code = if stop.is_some() { 130 } else { 4 };
        assert_says(&output, code, &[]);
        let ended = within("the children end", reading.read_to_string(&mut text)).await;
        ended.expect("the pipe is readable");
    }
}
