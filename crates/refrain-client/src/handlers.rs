//! The host's ask handlers.

use crate::ask::{AskAnswer, FormAsk, IncomingAsk, RootsAsk, SamplingAsk, UnknownAsk, UrlAsk};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use refrain_wire::{AskKind, Capability, Root, SamplingAnswer};
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// The error of a handler without an answer. The ask stays open, and the call can be resumed.
pub type HandlerError = Box<dyn Error + Send + Sync>;

type AskHandler<A, R> = Arc<dyn Fn(A) -> BoxFuture<'static, Result<R, HandlerError>> + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Handlers {
    pub(crate) form: Option<AskHandler<FormAsk, AskAnswer>>,
    pub(crate) url: Option<AskHandler<UrlAsk, AskAnswer>>,
    pub(crate) sampling: Option<AskHandler<SamplingAsk, SamplingAnswer>>,
    /// Whether sampling with tools is declared.
    pub(crate) sampling_tools: bool,
    /// Whether sampling with context from the client's servers is declared.
    pub(crate) sampling_context: bool,
    pub(crate) roots: Option<AskHandler<RootsAsk, Vec<Root>>>,
    pub(crate) unknown: Option<AskHandler<UnknownAsk, AskAnswer>>,
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

    /// Whether sampling with the features of this ask is declared.
    pub(crate) fn allows(&self, ask: &SamplingAsk) -> bool {
        self.sampling_tools || ask.params.capability() == Capability::Sampling
    }

    /// Calls the handler for an ask. A panic counts as a failed handler.
    pub(crate) async fn answer(&self, ask: IncomingAsk) -> Result<AskAnswer, AnswerFailure> {
        let answered = AssertUnwindSafe(self.handle(ask)).catch_unwind().await;
        answered.unwrap_or_else(|_| Err(AnswerFailure::temporary("the ask handler panicked")))
    }

    async fn handle(&self, ask: IncomingAsk) -> Result<AskAnswer, AnswerFailure> {
        match ask {
            IncomingAsk::Form(ask) => call(self.form.as_ref(), AskKind::Form, ask).await,
            IncomingAsk::Url(ask) => call(self.url.as_ref(), AskKind::Url, ask).await,
            IncomingAsk::Sampling(ask) if !self.allows(&ask) => {
                let why = "sampling with tools is not supported by this client";
                Err(AnswerFailure::permanent(why))
            }
            IncomingAsk::Sampling(ask) => {
                let answer = call(self.sampling.as_ref(), AskKind::Sampling, *ask);
                Ok(AskAnswer::Sampled(Box::new(answer.await?)))
            }
            IncomingAsk::Roots(ask) => {
                let answer = call(self.roots.as_ref(), AskKind::Roots, ask);
                Ok(AskAnswer::Roots(answer.await?))
            }
            IncomingAsk::Unknown(ask) => match &self.unknown {
                Some(handler) if ask.can_decline => handler(ask).await.map_err(AnswerFailure::from),
                _ => Err(AnswerFailure::permanent(ask.why)),
            },
        }
    }
}

async fn call<A, R>(
    handler: Option<&AskHandler<A, R>>,
    kind: AskKind,
    ask: A,
) -> Result<R, AnswerFailure> {
    match handler {
        Some(handler) => handler(ask).await.map_err(AnswerFailure::from),
        None => {
            let why = format!("no handler for {} asks", kind.as_str());
            Err(AnswerFailure::permanent(why))
        }
    }
}

/// A handler error for an ask that will never be answered, for example because the person forbids the use of a model.
///
/// It cancels the task that asked. After any other error the task keeps waiting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AskRefusal(pub String);

pub(crate) struct AnswerFailure {
    pub(crate) why: String,
    /// Whether there will never be an answer.
    pub(crate) is_final: bool,
}

impl AnswerFailure {
    fn permanent(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_final: true,
        }
    }

    pub(crate) fn temporary(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_final: false,
        }
    }
}

impl From<HandlerError> for AnswerFailure {
    fn from(error: HandlerError) -> Self {
        Self {
            is_final: error.is::<AskRefusal>(),
            why: error.to_string(),
        }
    }
}
