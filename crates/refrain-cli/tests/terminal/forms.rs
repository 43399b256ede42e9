//! Forms: filled in, corrected, reviewed, changed, declined and cancelled.

use crate::asking::Asking;
use crate::screen::Screen;
use crate::{call, command};

#[test]
fn form_is_filled_in_reviewed_and_sent() {
    let server = Asking::start();
    let screen = call(&server, "table");
    let seen = screen.sees("? Your name");
    assert!(seen.contains(&format!("The server at {}", server.url())));
    assert!(seen.contains("asks you to fill in a form, for the tool table:"));
    assert!(seen.contains("│ Please book a table"));
    assert!(seen.contains("2 to 40 characters"));
    assert!(seen.contains("esc: decline or cancel"));
    screen.types("Ada Lovelace");
    screen.press(&["Enter"]);
    screen.sees("? email");
    screen.press(&["Enter"]);
    let seen = screen.sees("? day");
    assert!(seen.contains("email: (left out)"));
    assert!(seen.contains("│ The day you will come"));
    assert!(seen.contains("a date, as in 2026-07-28"));
    screen.types("2027-01-31");
    screen.press(&["Enter"]);
    screen.sees("? guests");
    screen.sees("> 2");
    screen.press(&["BSpace", "5", "Enter"]);
    screen.sees("? outside");
    screen.sees("> Yes");
    screen.press(&["Enter"]);
    screen.sees("? seating");
    let seen = screen.sees("> (leave it out)");
    assert!(seen.contains("  By the window (w)"));
    screen.press(&["Down", "Down", "Enter"]);
    let seen = screen.sees("? extras");
    assert!(seen.contains("> [ ] cake"));
    assert!(seen.contains("1 to 2 choices"));
    screen.press(&["Space", "Down", "Down", "Space"]);
    screen.sees("> [x] music");
    screen.press(&["Enter"]);
    screen.sees("> none");
    screen.press(&["C-u", "Enter"]);
    let seen = screen.sees("? Send it?");
    let review = seen
        .split_once("This would be sent to")
        .expect("a review")
        .1;
    assert!(review.starts_with(&format!(" {}", server.url())));
    for line in [
        "  Your name  Ada Lovelace",
        "  email      (left out)",
        "  day        2027-01-31",
        "  guests     5",
        "  outside    Yes",
        "  seating    By the window (w)",
        "  extras     cake, music",
        "  note       (left out)",
    ] {
        assert!(review.contains(line), "no {line:?} in {review}");
    }
    screen.press(&["Enter"]);
    let history = screen.ends(0).replace('\n', "");
    assert!(history.contains(
        r#"got {"name":"Ada Lovelace","day":"2027-01-31","guests":5,"outside":true,"seating":"w","extras":["cake","music"]}"#
    ), "{history}");
}

#[test]
fn invalid_input_is_reported_at_once() {
    let server = Asking::start();
    let screen = call(&server, "table");
    screen.sees("? Your name");
    screen.press(&["Enter"]);
    screen.sees("! needs at least 2 characters");
    screen.types("A");
    screen.waits("no message once something is typed", |text| {
        text.contains("> A") && !text.contains("! needs")
    });
    screen.press(&["Enter"]);
    screen.sees("! needs at least 2 characters");
    screen.types("da");
    screen.press(&["Enter"]);
    screen.sees("? email");
    screen.types("ada.example");
    screen.press(&["Enter"]);
    screen.sees("! must have the format email");
    screen.press(&["C-u"]);
    screen.types("ada@example.com");
    screen.press(&["Enter"]);
    screen.sees("? day");
    screen.types("2027-02-30");
    screen.press(&["Enter"]);
    screen.sees("! must have the format date");
    screen.press(&["BSpace", "BSpace", "2", "8", "Enter"]);
    screen.sees("? guests");
    screen.press(&["C-u"]);
    screen.types("many");
    screen.press(&["Enter"]);
    screen.sees("! must be a whole number");
    screen.press(&["C-u", "9", "Enter"]);
    screen.sees("! must be at most 8");
    screen.press(&["BSpace", "1", ".", "5", "Enter"]);
    screen.sees("! must be a whole number");
    screen.press(&["BSpace", "BSpace", "Enter"]);
    screen.sees("? outside");
    screen.press(&["Down", "Enter"]);
    screen.sees("? seating");
    screen.press(&["Enter"]);
    screen.sees("? extras");
    screen.press(&["Enter"]);
    screen.sees("! needs at least 1 choice");
    screen.press(&["Space", "Down", "Space", "Down", "Space", "Enter"]);
    screen.sees("! takes at most 2 choices");
    screen.press(&["Space", "Enter"]);
    screen.sees("? note");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    let history = screen.ends(0).replace('\n', "");
    assert!(history.contains(
        r#"got {"name":"Ada","email":"ada@example.com","day":"2027-02-28","guests":1,"outside":false,"extras":["cake","candles"],"note":"none"}"#
    ), "{history}");
}

