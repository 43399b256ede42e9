//! Something that cannot be shown: it can be declined, cancelled or left open.

use super::asker::{CANCEL, DECLINE, introduce, question, quote};
use super::console::{Console, Left};
use refrain_client::UnknownAsk;

const LEAVE: &str = "Leave it open: the call stops here";

/// Has an ask declined or cancelled, or left open.
pub(super) fn ask(console: &mut dyn Console, ask: &UnknownAsk) -> Result<(), Left> {
    introduce(
        console,
        &ask.asker,
        "asks you something that cannot be shown here",
    )?;
    quote(console, &ask.why)?;
    let choices = [LEAVE, DECLINE, CANCEL].map(str::to_owned);
    let left = question(&ask.asker, "What is to be done with it?", "");
    match console.choose(&left, &choices, Some(0))? {
        0 => Ok(()),
        1 => Err(Left::Declined),
        _ => Err(Left::Cancelled),
    }
}
