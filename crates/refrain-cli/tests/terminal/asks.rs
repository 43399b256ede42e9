//! URLs, sampling requests and roots; and several asks at once.

use crate::asking::Asking;
use crate::screen::Screen;
use crate::{call, command};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A command with a fake browser that records the URLs it opens.
fn with_browser(dir: &Path, command: &str) -> String {
    let log = dir.join("opened");
    let browser = dir.join("xdg-open");
    let script = format!("#!/bin/sh\nprintf '%s\\n' \"$@\" >>'{}'\n", log.display());
    fs::write(&browser, script).expect("a file");
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).expect("a program");
    format!("PATH='{}':\"$PATH\" {command}", dir.display())
}

#[test]
fn url_is_shown_in_full_and_opened_only_with_consent() {
    let server = Asking::start();
    let dir = tempfile::tempdir().expect("a directory");
    let target = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = target.local_addr().expect("an address");
    let url = format!("http://{address}/{}?state=end", "path/".repeat(40));
    let command = command(&server, "visit", &format!(r#"{{"url":"{url}"}}"#));
    let screen = Screen::start(80, 30, &with_browser(dir.path(), &command));
    let seen = screen.sees("? Visit 127.0.0.1?");
    assert!(seen.contains("asks you to visit a page, for the tool visit:"));
    assert!(seen.contains("│ Please log in there"));
    let whole: String = seen.lines().map(str::trim).collect();
    assert!(whole.contains(&url), "{seen}");
    let coloured = screen.coloured();
    let host = coloured
        .split("http://")
        .nth(2)
        .expect("the URL")
        .to_owned();
    assert!(
        host.starts_with("\x1b[1m\x1b[36m127.0.0.1\x1b["),
        "{host:?}"
    );
    assert!(!dir.path().join("opened").exists());

    screen.press(&["Enter"]);
    screen.press(&["Down"]);
    screen.sees("> Open it");
    screen.press(&["Enter"]);
    screen.sees("Opening it in the browser.");
    let opened = fs::read_to_string(dir.path().join("opened")).expect("what was opened");
    assert_eq!(opened, format!("{url}\n"));
    screen.sees("> Continue");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    assert!(history.contains("\nvisited"), "{history}");

    target.set_nonblocking(true).expect("a socket");
    let fetched = target.accept().expect_err("the page is not fetched");
    assert_eq!(fetched.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn misleading_url_has_warnings_and_can_be_declined() {
    let server = Asking::start();
    let dir = tempfile::tempdir().expect("a directory");
    let url = "http://bank.example@xn--pple-43d.example/login";
    let command = command(&server, "visit", &format!(r#"{{"url":"{url}"}}"#));
    let screen = Screen::start(100, 30, &with_browser(dir.path(), &command));
    let seen = screen.sees("? Visit xn--pple-43d.example?");
    assert!(seen.contains(url));
    assert!(seen.contains("the page is at xn--pple-43d.example."));
    assert!(seen.contains("it reads \"аpple.example\""));
    assert!(seen.contains("The connection is not encrypted."));
    screen.types("dec");
    screen.sees("> Decline");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    assert!(history.contains("not visited"), "{history}");
    assert!(!dir.path().join("opened").exists());
}

#[test]
fn missing_browser_does_not_end_the_dialog() {
    let server = Asking::start();
    let dir = tempfile::tempdir().expect("a directory");
    let url = r#"{"url":"https://example.com/"}"#;
    let program = with_browser(dir.path(), &command(&server, "visit", url));
    fs::remove_file(dir.path().join("xdg-open")).expect("a file");
    let program = program.replace(":\"$PATH\"", "");
    let screen = Screen::start(80, 30, &program);
    screen.sees("? Visit example.com?");
    screen.press(&["Down", "Enter"]);
    screen.sees("Could not start a browser");
    screen.press(&["Enter"]);
    assert!(screen.ends(0).contains("\nvisited"));
}

#[test]
fn sampling_request_can_be_answered_by_the_user() {
    let server = Asking::start();
    let screen = call(&server, "opinion");
    let seen = screen.sees("? Answer instead of a model?");
    assert!(seen.contains("asks for the answer of a language model, for the tool opinion:"));
    assert!(
        seen.contains("  system\n  │ You are terse.\n  user\n  │ What of␛[2J it?\n"),
        "{seen}"
    );
    assert!(seen.contains("at most 77 tokens, preferred model some-model"));
    screen.press(&["Enter"]);
    screen.sees("? The answer");
    screen.press(&["Enter"]);
    screen.sees("! must not be empty");
    screen.types("Much.");
    screen.press(&["M-Enter"]);
    screen.types("And more.");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Down", "Enter"]);
    screen.sees("? The answer");
    screen.types("!");
    screen.press(&["Enter"]);
    screen.sees("And more.!");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    assert!(
        history.contains(r#"person said "Much.\nAnd more.!""#),
        "{history}"
    );
}

#[test]
fn asks_of_one_round_are_shown_in_sequence() {
    let server = Asking::start();
    let screen = call(&server, "both");
    let seen = screen.sees("? first");
    assert!(!screen.history().contains("second"), "{seen}");
    screen.types("1");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    assert!(!screen.history().contains("second"));
    screen.press(&["Enter"]);
    screen.sees("? second");
    screen.press(&["Escape"]);
    screen.sees("? Leave this question?");
    screen.press(&["Down", "Enter"]);
    let history = screen.ends(0);
    assert!(
        history.contains(r#"got {"first":"1"} and a no"#),
        "{history}"
    );
}

#[test]
fn roots_are_sent_only_with_consent() {
    let server = Asking::start();
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().canonicalize().expect("a path");
    let program = format!(
        "cd '{}' && {}",
        dir.display(),
        command(&server, "places", "{}")
    );
    let uri = format!("file://{}", dir.display());
    for is_sent in [true, false] {
        let screen = Screen::start(100, 30, &program);
        let seen = screen.sees("? Send them?");
        assert!(
            seen.contains("asks for the directories that it may work in, for the tool places:")
        );
        assert!(
            seen.contains(&format!("These directories would be sent:\n    {uri}\n")),
            "{seen}"
        );
        // A stray key sends nothing.
        screen.press(&["Enter", "Down"]);
        screen.sees("> Send");
        if is_sent {
            screen.press(&["Enter"]);
            assert!(screen.ends(0).contains(&format!("roots: [{uri:?}]")));
        } else {
            screen.press(&["Down", "Enter"]);
            let history = screen.ends(3);
            assert!(history.contains("(declined)"), "{history}");
            assert!(!history.contains("roots: ["), "{history}");
        }
    }
    // Roots that are given with a flag need no consent.
    let program = format!(
        "{} --root '{}'",
        command(&server, "places", "{}"),
        dir.display()
    );
    let screen = Screen::start(100, 30, &program);
    let history = screen.ends(0);
    assert!(history.contains(&format!("roots: [{uri:?}]")), "{history}");
    assert!(!history.contains("? Send them?"), "{history}");
}

#[test]
fn preset_answer_is_not_prompted_for() {
    let server = Asking::start();
    let program = command(&server, "both", "{}");
    let answer = r#"one={"first":"given"}"#;
    let screen = Screen::start(100, 30, &format!("{program} --answer '{answer}'"));
    screen.sees("? second");
    assert!(!screen.history().contains("? first"));
    screen.types("typed");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    assert!(
        history.contains(r#"got {"first":"given"} and {"second":"typed"}"#),
        "{history}"
    );
}

#[test]
fn input_typed_before_a_prompt_is_dropped() {
    let server = Asking::start();
    for term in ["xterm", "dumb"] {
        for (kind, question, first) in [
            ("roots", "? Send them?", "Send"),
            ("url", "? Visit example.com?", "Open it"),
            ("form", "? Send it?", "Send"),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let file = dir.path().join("go");
            let args = format!(
                r#"{{"file":"{}","ask":"{kind}","url":"https://example.com/"}}"#,
                file.display()
            );
            let program = command(&server, "late", &args);
            let program = with_browser(dir.path(), &format!("TERM={term} {program}"));
            let screen = Screen::start(100, 30, &format!("echo 'ready'; {program}"));
            screen.sees("ready");
            // Each of these inputs would agree.
            screen.press(&["Down", "Enter"]);
            screen.types("1");
            screen.press(&["Enter"]);
            screen.waits("what is typed", |text| {
                text.contains("^[[B") && text.contains("\n1\n")
            });
            fs::write(&file, "").expect("a file");
            screen.sees(question);
            if term == "dumb" {
                screen.press(&["Enter"]);
                screen.sees("! must be a number from 1 to");
            } else {
                let seen = screen.sees("up, down: move to a choice");
                assert!(!seen.contains("  > "), "{seen}");
                screen.press(&["Enter", "Down"]);
                screen.sees(&format!("> {first}"));
            }
            assert!(!dir.path().join("opened").exists());
        }
    }
}

#[test]
fn declined_sampling_or_roots_cancel_the_task() {
    let server = Asking::start();
    for (tool, question, keys) in [
        (
            "opinion_task",
            "? Answer instead of a model?",
            &["Down"][..],
        ),
        ("places_task", "? Send them?", &["Down", "Down"]),
    ] {
        let program = command(&server, tool, "{}");
        let screen = Screen::start(100, 60, &format!("{program} --trace"));
        screen.sees(question);
        screen.press(keys);
        screen.sees("> Decline");
        screen.press(&["Enter"]);
        let history = screen.ends(3);
        assert!(history.contains("declined"), "{history}");
        assert!(history.contains("tasks/cancel"), "{history}");
        assert!(!history.contains("still running"), "{history}");
    }
}

/// The command of a call to a legacy server, a shell script that asks, prints a malformed message
/// when the file `go` exists, and returns the answer.
fn scripted(dir: &Path, ask: &str) -> String {
    let script = format!(
        r#"say() {{ printf '%s\n' "$1"; }}
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    case "$line" in
    *'"method":"initialize"'*)
        info='"serverInfo":{{"name":"shell","version":"1"}},"capabilities":{{"tools":{{}}}}'
        say '{{"jsonrpc":"2.0","id":'"$id"',"result":{{"protocolVersion":"2025-11-25",'"$info"'}}}}' ;;
    *'"method":"tools/call"'*)
        say '{{"jsonrpc":"2.0","id":"e","method":"elicitation/create","params":{ask}}}'
        for i in $(seq 600); do [ -e '{go}' ] && break; sleep 0.1; done
        say 'this is no message'
        : >'{printed}'
        read -r answer
        case "$answer" in
        *'"action"'*) text=$(printf '%s' "$answer" | sed 's/.*"action":"\([a-z]*\)".*/\1/') ;;
        *) text=nothing ;;
        esac
        say '{{"jsonrpc":"2.0","id":'"$id"',"result":{{"content":[{{"type":"text","text":"answered: '"$text"'"}}]}}}}' ;;
    *'"method":"notifications'*) ;;
    *) say '{{"jsonrpc":"2.0","id":'"$id"',"error":{{"code":-32601,"message":"Method not found"}}}}' ;;
    esac
done
"#,
        go = dir.join("go").display(),
        printed = dir.join("printed").display()
    );
    let file = dir.join("server.sh");
    fs::write(&file, script).expect("a file");
    let program = env!("CARGO_BIN_EXE_refrain");
    format!("{program} call --stdio greet -- sh '{}'", file.display())
}

#[test]
fn unsupported_ask_can_be_declined() {
    let nested = r#"{"type":"object","properties":{"address":{"type":"object","properties":{}}}}"#;
    let ask = format!(r#"{{"message":"Where do you live?","requestedSchema":{nested}}}"#);
    for (keys, code, answered) in [
        (&["Down", "Enter"][..], 0, "answered: decline"),
        (&["Down", "Down", "Enter"], 0, "answered: cancel"),
        (&["Enter"], 3, "missing answer to ask-1"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("go"), "").expect("a file");
        let screen = Screen::start(80, 24, &scripted(dir.path(), &ask));
        let seen = screen.sees("? How do you want to answer?");
        assert!(seen.contains("asks for something that this client does not support"));
        assert!(seen.contains("│ the form cannot be shown"), "{seen}");
        screen.press(keys);
        let history = screen.ends(code);
        assert!(history.contains(answered), "{history}");
    }
}

#[test]
fn log_lines_are_held_back_during_a_prompt() {
    let schema = r#"{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#;
    let ask = format!(r#"{{"message":"Who is there?","requestedSchema":{schema}}}"#);
    let dir = tempfile::tempdir().expect("a directory");
    let screen = Screen::start(80, 24, &scripted(dir.path(), &ask));
    screen.sees("? name");
    fs::write(dir.path().join("go"), "").expect("a file");
    let printed = dir.path().join("printed");
    screen.waits("malformed message", |_| printed.exists());
    screen.types("Ada");
    screen.press(&["Enter"]);
    let seen = screen.sees("? Send it?");
    assert!(!seen.contains("WARN"), "{seen}");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    let position = |text: &str| {
        history
            .find(text)
            .unwrap_or_else(|| panic!("no {text}: {history}"))
    };
    assert!(position("WARN") > position("name  Ada"), "{history}");
}
