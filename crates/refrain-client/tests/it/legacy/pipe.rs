//! Servers as child processes: output, exit, shutdown.

use super::support::{called, spawn, until, within};
use refrain_client::wire::LogLevel;
use refrain_client::{AskAnswer, Client, ClientBuilder, ClientLimits, ErrorKind, WireMessage};
use rustix::process::{Pid, test_kill_process};
use serde_json::json;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

#[tokio::test]
async fn missing_program_is_reported() {
    let command = Command::new("no-such-program-as-this");
    let error = Client::builder().spawn(command).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::Spawn { .. });
    assert!(
        error.to_string().contains("no-such-program-as-this"),
        "{error}"
    );
}

#[tokio::test]
async fn output_of_a_non_server_is_reported() {
    let mut command = Command::new("echo");
    command.arg("usage: something else");
    let error = within("the exit", Client::builder().spawn(command))
        .await
        .unwrap_err();
    assert_matches!(error.kind, ErrorKind::NotMcp { .. });
    assert!(
        error.to_string().contains("usage: something else"),
        "{error}"
    );
}

#[tokio::test]
async fn stderr_of_a_failed_server_is_reported() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo the licence has expired >&2; exit 7"]);
    let error = within("the exit", Client::builder().spawn(command))
        .await
        .unwrap_err();
    let ErrorKind::Exited { status, stderr, .. } = &error.kind else {
        panic!("{error}");
    };
    assert!(status.contains('7'), "{status}");
    assert_eq!(stderr, "the licence has expired\n");
}

#[tokio::test]
async fn exit_during_a_call_is_reported() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    let error = called(&client, "die").await.unwrap_err();
    let ErrorKind::Exited { status, stderr, .. } = &error.kind else {
        panic!("{error}");
    };
    assert!(status.contains('3'), "{status}");
    assert_eq!(stderr, "the disk is full\n");
}

#[tokio::test]
async fn exited_server_is_restarted_by_the_next_call() {
    let client = spawn(Client::builder(), &["2025-06-18"]).await.unwrap();
    let before = called(&client, "pid").await.unwrap();
    called(&client, "die").await.unwrap_err();
    let calls = (0..3).map(|_| called(&client, "pid"));
    let after = futures_util::future::try_join_all(calls).await.unwrap();
    assert_ne!(after[0], before);
    assert!(after.iter().all(|pid| *pid == after[0]), "once: {after:?}");
    let greeting = called(&client, "greeting").await.unwrap();
    assert_eq!(greeting["protocolVersion"], "2025-06-18");
}

#[tokio::test]
async fn echoing_program_is_not_a_server() {
    let error = within("the exit", Client::builder().spawn(Command::new("cat")))
        .await
        .unwrap_err();
    assert_matches!(error.kind, ErrorKind::NotMcp { .. });
    assert!(error.to_string().contains("echoes"), "{error}");
}

#[tokio::test]
async fn debug_output_hides_command_arguments() {
    let mut command = super::support::python(&["2025-11-25"]);
    command.args(["-32601", "--key=hunter2"]);
    let client = within("the server", Client::builder().spawn(command));
    let debug = format!("{:?}", client.await.unwrap());
    assert!(debug.contains("python3"), "{debug}");
    assert!(!debug.contains("hunter2"), "{debug}");
}

#[tokio::test]
async fn invalid_lines_between_messages_are_ignored() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    assert_eq!(called(&client, "noise").await.unwrap(), "after the noise");
}

#[tokio::test]
async fn noise_around_every_message_does_not_fail_calls() {
    let builder =
        Client::builder().on_form(|_| async { Ok(AskAnswer::accept(json!({"b": "x"}))?) });
    for probe in ["-32601", "exit"] {
        let args = ["2025-11-25", probe, "noisy"];
        let client = spawn(builder.clone(), &args).await.unwrap();
        assert_eq!(client.tools().await.unwrap()[0].name, "form");
        for _ in 0..3 {
            let answer = called(&client, "form").await.unwrap();
            assert_eq!(answer["content"]["b"], "x");
            assert_eq!(called(&client, "noise").await.unwrap(), "after the noise");
        }
        within("the exit", client.close()).await;
    }
}

#[tokio::test]
async fn too_long_line_fails_calls_but_not_the_connection() {
    let limits = ClientLimits {
        message: 100_000,
        ..ClientLimits::default()
    };
    let client = spawn(Client::builder().limits(limits), &[]).await.unwrap();
    let long = client.call_tool("long", json!({"length": 1_000_000}));
    let error = within("an error", long).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::TooLarge { .. });
    assert_eq!(called(&client, "noise").await.unwrap(), "after the noise");
}

