//! The client of the `refrain` command. A call that asks is saved and resumed, one process for each round.

use crate::checks::Check;
use crate::clients::Outcomes;
use crate::gateway::{Address, Target};
use crate::outcome::Outcome;
use futures_util::future::join_all;
use refrain_testkit::net::PATIENCE;
use refrain_testkit::net::process::Output;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::Barrier;
use tokio::time::timeout;

/// The exit code of a call that asks.
const ASKED: i32 = 3;
const ROUNDS_MAX: usize = 10;

pub(crate) async fn run(targets: &[Target], checks: &[Check]) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for target in targets {
        let Address::Url(url) = &target.address else {
            panic!("a saved call needs a gateway that goes on running");
        };
        for check in checks {
            let barrier = Barrier::new(check.calls.len());
            let calls = check.calls.iter().map(|call| perform(url, call, &barrier));
            outcomes.insert((target.name, check.name), join_all(calls).await);
        }
    }
    outcomes
}

/// The files of a call.
struct Files(TempDir);

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The questions that the model was asked.
    fn sampled(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("sampled")).unwrap_or_default();
        let requests = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let question = |request: Value| {
            let block = &request["messages"][0]["content"];
            let block = block.get(0).unwrap_or(block);
            format!("model: {}", block["text"].as_str().expect("a text"))
        };
        requests
            .map(|request| question(request.expect("JSON")))
            .collect()
    }
}

async fn perform(url: &str, call: &Value, barrier: &Barrier) -> Outcome {
    let files = Files(tempfile::tempdir().expect("a temporary directory"));
    let person = &call["person"];
    let mut outcome = Outcome::default();
    let mut output = first_round(url, call, &files).await;
    for _ in 0..ROUNDS_MAX {
        let printed: Value = serde_json::from_str(&output.out).unwrap_or_default();
        outcome.logs.extend(logs(&output.err));
        if output.code != ASKED {
            outcome.asked.extend(files.sampled());
            if printed.get("error").is_some() || printed.is_null() {
                outcome.error = Some(output.out + &output.err);
            }
            outcome.result = as_result(call, printed);
            return outcome;
        }
        let asks = printed["asked"].as_array().expect("the asks");
        outcome.asked.extend(asks.iter().map(record));
        // A call that ended without asking leaves the others waiting.
        if timeout(PATIENCE, barrier.wait()).await.is_err() {
            outcome.error = Some("the other call does not ask".to_owned());
            return outcome;
        }
        let mut command = refrain("resume", person, &files);
        for ask in asks {
            command.arg("--answer").arg(answer(ask, person));
        }
        command.arg(files.path("saved"));
        output = Output::of(command).await;
    }
    panic!("the call asks too often: {outcome:?}");
}

async fn first_round(url: &str, call: &Value, files: &Files) -> Output {
    let text = |key: &str| call[key].as_str();
    let (command, name) = match (text("tool"), text("prompt"), text("resource"), text("list")) {
        (Some(tool), ..) => ("call", tool),
        (_, Some(prompt), ..) => ("prompt", prompt),
        (_, _, Some(uri), _) => ("read", uri),
        (_, _, _, Some(list)) => {
            let list = if list == "resource_templates" {
                "resources"
            } else {
                list
            };
            let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
            return Output::of({
                command.args([list, "--json", url]);
                command
            })
            .await;
        }
        _ => panic!("unknown call {call}"),
    };
    let mut command = refrain(command, &call["person"], files);
    command
        .arg("--save")
        .arg(files.path("saved"))
        .args([url, name]);
    if let Some(arguments) = call.get("arguments") {
        command.arg(arguments.to_string());
    }
    Output::of(command).await
}

/// A command with the person's model and roots.
fn refrain(name: &str, person: &Value, files: &Files) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.args([name, "--json"]);
    if name != "prompt" && name != "read" {
        command.args(["--log", "info"]);
    }
    if let Some(said) = person["said"].as_str() {
        let sampled = files.path("sampled");
        let sampler = format!("cat >> {}; printf '%s' '{said}'", sampled.display());
        command.args(["--sampler", &sampler]);
    }
    for root in person["roots"].as_array().into_iter().flatten() {
        let root = files.path(root.as_str().expect("a name"));
        make_directory(&root);
        command.arg("--root").arg(root);
    }
    command
}

fn make_directory(path: &Path) {
    std::fs::create_dir_all(path).expect("a directory in the temporary one");
}

fn record(ask: &Value) -> String {
    let message = ask["message"].as_str().expect("a message");
    match ask["url"].as_str() {
        Some(url) => format!("url: {message} {url}"),
        None => format!("form: {message}"),
    }
}

fn answer(ask: &Value, person: &Value) -> String {
    let key = ask["key"].as_str().expect("a key");
    let action = person["action"].as_str().unwrap_or("accept");
    if ask["kind"] != "form" || action != "accept" {
        return format!("{key}={action}");
    }
    let mut content = person["fields"].clone();
    let fields = content.as_object_mut().expect("the script has the fields");
    fields.retain(|name, _| ask["requestedSchema"]["properties"].get(name).is_some());
    format!("{key}={content}")
}

fn logs(printed: &str) -> impl Iterator<Item = String> {
    let levels = ["info: ", "warning: "];
    let lines = printed
        .lines()
        .filter(move |line| levels.iter().any(|level| line.starts_with(level)));
    lines.map(str::to_owned)
}

/// The result as the protocol has it. The command prints a list without the object around it.
fn as_result(call: &Value, printed: Value) -> Value {
    match call["list"].as_str() {
        None => printed,
        Some("tools") => json!({ "tools": printed }),
        Some("prompts") => json!({ "prompts": printed }),
        Some("resources") => json!({ "resources": printed["resources"] }),
        Some(_) => json!({ "resourceTemplates": printed["resourceTemplates"] }),
    }
}
