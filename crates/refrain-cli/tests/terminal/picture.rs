//! The picture in the README: screens of a real call, one below the other.

use crate::screen::Screen;
use crate::serve::Serve;
use anstyle_svg::Term;
use std::path::Path;

/// Writes the picture instead of comparing it.
const WRITE: &str = "REFRAIN_WRITE_PICTURE";

/// The screen without the empty rows at the end.
fn lines(screen: &Screen) -> Vec<String> {
    let seen = screen.coloured();
    let seen = seen.trim_end();
    seen.lines().map(str::to_owned).collect()
}

/// The escape sequences in a text.
fn styles(text: &str) -> String {
    let parts = text.split('\x1b').skip(1);
    parts
        .filter_map(|part| Some(format!("\x1b{}m", part.split_once('m')?.0)))
        .collect()
}

/// The screens one below the other, without the lines that the one before has.
fn joined(moments: &[Vec<String>]) -> String {
    let mut picture = String::new();
    let mut before: &[String] = &[];
    for moment in moments {
        let same = moment
            .iter()
            .zip(before)
            .take_while(|(a, b)| a == b)
            .count();
        let (seen, new) = moment.split_at(same);
        picture.push_str("\x1b[0m");
        picture.push_str(&styles(&seen.concat()));
        picture.push_str(&new.join("\n"));
        picture.push('\n');
        before = moment;
    }
    picture
}

#[test]
fn picture_matches_a_real_call() {
    let (_serve, port) = Serve::start();
    let program = Path::new(env!("CARGO_BIN_EXE_refrain"));
    let dir = program.parent().expect("a directory").display();
    let shell = format!("PATH='{dir}':\"$PATH\" PS1='$ ' sh -i");
    let screen = Screen::start(97, 60, &shell);
    screen.sees("$");
    let call = format!("refrain call http://127.0.0.1:{port}/mcp update_work_item \\");
    screen.types(&call);
    screen.press(&["Enter"]);
    screen.sees("\n>");
    screen.types("    workItemId=4522 fields='{\"System.State\": \"Resolved\"}'");
    screen.press(&["Enter"]);
    screen.sees("? resolution");
    screen.press(&["Down", "Down"]);
    screen.sees("> Duplicate");
    let mut moments = vec![lines(&screen)];
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    moments.push(lines(&screen));
    screen.press(&["Enter"]);
    screen.sees("? duplicateOfId");
    screen.types("4301");
    screen.sees("> 4301");
    moments.push(lines(&screen));
    screen.press(&["Enter"]);
    screen.sees("? Send it?");
    screen.press(&["Enter"]);
    screen.waits("the shell's next prompt", |text| {
        text.trim_end().ends_with("\n$")
    });
    moments.push(lines(&screen));

    // Replace the random port.
    let seen = joined(&moments).replace(&format!("127.0.0.1:{port}"), "127.0.0.1:8080");
    let picture = Term::new().render_svg(seen.trim_end());
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/call.svg");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(file, &picture).expect("the picture can be written");
    }
    let kept = std::fs::read_to_string(file).expect("the picture is in docs");
    assert!(
        kept == picture,
        "docs/images/call.svg differs; scripts/picture recreates it from:\n{seen}"
    );
}
