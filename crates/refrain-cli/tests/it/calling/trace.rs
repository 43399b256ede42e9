//! `--trace` and `--log`.

use super::lists::start_server_with_lists;
use crate::support::{Serve, run};

#[tokio::test]
async fn trace_prints_every_message_and_shortens_long_ones() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    let call = ["call", &url, "get_weather", "location=Paris"];
    let answer = ["--answer", r#"github_login={"name": "Ada"}"#];
    let output = run([&call[..], &answer, &["--trace"]].concat()).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.out.starts_with("Current weather"), "{output:?}");
    assert!(
        !output.err.contains('\u{1b}'),
        "colours where there is no terminal"
    );
    let heads: Vec<&str> = output
        .err
        .lines()
        .filter(|line| line.starts_with(['→', '←']))
        .collect();
    assert_eq!(
        heads,
        [
            "→          server/discover",
            "←          200 complete",
            "→          tools/list",
            "←          200 complete",
            "→ round 1  tools/call get_weather",
            "← round 1  200 input_required github_login",
            "→ round 2  tools/call get_weather",
            "← round 2  200 complete",
        ]
    );
    let states = output
        .err
        .lines()
        .filter(|line| line.contains("requestState"));
    let states: Vec<&str> = states.collect();
    assert_eq!(states.len(), 2, "{output:?}");
    for state in states {
        assert!(state.contains("characters)"), "{state}");
        assert!(state.chars().count() < 100, "{state}");
    }
    assert!(
        output.err.contains(r#""content": {"name": "Ada"}"#),
        "{output:?}"
    );
    assert!(output.err.contains(r#""_meta": {…"#), "{output:?}");
    assert!(!output.err.contains("clientCapabilities"), "{output:?}");

    let deep = run([&call[..], &answer, &["--trace=9"]].concat()).await;
    assert!(deep.err.contains("clientCapabilities"), "{deep:?}");
    let flat = run([&call[..], &answer, &["--trace=1"]].concat()).await;
    assert!(flat.err.contains(r#""params": {…"#), "{flat:?}");
}

#[tokio::test]
async fn log_flag_prints_messages_from_its_level_on() {
    let url = start_server_with_lists().await;
    let quiet = run(["call", &url, "talk"]).await;
    assert_eq!((quiet.code, &*quiet.err), (0, ""), "{quiet:?}");
    let loud = run(["call", &url, "talk", "--log", "info"]).await;
    assert!(loud.err.contains("info: all is well"), "{loud:?}");
    assert!(loud.err.contains("warning"), "{loud:?}");
    let less = run(["call", &url, "talk", "--log", "warning"]).await;
    assert!(!less.err.contains("all is well"), "{less:?}");
    assert!(
        less.err.contains(r#"warning: {"disk": "full"}"#),
        "{less:?}"
    );
    assert_eq!(less.out, quiet.out);
}
