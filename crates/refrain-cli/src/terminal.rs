//! Asks of servers, put to a person at the terminal.
//!
//! One ask is shown at a time, with the server that asks. It can be declined or cancelled at every prompt. When the answer
//! is not awaited any more the prompt goes away, and the terminal is as it was before. The interrupt key interrupts the
//! program.
//!
//! | module | contents |
//! | --- | --- |
//! | `form`, `url`, `others` | the dialog for each kind of ask |
//! | `asker` | the introduction of the server, quoted text, menus |
//! | `console` | operations of a terminal: lists, boxes, text |
//! | `live`, `plain` | the two kinds of terminals |
//! | `text` | sanitized text and styled lines |

mod asker;
mod console;
mod form;
mod live;
mod others;
mod plain;
pub(crate) mod text;
pub(crate) mod url;

pub(crate) use form::{format_name, limits, number_name};

use crate::style::CAREFUL;
use console::{Console, Left, Withdrawn};
use refrain_client::wire::Root;
use refrain_client::{AskAnswer, AskRefusal, HandlerError, IncomingAsk};
use rustix::process::{Signal, getpid, kill_process};
use std::future::pending;
use std::io::{IsTerminal, stderr, stdin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use text::Line;
use tokio::sync::Mutex;

const RESTORE_TIME: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Terminal {
    turn: Arc<Mutex<()>>,
}

impl Terminal {
    /// The terminal, if there is one: asks are read from standard input and shown on standard error.
    pub(crate) fn here() -> Option<Self> {
        let is_here = stdin().is_terminal() && stderr().is_terminal();
        is_here.then(|| Self {
            turn: Arc::default(),
        })
    }

    /// Puts an ask to the person. `roots` are offered to a server that asks for roots.
    pub(crate) async fn answer(
        &self,
        ask: IncomingAsk,
        roots: Vec<Root>,
    ) -> Result<AskAnswer, HandlerError> {
        let has_no = matches!(
            ask,
            IncomingAsk::Form(_) | IncomingAsk::Url(_) | IncomingAsk::Unknown(_)
        );
        let why = match &ask {
            IncomingAsk::Unknown(ask) => ask.why.clone(),
            _ => "this kind of ask cannot be shown".to_owned(),
        };
        let show = move |console: &mut dyn Console| {
            Ok(Some(match &ask {
                IncomingAsk::Form(ask) => AskAnswer::Accept(form::ask(console, ask)?),
                IncomingAsk::Url(ask) => url::ask(console, ask).map(|()| AskAnswer::visited())?,
                IncomingAsk::Sampling(ask) => {
                    AskAnswer::Sampled(Box::new(others::sampling(console, ask)?))
                }
                IncomingAsk::Roots(ask) => {
                    others::roots(console, ask, &roots)?;
                    AskAnswer::Roots(roots)
                }
                IncomingAsk::Unknown(ask) => return others::unknown(console, ask).map(|()| None),
                _ => return Ok(None),
            }))
        };
        match self.show(show).await {
            Ok(answer) => answer.ok_or_else(|| why.into()),
            Err(Left::Declined) if has_no => Ok(AskAnswer::Decline),
            Err(Left::Cancelled) if has_no => Ok(AskAnswer::Cancel),
            // The protocol has no answer for this no, and the person is not asked again.
            Err(left @ Left::Declined) => Err(AskRefusal(left.to_string()).into()),
            Err(left) => Err(left.into()),
        }
    }

    /// Shows a dialog as soon as no other is shown, and takes it away if this future is dropped.
    async fn show<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut dyn Console) -> Result<T, Left> + Send + 'static,
    ) -> Result<T, Left> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let (shows, gone) = channel::<()>();
        let withdrawn = Withdrawn::default();
        let waiting = Waiting {
            withdrawn: withdrawn.clone(),
            gone,
        };
        let shown = tokio::task::spawn_blocking(move || {
            let _until_restored = shows;
            (put(withdrawn, ask), turn)
        });
        let (answer, turn) = match shown.await {
            Ok(shown) => shown,
            Err(panic) => return Err(Left::Failed(std::io::Error::other(panic))),
        };
        drop(waiting);
        if matches!(answer, Err(Left::Interrupted)) {
            interrupt().await?;
        }
        drop(turn);
        answer
    }
}

/// Runs a dialog. The terminal is restored when this returns.
fn put<T>(
    withdrawn: Withdrawn,
    ask: impl FnOnce(&mut dyn Console) -> Result<T, Left>,
) -> Result<T, Left> {
    let mut console = console::open(withdrawn)?;
    let answer = ask(&mut *console);
    match &answer {
        Err(Left::Declined) => console.say(&Line::styled(CAREFUL, "Declined."))?,
        Err(Left::Cancelled) => console.say(&Line::styled(CAREFUL, "Cancelled."))?,
        _ => {}
    }
    console.say(&Line::default())?;
    answer
}

/// Withdraws the dialog when dropped, and waits until the terminal is restored: the program may end then.
struct Waiting {
    withdrawn: Withdrawn,
    gone: Receiver<()>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.withdrawn.withdraw();
        // Nothing is sent: this ends when the sender is dropped, or with the timeout.
        let _ = self.gone.recv_timeout(RESTORE_TIME);
    }
}

/// Sends the interrupt signal to this process, as the key does outside of a dialog, and never returns.
async fn interrupt() -> std::io::Result<()> {
    kill_process(getpid(), Signal::INT)?;
    pending().await
}
