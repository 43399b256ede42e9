//! Answers to asks: preset answers, the sampler, the person at the terminal.

use super::exit::Stop;
use super::open_asks::OpenAsk;
use super::options::{Answering, here};
use super::preset_answers::PresetAnswers;
use super::{sampler, screen};
use crate::terminal::Terminal;
use parking_lot::Mutex;
use refrain_client::{AskAnswer, AskRefusal, ClientBuilder, HandlerError, IncomingAsk};
use refrain_wire::Root;
use std::sync::Arc;

pub(super) struct Answerer {
    pub(super) preset: PresetAnswers,
    sampler: Option<String>,
    roots: Option<Vec<Root>>,
    person: Option<Terminal>,
    open: Mutex<Vec<OpenAsk>>,
}

impl Answerer {
    /// A person is asked only if the result is for people, too.
    pub(super) fn new(options: &Answering, json: bool) -> Result<Arc<Self>, Stop> {
        Ok(Arc::new(Self {
            preset: options.preset()?,
            sampler: options.sampler.clone(),
            roots: options.roots()?,
            person: if json { None } else { Terminal::here() },
            open: Mutex::default(),
        }))
    }

    /// Registers this for every kind of ask. An ask without an answer can be answered when the call is resumed.
    pub(super) fn handle(self: &Arc<Self>, builder: ClientBuilder) -> ClientBuilder {
        let [form, url, sampling, roots, unknown] = std::array::from_fn(|_| Arc::clone(self));
        builder
            .on_form(move |ask| Arc::clone(&form).answer(IncomingAsk::Form(ask)))
            .on_url(move |ask| Arc::clone(&url).answer(IncomingAsk::Url(ask)))
            .on_unknown(move |ask| Arc::clone(&unknown).answer(IncomingAsk::Unknown(ask)))
            .on_sampling(move |ask| {
                let answer = Arc::clone(&sampling).answer(IncomingAsk::Sampling(Box::new(ask)));
                async {
                    match answer.await? {
                        AskAnswer::Sampled(answer) => Ok(*answer),
                        _ => Err("this is no answer of a model".into()),
                    }
                }
            })
            .on_roots(move |ask| {
                let answer = Arc::clone(&roots).answer(IncomingAsk::Roots(ask));
                async {
                    match answer.await? {
                        AskAnswer::Roots(roots) => Ok(roots),
                        _ => Err("these are no roots".into()),
                    }
                }
            })
    }

    pub(super) fn open(&self) -> Vec<OpenAsk> {
        self.open.lock().clone()
    }

    async fn answer(self: Arc<Self>, ask: IncomingAsk) -> Result<AskAnswer, HandlerError> {
        let answer = self.find(ask.clone()).await;
        // A person's no is an answer, even where the protocol has none for it.
        if let Err(error) = &answer
            && !error.is::<AskRefusal>()
        {
            let why = error.to_string();
            self.open.lock().push(OpenAsk { ask, why });
        }
        answer
    }

    async fn find(&self, ask: IncomingAsk) -> Result<AskAnswer, HandlerError> {
        if let Some(answer) = self.preset.take(&ask) {
            return Ok(answer?);
        }
        match (&ask, &self.sampler, &self.roots) {
            (IncomingAsk::Sampling(ask), Some(command), _) => {
                let answer = sampler::answer(command, ask).await?;
                return Ok(AskAnswer::Sampled(Box::new(answer)));
            }
            (IncomingAsk::Roots(_), _, Some(roots)) => return Ok(AskAnswer::Roots(roots.clone())),
            _ => {}
        }
        let none = self.preset.missing(ask.key());
        match (&self.person, &ask) {
            (Some(person), _) => {
                let roots = match ask {
                    IncomingAsk::Roots(_) => vec![here().map_err(|stop| stop.message)?],
                    _ => Vec::new(),
                };
                let _hold = screen::hold();
                person.answer(ask, roots).await
            }
            (None, IncomingAsk::Unknown(ask)) => Err(ask.why.clone().into()),
            (None, IncomingAsk::Sampling(_)) => {
                Err(format!("{none}, and there is no --sampler").into())
            }
            (None, IncomingAsk::Roots(_)) => {
                Err("no roots were given; name them with --root".into())
            }
            (None, _) => Err(none.into()),
        }
    }
}
