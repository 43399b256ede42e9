//! The store of an instance, and errors of unusable stores.

use crate::support::terminal::Terminal;
use crate::support::{Call, Client, Files, Serve, config_check, program, sqlite};
use refrain_testkit::net::legacy::Session;
use serde_json::{Value, json};

async fn run_task(serve: Serve) {
    let instance = serve.start().await;
    let client = Client::new(instance.address);
    let id = client
        .create(Call::new("echo_task", json!({"text": "x"})))
        .await;
    assert_eq!(client.completed(&id).await.text(), "Echo: x");
}

#[tokio::test]
async fn store_flag_overrides_the_file_and_the_environment() {
    let files = Files::new();
    let [flag, file, environment] = ["flag.db", "file.db", "environment.db"].map(|n| files.path(n));
    let config = files.write("config.toml", &format!("store = {:?}\n", sqlite(&file)));
    let with = |serve: Serve| serve.env("REFRAIN_STORE", &sqlite(&environment));

    run_task(with(Serve::new())).await;
    assert!(environment.exists() && !file.exists() && !flag.exists());
    std::fs::remove_file(&environment).expect("the file is removed");
    run_task(with(Serve::new()).config(&config)).await;
    assert!(!environment.exists() && file.exists() && !flag.exists());
    std::fs::remove_file(&file).expect("the file is removed");
    run_task(with(Serve::new()).config(&config).store(&flag)).await;
    assert!(!environment.exists() && !file.exists() && flag.exists());
}

