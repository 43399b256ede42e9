//! Styles of text, for terminals with colours.

use anstyle::{AnsiColor, Style};

pub(crate) const PLAIN: Style = Style::new();
pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
/// The current place in a prompt.
pub(crate) const MARK: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const GIVEN: Style = AnsiColor::Green.on_default();
pub(crate) const CAREFUL: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const WRONG: Style = AnsiColor::Red.on_default();
