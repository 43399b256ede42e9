//! `refrain keys`, and reloading of keys.

use crate::support::Output;
use crate::support::{Balancer, Call, Client, Files, Instance, Reply, Serve, refrain};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const RELOADED: &str = "keys reloaded";
const NOT_RELOADED: &str = "failed to reload keys";
const REJECTED: &str = "token rejected";

fn keys(command: &str, file: &Path) -> Output {
    refrain(["keys".as_ref(), command.as_ref(), file.as_os_str()])
}

fn keys_with_id(command: &str, file: &Path, id: &str) -> Output {
    refrain([
        "keys".as_ref(),
        command.as_ref(),
        file.as_os_str(),
        id.as_ref(),
    ])
}

/// The ids and states of the keys in a file.
fn list(file: &Path) -> Vec<(String, String)> {
    let output = refrain(["keys", "list", "--json", file.to_str().expect("UTF-8")]);
    assert!(output.ok, "{output:?}");
    let keys: Vec<Value> = serde_json::from_str(&output.out).expect("a list in JSON");
    let text = |key: &Value, field: &str| key[field].as_str().expect("a string").to_owned();
    keys.iter()
        .map(|key| (text(key, "id"), text(key, "state")))
        .collect()
}

fn states(file: &Path) -> Vec<String> {
    list(file).into_iter().map(|(_, state)| state).collect()
}

/// Adds a key and returns its id.
fn stage(file: &Path) -> String {
    let output = keys("stage", file);
    assert!(output.ok, "{output:?}");
    list(file).pop().expect("a key").0
}

fn promote(file: &Path, id: &str) {
    let output = keys_with_id("promote", file, id);
    assert!(output.ok, "{output:?}");
}

fn mode(file: &Path) -> u32 {
    let about = std::fs::metadata(file).expect("the file is there");
    about.permissions().mode() & 0o777
}

/// The secret of the only key in a file.
fn secret(file: &Path) -> String {
    let text = std::fs::read_to_string(file).expect("the key file can be read");
    text.split_whitespace().next_back().expect("a key").into()
}

#[test]
fn key_is_staged_promoted_and_retired() {
    let files = Files::new();
    let file = files.path("fleet.keys");
    assert!(keys("new", &file).ok);
    assert_eq!(states(&file), ["minting"]);
    let (old, new) = (list(&file)[0].0.clone(), stage(&file));
    assert_eq!(states(&file), ["minting", "staged"]);
    promote(&file, &new);
    assert_eq!(states(&file), ["retiring", "minting"]);
    assert!(keys_with_id("retire", &file, &old).ok);
    assert_eq!(list(&file), [(new, "minting".into())]);
}

#[test]
fn key_file_is_private_and_leaves_no_temporary_file() {
    let files = Files::new();
    // One name looks like a temporary file of the program.
    for name in ["fleet.keys", "fleet", "fleet.new"] {
        let file = files.keys(name);
        assert_eq!(mode(&file), 0o600);
        stage(&file);
        assert_eq!(mode(&file), 0o600, "after a change");
    }
    let left = std::fs::read_dir(files.path("")).unwrap().count();
    assert_eq!(left, 3, "no temporary file is left");
}

#[test]
fn leftover_temporary_files_are_harmless() {
    let files = Files::new();
    let file = files.keys("fleet.keys");
    for left in ["fleet.new", "fleet.keys.new", "fleet.keys.1.new"] {
        files.write(left, "half a ke");
    }
    stage(&file);
    assert_eq!(states(&file), ["minting", "staged"]);
}

#[test]
fn key_list_prints_ids_without_secrets() {
    let files = Files::new();
    let file = files.keys("fleet.keys");
    let secret = secret(&file);
    assert_eq!(secret.len(), 43);
    let output = [keys("list", &file), keys("stage", &file)];
    let id = &list(&file)[0].0;
    for output in output {
        assert!(
            output.out.contains(id) && output.out.contains("minting"),
            "{output:?}"
        );
        assert!(!output.out.contains(&secret) && !output.err.contains(&secret));
    }
}

/// Checks that a command failed with this message, and did not change the file.
#[track_caller]
fn fails(file: &Path, before: &str, output: &Output, parts: &[&str]) {
    assert!(!output.ok, "{output:?}");
    for part in parts {
        assert!(output.err.contains(part), "no {part:?} in {output:?}");
    }
    let after = std::fs::read_to_string(file).expect("the file is there");
    assert_eq!(after, before);
}