#[tokio::test]
async fn parameter_of_a_store_url_is_not_logged() {
    for (url, expected) in [
        (
            "postgres://127.0.0.1:1/x?sslpassword=hunter2",
            "unsupported parameter `sslpassword`",
        ),
        (
            "sqlite:x.db?key=hunter2",
            "SQLite options are not supported",
        ),
    ] {
        let serve = Serve::new().env("REFRAIN_STORE", url);
        let error = serve.env("RUST_LOG", "trace").fails().await;
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn default_store_is_a_file_in_the_working_directory() {
    let files = Files::new();
    let (dir, file) = (files.path("."), files.path("refrain.db"));
    run_task(Serve::new().in_directory(&dir)).await;
    assert!(file.exists());
    let listed = program()
        .args(["store", "tasks", "list", "--json"])
        .current_dir(&dir)
        .output()
        .await
        .expect("the binary starts");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("valid JSON");
    assert_eq!(listed[0]["status"], "completed", "{listed}");
}

#[tokio::test]
async fn shared_keys_with_the_default_store_cause_a_warning() {
    let files = Files::new();
    let (dir, keys) = (files.path("."), files.keys("fleet.keys"));
    let here = || Serve::new().in_directory(&dir);
    let config = files.write("config.toml", "store = \"sqlite:refrain.db\"\n");
    for (serve, warnings) in [
        (here().keys(&keys), 1),
        (here(), 0),
        (here().keys(&keys).store(&files.path("fleet.db")), 0),
        (here().keys(&keys).config(&config), 0),
        // The store is in `$REFRAIN_STORE`.
        (Serve::new().keys(&keys), 0),
    ] {
        let instance = serve.start().await;
        let log = &instance.log;
        let count = log.count("need a store that all instances share");
        assert_eq!(count, warnings, "{log:?}");
        assert_eq!(log.count("set --store"), warnings, "{log:?}");
    }
}

/// The status of deleting a legacy session.
async fn delete_session(serve: Serve) -> u16 {
    let instance = serve.start().await;
    let session = Session::open_with(instance.address, "2025-11-25", &json!({}), &[]).await;
    session.delete().await.status
}

#[tokio::test]
async fn legacy_session_is_deleted_with_any_store() {
    assert_eq!(delete_session(Serve::new()).await, 204);
    let memory = Serve::new().env("REFRAIN_STORE", "memory:");
    assert_eq!(delete_session(memory).await, 204);
}

#[tokio::test]
async fn unusable_store_is_reported_without_its_password() {
    let files = Files::new();
    let text = files.write(
        "no.db",
        "This is not a database, but long enough to be mistaken for one.",
    );
    let absent = files.path("absent/refrain.db");
    for (url, reason, advice) in [
        (
            sqlite(&absent),
            "No such file or directory",
            "--store sqlite:PATH",
        ),
        (sqlite(&text), "not a database", "$REFRAIN_STORE"),
        ("sqlite:".into(), "missing file name", "$REFRAIN_STORE"),
        (
            "refrain.db".into(),
            "starts with `sqlite:`",
            "$REFRAIN_STORE",
        ),
        (
            "postgrse://me:hush@db/tasks".into(),
            "starts with `sqlite:`",
            "$REFRAIN_STORE",
        ),
    ] {
        let error = Serve::new().args(["--store", &url]).fails().await;
        let shown = url.replace("hush", "…");
        assert!(
            error.contains(&format!("cannot open store {shown:?}: ")),
            "{error}"
        );
        assert!(error.contains(reason) && error.contains(advice), "{error}");
        assert!(!error.contains("hush"), "{error}");
        // A worker reports the same.
        let worker = Serve::worker().args(["--store", &url]).fails().await;
        assert_eq!(worker, error);
    }
}

#[test]
fn store_password_in_a_file_is_not_printed() {
    let files = Files::new();
    let url = "postgres://me:hush@db/tasks";
    let good = files.write(
        "good.toml",
        &format!("store = \"{url}\"\n[tasks]\nseal = true\n"),
    );
    for json in [&[][..], &["--json"]] {
        let output = config_check(&good, json);
        assert!(output.ok, "{output:?}");
        assert!(
            output.out.contains("postgres://me:…@db/tasks"),
            "{output:?}"
        );
        assert!(!format!("{output:?}").contains("hush"), "{output:?}");
    }
    for bad in [
        format!("store = [\"{url}\"]\n"),
        format!("store = \"{url}\n"),
        format!("sotre = \"{url}\"\nlog = \"text\"\n"),
    ] {
        let bad = files.write("bad.toml", &bad);
        let output = config_check(&bad, &[]);
        assert_eq!(output.code, 1, "{output:?}");
        assert!(output.err.contains("bad.toml:1:"), "{output:?}");
        // The mask in a quoted line is as long as the password, so that the marker below the line fits.
        assert!(output.err.contains("postgres://me:****@db"), "{output:?}");
        assert!(!output.err.contains("hush"), "{output:?}");
    }
}

#[test]
fn invalid_task_settings_are_all_reported() {
    let files = Files::new();
    let bad = files.write(
        "bad.toml",
        "[tasks]\nseal = 1\nlease_ms = 0\nattempts = 0\n",
    );
    let output = config_check(&bad, &[]);
    for part in [
        "tasks.seal must be a boolean, not integer `1`",
        "tasks.lease_ms must be at least 100, not 0",
        "tasks.attempts must be at least 1, not 0",
    ] {
        assert!(output.err.contains(part), "{output:?}");
    }
}

#[tokio::test]
async fn sealed_tasks_need_keys_and_survive_a_restart() {
    let files = Files::new();
    let config = files.write("config.toml", "[tasks]\nseal = true\nlook_ms = 50\n");
    let error = Serve::new().config(&config).fails().await;
    assert!(error.contains("`tasks.seal` needs keys"), "{error}");

    let (keys, store) = (files.keys("fleet.keys"), files.path("sealed.db"));
    let serve = || Serve::new().config(&config).keys(&keys).store(&store);
    let mut first = serve().start().await;
    let client = Client::new(first.address);
    let arguments = json!({"pause_ms": 1});
    let id = client.create(Call::new("echo_task", arguments)).await;
    client.asked(&id, &["echo_input"]).await;
    let stored = |name: &str| {
        let files = ["", "-wal"].map(|end| format!("{}{end}", store.display()));
        let all = files.iter().filter_map(|file| std::fs::read(file).ok());
        let all: Vec<u8> = all.flatten().collect();
        all.windows(name.len()).any(|part| part == name.as_bytes())
    };
    assert!(
        stored("echo_task"),
        "the tool name is not stored as plain text"
    );
    assert!(
        !stored("Please provide the input"),
        "an ask is stored as plain text"
    );
    first.stop().await;
    let second = serve().start().await;
    let client = Client::new(second.address);
    client
        .update(&id, "echo_input", &json!({"input": "hush, hush"}))
        .await;
    assert_eq!(client.completed(&id).await.text(), "Echo: hush, hush");
    assert!(!stored("hush, hush"), "an answer is stored as plain text");
}

/// The help must not print the value of the variable.
#[tokio::test]
async fn help_explains_where_to_put_a_password() {
    let mut terminal = Terminal::open();
    let device = terminal.take_device();
    let child = program()
        .args(["serve", "--help"])
        .env("REFRAIN_STORE", "postgres://me:hush@db/tasks")
        .stdout(device)
        .spawn();
    let help = terminal.read_until("Print version").await;
    assert!(
        help.contains("$REFRAIN_STORE") && help.contains("can see flags"),
        "{help}"
    );
    assert!(!help.contains("hush"), "{help}");
    let ended = child.expect("the binary starts").wait().await;
    assert!(ended.expect("the process can be waited for").success());
}
