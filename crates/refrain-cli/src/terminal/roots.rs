//! A question for the roots: a person sees what would be told, and says whether it is.

use super::asker::{CANCEL, DECLINE, hanging, introduce, question};
use super::console::{Console, Left};
use super::style::{DIM, GIVEN};
use super::text::{Line, one_line};
use refrain_client::RootsAsk;
use refrain_client::wire::Root;

/// Asks whether these roots may be told.
pub(super) fn ask(console: &mut dyn Console, ask: &RootsAsk, roots: &[Root]) -> Result<(), Left> {
    introduce(console, &ask.asker, "asks which directories it may work in")?;
    if roots.is_empty() {
        console.say(&Line::styled(
            DIM,
            "  It would be told that there are none.",
        ))?;
    } else {
        console.say(&Line::plain("  It would be told:"))?;
    }
    for root in roots {
        hanging(console, "    ", GIVEN, &one_line(&root.uri))?;
    }
    let tell = question(&ask.asker, "Tell it?", "");
    let choices = ["Tell it", DECLINE, CANCEL].map(str::to_owned);
    match console.choose(&tell, &choices, 0)? {
        0 => Ok(()),
        1 => Err(Left::Declined),
        _ => Err(Left::Cancelled),
    }
}
