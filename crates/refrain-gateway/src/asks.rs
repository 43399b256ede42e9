//! Passes the asks of a backend to the caller.
//!
//! An ask is journaled under its key, its kind and, for a form, the fingerprint of the form. If the
//! backend shows another form when a round runs again, the stored answer is not used.

use crate::backend::Backend;
use crate::metrics::BackendMetrics;
use crate::support::AskSupport;
use refrain::client::{
    AskAnswer, AskRefusal, ClientBuilder, FormAsk, HandlerError, IncomingAsk, LogMessage, Progress,
    RootsAsk, SamplingAsk, UrlAsk,
};
use refrain::content::LogLevel;
use refrain::runtime::wire::{Root, SamplingAnswer};
use refrain::{Answer, AskError, Cx};
use std::sync::Arc;

/// Forwards the asks of one call's backend to the caller.
#[derive(Clone)]
pub(crate) struct AskForwarder {
    cx: Cx,
    /// The name of the backend, if there are several.
    label: Option<Arc<str>>,
    metrics: Arc<BackendMetrics>,
}

impl AskForwarder {
    pub(crate) fn new(cx: &Cx, backend: &Backend) -> Self {
        Self {
            cx: cx.clone(),
            label: backend.label.as_deref().map(Into::into),
            metrics: backend.metrics.clone(),
        }
    }

    /// Adds handlers for the asks, the progress and the logs of one call.
    pub(crate) fn handle(self, builder: ClientBuilder, support: AskSupport) -> ClientBuilder {
        let (progress, log) = (self.cx.clone(), self.cx.clone());
        let mut builder = builder
            .on_progress(move |update: Progress| {
                progress.progress(
                    update.progress,
                    update.total,
                    update.message.as_deref().unwrap_or_default(),
                );
            })
            .on_log(LogLevel::Debug, move |message: LogMessage| {
                let mut levels = LogLevel::ALL.into_iter();
                let level = levels.find(|level| level.as_str() == message.level);
                log.log(level.unwrap_or(LogLevel::Info), message.data);
            });
        if support.form {
            let asks = self.clone();
            builder = builder.on_form(move |ask| {
                let asks = asks.clone();
                async move { asks.form(ask).await }
            });
        }
        if support.url {
            let asks = self.clone();
            builder = builder.on_url(move |ask| {
                let asks = asks.clone();
                async move { asks.url(ask).await }
            });
        }
        if support.sampling {
            let asks = self.clone();
            builder = builder.on_sampling(move |ask| {
                let asks = asks.clone();
                async move { asks.sampling(ask).await }
            });
        }
        if support.roots {
            builder = builder.on_roots(move |ask| {
                let asks = self.clone();
                async move { asks.roots(ask).await }
            });
        }
        builder
    }

    /// Asks the caller, and returns the answer for the backend.
    pub(crate) async fn ask(&self, ask: &IncomingAsk) -> Result<AskAnswer, HandlerError> {
        match ask {
            IncomingAsk::Form(ask) => self.form(ask.clone()).await,
            IncomingAsk::Url(ask) => self.url(ask.clone()).await,
            IncomingAsk::Sampling(ask) => {
                let answer = self.sampling((**ask).clone()).await?;
                Ok(AskAnswer::Sampled(Box::new(answer)))
            }
            IncomingAsk::Roots(ask) => self.roots(ask.clone()).await.map(AskAnswer::Roots),
            IncomingAsk::Unknown(ask) => Err(AskRefusal(ask.why.clone()).into()),
            _ => Err(AskRefusal("unknown kind of ask".to_owned()).into()),
        }
    }

    async fn form(&self, ask: FormAsk) -> Result<AskAnswer, HandlerError> {
        self.metrics.asked("form");
        let cx = self.cx.scope(format!("{:016x}", ask.form.fingerprint()));
        let message = self.message(ask.message);
        match cx.ask_form(ask.key, message, &ask.form).await {
            Ok(Answer::Accepted(content)) => Ok(AskAnswer::accept(content)?),
            Ok(Answer::Declined) => Ok(AskAnswer::Decline),
            Ok(Answer::Cancelled) => Ok(AskAnswer::Cancel),
            Err(error) => Err(refusal(&error)),
        }
    }

    async fn url(&self, ask: UrlAsk) -> Result<AskAnswer, HandlerError> {
        self.metrics.asked("url");
        let message = self.message(ask.message);
        // The backend itself checks whether the user has completed the action at the URL.
        let asked = self
            .cx
            .elicit_url(ask.key, message, ask.url, async || refrain::ok(true));
        match asked.await {
            Ok(()) => Ok(AskAnswer::visited()),
            Err(error) => match error.as_ask() {
                Some(AskError::Declined { .. }) => Ok(AskAnswer::Decline),
                Some(AskError::Cancelled { .. }) => Ok(AskAnswer::Cancel),
                _ => Err(AskRefusal(error.to_string()).into()),
            },
        }
    }

    async fn sampling(&self, ask: SamplingAsk) -> Result<SamplingAnswer, HandlerError> {
        self.metrics.asked("sampling");
        let asked = self.cx.sample(ask.key, ask.params).await;
        asked.map_err(|error| refusal(&error))
    }

    async fn roots(&self, ask: RootsAsk) -> Result<Vec<Root>, HandlerError> {
        self.metrics.asked("roots");
        let asked = self.cx.roots(ask.key).await;
        asked.map_err(|error| refusal(&error))
    }

    fn message(&self, message: String) -> String {
        match &self.label {
            Some(label) => format!("{label}: {message}"),
            None => message,
        }
    }
}

fn refusal(error: &AskError) -> HandlerError {
    AskRefusal(error.to_string()).into()
}
