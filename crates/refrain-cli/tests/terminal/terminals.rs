//! Terminals: hostile text, resizing, no colours, no cursor movement, and the end of the program.

use crate::asking::{Asking, HOSTILE, NAME};
use crate::screen::Screen;
use crate::serve::Serve;
use crate::{call, command};

/// The number of occurrences in a text.
fn times(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[test]
fn hostile_server_text_is_sanitized() {
    assert!(NAME.contains('\x1b') && HOSTILE.contains("? Send it?"));
    let server = Asking::start();
    let screen = Screen::start(120, 50, &command(&server, "hostile", "{}"));
    let seen = screen.sees("enter: done");
    let title = screen.fact("pane_title");
    assert_ne!(title, "owned");
    // The screen was not cleared, and the text is complete.
    assert!(seen.contains("The server at"), "{seen}");
    assert!(
        seen.contains("\n  which calls itself bank␛[2J␍\\u{202e}knab\n"),
        "{seen}"
    );
    let harmless = "Hello␛[2J␛[1;1H␛]2;owned␇␍\\u{9b}2J\\u{202e}txt";
    assert_eq!(times(&seen, harmless), 3, "{seen}");
    // Lines that imitate a prompt have a bar before them, or are within a line.
    for imitated in ["This would be sent to", "? Send it?"] {
        assert!(seen.contains(&format!("\n  │ {imitated}")), "{seen}");
        assert!(!seen.contains(&format!("\n{imitated}")), "{seen}");
    }
    screen.types("a");
    screen.press(&["Enter"]);
    let seen = screen.sees("enter: choose");
    assert!(seen.contains("> Hello␛[2J"), "{seen}");
    screen.press(&["Enter"]);
    screen.sees("> d␛[2J\\u{202e}e");
    screen.press(&["Enter"]);
    let seen = screen.sees("\n? Send it?");
    assert!(
        seen.contains("(x␛[31m␊)") && seen.contains("  d␛[2J\\u{202e}e\n"),
        "{seen}"
    );
    screen.press(&["C-c"]);
    screen.ends(130);
}

#[test]
fn prompt_is_redrawn_after_a_resize() {
    const NAME: &str = "A name that is longer than a narrow terminal";
    let server = Asking::start();
    let screen = call(&server, "table");
    screen.sees("? Your name");
    screen.types(NAME);
    screen.press(&["Enter"]);
    screen.sees("! takes at most 40 characters");
    let help = "  esc: decline or cancel · enter: done · alt-enter: new line".to_owned();
    for (columns, rows) in [(30, 24), (22, 12), (60, 12), (80, 24), (41, 10), (120, 40)] {
        screen.resize(columns, rows);
        // The last line fits the new size.
        let foot = match help.chars().count() {
            short if short < columns.into() => help.clone(),
            _ => help
                .chars()
                .take(usize::from(columns) - 2)
                .chain(['…'])
                .collect(),
        };
        let text = screen.waits("prompt of the new size", |text| {
            text.lines().any(|line| line == foot)
        });
        let letters: String = text.split_whitespace().collect();
        let name: String = NAME.split_whitespace().collect();
        assert!(letters.contains(&name), "{text}");
        // The address of the server is complete at any size.
        assert!(
            letters.contains(&format!("askedby{}", server.url())),
            "{text}"
        );
        assert_eq!(times(&text, "? Your name"), 1, "{text}");
        assert_eq!(times(&text, "! takes at most"), 1, "{text}");
        assert_eq!(times(&text, "esc: "), 1, "{text}");
    }
    screen.press(&["C-w", "Enter"]);
    screen.sees("? email");
    screen.resize(50, 20);
    screen.press(&["Enter"]);
    screen.sees("? day");
    screen.press(&["C-c"]);
    screen.ends(130);
}

#[test]
fn long_list_scrolls() {
    let server = Asking::start();
    let screen = Screen::start(60, 10, &command(&server, "country", "{}"));
    screen.sees("1 to 6 of 200");
    screen.press(&["End"]);
    screen.sees("> Country 200");
    screen.resize(60, 20);
    screen.sees("185 to 200 of 200");
    screen.press(&["PPage"]);
    screen.sees("> Country 190");
    screen.resize(60, 6);
    screen.waits("the place in a small list", |text| {
        text.contains("> Country 190") && times(text, "? country") == 1
    });
    screen.types("country 07");
    screen.sees("> Country 070");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    assert!(screen.ends(0).contains("got {\"country\":\"Country 070\"}"));
}

#[test]
fn interrupt_ends_the_call_and_restores_the_terminal() {
    let server = Asking::start();
    for keys in [&["C-c"][..], &["Escape", "C-c"], &["Enter", "C-c"]] {
        let screen = call(&server, "colour");
        screen.sees("? colour");
        for key in keys {
            screen.press(&[key]);
        }
        screen.ends(130);
    }
}

#[test]
fn no_color_disables_colours() {
    let server = Asking::start();
    let program = format!("NO_COLOR=1 {}", command(&server, "colour", "{}"));
    let screen = Screen::start(80, 24, &program);
    screen.sees("> red");
    assert!(
        !screen.coloured().contains('\x1b'),
        "{:?}",
        screen.coloured()
    );
    screen.press(&["Down"]);
    screen.sees("> green");
    screen.press(&["C-c"]);
    screen.ends(130);
}

#[test]
fn dumb_terminal_has_line_prompts() {
    let server = Asking::start();
    let program = format!("TERM=dumb {}", command(&server, "table", "{}"));
    let screen = Screen::start(100, 60, &program);
    let line = |text: &str| {
        screen.types(text);
        screen.press(&["Enter"]);
    };
    screen.sees("? Your name (2 to 40 characters)");
    assert!(
        !screen.coloured().contains('\x1b'),
        "{:?}",
        screen.coloured()
    );
    line("A");
    screen.sees("! needs at least 2 characters");
    line("Ada");
    screen.sees("? email");
    line("");
    screen.sees("? day");
    line("2027-01-31");
    screen.sees("? guests");
    line("");
    screen.sees("? outside");
    line("3");
    screen.sees("! must be a number from 1 to 2");
    line("2");
    screen.sees("? seating");
    line("3");
    screen.sees("? extras");
    line("1 3");
    screen.sees("? note");
    line(":nothing");
    screen.sees("? Send it?");
    line("");
    let history = screen.ends(0).replace('\n', "");
    assert!(history.contains(
        r#"got {"name":"Ada","day":"2027-01-31","guests":2,"outside":false,"seating":"w","extras":["cake","music"]}"#
    ), "{history}");
}

#[test]
fn dumb_terminal_can_decline_and_cancel() {
    let server = Asking::start();
    for (word, outcome) in [(":decline", "got a no"), (":cancel", "got nothing")] {
        let program = format!("TERM=dumb {}", command(&server, "colour", "{}"));
        let screen = Screen::start(100, 30, &program);
        screen.sees("? colour");
        screen.types(word);
        screen.press(&["Enter"]);
        assert!(screen.ends(0).contains(outcome));
    }
}

#[test]
fn redirected_output_prompts_but_json_does_not() {
    let server = Asking::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("result");
    let program = format!("{} >'{}'", command(&server, "colour", "{}"), file.display());
    let screen = Screen::start(80, 24, &program);
    screen.sees("? colour");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    screen.ends(0);
    let result = std::fs::read_to_string(&file).expect("the result");
    assert_eq!(result, "got {\"colour\":\"red\"}\n");

    let program = format!("{} --json", command(&server, "colour", "{}"));
    let screen = Screen::start(80, 24, &program);
    let history = screen.ends(3);
    assert!(!history.contains("? colour"), "{history}");
}

#[test]
fn prompt_disappears_at_the_deadline() {
    let server = Asking::start();
    // On a busy machine the deadline may pass before the prompt is drawn: try again with more time.
    for seconds in [2, 8, 30] {
        let program = command(&server, "colour", "{}");
        let screen = Screen::start(80, 24, &format!("{program} --deadline {seconds}"));
        let seen = screen.waits("prompt and no end", |text| {
            text.contains("? colour") || text.contains("[ended with")
        });
        let history = screen.ends(4);
        assert!(!history.contains("? colour"), "{history}");
        if seen.contains("? colour") {
            return;
        }
    }
    panic!("the machine is too busy to draw a prompt");
}

#[test]
fn sigterm_restores_the_terminal() {
    let server = Asking::start();
    let program = format!(
        "sh -c 'echo pid $$; exec {}'",
        command(&server, "colour", "")
    );
    let program = program.replace(" ''", "");
    let screen = Screen::start(80, 24, &program);
    let seen = screen.sees("? colour");
    let pid = seen.split_whitespace().nth(1).expect("the process");
    let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    let signal = rustix::process::Signal::TERM;
    rustix::process::kill_process(pid.expect("a process"), signal).expect("a signal");
    screen.ends(130);
}

#[test]
fn call_interrupted_at_a_prompt_can_be_resumed() {
    let server = Asking::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("call");
    let program = format!(
        "{} --save '{}'",
        command(&server, "both", "{}"),
        file.display()
    );
    let screen = Screen::start(80, 40, &program);
    screen.sees("? first");
    screen.types("1");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    screen.sees("? second");
    screen.press(&["C-c"]);
    screen.ends(130);

    let program = env!("CARGO_BIN_EXE_refrain");
    let screen = Screen::start(80, 40, &format!("{program} resume '{}'", file.display()));
    screen.sees("? ");
    assert!(
        !screen.history().contains("? first"),
        "{}",
        screen.history()
    );
    screen.sees("? second");
    screen.types("2");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    assert!(
        history.contains(r#"got {"first":"1"} and {"second":"2"}"#),
        "{history}"
    );
}

#[test]
fn trace_is_held_back_during_a_prompt() {
    // The client polls the task while the prompt is shown.
    let (_serve, port) = Serve::start();
    let program = env!("CARGO_BIN_EXE_refrain");
    let url = format!("http://127.0.0.1:{port}/mcp");
    let program = format!("{program} call {url} echo_task --trace");
    let screen = Screen::start(100, 200, &program);
    screen.sees("? input");
    screen.types("once");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    let (before, rest) = history.split_once("The server at").expect("an ask");
    let (asked, after) = rest.split_once("input  once").expect("a review");
    assert!(
        before.contains("→ round 1  tools/call echo_task"),
        "{before}"
    );
    assert!(!asked.contains(['→', '←']), "{asked}");
    assert!(after.contains("→          tasks/update"), "{after}");
    assert!(after.contains("Echo: once"), "{after}");
}
