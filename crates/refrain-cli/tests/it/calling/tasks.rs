//! Calls that become tasks.

use super::{assert_prints, assert_says, json};
use crate::support::tasks::{eager, shared};
use crate::support::{Files, Instance, Serve, run, within};
use serde_json::json;
use tokio::io::AsyncReadExt;

async fn start(files: &Files) -> Instance {
    let (store, eager) = (shared(files), eager(files));
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

    let output = run(["task", "get", &url, &id]).await;
    assert_eq!(output.code, 0, "{output:?}");
    for part in [&id, "input_required", "echo_input"] {
        assert!(output.out.contains(part), "{output:?}");
    }
    let output = run(["task", "get", &url, &id, "--json"]).await;
    assert_eq!(json(&output)["status"], "input_required");
    assert_eq!(json(&output)["asks"], json!(["echo_input"]));

    let output = run(["task", "watch", &url, &id]).await;
    assert_says(&output, 3, &["echo_input  form", "refrain task watch", &id]);
    let answer = ["--answer", r#"echo_input={"input": "hey"}"#];
    let output = run([&["task", "watch", &url, &id][..], &answer].concat()).await;
    assert_prints(&output, "Echo: hey\n");
    let output = run(["task", "get", &url, &id]).await;
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
    let (store, eager) = (shared(&files), eager(&files));
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
    let mut command = crate::support::program();
    command
        .args(long)
        .arg("--trace")
        .stdin(std::process::Stdio::null());
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("the binary starts");
    // Wait until it polls the task, so that it knows the id.
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
        let store = crate::support::sqlite(&shared(&files));
        let args = [
            "tasks", "list", "--json", "--status", status, "--store", &store,
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
