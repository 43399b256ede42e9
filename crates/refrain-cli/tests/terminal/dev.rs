//! `refrain dev` in a terminal, with a crate that starts the tools of the demo.

use crate::screen::Screen;
use std::fs;
use tempfile::TempDir;

/// A crate without dependencies, whose program is `refrain`.
fn demo_crate() -> TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    let manifest = "[package]\nname = \"tools\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    fs::write(folder.path().join("Cargo.toml"), manifest).expect("a manifest");
    fs::create_dir(folder.path().join("src")).expect("a directory");
    let main = format!(
        "fn main() {{
            use std::os::unix::process::CommandExt;
            let mut program = std::process::Command::new({:?});
            panic!(\"{{}}\", program.args(std::env::args().skip(1)).exec());
        }}",
        env!("CARGO_BIN_EXE_refrain")
    );
    fs::write(folder.path().join("src/main.rs"), main).expect("a source");
    folder
}

#[test]
fn tools_are_called_from_a_menu_while_the_crate_changes() {
    let folder = demo_crate();
    let program = format!(
        "cd '{}' && env -u CARGO_TARGET_DIR REFRAIN_STORE=memory: {} dev",
        folder.path().display(),
        env!("CARGO_BIN_EXE_refrain")
    );
    let screen = Screen::start(100, 60, &program);
    let seen = screen.sees("? Which tool shall I call?");
    assert!(
        !seen.contains("asked by") && !seen.contains("esc:"),
        "{seen}"
    );
    screen.press(&["Escape"]);
    screen.types("get_weather");
    screen.sees("> get_weather  ");
    screen.press(&["Enter"]);
    // The prompt for an argument of the tool: no server asks for it.
    let seen = screen.sees("? location");
    assert!(!seen.contains("asked by"), "{seen}");
    screen.sees("esc: back to the menu");
    screen.press(&["Escape"]);
    screen.sees("? Which tool shall I call?");
    screen.press(&["Enter"]);
    screen.sees("? location");
    screen.types("Oslo");
    screen.press(&["Enter"]);
    let seen = screen.sees("? Send it?");
    assert!(seen.contains("    Back to the menu"), "{seen}");
    assert!(!seen.contains("Decline"), "{seen}");
    screen.press(&["Enter"]);
    // The question of the tool.
    screen.sees("Please provide your GitHub username");
    screen.types("octocat");
    screen.press(&["Enter"]);
    screen.sees("name  octocat");
    screen.press(&["Enter"]);
    screen.sees("Current weather in Oslo");
    screen.sees("? Which tool shall I call?");

    // A build that fails is shown above the menu, which still works.
    let main = folder.path().join("src/main.rs");
    let text = fs::read_to_string(&main).expect("a source");
    fs::write(&main, format!("{text}\nfn broken(")).expect("a source");
    screen.sees("the previous server keeps running");
    let seen = screen.sees("? Which tool shall I call?");
    assert!(seen.contains("could not compile `tools`"), "{seen}");
    screen.press(&["C-c"]);
    screen.ends(0);
}
