//! Who answers what a call asks: what was given beforehand, the sampler, the person at the terminal.

use super::exit::Stop;
use super::given::Given;
use super::options::Answering;
use super::sampler;
use refrain_client::{Answer, Ask, ClientBuilder, HandlerError, SamplingAsk};
use refrain_wire::{Root, SamplingAnswer};
use std::sync::Arc;

/// Answers what is asked.
pub(super) struct Answerer {
    given: Given,
    sampler: Option<String>,
    roots: Option<Vec<Root>>,
}

impl Answerer {
    pub(super) fn new(options: &Answering) -> Result<Arc<Self>, Stop> {
        Ok(Arc::new(Self {
            given: options.given()?,
            sampler: options.sampler.clone(),
            roots: options.roots()?,
        }))
    }

    /// Has a client ask here. Every kind of ask can be answered, if not now then when the call is taken up again.
    pub(super) fn handle(self: &Arc<Self>, builder: ClientBuilder) -> ClientBuilder {
        let [form, url, sampling, roots] = std::array::from_fn(|_| Arc::clone(self));
        builder
            .on_form(move |ask| {
                let own = Arc::clone(&form);
                async move { own.person(&Ask::Form(ask)) }
            })
            .on_url(move |ask| {
                let own = Arc::clone(&url);
                async move { own.person(&Ask::Url(ask)) }
            })
            .on_sampling(move |ask| {
                let own = Arc::clone(&sampling);
                async move { own.model(ask).await }
            })
            .on_roots(move |ask| {
                let own = Arc::clone(&roots);
                async move { own.roots(&Ask::Roots(ask)) }
            })
    }

    /// Keys that answers were given for, and that nothing asked.
    pub(super) fn left(&self) -> Vec<String> {
        self.given.left()
    }

    fn person(&self, ask: &Ask) -> Result<Answer, HandlerError> {
        match self.given.take(ask) {
            Some(answer) => Ok(answer?),
            None => Err("no answer was given".into()),
        }
    }

    async fn model(&self, ask: SamplingAsk) -> Result<SamplingAnswer, HandlerError> {
        let ask = Ask::Sampling(Box::new(ask));
        if let Some(answer) = self.given.take(&ask) {
            return match answer? {
                Answer::Sampled(answer) => Ok(*answer),
                _ => Err("this is no answer of a model".into()),
            };
        }
        match (&self.sampler, &ask) {
            (Some(command), Ask::Sampling(ask)) => sampler::answer(command, ask).await,
            _ => Err("no answer was given, and there is no --sampler".into()),
        }
    }

    fn roots(&self, ask: &Ask) -> Result<Vec<Root>, HandlerError> {
        match (self.given.take(ask), &self.roots) {
            (Some(answer), _) => match answer? {
                Answer::Roots(roots) => Ok(roots),
                _ => Err("these are no roots".into()),
            },
            (None, Some(roots)) => Ok(roots.clone()),
            (None, None) => Err("no roots were given; name them with --root".into()),
        }
    }
}
