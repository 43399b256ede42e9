//! How things look where there are colours.

use anstyle::{AnsiColor, Style};

/// What the eye should find first.
pub(super) const STRONG: Style = Style::new().bold();
/// What explains.
pub(super) const DIM: Style = Style::new().dimmed();
/// Where the person is.
pub(super) const MARK: Style = AnsiColor::Cyan.on_default().bold();
/// What was answered.
pub(super) const GIVEN: Style = AnsiColor::Green.on_default();
/// What should make one careful.
pub(super) const CAREFUL: Style = AnsiColor::Yellow.on_default().bold();
/// What is wrong.
pub(super) const WRONG: Style = AnsiColor::Red.on_default();
