//! Output on a terminal: progress, and sanitized text.

use super::lists::start_server_with_lists;
use crate::support::terminal::Terminal;
use crate::support::{Serve, ended, program, within};
use std::process::Stdio;

#[tokio::test]
async fn progress_bar_is_drawn_on_a_terminal() {
    let instance = Serve::new().start().await;
    let mut terminal = Terminal::open();
    let mut command = program();
    command
        .args(["call", &instance.url(), "sum", "to=20", "pause_ms=100"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(terminal.take_device())
        .kill_on_drop(true);
    let child = command.spawn().expect("the binary starts");
    drop(command);
    let drawn = terminal.read_until("of 20  adding");
    let drawn = within("progress is drawn", drawn).await;
    assert!(drawn.contains('█') || drawn.contains('░'), "{drawn:?}");
    let output = within("the end", child.wait_with_output()).await;
    let output = output.expect("the process can be waited for");
    assert_eq!(output.stdout, "The sum of 1 to 20 is 210.\n".as_bytes());
}

#[tokio::test]
async fn tool_output_is_sanitized_on_a_terminal() {
    let url = start_server_with_lists().await;
    let mut terminal = Terminal::open();
    let mut command = program();
    command
        .args(["call", &url, "hostile"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(terminal.take_device())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("the binary starts");
    let shown = within("the output", terminal.read_until("after")).await;
    assert!(shown.contains("before␛[2Jafter"), "{shown:?}");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    ended(&mut child).await;

    // Without a terminal, the text is printed verbatim.
    let output = crate::support::run(["call", &url, "hostile"]).await;
    assert_eq!(output.out, "before\u{1b}[2Jafter\n");
}
