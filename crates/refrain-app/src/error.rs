//! Errors of commands, printed as `error: …` and `hint: …` lines.

use anstyle::{AnsiColor, Style};
use clap::error::{ContextKind, ContextValue};
use refrain_wire::similar_names;
use std::fmt::{Display, Write};
use std::path::Path;

/// The error of a command: a message for the person who ran it, and lines of `hint: …` that say what to do.
pub type AppError = Box<dyn std::error::Error + Send + Sync>;

/// An error with a hint.
pub fn with_hint(message: impl Display, hint: impl Display) -> AppError {
    format!("{message}\nhint: {hint}").into()
}

/// Removes clap's tip that "a similar argument exists" if the name of that flag is not similar, and the usage with that flag.
pub fn remove_distant_tip(error: &mut clap::Error) {
    let name = |kind| match error.get(kind) {
        Some(ContextValue::String(name)) => Some(name.trim_start_matches('-')),
        _ => None,
    };
    if let (Some(unknown), Some(tip)) = (
        name(ContextKind::InvalidArg),
        name(ContextKind::SuggestedArg),
    ) && similar_names(unknown, [tip]).is_empty()
    {
        let tip = format!("--{tip} ");
        if let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage)
            && usage.to_string().contains(&tip)
        {
            error.remove(ContextKind::Usage);
        }
        error.remove(ContextKind::SuggestedArg);
    }
}

/// The name of the executable.
pub(crate) fn program() -> String {
    let executable = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&executable).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Prints a message to standard error as `error: …`, with its labels (`error:`, `note:`, `hint:`) in colour.
pub fn print_error(message: &str) {
    const LABELS: [(&str, AnsiColor); 3] = [
        ("error:", AnsiColor::Red),
        ("note:", AnsiColor::Green),
        ("hint:", AnsiColor::Cyan),
    ];
    let mut text = String::new();
    for line in format!("error: {message}").lines() {
        let label = LABELS.iter().find(|(label, _)| line.starts_with(label));
        let (label, style) = label.map_or(("", Style::new()), |(label, colour)| {
            (*label, colour.on_default().bold())
        });
        // Writing to a string does not fail.
        let _ = writeln!(text, "{style}{label}{style:#}{}", &line[label.len()..]);
    }
    anstream::eprint!("{text}");
}