#[tokio::test]
async fn progress_and_log_arrive_in_order_before_the_result() {
    let received: Arc<Mutex<Vec<String>>> = Arc::default();
    let (progress, log) = (Arc::clone(&received), Arc::clone(&received));
    let builder = Client::builder()
        .on_progress(move |step| progress.lock().unwrap().push(step.progress.to_string()))
        .on_log(LogLevel::Info, move |line| {
            log.lock().unwrap().push(line.data.to_string());
        });
    let client = spawn(builder, &[]).await.unwrap();
    called(&client, "progress").await.unwrap();
    assert_eq!(*received.lock().unwrap(), ["0", "1", "2", "\"logged\""]);
    let notes = called(&client, "notes").await.unwrap().to_string();
    assert!(notes.contains(r#""method":"logging/setLevel""#), "{notes}");
}

#[tokio::test]
async fn dropped_call_is_cancelled_by_id() {
    let sent: Arc<Mutex<Vec<String>>> = Arc::default();
    let (record, started) = (Arc::clone(&sent), Arc::new(Notify::new()));
    let signal = Arc::clone(&started);
    let builder = Client::builder().on_wire(move |wire| {
        if let WireMessage::Sent { message } = wire {
            record.lock().unwrap().push(message.to_owned());
            if message.contains("\"wait\"") {
                signal.notify_one();
            }
        }
    });
    let client = spawn(builder, &[]).await.unwrap();
    tokio::select! {
        ended = client.call_tool("wait", json!({})) => panic!("the tool never returns: {ended:?}"),
        () = within("the call", started.notified()) => {}
    }
    let notes = called(&client, "notes").await.unwrap();
    let notes = notes.as_array().unwrap();
    let of = |method: &str| {
        let note = notes.iter().find(|note| note["method"] == method);
        note.unwrap_or_else(|| panic!("{notes:?}")).clone()
    };
    let cancelled = of("notifications/cancelled");
    let sent = sent.lock().unwrap();
    let call = sent.iter().find(|text| text.contains("\"wait\"")).unwrap();
    let call: serde_json::Value = serde_json::from_str(call).unwrap();
    assert_eq!(cancelled["params"]["requestId"], call["id"]);
}

#[tokio::test]
async fn stubborn_server_is_killed() {
    let args = ["2025-11-25", "-32601", "stubborn"];
    let client = spawn(Client::builder(), &args).await.unwrap();
    let pid = called(&client, "pid").await.unwrap();
    let pid = Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap()).unwrap();
    let other = client.clone();
    within("closing a clone", other.close()).await;
    assert!(
        test_kill_process(pid).is_ok(),
        "another clone keeps it running"
    );
    within("the exit", client.close()).await;
    assert!(test_kill_process(pid).is_err(), "it has exited");
}

/// A client, and a signal when it sends a message that contains this text.
fn watching(text: &'static str) -> (ClientBuilder, Arc<Notify>) {
    let sent = Arc::new(Notify::new());
    let signal = Arc::clone(&sent);
    let builder = Client::builder().on_wire(move |wire| {
        if let WireMessage::Sent { message } = wire
            && message.contains(text)
        {
            signal.notify_one();
        }
    });
    (builder, sent)
}

#[tokio::test]
async fn server_that_stops_reading_is_ended() {
    for is_closed in [true, false] {
        let (builder, sent) = watching("xxxx");
        let client = spawn(builder, &[]).await.unwrap();
        let pid = called(&client, "pid").await.unwrap();
        let pid = Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap()).unwrap();
        let long = json!({"text": "x".repeat(200_000)});
        tokio::select! {
            biased;
            ended = client.call_tool("stall", json!({})) => panic!("the tool never returns: {ended:?}"),
            ended = client.call_tool("echo", long) => panic!("the tool never returns: {ended:?}"),
            () = within("the calls", sent.notified()) => {}
        }
        if is_closed {
            within("the exit", client.close()).await;
            assert!(test_kill_process(pid).is_err(), "it has exited");
        } else {
            drop(client);
            until("the exit", || test_kill_process(pid).is_err()).await;
        }
    }
}

#[tokio::test]
async fn closed_standard_input_fails_calls() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    called(&client, "close_stdin").await.unwrap();
    for _ in 0..2 {
        let error = called(&client, "pid").await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::ConnectionLost(_));
        assert!(error.to_string().contains("standard input"), "{error}");
    }
    within("the exit", client.close()).await;
}

#[tokio::test]
async fn open_ask_of_a_finished_call_goes_to_another_call() {
    let (builder, sent) = watching("\"held\"");
    let builder = builder.on_form(|ask| async move {
        if ask.asker.target == "cross" {
            std::future::pending::<()>().await;
        }
        Ok(AskAnswer::accept(json!({"b": ask.asker.target}))?)
    });
    let client = spawn(builder, &[]).await.unwrap();
    let other = async {
        within("the first call", sent.notified()).await;
        called(&client, "cross").await
    };
    let (held, crossed) = futures_util::future::join(called(&client, "held"), other).await;
    assert_eq!(crossed.unwrap(), "crossed");
    assert_eq!(held.unwrap()["content"]["b"], "held");
}

#[tokio::test]
async fn open_ask_of_the_last_call_is_rejected() {
    let builder = Client::builder().on_form(|_| async {
        std::future::pending::<()>().await;
        Ok(AskAnswer::Cancel)
    });
    let client = spawn(builder, &[]).await.unwrap();
    assert_eq!(called(&client, "hasty").await.unwrap(), "never mind");
    let notes = called(&client, "notes").await.unwrap();
    let notes = notes.as_array().unwrap();
    let answer = notes.iter().find(|note| note["id"] == "s1");
    let answer = answer.unwrap_or_else(|| panic!("{notes:?}"));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[tokio::test]
async fn dropping_the_client_ends_the_server() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    let pid = called(&client, "pid").await.unwrap();
    let pid = Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap()).unwrap();
    drop(client);
    until("the exit", || test_kill_process(pid).is_err()).await;
}

#[tokio::test]
async fn address_is_the_command_line() {
    let client = spawn(Client::builder(), &["2025-06-18"]).await.unwrap();
    assert!(client.address().starts_with("python3 "));
    assert!(client.address().ends_with("server.py 2025-06-18"));
}

#[tokio::test]
async fn invalid_response_line_fails_its_call() {
    let client = spawn(Client::builder(), &[]).await.unwrap();
    for (tool, word) in [
        ("draft_ask", "select that draft as the dialect"),
        ("empty", "not a JSON-RPC message"),
    ] {
        let error = called(&client, tool).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::InvalidResponse(_));
        assert!(error.to_string().contains(word), "{error}");
        assert!(error.pending.is_some(), "the error contains the call");
    }
    let text = called(&client, "noise").await.unwrap();
    assert_eq!(text, "after the noise");
}
