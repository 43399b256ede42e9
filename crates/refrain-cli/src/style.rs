//! Text styles for terminals.

use anstyle::{AnsiColor, Style};

pub(crate) const PLAIN: Style = Style::new();
pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const MARK: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const VALUE: Style = AnsiColor::Green.on_default();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const INVALID: Style = AnsiColor::Red.on_default();