#[test]
fn failed_key_command_changes_nothing() {
    let files = Files::new();
    let file = files.keys("fleet.keys");
    let before = std::fs::read_to_string(&file).unwrap();
    let name = file.to_str().unwrap();
    let minting = &list(&file)[0].0;
    fails(
        &file,
        &before,
        &keys("new", &file),
        &[name, "already exists"],
    );
    for command in ["promote", "retire"] {
        let output = keys_with_id(command, &file, "00000000");
        fails(
            &file,
            &before,
            &output,
            &["unknown key id 00000000", "keys list "],
        );
    }
    let output = keys_with_id("retire", &file, minting);
    fails(&file, &before, &output, &[minting, "promote another key"]);

    let absent = files.path("absent.keys");
    let output = keys("list", &absent);
    assert!(
        !output.ok && output.err.contains("absent.keys"),
        "{output:?}"
    );
    // A new key file would split the fleet.
    assert!(!output.err.contains("keys new"), "{output:?}");
    let output = keys("new", &files.path("no/such/fleet.keys"));
    assert!(!output.ok && output.err.contains("no/such"), "{output:?}");
}

#[test]
fn malformed_key_line_is_reported_without_its_secret() {
    let files = Files::new();
    let whole = std::fs::read_to_string(files.keys("whole.keys")).unwrap();
    let secret = whole.split_whitespace().next_back().unwrap();
    let short = &secret[..40];
    for (broken, reason) in [
        (whole.replace("minting", "mining"), "where STATE is"),
        (whole.replace(secret, short), "32 bytes"),
        (whole.replace("minting", ""), "ID STATE SECRET"),
        (
            whole.replace("\n", "\n\nffffffff staged AAAA\n"),
            "32 bytes",
        ),
    ] {
        let file = files.write("broken.keys", &broken);
        let output = keys("stage", &file);
        let line = if broken.contains("ffffffff") { 3 } else { 2 };
        let line = format!("line {line}");
        fails(&file, &broken, &output, &["broken.keys", &line, reason]);
        assert!(!output.err.contains(short), "{output:?}");
    }
    let none = whole.replace("minting", "retiring");
    let file = files.write("broken.keys", &none);
    fails(
        &file,
        &none,
        &keys("list", &file),
        &["exactly one key that seals new tokens"],
    );
}

async fn pair(file: &Path) -> [Instance; 2] {
    let [a, b] = ["a", "b"].map(|name| Serve::new().keys(file).named(name));
    [a.start().await, b.start().await]
}

/// The first round of a call, which leaves a token.
async fn token_from(instance: &Instance) -> Call {
    let mut call = Call::weather("Oslo");
    let reply = Client::new(instance.address).round(&mut call).await;
    assert_eq!(reply, Reply::Asked(vec!["github_login".into()]));
    call.answer("github_login", &json!({"name": "octocat"}));
    call
}

