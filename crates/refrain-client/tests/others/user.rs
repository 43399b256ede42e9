//! A scripted person and model behind the client.

use refrain_client::wire::{Content, Role, Root, SamplingAnswer};
use refrain_client::{AskAnswer, Client, ClientBuilder, FormAsk};
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex};
use tokio::sync::Barrier;

/// The text of every model response.
pub(crate) const MODEL_TEXT: &str = "Riesling";

/// Answers forms by field name, and records the asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct User(Arc<Mutex<Script>>);

#[derive(Debug, Clone, Default)]
struct Script {
    answers: Map<String, Value>,
    /// The answer to every form and URL.
    only_answer: Option<AskAnswer>,
    /// Whether URLs are visited.
    visits_urls: bool,
    /// Delays all answers until this many asks are open.
    barrier: Option<Arc<Barrier>>,
    asked: Vec<String>,
}

impl User {
    /// Replaces the script with these answers by field name.
    pub(crate) fn set_answers(&self, answers: Value) {
        let Value::Object(answers) = answers else {
            panic!("expected an object, not {answers}");
        };
        self.change(|script| {
            *script = Script {
                answers,
                ..Script::default()
            };
        });
    }

    /// Replaces the script with this answer to every form and URL.
    pub(crate) fn set_only_answer(&self, answer: AskAnswer) {
        self.change(|script| {
            *script = Script {
                only_answer: Some(answer),
                ..Script::default()
            };
        });
    }

    /// Visits every URL from now on.
    pub(crate) fn visit_urls(&self) {
        self.change(|script| script.visits_urls = true);
    }

    /// Delays answers until this many asks are open at the same time.
    pub(crate) fn wait_for(&self, asks: usize) {
        self.change(|script| script.barrier = Some(Arc::new(Barrier::new(asks))));
    }

    /// Returns and clears the recorded asks, sorted.
    pub(crate) fn take_asked(&self) -> Vec<String> {
        let mut asked = self.change(|script| std::mem::take(&mut script.asked));
        asked.sort_unstable();
        asked
    }

    /// A client whose asks this user answers.
    pub(crate) fn client(&self) -> ClientBuilder {
        let [forms, urls, model, roots] = [(); 4].map(|()| self.clone());
        Client::builder()
            .on_form(move |ask| {
                let user = forms.clone();
                async move { Ok(user.fill_in(&ask).await) }
            })
            .on_url(move |ask| {
                let user = urls.clone();
                async move {
                    let script = user.record(format!("{} {}", ask.message, ask.url)).await;
                    if script.visits_urls {
                        reqwest::get(ask.url).await?.error_for_status()?;
                    }
                    Ok(script.only_answer.unwrap_or_else(AskAnswer::visited))
                }
            })
            .on_sampling(move |ask| {
                let user = model.clone();
                async move {
                    let blocks = ask
                        .params
                        .messages
                        .iter()
                        .flat_map(|message| &message.content);
                    user.record(format!("{:?}", blocks.collect::<Vec<_>>()))
                        .await;
                    Ok(SamplingAnswer {
                        role: Role::Assistant,
                        content: vec![Content::text(MODEL_TEXT).into()],
                        model: "scripted".to_owned(),
                        stop_reason: Some("endTurn".to_owned()),
                    })
                }
            })
            .on_roots(move |_| {
                let user = roots.clone();
                async move {
                    user.record("roots".to_owned()).await;
                    Ok(vec![Root {
                        uri: "file:///garden".to_owned(),
                        name: Some("the garden".to_owned()),
                    }])
                }
            })
    }

    /// Fills in the known fields of a form.
    async fn fill_in(&self, ask: &FormAsk) -> AskAnswer {
        let mut script = self.record(ask.message.clone()).await;
        if let Some(answer) = script.only_answer {
            return answer;
        }
        let is_asked = |name: &String| ask.form.fields().iter().any(|field| field.name() == name);
        script.answers.retain(|name, _| is_asked(name));
        AskAnswer::Accept(script.answers)
    }

    /// Records an ask, and waits for the barrier.
    async fn record(&self, asked: String) -> Script {
        let script = self.change(|script| {
            script.asked.push(asked);
            script.clone()
        });
        if let Some(barrier) = &script.barrier {
            barrier.wait().await;
        }
        script
    }

    fn change<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut self.0.lock().expect("the lock is not poisoned"))
    }
}
