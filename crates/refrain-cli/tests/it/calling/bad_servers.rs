//! Faulty servers: each error has a message and an exit code, and no call is lost.

use super::{assert_prints, assert_says, saved_call};
use crate::support::{FakeServer, Files, Respond, Serve, program, run, within};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A result with asks.
fn asks(asks: &Value, state: &str) -> Respond {
    Respond::Result(
        json!({"resultType": "input_required", "inputRequests": asks, "requestState": state}),
    )
}

fn form(properties: &Value) -> Value {
    let schema = json!({"type": "object", "properties": properties});
    let params = json!({"mode": "form", "message": "Well?", "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

/// Calls a tool and saves the call.
async fn call(server: &FakeServer, file: &Path, flags: &[&str]) -> crate::support::Output {
    let (url, file) = (server.url(), file.display().to_string());
    run([&["call", &url, "tool", "--save", &file], flags].concat()).await
}

#[tokio::test]
async fn unreachable_server_is_reported() {
    let files = Files::new();
    let file = files.path("call.json").display().to_string();
    // Find a port that is not in use.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let url = format!("http://{address}/mcp");
    let output = run(["call", &url, "echo", "--save", &file]).await;
    assert_says(
        &output,
        4,
        &[
            &url,
            "could not connect to",
            "hint: check that the server is running",
        ],
    );
    assert!(!Path::new(&file).exists(), "no call was made");
}

#[tokio::test]
async fn server_without_tls_is_reported() {
    let instance = Serve::new().start().await;
    let url = instance.url();
    let output = run(["tools", &url.replace("http://", "https://")]).await;
    let hint = format!("hint: if the server does not use TLS, try {url}\n");
    assert_says(
        &output,
        4,
        &["the server did not respond with TLS\n", &hint],
    );
    assert_eq!(output.err.matches("hint:").count(), 1, "{output:?}");
}

#[tokio::test]
async fn server_that_does_not_speak_mcp_is_reported() {
    let page = || Respond::Raw(200, "text/html", "<html>Welcome!</html>".into());
    let server = FakeServer::start_raw(move |_| page()).await;
    let output = run(["tools", &server.url()]).await;
    assert_says(
        &output,
        4,
        &[
            "does not respond as an MCP server: the response is \"<html>Welcome!</html>\"\n",
            "hint: check the URL and its path",
        ],
    );

    let server = FakeServer::start_raw(|_| Respond::Raw(404, "text/html", "Not here".into())).await;
    let output = run(["tools", &server.url()]).await;
    assert_says(
        &output,
        4,
        &[
            "does not respond as an MCP server: HTTP status 404: Not here\n",
            "hint: check the URL and its path",
        ],
    );

    // The text of an HTML page is left out.
    let server = FakeServer::start_raw(|_| Respond::Raw(501, "text/html", "<html>No".into())).await;
    let output = run(["tools", &server.url()]).await;
    assert_says(&output, 4, &["responded with HTTP status 501\nhint: "]);

    let hostile = "down\u{1b}[2J\u{1b}]0;owned\u{7}";
    let server =
        FakeServer::start_raw(move |_| Respond::Raw(500, "text/html", hostile.into())).await;
    let output = run(["tools", &server.url()]).await;
    assert_says(&output, 4, &["500: down"]);
    assert!(!output.err.contains('\u{1b}'), "{output:?}");
}

#[tokio::test]
async fn response_that_is_not_json_keeps_the_call() {
    let files = Files::new();
    let server = FakeServer::start(|_| Respond::Raw(200, "application/json", "{oops".into())).await;
    let file = files.path("call.json");
    let output = call(&server, &file, &[]).await;
    assert_says(
        &output,
        4,
        &["invalid response from the server", "refrain resume"],
    );
    assert_eq!(saved_call(&file).round(), 0);
}

#[tokio::test]
async fn broken_stream_keeps_the_call() {
    let files = Files::new();
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": 1, "progress": 1}});
    let start = format!("data: {progress}\n\ndata: {{\"jsonrpc\": \"2.0\", ");
    let server = FakeServer::start(move |_| Respond::cut(&start)).await;
    let file = files.path("call.json");
    let output = call(&server, &file, &[]).await;
    assert_says(
        &output,
        4,
        &["connection closed before the response", "refrain resume"],
    );
    // The server does not support call ids, so the request must not be repeated.
    assert_eq!(server.count("tools/call"), 1);
    assert_eq!(saved_call(&file).round(), 0);
}

#[tokio::test]
async fn answered_call_is_saved_after_a_break_without_save_flag() {
    let files = Files::new();
    let broken = Arc::new(AtomicBool::new(true));
    let breaks = Arc::clone(&broken);
    let server = FakeServer::start(
        move |request| match request["params"].get("inputResponses") {
            None => asks(
                &json!({"who": form(&json!({"name": {"type": "string"}}))}),
                "state",
            ),
            Some(_) if breaks.load(Ordering::Relaxed) => Respond::cut("data: {"),
            Some(answers) => {
                let content = json!([{"type": "text", "text": answers["who"]["content"]["name"]}]);
                Respond::Result(json!({"resultType": "complete", "content": content}))
            }
        },
    )
    .await;
    let mut command = program();
    command
        .args([
            "call",
            &server.url(),
            "tool",
            "--answer",
            r#"who={"name": "Ada"}"#,
        ])
        .current_dir(files.path(""))
        .stdin(Stdio::null());
    let output = within("the end", command.output())
        .await
        .expect("the process can be waited for");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    let command = stderr.rsplit("`refrain resume ").next();
    let name = command.and_then(|rest| rest.split('`').next());
    let name = name.expect("a name");
    assert!(
        name.starts_with("refrain-call-") && !stderr.contains("lost"),
        "{stderr}"
    );
    let file = files.path(name);
    assert_eq!(saved_call(&file).round(), 1);
    broken.store(false, Ordering::Relaxed);
    let output = run(["resume", &file.display().to_string()]).await;
    assert_prints(&output, "Ada\n");
    assert!(!file.exists());
}

#[tokio::test]
async fn number_over_64_bits_is_rejected() {
    let large = "123456789012345678901234567890";
    let server = FakeServer::start(|_| {
        Respond::Result(
            json!({"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "private"}),
        )
    })
    .await;
    let url = server.url();
    for words in [
        [format!("n={large}"), "x=1".into()],
        [format!(r#"{{"n": [{large}]}}"#), "--json".into()],
        ["--answer".into(), format!("k={{\"n\": {large}}}")],
    ] {
        let words = words.each_ref().map(String::as_str);
        let output = run([&["call", &url, "tool"][..], &words].concat()).await;
        assert_says(&output, 2, &[large, "does not fit into 64 bits"]);
    }
    assert_eq!(server.count("tools/call"), 0);
}

#[tokio::test]
async fn multiline_server_error_is_printed_on_one_line() {
    let server = FakeServer::start(|_| Respond::Error(-32603, "E\nerror: done")).await;
    let output = run(["call", &server.url(), "tool"]).await;
    assert_says(&output, 1, &["returned an error: E error: done"]);
}

#[tokio::test]
async fn long_text_of_an_ask_is_cut() {
    let mut ask = form(&json!({"name": {"type": "string"}}));
    ask["params"]["message"] = json!("\n".repeat(50_000));
    let server = FakeServer::start(move |_| asks(&json!({"who": ask}), "state")).await;
    let output = run(["call", &server.url(), "tool"]).await;
    assert_says(
        &output,
        3,
        &["who", "(50000 characters; --json prints all)"],
    );
}

#[tokio::test]
async fn endless_rounds_stop_at_the_limit() {
    let files = Files::new();
    let again = || asks(&json!({"again": form(&json!({}))}), "state");
    let server = FakeServer::start(move |_| again()).await;
    let file = files.path("call.json");
    let answers: Vec<&str> = ["--answer", "again={}"].repeat(9);
    let flags = [&answers[..], &["--rounds", "4"]].concat();
    let output = call(&server, &file, &flags).await;
    assert_says(
        &output,
        4,
        &[
            "call not complete after 4 rounds\n",
            "hint: raise --rounds, unless the server repeats the same asks",
            "refrain resume",
        ],
    );
    assert!(!output.err.contains("unused answer"), "{output:?}");
    assert_eq!(server.count("tools/call"), 4);
    assert_eq!(saved_call(&file).round(), 4);
    assert_eq!(saved_call(&file).unanswered().len(), 1);
    let once = ["--answer", "again={}", "--rounds", "1"];
    let output = call(&server, &files.path("once.json"), &once).await;
    assert_says(&output, 4, &["call not complete after 1 round\n"]);
    assert!(!output.err.contains("unused answer"), "{output:?}");
}

#[tokio::test]
async fn unknown_ask_keeps_the_call_and_other_answers() {
    let files = Files::new();
    let unknown =
        json!({"strange": {"method": "telepathy/create", "params": {}}, "known": form(&json!({}))});
    let server = FakeServer::start(move |_| asks(&unknown, "state")).await;
    let file = files.path("call.json");
    let output = call(&server, &file, &["--answer", "known={}"]).await;
    assert_says(
        &output,
        3,
        &[
            "strange  unknown",
            "unknown ask method \"telepathy/create\"",
            "input that this client cannot provide",
            "or remove the file",
        ],
    );
    // The other answer is saved.
    let open = saved_call(&file).unanswered();
    assert_eq!(
        open.iter().map(|ask| ask.key()).collect::<Vec<_>>(),
        ["strange"]
    );
}

#[tokio::test]
async fn unsupported_form_can_only_be_declined() {
    let files = Files::new();
    let deep = json!({"address": {"type": "object", "properties": {}}});
    let server = FakeServer::start(move |_| asks(&json!({"where": form(&deep)}), "state")).await;
    let file = files.path("call.json");
    let output = call(&server, &file, &["--answer", "where={\"address\": {}}"]).await;
    assert_says(
        &output,
        3,
        &[
            "the form cannot be shown",
            "\"address\"",
            "not supported in a form",
            "--answer where=decline",
        ],
    );
    assert_eq!(saved_call(&file).round(), 1);
}

#[tokio::test]
async fn unsupported_asks_can_be_declined_and_cancelled() {
    let files = Files::new();
    let script = json!({"mode": "url", "message": "Go", "url": "javascript:alert(1)"});
    let strange = json!({
        "where": form(&json!({"address": {"type": "object", "properties": {}}})),
        "script": {"method": "elicitation/create", "params": script},
        "mode": {"method": "elicitation/create", "params": {"mode": "voice", "message": "?"}},
    });
    let answered = json!({"where": {"action": "decline"}, "script": {"action": "cancel"}, "mode": {"action": "decline"}});
    let server = FakeServer::start(
        move |request| match request["params"].get("inputResponses") {
            None => asks(&strange, "state"),
            Some(answers) if *answers == answered => Respond::Result(
                json!({"resultType": "complete", "content": [{"type": "text", "text": "Well."}]}),
            ),
            Some(_) => Respond::Error(-32602, "not what was expected"),
        },
    )
    .await;
    let answers = ["--answer", "where=decline", "--answer", "script=cancel"];
    let file = files.path("call.json");
    let output = call(&server, &file, &answers).await;
    assert_says(&output, 3, &["mode  unknown", "--answer mode=decline"]);
    // An unsupported ask cannot be accepted.
    let name = file.display().to_string();
    let output = run(["resume", &name, "--answer", "mode=accept"]).await;
    assert_says(&output, 3, &["unknown elicitation mode \"voice\""]);
    let output = run(["resume", &name, "--answer", "mode=decline"]).await;
    assert_prints(&output, "Well.\n");
}

#[tokio::test]
async fn rejected_answer_can_be_replaced() {
    let files = Files::new();
    let text = json!({"name": {"type": "string"}});
    let server = FakeServer::start(move |request| {
        let answers = &request["params"]["inputResponses"];
        match answers["who"]["content"]["name"].as_str() {
            None => asks(&json!({"who": form(&text)}), "state"),
            Some("Ada") => Respond::Result(json!({"resultType": "complete", "content": []})),
            Some(_) => Respond::Error(-32602, "unknown name"),
        }
    })
    .await;
    let file = files.path("call.json");
    let output = call(&server, &file, &["--answer", r#"who={"name": "Eve"}"#]).await;
    let parts = [
        "unknown name",
        "rejected the answer to who",
        "--answer KEY=JSON",
    ];
    assert_says(&output, 1, &parts);
    let name = file.display().to_string();
    let output = run(["resume", &name, "--answer", r#"who={"name": "Ada"}"#]).await;
    assert_eq!(output.code, 0, "{output:?}");
}

#[tokio::test]
async fn oversized_state_is_rejected() {
    let files = Files::new();
    let state = "x".repeat(10 * 1024 * 1024);
    let server = FakeServer::start(move |_| asks(&json!({}), &state)).await;
    let file = files.path("call.json");
    let output = call(&server, &file, &[]).await;
    assert_says(
        &output,
        4,
        &["more than 4194304 bytes", "request state", "refrain resume"],
    );
    assert_eq!(saved_call(&file).round(), 0);
}

#[tokio::test]
async fn large_sampling_request_is_not_copied_many_times() {
    // Larger asks are rejected.
    let text = "x".repeat(4_000_000);
    let message = json!({"role": "user", "content": {"type": "text", "text": text}});
    let params = json!({"messages": [message], "maxTokens": 1});
    let ask = json!({"q": {"method": "sampling/createMessage", "params": params}});
    let server = FakeServer::start(
        move |request| match request["params"].get("inputResponses") {
            None => asks(&ask, "state"),
            Some(answers) => Respond::Result(
                json!({"resultType": "complete", "content": [answers["q"]["content"]]}),
            ),
        },
    )
    .await;
    // The sampler answers with the peak of the resident memory of its parent, in KiB.
    let sampler = "cat > /dev/null; awk '/VmHWM/ {print $2}' /proc/$PPID/status";
    let output = run(["call", &server.url(), "tool", "--sampler", sampler]).await;
    let peak: u32 = output.out.trim().parse().expect("a number");
    assert!(peak < 56 * 1024, "{peak} KiB");
}

#[tokio::test]
async fn unknown_result_type_is_reported() {
    let server = FakeServer::start(|_| Respond::Result(json!({"resultType": "maybe"}))).await;
    let output = run(["call", &server.url(), "tool"]).await;
    assert_says(&output, 4, &["unknown result type \"maybe\""]);
}

#[tokio::test]
async fn result_that_violates_the_output_schema_causes_a_warning() {
    let schema = json!({"type": "object", "required": ["degrees"]});
    let tool = json!({"name": "tool", "inputSchema": {"type": "object"}, "outputSchema": schema});
    let server = FakeServer::start(move |request| match request["method"].as_str() {
        Some("tools/list") => Respond::Result(json!({"resultType": "complete", "tools": [tool]})),
        _ => Respond::Result(
            json!({"resultType": "complete", "content": [], "structuredContent": {}}),
        ),
    })
    .await;
    // The result is printed nevertheless.
    let output = run(["call", &server.url(), "tool", "city=Oslo"]).await;
    assert_prints(&output, "{}\n");
    assert_says(&output, 0, &["warning: invalid result", "degrees"]);
}

#[tokio::test]
async fn legacy_server_is_supported() {
    let server = FakeServer::start_raw(|request| match request["method"].as_str() {
        Some("initialize") => Respond::Result(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "grandma", "version": "1"},
        })),
        Some("notifications/initialized") => Respond::Raw(202, "text/plain", String::new()),
        Some("tools/call") => {
            Respond::Result(json!({"content": [{"type": "text", "text": "In my day…"}]}))
        }
        _ => Respond::Error(-32601, "Method not found"),
    })
    .await;
    let output = run(["call", &server.url(), "tool"]).await;
    assert_prints(&output, "In my day…\n");
    let output = run(["discover", &server.url()]).await;
    assert!(output.out.contains("grandma 1"), "{output:?}");
    assert!(output.out.contains("2025-11-25"), "{output:?}");
}

#[tokio::test]
async fn long_task_id_is_rejected_without_being_quoted() {
    let id = "z".repeat(15_000_000);
    let task = json!({"resultType": "task", "taskId": id, "status": "working",
        "createdAt": "2026-11-19T00:00:00Z", "lastUpdatedAt": "2026-11-19T00:00:00Z", "ttlMs": 60000});
    let server = FakeServer::start(move |_| Respond::Result(task.clone())).await;
    let output = run(["call", &server.url(), "tool"]).await;
    assert_says(&output, 4, &["the task id is longer than 4096 bytes"]);
    assert!(output.err.len() < 1000, "{} bytes", output.err.len());
    assert_eq!(server.count("tasks/get"), 0);
}

#[tokio::test]
async fn other_task_in_a_result_is_quoted_by_an_excerpt() {
    let server = FakeServer::start(move |request| {
        let is_call = request.method() == "tools/call";
        let (kind, id) = match is_call {
            true => ("task", "t1".to_owned()),
            false => ("complete", "z".repeat(1_000_000)),
        };
        Respond::Result(
            json!({"resultType": kind, "taskId": id, "status": "working", "ttlMs": 60000,
            "createdAt": "2026-11-19T00:00:00Z", "lastUpdatedAt": "2026-11-19T00:00:00Z"}),
        )
    })
    .await;
    let output = run(["call", &server.url(), "tool"]).await;
    assert_says(&output, 4, &["the result of tasks/get is about task \"zzz"]);
    assert!(output.err.len() < 2000, "{} bytes", output.err.len());
}

#[tokio::test]
async fn long_cursor_is_rejected_without_being_sent() {
    let cursor = "c".repeat(65 * 1024);
    let page = json!({"resultType": "complete", "tools": [], "nextCursor": cursor, "ttlMs": 0,
        "cacheScope": "private"});
    let server = FakeServer::start(move |_| Respond::Result(page.clone())).await;
    let output = run(["tools", &server.url()]).await;
    assert_says(
        &output,
        4,
        &["the nextCursor of tools/list is longer than 65536 bytes"],
    );
    assert_eq!(server.count("tools/list"), 1);
}
