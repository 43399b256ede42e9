//! Prompts: the real program in a real terminal.

mod asking;
mod asks;
mod dev;
mod forms;
mod picture;
mod screen;
mod serve;
mod terminals;

use asking::Asking;
use screen::Screen;

/// Calls a tool in a terminal of the usual size.
fn call(server: &Asking, tool: &str) -> Screen {
    Screen::start(80, 24, &command(server, tool, "{}"))
}

/// The command of a call.
fn command(server: &Asking, tool: &str, arguments: &str) -> String {
    let program = env!("CARGO_BIN_EXE_refrain");
    format!("{program} call {} {tool} '{arguments}'", server.url())
}
