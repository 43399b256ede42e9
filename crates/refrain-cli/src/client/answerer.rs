//! Answers asks: with preset answers, the sampler, or a prompt at the terminal.

use super::exit::CommandError;
use super::options::{AnswerOptions, working_directory};
use super::preset_answers::{PresetAnswers, PresetError};
use super::unanswered::MissingAnswer;
use super::{sampler, stderr};
use crate::terminal::Terminal;
use parking_lot::Mutex;
use refrain_client::{AskAnswer, AskRefusal, ClientBuilder, HandlerError, IncomingAsk};
use refrain_wire::Root;
use std::mem;
use std::sync::Arc;

/// Maximum number of unanswered asks that are kept for the final message. The oldest are dropped.
const MAX_UNANSWERED: usize = 100;

pub(super) struct Answerer {
    pub(super) preset: PresetAnswers,
    sampler: Option<String>,
    roots: Option<Vec<Root>>,
    terminal: Option<Terminal>,
    unanswered: Mutex<Vec<MissingAnswer>>,
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
            .on_form(move |ask| Arc::clone(&form).answer(IncomingAsk::Form(ask)))
            .on_url(move |ask| Arc::clone(&url).answer(IncomingAsk::Url(ask)))
            .on_unknown(move |ask| Arc::clone(&unknown).answer(IncomingAsk::Unknown(ask)))
            .on_sampling(move |ask| {
                let answer = Arc::clone(&sampling).answer(IncomingAsk::Sampling(Box::new(ask)));
                async {
                    match answer.await? {
                        AskAnswer::Sampled(answer) => Ok(*answer),
                        _ => Err("invalid answer to a sampling request".into()),
                    }
                }
            })
            .on_roots(move |ask| {
                let answer = Arc::clone(&roots).answer(IncomingAsk::Roots(ask));
                async {
                    match answer.await? {
                        AskAnswer::Roots(roots) => Ok(roots),
                        _ => Err("invalid answer to a request for roots".into()),
                    }
                }
            })
    }

    /// Removes and returns the asks without an answer.
    pub(super) fn take_unanswered(&self) -> Vec<MissingAnswer> {
        mem::take(&mut *self.unanswered.lock())
    }

    async fn answer(self: Arc<Self>, mut ask: IncomingAsk) -> Result<AskAnswer, HandlerError> {
        let answer = self.obtain_answer(&mut ask).await;
        // Declining is an answer, even if the protocol has no message for it.
        if let Err(error) = &answer
            && !error.is::<AskRefusal>()
        {
            let why = error.to_string();
            let is_invalid = error.is::<PresetError>();
            let mut unanswered = self.unanswered.lock();
            // An ask that is repeated replaces the earlier one.
            unanswered.retain(|earlier| earlier.ask.key() != ask.key());
            // A task can withdraw and make asks without end.
            if unanswered.len() == MAX_UNANSWERED {
                unanswered.remove(0);
            }
            unanswered.push(MissingAnswer {
                ask,
                why,
                is_invalid,
            });
        }
        answer
    }

    async fn obtain_answer(&self, ask: &mut IncomingAsk) -> Result<AskAnswer, HandlerError> {
        if let Some(answer) = self.preset.take(ask) {
            return Ok(answer?);
        }
        match (&mut *ask, &self.sampler, &self.roots) {
            (IncomingAsk::Sampling(ask), Some(command), _) => {
                let params = Arc::new(mem::take(&mut ask.params));
                let answer = sampler::answer(command, Arc::clone(&params)).await;
                ask.params = Arc::unwrap_or_clone(params);
                return Ok(AskAnswer::Sampled(Box::new(answer?)));
            }
            (IncomingAsk::Roots(_), _, Some(roots)) => return Ok(AskAnswer::Roots(roots.clone())),
            _ => {}
        }
        let missing = self.preset.missing(ask.key());
        match (&self.terminal, &*ask) {
            (Some(terminal), ask) => {
                let roots = match ask {
                    IncomingAsk::Roots(_) => {
                        vec![working_directory().map_err(|error| error.message)?]
                    }
                    _ => Vec::new(),
                };
                let _hold = stderr::hold();
                terminal.answer(ask.clone(), roots).await
            }
            (None, IncomingAsk::Unknown(ask)) => Err(ask.why.clone().into()),
            (None, IncomingAsk::Sampling(_)) => {
                Err(format!("{missing}, and no --sampler is set").into())
            }
            (None, IncomingAsk::Roots(_)) => Err("no roots were given; pass --root PATH".into()),
            (None, _) => Err(missing.into()),
        }
    }
}
