//! Prompts at the terminal: the asks of servers, and the tool menu of `refrain dev`.
//!
//! One ask is shown at a time, with the address of the server. The user can decline or cancel it. A
//! prompt whose answer is no longer needed disappears, and the terminal is restored. Ctrl-C
//! interrupts the program.
//!
//! | module | contents |
//! | --- | --- |
//! | `form`, `url`, `other_asks` | the dialog for each kind of ask |
//! | `tool_menu` | a menu of tools, and prompts for arguments |
//! | `asker` | the introduction of the server, quoted text, menus |
//! | `console` | the operations of a terminal: lists, check boxes, text input |
//! | `interactive`, `plain` | the two kinds of terminals |
//! | `display_text` | sanitized text and styled lines |

mod asker;
mod console;
pub(crate) mod display_text;
mod form;
mod interactive;
mod other_asks;
mod plain;
mod tool_menu;
pub(crate) mod url;

pub(crate) use form::expectations;

use crate::style::WARNING;
use console::{Console, PromptError, Withdrawal};
use display_text::StyledLine;
use refrain_client::wire::Root;
use refrain_client::{AskAnswer, AskRefusal, HandlerError, IncomingAsk};
use rustix::process::{Signal, getpid, kill_process};
use std::future::pending;
use std::io::{IsTerminal, stderr, stdin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tokio::sync::Mutex;

/// How long a withdrawn dialog may take to restore the terminal.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Terminal {
    /// Held while a dialog is shown.
    lock: Arc<Mutex<()>>,
}

impl Terminal {
    /// The terminal, if standard input and standard error are one.
    pub(crate) fn detect() -> Option<Self> {
        let is_terminal = stdin().is_terminal() && stderr().is_terminal();
        is_terminal.then(|| Self {
            lock: Arc::default(),
        })
    }

    /// Prompts for the answer to an ask. `roots` are offered to a server that asks for roots.
    pub(crate) async fn answer(
        &self,
        ask: IncomingAsk,
        roots: Vec<Root>,
    ) -> Result<AskAnswer, HandlerError> {
        let can_decline = matches!(
            ask,
            IncomingAsk::Form(_) | IncomingAsk::Url(_) | IncomingAsk::Unknown(_)
        );
        let why = match &ask {
            IncomingAsk::Unknown(ask) => ask.why.clone(),
            _ => "this kind of ask is not supported".to_owned(),
        };
        let show = move |console: &mut dyn Console| {
            Ok(Some(match &ask {
                IncomingAsk::Form(ask) => AskAnswer::Accept(form::ask(console, ask)?),
                IncomingAsk::Url(ask) => url::ask(console, ask).map(|()| AskAnswer::visited())?,
                IncomingAsk::Sampling(ask) => {
                    AskAnswer::Sampled(Box::new(other_asks::sampling(console, ask)?))
                }
                IncomingAsk::Roots(ask) => {
                    other_asks::roots(console, ask, &roots)?;
                    AskAnswer::Roots(roots)
                }
                IncomingAsk::Unknown(ask) => {
                    return other_asks::unknown(console, ask).map(|()| None);
                }
                _ => return Ok(None),
            }))
        };
        match self.show(show).await {
            Ok(answer) => answer.ok_or_else(|| why.into()),
            Err(PromptError::Declined) if can_decline => Ok(AskAnswer::Decline),
            Err(PromptError::Cancelled) if can_decline => Ok(AskAnswer::Cancel),
            // The protocol has no message for declining this kind of ask.
            Err(error @ PromptError::Declined) => Err(AskRefusal(error.to_string()).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Shows a dialog as soon as no other is shown. Dropping the future removes the dialog.
    async fn show<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut dyn Console) -> Result<T, PromptError> + Send + 'static,
    ) -> Result<T, PromptError> {
        let lock = Arc::clone(&self.lock).lock_owned().await;
        let (running, ended) = channel::<()>();
        let withdrawn = Withdrawal::default();
        let guard = DialogGuard {
            withdrawn: withdrawn.clone(),
            ended,
        };
        let shown = tokio::task::spawn_blocking(move || {
            let _until_restored = running;
            (run_dialog(withdrawn, ask), lock)
        });
        let (answer, lock) = match shown.await {
            Ok(shown) => shown,
            Err(panic) => return Err(PromptError::Failed(std::io::Error::other(panic))),
        };
        drop(guard);
        if matches!(answer, Err(PromptError::Interrupted)) {
            interrupt().await?;
        }
        drop(lock);
        answer
    }
}

/// Runs a dialog, and restores the terminal.
fn run_dialog<T>(
    withdrawn: Withdrawal,
    ask: impl FnOnce(&mut dyn Console) -> Result<T, PromptError>,
) -> Result<T, PromptError> {
    let mut console = console::open(withdrawn)?;
    let answer = ask(&mut *console);
    match &answer {
        Err(PromptError::Declined) => console.say(&StyledLine::styled(WARNING, "Declined."))?,
        Err(PromptError::Cancelled) => console.say(&StyledLine::styled(WARNING, "Cancelled."))?,
        _ => {}
    }
    console.say(&StyledLine::default())?;
    answer
}

/// Withdraws the dialog on drop, and waits until the terminal is restored, because the program may exit right after.
struct DialogGuard {
    withdrawn: Withdrawal,
    /// Disconnected when the dialog has ended.
    ended: Receiver<()>,
}

impl Drop for DialogGuard {
    fn drop(&mut self) {
        self.withdrawn.withdraw();
        let _ = self.ended.recv_timeout(RESTORE_TIMEOUT);
    }
}

/// Interrupts this process, as Ctrl-C does outside of a dialog. Returns only if that fails.
async fn interrupt() -> std::io::Result<()> {
    kill_process(getpid(), Signal::INT)?;
    pending().await
}
