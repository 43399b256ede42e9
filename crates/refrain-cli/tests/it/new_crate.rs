//! `refrain new` and `refrain dev`: a new crate is tested, served, changed and broken.

use crate::support::{Files, Output, Process, program, root};
use refrain_testkit::net::installed::run;
use refrain_testkit::net::process::Log;
use rustix::process::{Pid, Signal, test_kill_process};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// The limit for one build, in seconds: most of the crates are compiled already.
const BUILD_SECONDS: &str = "900";
const BUILD_TIME: Duration = Duration::from_secs(900);

fn refrain_in(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = program();
    command.args(arguments).current_dir(directory);
    command
}

/// The target directory of this build, which the new crate shares.
fn target() -> PathBuf {
    let this = std::env::current_exe().expect("this binary");
    let target = this.ancestors().nth(3).expect("target/PROFILE/deps/it");
    target.to_owned()
}

/// Creates a crate, with the profile of this workspace, so that its dependencies need not be compiled for another one.
async fn new_crate(files: &Files, name: &str) -> PathBuf {
    let made = Output::of(refrain_in(&files.path(""), &["new", name])).await;
    assert!(made.ok, "{made:?}");
    assert!(made.out.contains(&format!("cd {name}")), "{made:?}");
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let profile = workspace
        .split("\n[profile.")
        .filter(|part| part.starts_with("dev"));
    let profile: String = profile.map(|part| format!("\n[profile.{part}")).collect();
    let folder = files.path(name);
    let manifest = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).expect("a manifest");
    std::fs::write(&manifest, text + &profile).expect("a manifest");
    folder
}

async fn cargo(folder: &Path, command: &str) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    let manifest = folder.join("Cargo.toml");
    cargo.args([command, "--offline"]);
    cargo.arg("--manifest-path").arg(manifest);
    cargo.arg("--target-dir").arg(target());
    run(BUILD_SECONDS, &cargo).await
}

/// Calls the tool `hello`.
async fn greeting(url: &str) -> String {
    let answer = r#"caller={"name":"Ada"}"#;
    let call = ["call", url, "hello", "--answer", answer];
    let output = Output::of(refrain_in(&root(), &call)).await;
    assert!(output.ok, "{output:?}");
    output.out.trim().to_owned()
}

/// Waits for the nth line with a text.
async fn wait_for(log: &Log, text: &str, nth: usize) {
    let logged = async {
        while log.count(text) < nth {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let logged = tokio::time::timeout(BUILD_TIME, logged).await;
    assert!(logged.is_ok(), "no {nth} lines with {text:?}\n{log:?}");
}

/// Replaces a text in a source file.
fn edit(file: &Path, old: &str, new: &str) {
    let text = std::fs::read_to_string(file).expect("a source");
    assert!(text.contains(old), "{text}");
    std::fs::write(file, text.replace(old, new)).expect("a source");
}

fn children(process: &Process) -> Vec<Pid> {
    let id = process.id();
    let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let list = list.expect("a running process");
    let ids = list.split_whitespace().map(|id| id.parse().expect("an id"));
    ids.filter_map(Pid::from_raw).collect()
}

#[tokio::test]
async fn new_crate_passes_its_tests_and_is_developed() {
    let files = Files::new();
    let folder = new_crate(&files, "lamp-shop").await;
    let tested = cargo(&folder, "test").await;
    assert!(tested.contains("test result: ok. 3 passed"), "{tested}");
    cargo(&folder, "build").await;

    let mut command = refrain_in(&folder, &["dev"]);
    command
        .env("CARGO_TARGET_DIR", target())
        .env("CARGO_NET_OFFLINE", "true");
    let (mut dev, line) = Process::start(command, "listening on ", None).await;
    let log = dev.log.clone();
    let (_, url) = line.split_once("listening on ").expect("a URL");
    assert_eq!(greeting(url).await, "Hello, Ada.");

    // A change restarts the server on the same port, and a call that began before continues.
    let saved = files.path("call.json");
    let saved = saved.to_str().expect("a path in UTF-8");
    let call = ["call", url, "hello", "--save", saved];
    let asked = Output::of(refrain_in(&root(), &call)).await;
    assert_eq!(asked.code, 3, "{asked:?}");
    let main = folder.join("src/main.rs");
    edit(&main, "\"Hello, {}.\"", "\"Good day, {}.\"");
    wait_for(&log, url, 2).await;
    assert_eq!(greeting(url).await, "Good day, Ada.");
    let answer = ["resume", saved, "--answer", r#"caller={"name":"Eve"}"#];
    let resumed = Output::of(refrain_in(&root(), &answer)).await;
    assert_eq!(resumed.out, "Good day, Eve.\n", "{resumed:?}");

    // A build that fails is shown, and the server keeps running.
    edit(&main, "fn main()", "fn main(");
    wait_for(&log, "the previous server keeps running", 1).await;
    assert!(log.count("error: ") > 0, "{log:?}");
    assert_eq!(greeting(url).await, "Good day, Ada.");

    let children = children(&dev);
    assert_eq!(children.len(), 1, "{log:?}");
    dev.signal(Signal::INT);
    assert!(dev.ended().await.success(), "{log:?}");
    assert!(test_kill_process(children[0]).is_err(), "{log:?}");
}

#[tokio::test]
async fn unusable_names_and_directories_are_rejected_with_a_hint() {
    let files = Files::new();
    let here = files.path("");
    std::fs::create_dir(files.path("used")).expect("a directory");
    files.write("used/file", "");
    files.write("afile", "");
    let long = "n".repeat(65);
    for (arguments, error) in [
        (
            &["new", "used"][..],
            "error: used already exists and is not an empty directory\nhint: choose another name, or remove it\n",
        ),
        (
            &["new", "afile"],
            "error: afile already exists and is not an empty directory\nhint: choose another name, or remove it\n",
        ),
        (
            &["new", "serde"],
            "error: invalid crate name \"serde\": it is reserved\nhint: choose another name, as in `my-serde`\n",
        ),
        (
            &["new", &long],
            &format!("error: invalid crate name {long:?}: it is longer than 64 characters\n"),
        ),
        (
            &["new", "My-Server"],
            "error: invalid crate name \"My-Server\": it must start with a lower-case letter\nhint: use lower-case",
        ),
        (
            &["new", "shop", "--path", "used"],
            "error: used is not a clone of Refrain: it has no crates/refrain/Cargo.toml\nhint: pass",
        ),
        (&["dev"], "error: no Cargo.toml in "),
    ] {
        let output = Output::of(refrain_in(&here, arguments)).await;
        assert_eq!(output.code, 1, "{output:?}");
        assert!(output.err.starts_with(error), "{output:?}");
    }
    assert!(!files.path("shop").exists());
}