/// Whether this instance accepts the token of the call.
async fn accepts(instance: &Instance, call: &Call) -> bool {
    match Client::new(instance.address).round(&mut call.clone()).await {
        Reply::Done(_) => true,
        Reply::Refused { code: -32602, .. } => false,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_rotation_rejects_no_token_of_running_calls() {
    let files = Files::new();
    let file = files.keys("fleet.keys");
    let old = list(&file)[0].0.clone();
    let [mut a, mut b] = pair(&file).await;
    let balancer = Balancer::start([a.address, b.address]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop) = (Client::new(balancer.address), stop.clone());
            tokio::spawn(async move {
                let mut calls = 0;
                while calls < 5000 && !stop.load(Ordering::Acquire) {
                    let finished = client.finish(Call::weather("Oslo")).await;
                    assert!(matches!(finished.reply, Reply::Done(_)), "{finished:?}");
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let a_while = || tokio::time::sleep(Duration::from_millis(100));

    let early = token_from(&a).await;
    let new = stage(&file);
    for instance in [&a, &b] {
        instance.reload(RELOADED).await;
        a_while().await;
    }
    promote(&file, &new);
    for instance in [&a, &b] {
        // Each instance opens tokens of the other one.
        instance.reload(RELOADED).await;
        a_while().await;
    }
    let late = token_from(&a).await;
    assert!(accepts(&a, &early).await && accepts(&b, &early).await);
    assert!(accepts(&a, &late).await && accepts(&b, &late).await);
    stop.store(true, Ordering::Release);
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }

    assert!(keys_with_id("retire", &file, &old).ok);
    a.reload(RELOADED).await;
    assert!(
        !accepts(&a, &early).await,
        "the key of this token was retired"
    );
    assert!(
        accepts(&b, &early).await,
        "this instance was not reloaded yet"
    );
    b.reload(RELOADED).await;
    assert!(!accepts(&b, &early).await);
    assert!(accepts(&a, &late).await && accepts(&b, &late).await);
    for instance in [&mut a, &mut b] {
        instance.stop().await;
        let rejected = instance.log.count(REJECTED);
        assert_eq!(rejected, 1, "{:?}", instance.log);
        assert_eq!(instance.log.count("unknown_key"), 1);
    }
}

/// A key is promoted before the other instances have loaded it.
#[tokio::test]
async fn tokens_of_a_key_that_others_have_not_loaded_are_rejected() {
    let files = Files::new();
    let file = files.keys("fleet.keys");
    let [a, b] = pair(&file).await;
    promote(&file, &stage(&file));
    a.reload(RELOADED).await;
    let call = token_from(&a).await;
    assert!(accepts(&a, &call).await);
    assert!(!accepts(&b, &call).await);
    b.reload(RELOADED).await;
    assert!(accepts(&b, &call).await);
}

#[tokio::test]
async fn failed_reload_keeps_the_current_keys() {
    let files = Files::new();
    let file = files.keys("fleet.keys");
    let [a, b] = pair(&file).await;
    let early = token_from(&a).await;
    files.write("fleet.keys", "# a comment\nnot a key\n");
    a.reload(NOT_RELOADED).await;
    let line = a.log.wait_for(NOT_RELOADED, 1).await;
    assert!(line.contains("line 2") && line.contains("ERROR"), "{line}");
    assert!(accepts(&a, &early).await);
    std::fs::remove_file(&file).unwrap();
    a.reload(NOT_RELOADED).await;
    assert!(accepts(&a, &early).await);
    assert!(
        accepts(&b, &token_from(&a).await).await,
        "it still seals with the old key"
    );
}

#[tokio::test]
async fn keys_are_read_from_the_environment() {
    let files = Files::new();
    let file = files.keys("fleet.keys");
    stage(&file);
    let text = std::fs::read_to_string(&file).unwrap();
    let keys: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let keys = keys.join(",");
    let a = Serve::new().env("REFRAIN_KEYS", &keys).start().await;
    let b = Serve::new().keys(&file).start().await;
    let call = token_from(&a).await;
    assert!(accepts(&b, &call).await);
    assert!(accepts(&a, &token_from(&b).await).await);

    // The flag overrides the variable.
    let other = files.keys("other.keys");
    let c = Serve::new().env("REFRAIN_KEYS", &keys).keys(&other);
    let c = c.start().await;
    assert!(!accepts(&c, &call).await);
    c.reload(RELOADED).await;
    let line = c.log.wait_for(RELOADED, 1).await;
    let (id, state) = list(&other).pop().expect("a key");
    let fields = format!("file=\"{}\" keys=\"{id} {state}\"", other.display());
    assert!(line.contains(&fields), "{line}");

    a.reload("SIGHUP ignored").await;
    assert!(accepts(&a, &call).await);

    let broken = keys.replace("staged", "stagd");
    let error = Serve::new().env("REFRAIN_KEYS", &broken).fails().await;
    assert!(error.contains("invalid $REFRAIN_KEYS: line 1: "), "{error}");
    assert!(!error.contains(&secret(&file)), "{error}");
}

#[tokio::test]
async fn instance_without_keys_warns_and_uses_its_own_key() {
    let (a, b) = (Serve::new().start().await, Serve::new().start().await);
    assert_eq!(a.log.count("no keys are configured"), 1, "{:?}", a.log);
    let call = token_from(&a).await;
    assert!(accepts(&a, &call).await);
    assert!(!accepts(&b, &call).await);
}
