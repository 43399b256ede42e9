//! Forms, arguments and signals that several tests use.

use refrain_core::{Cx, Elicit, Field, Form, Result};
use schemars::JsonSchema;
use serde::Deserialize;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use tokio::sync::{Semaphore, mpsc};

/// A form with one field.
#[derive(Debug, Deserialize)]
pub(crate) struct Login {
    pub(crate) name: String,
}

impl Elicit for Login {
    fn form() -> &'static Form {
        static FORM: OnceLock<Form> = OnceLock::new();
        FORM.get_or_init(|| Form::new([Field::string("name")]))
    }
}

/// Arguments with one field.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Word {
    /// What is said.
    pub(crate) text: String,
}

/// How a handler tells its test where it is, and is told to go on.
#[derive(Debug)]
pub(crate) struct Signals {
    said: mpsc::UnboundedSender<&'static str>,
    gate: Semaphore,
}

/// Signals for a server's state, and the end at which a test hears them.
pub(crate) fn signals() -> (Arc<Signals>, mpsc::UnboundedReceiver<&'static str>) {
    let (said, heard) = mpsc::unbounded_channel();
    let gate = Semaphore::new(0);
    (Arc::new(Signals { said, gate }), heard)
}

impl Signals {
    pub(crate) fn say(&self, what: &'static str) {
        // A test that no longer listens has seen enough.
        let _ = self.said.send(what);
    }

    /// Lets one handler pass the gate.
    pub(crate) fn open(&self) {
        self.gate.add_permits(1);
    }

    /// Waits to be let through.
    pub(crate) async fn pass(&self) {
        let permit = self.gate.acquire().await.expect("the gate is never closed");
        permit.forget();
    }
}

/// Says so when it is dropped.
pub(crate) struct Guard(pub(crate) Arc<Signals>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.say("dropped");
    }
}

/// Says back what it is told.
pub(crate) async fn echo(_: Cx, word: Word) -> Result<String> {
    Ok(format!("Echo: {}", word.text))
}

/// Asks who is calling, and greets.
pub(crate) async fn greet(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(format!("Hello, {}!", login.name))
}

/// Gives way once, and wants to be polled again at once: a runtime has no say in it.
pub(crate) async fn polled_again() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