#[test]
fn empty_text_of_a_required_field_must_be_typed() {
    let server = Asking::start();
    for terminal in ["", "TERM=dumb "] {
        let program = format!("{terminal}{}", command(&server, "both", "{}"));
        let screen = Screen::start(80, 40, &program);
        screen.sees("? first");
        screen.press(&["Enter"]);
        screen.sees("! is required; type \"\" to send an empty text");
        screen.types("\"\"");
        screen.press(&["Enter"]);
        screen.sees("first  (empty)");
        screen.press(&["Enter"]);
        screen.sees("? second");
        screen.types("two");
        screen.press(&["Enter"]);
        screen.sees("second  two");
        screen.press(&["Enter"]);
        let history = screen.ends(0).replace('\n', "");
        assert!(
            history.contains(r#"got {"first":""} and {"second":"two"}"#),
            "{history}"
        );
    }
}

#[test]
fn field_can_be_changed_before_sending() {
    let server = Asking::start();
    let screen = call(&server, "both");
    screen.sees("? first");
    screen.types("one");
    screen.press(&["Enter"]);
    screen.sees("first  one");
    screen.press(&["Down", "Enter"]);
    // The input can be edited.
    screen.sees("> one");
    screen.types(" and a half");
    screen.press(&["Enter"]);
    screen.sees("first  one and a half");
    screen.press(&["Enter"]);
    screen.sees("? second");
    screen.types("two");
    screen.press(&["Enter"]);
    screen.sees("second  two");
    screen.press(&["Enter"]);
    let history = screen.ends(0).replace('\n', "");
    assert!(
        history.contains(r#"got {"first":"one and a half"} and {"second":"two"}"#),
        "{history}"
    );
}

#[test]
fn one_of_several_fields_can_be_changed_before_sending() {
    let server = Asking::start();
    // Its last field has a default value, which is edited twice.
    let screen = call(&server, "hostile");
    screen.sees("enter: done");
    screen.types("a");
    screen.press(&["Enter"]);
    screen.sees("enter: choose");
    screen.press(&["Enter"]);
    screen.sees("? c");
    screen.press(&["C-u"]);
    screen.types("wrong");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.types("ch");
    screen.sees("> Change");
    screen.press(&["Enter"]);
    screen.sees("? Change which field?");
    screen.press(&["End", "Enter"]);
    screen.sees("> wrong");
    screen.press(&["C-w"]);
    screen.types("right");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    assert!(history.contains(r#""c":"right""#), "{history}");
}

#[test]
fn form_can_be_declined_at_any_prompt() {
    let server = Asking::start();
    let screen = call(&server, "table");
    screen.sees("? Your name");
    screen.press(&["Escape"]);
    screen.sees("? Leave this question? (Your name)");
    screen.press(&["Down", "Enter"]);
    let history = screen.ends(0);
    assert!(
        history.contains("Declined.") && history.contains("got a no"),
        "{history}"
    );
}

#[test]
fn form_can_be_cancelled_at_any_prompt() {
    let server = Asking::start();
    let screen = call(&server, "colour");
    screen.sees("? colour");
    screen.press(&["Escape"]);
    screen.sees("? Leave this question?");
    screen.press(&["Up", "Enter"]);
    let history = screen.ends(0);
    assert!(
        history.contains("Cancelled.") && history.contains("got nothing"),
        "{history}"
    );
}

#[test]
fn completed_form_can_be_declined_or_cancelled() {
    let server = Asking::start();
    for (choice, outcome) in [("Decline", "got a no"), ("Cancel", "got nothing")] {
        let screen = call(&server, "colour");
        screen.sees("? colour");
        screen.press(&["Enter"]);
        screen.sees("? Send it?");
        screen.types(choice);
        screen.sees(&format!("> {choice}"));
        screen.press(&["Enter"]);
        let history = screen.ends(0);
        assert!(history.contains(outcome), "{history}");
    }
}

#[test]
fn prompt_keeps_its_input_if_it_is_not_left() {
    let server = Asking::start();
    let screen = call(&server, "table");
    screen.sees("? Your name");
    screen.types("Ada");
    screen.sees("> Ada");
    for key in ["Enter", "Escape"] {
        screen.press(&["Escape"]);
        screen.sees("? Leave this question?");
        screen.press(&[key]);
        screen.sees("> Ada");
    }
    screen.press(&["C-c"]);
    screen.ends(130);
}

#[test]
fn yes_is_never_preselected() {
    let server = Asking::start();
    let screen = call(&server, "consent");
    screen.sees("> No");
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    let history = screen.ends(0);
    assert!(history.contains(r#"got {"agree":false}"#), "{history}");
}

#[test]
fn text_can_have_several_lines_and_be_pasted() {
    let server = Asking::start();
    let screen = call(&server, "both");
    screen.sees("? first");
    screen.types("a");
    screen.press(&["M-Enter"]);
    screen.types("b");
    screen.press(&["C-j"]);
    screen.pastes("c\nd\n");
    screen.waits("four lines", |text| {
        text.contains("> a\n    b\n    c\n    d\n")
    });
    screen.press(&["Enter"]);
    screen.sees("first  a␊b␊c␊d");
    screen.press(&["C-c"]);
    screen.ends(130);
}
