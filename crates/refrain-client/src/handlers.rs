//! The handlers that answer asks.

use crate::ask::{Answer, Ask, FormAsk, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use refrain_wire::{AskKind, Root, SamplingAnswer};
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Why a handler has no answer. The ask stays open, and the call can be taken up again.
pub type HandlerError = Box<dyn Error + Send + Sync>;

type Handler<A, R> = Arc<dyn Fn(A) -> BoxFuture<'static, Result<R, HandlerError>> + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Handlers {
    pub(crate) form: Option<Handler<FormAsk, Answer>>,
    pub(crate) url: Option<Handler<UrlAsk, Answer>>,
    pub(crate) sampling: Option<Handler<SamplingAsk, SamplingAnswer>>,
    pub(crate) roots: Option<Handler<RootsAsk, Vec<Root>>>,
    pub(crate) unknown: Option<Handler<UnknownAsk, Answer>>,
}

impl Handlers {
    pub(crate) fn has(&self, kind: AskKind) -> bool {
        match kind {
            AskKind::Form => self.form.is_some(),
            AskKind::Url => self.url.is_some(),
            AskKind::Sampling => self.sampling.is_some(),
            AskKind::Roots => self.roots.is_some(),
        }
    }

    /// Answers an ask. A handler that panics has no answer, like one that fails.
    pub(crate) async fn answer(&self, ask: &Ask) -> Result<Answer, NoAnswer> {
        let answered = AssertUnwindSafe(self.handle(ask)).catch_unwind().await;
        answered.unwrap_or_else(|_| Err(NoAnswer::later("its handler panicked")))
    }

    async fn handle(&self, ask: &Ask) -> Result<Answer, NoAnswer> {
        match ask {
            Ask::Form(ask) => call(self.form.as_ref(), AskKind::Form, ask.clone()).await,
            Ask::Url(ask) => call(self.url.as_ref(), AskKind::Url, ask.clone()).await,
            Ask::Sampling(ask) => {
                let answer = call(self.sampling.as_ref(), AskKind::Sampling, (**ask).clone());
                Ok(Answer::Sampled(Box::new(answer.await?)))
            }
            Ask::Roots(ask) => {
                let answer = call(self.roots.as_ref(), AskKind::Roots, ask.clone());
                Ok(Answer::Roots(answer.await?))
            }
            Ask::Unknown(ask) => match &self.unknown {
                Some(handler) if ask.can_decline => {
                    handler(ask.clone()).await.map_err(NoAnswer::from)
                }
                _ => Err(NoAnswer::never(ask.why.clone())),
            },
        }
    }
}

async fn call<A, R>(handler: Option<&Handler<A, R>>, kind: AskKind, ask: A) -> Result<R, NoAnswer> {
    match handler {
        Some(handler) => handler(ask).await.map_err(NoAnswer::from),
        None => {
            let why = format!("nobody here answers {} asks", kind.as_str());
            Err(NoAnswer::never(why))
        }
    }
}

/// The error of a handler for an ask that will never be answered: the person refused the use of a model, for example.
///
/// A call that has become a task is then cancelled; after any other error it goes on waiting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

pub(crate) struct NoAnswer {
    pub(crate) why: String,
    /// Whether there will never be one.
    pub(crate) is_final: bool,
}

impl NoAnswer {
    fn never(why: String) -> Self {
        let is_final = true;
        Self { why, is_final }
    }

    pub(crate) fn later(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_final: false,
        }
    }
}

impl From<HandlerError> for NoAnswer {
    fn from(error: HandlerError) -> Self {
        Self {
            is_final: error.is::<Refused>(),
            why: error.to_string(),
        }
    }
}
