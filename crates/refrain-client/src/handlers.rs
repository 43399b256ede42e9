//! Who answers what is asked.

use crate::ask::{Answer, Ask, FormAsk, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use refrain_wire::{AskKind, Root, SamplingAnswer};
use std::error::Error;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Why a handler has no answer. The ask stays open, and the call can be taken up again.
pub type HandlerError = Box<dyn Error + Send + Sync>;

type Handler<A, R> = Arc<dyn Fn(A) -> BoxFuture<'static, Result<R, HandlerError>> + Send + Sync>;

/// The handlers of a client.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    pub(crate) form: Option<Handler<FormAsk, Answer>>,
    pub(crate) url: Option<Handler<UrlAsk, Answer>>,
    pub(crate) sampling: Option<Handler<SamplingAsk, SamplingAnswer>>,
    pub(crate) roots: Option<Handler<RootsAsk, Vec<Root>>>,
    pub(crate) unknown: Option<Handler<UnknownAsk, Answer>>,
}

impl Handlers {
    /// Whether there is a handler for asks of this kind.
    pub(crate) fn has(&self, kind: AskKind) -> bool {
        match kind {
            AskKind::Form => self.form.is_some(),
            AskKind::Url => self.url.is_some(),
            AskKind::Sampling => self.sampling.is_some(),
            AskKind::Roots => self.roots.is_some(),
        }
    }

    /// Has an ask answered. If that is not possible, says why. A handler that panics has no answer, like one that fails:
    /// neither the call nor the other answers are lost with it.
    pub(crate) async fn answer(&self, ask: &Ask) -> Result<Answer, NoAnswer> {
        let answered = AssertUnwindSafe(self.handle(ask)).catch_unwind().await;
        answered.unwrap_or_else(|_| Err(NoAnswer::later("its handler panicked")))
    }

    async fn handle(&self, ask: &Ask) -> Result<Answer, NoAnswer> {
        let answer = match ask {
            Ask::Form(ask) => match &self.form {
                Some(handle) => handle(ask.clone()).await,
                None => return Err(NoAnswer::nobody(AskKind::Form)),
            },
            Ask::Url(ask) => match &self.url {
                Some(handle) => handle(ask.clone()).await,
                None => return Err(NoAnswer::nobody(AskKind::Url)),
            },
            Ask::Sampling(ask) => match &self.sampling {
                Some(handle) => handle((**ask).clone())
                    .await
                    .map(|answer| Answer::Sampled(Box::new(answer))),
                None => return Err(NoAnswer::nobody(AskKind::Sampling)),
            },
            Ask::Roots(ask) => match &self.roots {
                Some(handle) => handle(ask.clone()).await.map(Answer::Roots),
                None => return Err(NoAnswer::nobody(AskKind::Roots)),
            },
            Ask::Unknown(ask) => match &self.unknown {
                Some(handle) if ask.can_decline => handle(ask.clone()).await,
                _ => {
                    return Err(NoAnswer {
                        why: ask.why.clone(),
                        is_final: true,
                    });
                }
            },
        };
        answer.map_err(|error| NoAnswer {
            is_final: error.is::<Refused>(),
            why: error.to_string(),
        })
    }
}

/// What a handler says when there will be no answer, now or later: the person said no to the use of a model, say.
///
/// A call that has become a task is called off then; any other error of a handler leaves it waiting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Why an ask has no answer.
#[derive(Debug)]
pub(crate) struct NoAnswer {
    pub(crate) why: String,
    /// There will never be one.
    pub(crate) is_final: bool,
}

impl NoAnswer {
    fn nobody(kind: AskKind) -> Self {
        Self {
            why: format!("nobody here answers {} asks", kind.as_str()),
            is_final: true,
        }
    }

    /// There may be one another time.
    pub(crate) fn later(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_final: false,
        }
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            AskKind::Form,
            AskKind::Url,
            AskKind::Sampling,
            AskKind::Roots,
        ];
        f.debug_set()
            .entries(kinds.into_iter().filter(|kind| self.has(*kind)))
            .finish()
    }
}
