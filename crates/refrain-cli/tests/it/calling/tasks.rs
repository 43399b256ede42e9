//! Calls that become tasks.

use super::{assert_prints, assert_says, json};
use crate::support::tasks::{fast_poll_config, shared_store};
use crate::support::terminal::Terminal;
use crate::support::{Files, Instance, Serve, program, run, serve_forever, within};
use refrain::prelude::*;
use refrain::store::MemoryStore;
use refrain::task::TaskOptions;
use refrain_testkit::net::process::Log;
use serde_json::json;
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;

async fn start(files: &Files) -> Instance {
    let (store, eager) = (shared_store(files), fast_poll_config(files));
    Serve::new().store(&store).config(&eager).start().await
}

/// Creates a task that asks for a text, and returns its id.
async fn create_asking_task(url: &str) -> String {
    let output = run(["call", url, "echo_task", "--json"]).await;
    assert_says(
        &output,
        3,
        &["is waiting for the answer", "refrain task watch"],
    );
    let output = json(&output);
    assert_eq!(output["asked"][0]["key"], "echo_input");
    output["taskId"]
        .as_str()
        .expect("the id is a string")
        .to_owned()
}

#[tokio::test]
async fn call_that_becomes_a_task_returns_its_result() {
    let files = Files::new();
    let instance = start(&files).await;
    let answer = ["--answer", r#"echo_input={"input": "hey"}"#];
    let output = run([&["call", &instance.url(), "echo_task"][..], &answer].concat()).await;
    assert_prints(&output, "Echo: hey\n");
    let vm = ["call", &instance.url(), "create_vm", "name=a"];
    let output = run([&vm[..], &["--answer", r#"size={"processors": 2}"#]].concat()).await;
    assert_eq!(output.out, "a runs, with 2 processors.\n", "{output:?}");
}

#[tokio::test]
async fn task_is_shown_watched_and_cancelled_by_id() {
    let files = Files::new();
    let instance = start(&files).await;
    let url = instance.url();
    let id = create_asking_task(&url).await;

    let output = run(["task", "show", &url, &id]).await;
    assert_eq!(output.code, 0, "{output:?}");
    for part in [&id, "input_required", "echo_input"] {
        assert!(output.out.contains(part), "{output:?}");
    }
    let output = run(["task", "show", &url, &id, "--json"]).await;
    assert_eq!(json(&output)["status"], "input_required");
    assert_eq!(json(&output)["asks"], json!(["echo_input"]));

    let output = run(["task", "watch", &url, &id]).await;
    assert_says(&output, 3, &["echo_input  form", "refrain task watch", &id]);
    let answer = ["--answer", r#"echo_input={"input": "hey"}"#];
    let output = run([&["task", "watch", &url, &id][..], &answer].concat()).await;
    assert_prints(&output, "Echo: hey\n");
    let output = run(["task", "show", &url, &id]).await;
    assert!(output.out.contains("completed"), "{output:?}");
    assert!(output.out.ends_with("\n\nEcho: hey\n"), "{output:?}");

    let other = create_asking_task(&url).await;
    let output = run(["task", "cancel", &url, &other]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.out.contains("cancelled"), "{output:?}");
    let output = run(["task", "watch", &url, &other]).await;
    assert_says(&output, 1, &["the task was cancelled"]);
    let output = run(["task", "get", &url, "nope"]).await;
    assert_says(&output, 1, &["unknown task", "does not exist"]);
}

#[tokio::test]
async fn saved_task_continues_after_a_restart() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let (store, eager) = (shared_store(&files), fast_poll_config(&files));
    let serve = || Serve::new().store(&store).config(&eager).keys(&keys);
    let mut instance = serve().start().await;
    let file = files.path("task.json");
    let name = file.display().to_string();
    let output = run(["call", &instance.url(), "echo_task", "--save", &name]).await;
    assert_says(&output, 3, &["the call is saved in", "refrain resume"]);
    instance.stop().await;

    let instance = serve().start().await;
    let answer = ["--answer", r#"echo_input={"input": "still here"}"#];
    let resume = ["resume", &name, "--url", &instance.url()];
    let output = run([&resume[..], &answer].concat()).await;
    assert_prints(&output, "Echo: still here\n");
    assert!(!file.exists());
}

#[tokio::test]
async fn interrupt_cancels_an_unsaved_task() {
    let files = Files::new();
    let instance = start(&files).await;
    let url = instance.url();
    let long = ["call", &url, "echo_task", "text=x", "pause_ms=60000"];
    let mut command = program();
    command.args(long).arg("--trace").stdin(Stdio::null());
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("the binary starts");
    // Wait until the command polls the task: from then on, it knows the id.
    let mut stderr = child.stderr.take().expect("the stream is piped");
    let mut traced = Vec::new();
    let polls = async {
        while !String::from_utf8_lossy(&traced).contains("tasks/get ") {
            let read = stderr.read_buf(&mut traced).await;
            assert_ne!(
                read.expect("the stream is piped"),
                0,
                "the command ended: {traced:?}"
            );
        }
    };
    within("the first poll of the task", polls).await;
    let listed = |status: &'static str| {
        let store = crate::support::sqlite(&shared_store(&files));
        let args = [
            "store", "tasks", "list", "--json", "--status", status, "--store", &store,
        ];
        let output = crate::support::refrain(args);
        let rows: Vec<serde_json::Value> = serde_json::from_str(&output.out).unwrap_or_default();
        rows.len()
    };
    assert_eq!(listed("working"), 1);
    let id = child
        .id()
        .and_then(|id| rustix::process::Pid::from_raw(id as i32));
    rustix::process::kill_process(id.expect("the process runs"), rustix::process::Signal::INT)
        .expect("the signal can be sent");
    let rest = stderr.read_to_end(&mut traced);
    within("the rest of stderr", rest)
        .await
        .expect("the stream is piped");
    let output = within("the end", child.wait_with_output()).await;
    let mut output = output.expect("the process can be waited for");
    output.stderr = traced;
    let output = crate::support::Output::from(output);
    assert_says(&output, 130, &["interrupted", "was cancelled"]);
    assert_eq!(listed("cancelled"), 1);
}

/// A task that reports what it does, and continues when the test adds a permit.
async fn copy(cx: Cx, gate: State<Arc<Semaphore>>) -> Result<String> {
    cx.status("opening the disk");
    let _ = gate.acquire().await.map(|permit| permit.forget());
    cx.progress(1.0, Some(2.0), "copying");
    let _ = gate.acquire().await.map(|permit| permit.forget());
    Ok("copied".to_owned())
}

async fn serve_copy() -> (String, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let builder = Server::builder("disks", "1")
        .state(Arc::clone(&gate))
        .tool(Tool::new("copy", copy).task())
        .tasks(Arc::new(MemoryStore::new()), TaskOptions::default());
    (serve_forever(builder).await, gate)
}

#[tokio::test]
async fn running_task_is_reported_in_lines() {
    let (url, gate) = serve_copy().await;
    let mut command = program();
    command
        .args(["call", &url, "copy"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("the binary starts");
    let log = Log::default();
    log.read(child.stderr.take().expect("stderr is a pipe"));
    let line = log.wait_for(" working: opening the disk", 1).await;
    let id = line
        .split(' ')
        .nth(1)
        .expect("the id of the task")
        .to_owned();
    gate.add_permits(1);
    log.wait_for(&format!("task {id} working: copying (1 of 2)"), 1)
        .await;

    // Nothing but JSON is printed for a program.
    let watch = ["task", "watch", &url, &id, "--json"];
    let (watched, ()) = tokio::join!(run(watch), async { gate.add_permits(1) });
    assert_eq!((watched.code, &*watched.err), (0, ""), "{watched:?}");
    assert_eq!(json(&watched)["content"][0]["text"], "copied");
    let output = within("the end", child.wait_with_output()).await;
    let output = output.expect("the process can be waited for");
    assert_eq!(output.stdout, b"copied\n");
    // One line for each state; the first may precede the status message.
    let mut lines = log.lines();
    lines.dedup();
    assert_eq!(lines, log.lines());
    assert!(lines.len() <= 3, "{lines:?}");
}

#[tokio::test]
async fn running_task_has_a_spinner_on_a_terminal() {
    let (url, gate) = serve_copy().await;
    let mut terminal = Terminal::open();
    let mut command = program();
    command
        .args(["call", &url, "copy"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(terminal.take_device())
        .kill_on_drop(true);
    let child = command.spawn().expect("the binary starts");
    drop(command);
    let drawn = within("the spinner", terminal.read_until("opening the disk")).await;
    assert!(
        drawn.contains("task ") && drawn.contains(" working  0s  "),
        "{drawn:?}"
    );
    // The time goes on while nothing else happens.
    within("a second", terminal.read_until("working  1s")).await;
    gate.add_permits(1);
    within("progress", terminal.read_until("copying (1 of 2)")).await;
    gate.add_permits(1);
    let output = within("the end", child.wait_with_output()).await;
    let output = output.expect("the process can be waited for");
    assert_eq!(output.stdout, b"copied\n");
}
