//! The person and the model behind the client.

use refrain_client::wire::{Content, Role, Root, SamplingAnswer};
use refrain_client::{AskAnswer, Client, ClientBuilder, FormAsk};
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex};
use tokio::sync::Barrier;

/// What the model says to everything.
pub(crate) const SAID: &str = "Riesling";

/// Answers by the names of fields, and remembers what was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct User(Arc<Mutex<Mind>>);

#[derive(Debug, Clone, Default)]
struct Mind {
    answers: Map<String, Value>,
    /// Answers every form and every URL with this.
    instead: Option<AskAnswer>,
    /// Goes to the URLs.
    visits: bool,
    /// Nobody answers before all have been asked.
    together: Option<Arc<Barrier>>,
    asked: Vec<String>,
}

impl User {
    /// Knows these answers from now on, and forgets all else.
    pub(crate) fn knows(&self, answers: Value) {
        let Value::Object(answers) = answers else {
            panic!("answers have names, unlike {answers}");
        };
        self.change(|mind| {
            *mind = Mind {
                answers,
                ..Mind::default()
            };
        });
    }

    /// Answers every form and every URL with this, from now on.
    pub(crate) fn only(&self, answer: AskAnswer) {
        self.change(|mind| {
            *mind = Mind {
                instead: Some(answer),
                ..Mind::default()
            };
        });
    }

    /// Goes to every URL from now on, as a browser would.
    pub(crate) fn visits(&self) {
        self.change(|mind| mind.visits = true);
    }

    /// Waits with each answer until so many things are asked at the same time.
    pub(crate) fn waits_for(&self, asks: usize) {
        self.change(|mind| mind.together = Some(Arc::new(Barrier::new(asks))));
    }

    /// What was asked since it was last looked at, sorted.
    pub(crate) fn asked(&self) -> Vec<String> {
        let mut asked = self.change(|mind| std::mem::take(&mut mind.asked));
        asked.sort_unstable();
        asked
    }

    /// A client whose asks get here.
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
                    let mind = user.hears(format!("{} {}", ask.message, ask.url)).await;
                    if mind.visits {
                        reqwest::get(ask.url).await?.error_for_status()?;
                    }
                    Ok(mind.instead.unwrap_or_else(AskAnswer::visited))
                }
            })
            .on_sampling(move |ask| {
                let user = model.clone();
                async move {
                    let blocks = ask.params.messages.iter().flat_map(|said| &said.content);
                    user.hears(format!("{:?}", blocks.collect::<Vec<_>>()))
                        .await;
                    Ok(SamplingAnswer {
                        role: Role::Assistant,
                        content: vec![Content::text(SAID).into()],
                        model: "scripted".to_owned(),
                        stop_reason: Some("endTurn".to_owned()),
                    })
                }
            })
            .on_roots(move |_| {
                let user = roots.clone();
                async move {
                    user.hears("roots".to_owned()).await;
                    Ok(vec![Root {
                        uri: "file:///garden".to_owned(),
                        name: Some("the garden".to_owned()),
                    }])
                }
            })
    }

    /// Fills in what is known of a form.
    async fn fill_in(&self, ask: &FormAsk) -> AskAnswer {
        let mut mind = self.hears(ask.message.clone()).await;
        if let Some(instead) = mind.instead {
            return instead;
        }
        let is_asked = |name: &String| ask.form.fields().iter().any(|field| field.name() == name);
        mind.answers.retain(|name, _| is_asked(name));
        AskAnswer::Accept(mind.answers)
    }

    /// Remembers what is asked, and waits where it is to wait.
    async fn hears(&self, asked: String) -> Mind {
        let mind = self.change(|mind| {
            mind.asked.push(asked);
            mind.clone()
        });
        if let Some(together) = &mind.together {
            together.wait().await;
        }
        mind
    }

    fn change<T>(&self, change: impl FnOnce(&mut Mind) -> T) -> T {
        change(&mut self.0.lock().expect("nobody panics under the lock"))
    }
}
