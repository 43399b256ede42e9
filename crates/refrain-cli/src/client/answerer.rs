//! Who answers what a call asks: what was given beforehand, the sampler, the person at the terminal.

use super::asked::Asked;
use super::exit::Stop;
use super::given::Given;
use super::options::{Answering, here};
use super::sampler;
use super::screen::Screen;
use crate::terminal::Terminal;
use parking_lot::Mutex;
use refrain_client::{Answer, Ask, ClientBuilder, HandlerError, Refused, RootsAsk, SamplingAsk};
use refrain_wire::{Root, SamplingAnswer};
use std::sync::Arc;

/// Answers what is asked.
pub(super) struct Answerer {
    given: Given,
    sampler: Option<String>,
    roots: Option<Vec<Root>>,
    person: Option<Terminal>,
    screen: Screen,
    /// What was asked and not answered.
    open: Mutex<Vec<Asked>>,
}

impl Answerer {
    /// A person is asked only where one reads the result, too.
    pub(super) fn new(options: &Answering, screen: Screen, json: bool) -> Result<Arc<Self>, Stop> {
        Ok(Arc::new(Self {
            given: options.given()?,
            sampler: options.sampler.clone(),
            roots: options.roots()?,
            person: if json { None } else { Terminal::here() },
            screen,
            open: Mutex::default(),
        }))
    }

    /// Has a client ask here. Every kind of ask can be answered, if not now then when the call is taken up again.
    pub(super) fn handle(self: &Arc<Self>, builder: ClientBuilder) -> ClientBuilder {
        let [form, url, sampling, roots, unknown] = std::array::from_fn(|_| Arc::clone(self));
        builder
            .on_form(move |ask| {
                let own = Arc::clone(&form);
                async move { own.noted(Ask::Form(ask.clone()), own.person(Ask::Form(ask)).await) }
            })
            .on_url(move |ask| {
                let own = Arc::clone(&url);
                async move { own.noted(Ask::Url(ask.clone()), own.person(Ask::Url(ask)).await) }
            })
            .on_sampling(move |ask| {
                let own = Arc::clone(&sampling);
                async move {
                    let asked = Ask::Sampling(Box::new(ask.clone()));
                    own.noted(asked, own.model(ask).await)
                }
            })
            .on_roots(move |ask| {
                let own = Arc::clone(&roots);
                async move { own.noted(Ask::Roots(ask.clone()), own.roots(ask).await) }
            })
            .on_unknown(move |ask| {
                let own = Arc::clone(&unknown);
                async move {
                    own.noted(
                        Ask::Unknown(ask.clone()),
                        own.person(Ask::Unknown(ask)).await,
                    )
                }
            })
    }

    /// What was asked and not answered so far.
    pub(super) fn open(&self) -> Vec<Asked> {
        let open = self.open.lock();
        open.clone()
    }

    /// Notes an ask that has no answer.
    fn noted<T>(&self, ask: Ask, answer: Result<T, HandlerError>) -> Result<T, HandlerError> {
        // A person's no is an answer, even where the protocol has none for it.
        if let Err(error) = &answer
            && !error.is::<Refused>()
        {
            let why = error.to_string();
            let mut open = self.open.lock();
            open.push(Asked { ask, why });
        }
        answer
    }

    /// What was given beforehand to answer this.
    pub(super) fn given(&self, ask: &Ask) -> Option<Result<Answer, String>> {
        self.given.take(ask)
    }

    /// Whether answers were given beforehand.
    pub(super) fn has_given(&self) -> bool {
        !self.given.is_empty()
    }

    /// Keys that answers were given for, and that nothing asked.
    pub(super) fn left(&self) -> Vec<String> {
        self.given.left()
    }

    async fn person(&self, ask: Ask) -> Result<Answer, HandlerError> {
        if let Some(answer) = self.given.take(&ask) {
            return Ok(answer?);
        }
        match (&self.person, ask) {
            (Some(person), Ask::Form(ask)) => {
                let _hold = self.screen.hold();
                person.form(ask).await
            }
            (Some(person), Ask::Url(ask)) => {
                let _hold = self.screen.hold();
                person.url(ask).await
            }
            (Some(person), Ask::Unknown(ask)) => {
                let _hold = self.screen.hold();
                person.unknown(ask).await
            }
            (None, Ask::Unknown(ask)) => Err(ask.why.into()),
            (_, ask) => Err(self.given.none(ask.key()).into()),
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
        match (&self.sampler, &self.person, ask) {
            (Some(command), _, Ask::Sampling(ask)) => sampler::answer(command, &ask).await,
            (None, Some(person), Ask::Sampling(ask)) => {
                let _hold = self.screen.hold();
                person.sampling(*ask).await
            }
            (_, _, ask) => {
                let none = self.given.none(ask.key());
                Err(format!("{none}, and there is no --sampler").into())
            }
        }
    }

    async fn roots(&self, ask: RootsAsk) -> Result<Vec<Root>, HandlerError> {
        let given = self.given.take(&Ask::Roots(ask.clone()));
        match (given, &self.roots, &self.person) {
            (Some(answer), ..) => match answer? {
                Answer::Roots(roots) => Ok(roots),
                _ => Err("these are no roots".into()),
            },
            (None, Some(roots), _) => Ok(roots.clone()),
            (None, None, Some(person)) => {
                let _hold = self.screen.hold();
                person.roots(ask, vec![here()?]).await
            }
            (None, None, None) => Err("no roots were given; name them with --root".into()),
        }
    }
}
