//! Answers asks: with preset answers, the sampler, or a prompt at the terminal.

use super::exit::CommandError;
use super::options::{AnswerOptions, working_directory};
use super::preset_answers::PresetAnswers;
use super::unanswered::UnansweredAsk;
use super::{sampler, stderr};
use crate::terminal::Terminal;
use parking_lot::Mutex;
use refrain_client::{Answer, Ask, ClientBuilder, HandlerError, Refused};
use refrain_wire::Root;
use std::sync::Arc;

pub(super) struct Answerer {
    pub(super) preset: PresetAnswers,
    sampler: Option<String>,
    roots: Option<Vec<Root>>,
    terminal: Option<Terminal>,
    unanswered: Mutex<Vec<UnansweredAsk>>,
}

impl Answerer {
    /// With `json`, the user is not prompted.
    pub(super) fn new(options: &AnswerOptions, json: bool) -> Result<Arc<Self>, CommandError> {
        Ok(Arc::new(Self {
            preset: options.preset()?,
            sampler: options.sampler.clone(),
            roots: options.roots()?,
            terminal: if json { None } else { Terminal::detect() },
            unanswered: Mutex::default(),
        }))
    }

    pub(super) fn register(self: &Arc<Self>, builder: ClientBuilder) -> ClientBuilder {
        let [form, url, sampling, roots, unknown] = std::array::from_fn(|_| Arc::clone(self));
        builder
            .on_form(move |ask| Arc::clone(&form).answer(Ask::Form(ask)))
            .on_url(move |ask| Arc::clone(&url).answer(Ask::Url(ask)))
            .on_unknown(move |ask| Arc::clone(&unknown).answer(Ask::Unknown(ask)))
            .on_sampling(move |ask| {
                let answer = Arc::clone(&sampling).answer(Ask::Sampling(Box::new(ask)));
                async {
                    match answer.await? {
                        Answer::Sampled(answer) => Ok(*answer),
                        _ => Err("invalid answer to a sampling request".into()),
                    }
                }
            })
            .on_roots(move |ask| {
                let answer = Arc::clone(&roots).answer(Ask::Roots(ask));
                async {
                    match answer.await? {
                        Answer::Roots(roots) => Ok(roots),
                        _ => Err("invalid answer to a request for roots".into()),
                    }
                }
            })
    }

    pub(super) fn unanswered(&self) -> Vec<UnansweredAsk> {
        self.unanswered.lock().clone()
    }

    async fn answer(self: Arc<Self>, ask: Ask) -> Result<Answer, HandlerError> {
        let answer = self.find(ask.clone()).await;
        // Declining is an answer, even if the protocol has no message for it.
        if let Err(error) = &answer
            && !error.is::<Refused>()
        {
            let why = error.to_string();
            self.unanswered.lock().push(UnansweredAsk { ask, why });
        }
        answer
    }

    async fn find(&self, ask: Ask) -> Result<Answer, HandlerError> {
        if let Some(answer) = self.preset.take(&ask) {
            return Ok(answer?);
        }
        match (&ask, &self.sampler, &self.roots) {
            (Ask::Sampling(ask), Some(command), _) => {
                let answer = sampler::answer(command, ask).await?;
                return Ok(Answer::Sampled(Box::new(answer)));
            }
            (Ask::Roots(_), _, Some(roots)) => return Ok(Answer::Roots(roots.clone())),
            _ => {}
        }
        let missing = self.preset.missing(ask.key());
        match (&self.terminal, &ask) {
            (Some(terminal), _) => {
                let roots = match ask {
                    Ask::Roots(_) => vec![working_directory().map_err(|error| error.message)?],
                    _ => Vec::new(),
                };
                let _hold = stderr::hold();
                terminal.answer(ask, roots).await
            }
            (None, Ask::Unknown(ask)) => Err(ask.why.clone().into()),
            (None, Ask::Sampling(_)) => Err(format!("{missing}, and no --sampler is set").into()),
            (None, Ask::Roots(_)) => Err("no roots were given; pass --root PATH".into()),
            (None, _) => Err(missing.into()),
        }
    }
}
