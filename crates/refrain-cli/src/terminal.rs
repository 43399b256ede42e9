//! A person at a terminal, who is asked what servers ask.
//!
//! What always holds: one ask is shown at a time; which server asks is shown with it; it can be declined or cancelled at
//! every prompt; a prompt goes away when nobody waits for its answer any more, and the terminal is as it was before. The
//! interrupt key interrupts the program, as it does elsewhere.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `form`, `url`, `sampling`, `roots`, `unknown` | how each kind of ask is put to a person |
//! | `asker` | who asks, and what they say |
//! | `console` | what a terminal can do: lists, boxes, text |
//! | `live`, `plain` | the two kinds of terminals |
//! | `text` | a server's text, made harmless |

mod asker;
mod console;
mod form;
mod live;
mod plain;
mod roots;
mod sampling;
mod style;
pub(crate) mod text;
mod unknown;
mod url;

use console::{Console, Left, Withdrawn};
use refrain_client::wire::{Root, SamplingAnswer};
use refrain_client::{
    Answer, FormAsk, HandlerError, Refused, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk,
};
use rustix::process::{Signal, getpid, kill_process};
use std::future::pending;
use std::io::{IsTerminal, stderr, stdin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use style::CAREFUL;
use text::Line;
use tokio::sync::Mutex;

/// How long a terminal has to be as it was before.
const RESTORE_TIME: Duration = Duration::from_secs(2);

/// The terminal of this process, with a person at it.
#[derive(Debug, Clone)]
pub(crate) struct Terminal {
    turn: Arc<Mutex<()>>,
}

/// Why a person gave no answer that could be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// They said no to something that has no answer for that.
    #[error("it was declined")]
    Declined,
    /// They turned away from something that has no answer for that.
    #[error("it was cancelled")]
    Cancelled,
    /// Nobody waits for the answer any more.
    #[error("nobody waits for the answer any more")]
    Withdrawn,
    /// The terminal failed.
    #[error("the terminal cannot be used: {0}")]
    Terminal(std::io::Error),
}

impl From<Left> for NoAnswer {
    fn from(left: Left) -> Self {
        match left {
            Left::Declined => Self::Declined,
            Left::Cancelled => Self::Cancelled,
            Left::Interrupted | Left::Withdrawn => Self::Withdrawn,
            Left::Failed(error) => Self::Terminal(error),
        }
    }
}

impl Terminal {
    /// The terminal, if there is one: asks are read from standard input and shown on standard error.
    pub(crate) fn here() -> Option<Self> {
        let is_here = stdin().is_terminal() && stderr().is_terminal();
        is_here.then(|| Self {
            turn: Arc::default(),
        })
    }

    /// Has a form filled in.
    pub(crate) async fn form(&self, ask: FormAsk) -> Result<Answer, HandlerError> {
        let filled = self.show(move |console| form::ask(console, &ask)).await;
        elicited(filled.map(Answer::Accept))
    }

    /// Has a URL visited.
    pub(crate) async fn url(&self, ask: UrlAsk) -> Result<Answer, HandlerError> {
        let visited = self.show(move |console| url::ask(console, &ask)).await;
        elicited(visited.map(|()| Answer::visited()))
    }

    /// Has something declined or cancelled that cannot be shown, or left open.
    pub(crate) async fn unknown(&self, ask: UnknownAsk) -> Result<Answer, HandlerError> {
        let why = ask.why.clone();
        let left = self.show(move |console| unknown::ask(console, &ask)).await;
        match left {
            Ok(()) => Err(why.into()),
            Err(left) => elicited(Err(left)),
        }
    }

    /// Has a question to a model answered by hand.
    pub(crate) async fn sampling(&self, ask: SamplingAsk) -> Result<SamplingAnswer, HandlerError> {
        let said = self.show(move |console| sampling::ask(console, &ask)).await;
        said.map_err(unanswered)
    }

    /// Asks whether these roots may be told, and gives them back if so.
    pub(crate) async fn roots(
        &self,
        ask: RootsAsk,
        roots: Vec<Root>,
    ) -> Result<Vec<Root>, HandlerError> {
        let told = self
            .show(move |console| roots::ask(console, &ask, &roots).map(|()| roots))
            .await;
        told.map_err(unanswered)
    }

    /// Shows something to the person as soon as nothing else is shown, and takes it away if this is dropped.
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

/// Puts something to the person. The terminal is as it was when this comes back.
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

/// Somebody who waits for an answer, until it is dropped. The program may end then, so that the terminal must be as it
/// was.
struct Waiting {
    withdrawn: Withdrawn,
    gone: Receiver<()>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.withdrawn.withdraw();
        // Nothing is sent: it ends with the other side, or takes too long.
        let _ = self.gone.recv_timeout(RESTORE_TIME);
    }
}

/// Does what the interrupt key does where nobody is asked. What comes of that is not decided here: this never comes back.
async fn interrupt() -> std::io::Result<()> {
    kill_process(getpid(), Signal::INT)?;
    pending().await
}

/// Why there is no answer to something that has none for a no. A no is for good: nobody is asked again.
fn unanswered(left: Left) -> HandlerError {
    match NoAnswer::from(left) {
        no @ NoAnswer::Declined => Refused(no.to_string()).into(),
        other => other.into(),
    }
}

/// The answer to a form or a URL, which a no can be.
fn elicited(answer: Result<Answer, Left>) -> Result<Answer, HandlerError> {
    match answer {
        Ok(answer) => Ok(answer),
        Err(Left::Declined) => Ok(Answer::Decline),
        Err(Left::Cancelled) => Ok(Answer::Cancel),
        Err(left) => Err(NoAnswer::from(left).into()),
    }
}
