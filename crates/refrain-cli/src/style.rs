//! Styles of text, for terminals with colours.

use anstyle::{AnsiColor, Style};

pub(crate) const PLAIN: Style = Style::new();
pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
/// The current place in a prompt.
pub(crate) const MARK: Style = AnsiColor::Cyan.on_default().bold();
/// An answer.
pub(crate) const GIVEN: Style = AnsiColor::Green.on_default();
/// A warning.
pub(crate) const CAREFUL: Style = AnsiColor::Yellow.on_default().bold();
/// An error.
pub(crate) const WRONG: Style = AnsiColor::Red.on_default();
