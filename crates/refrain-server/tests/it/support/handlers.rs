//! Shared forms, arguments, handlers and signals.

use refrain_core::{Cx, Elicit, Field, Form, Result};
use refrain_server::State;
use refrain_testkit::net::within;
use refrain_wire::LogLevel;
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
    /// The text.
    pub(crate) text: String,
}

/// Signals from a handler to its test, and a gate where handlers wait for the test.
#[derive(Debug)]
pub(crate) struct Signals {
    sender: mpsc::UnboundedSender<&'static str>,
    gate: Semaphore,
}

/// Receives the signals of handlers.
pub(crate) type SignalReceiver = mpsc::UnboundedReceiver<&'static str>;

/// Signals for a server's state, and the receiver for the test.
pub(crate) fn signals() -> (Arc<Signals>, SignalReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let gate = Semaphore::new(0);
    (Arc::new(Signals { sender, gate }), receiver)
}

/// Waits for the next signal, which must be this one.
pub(crate) async fn expect_signal(received: &mut SignalReceiver, signal: &str) {
    assert_eq!(within(signal, received.recv()).await, Some(signal));
}

impl Signals {
    /// Sends a signal to the test.
    pub(crate) fn say(&self, signal: &'static str) {
        // The test may have ended.
        let _ = self.sender.send(signal);
    }

    /// Lets one handler pass the gate.
    pub(crate) fn open(&self) {
        self.gate.add_permits(1);
    }

    /// Waits at the gate.
    pub(crate) async fn pass(&self) {
        let permit = self.gate.acquire().await.expect("the gate is never closed");
        permit.forget();
    }
}

/// Sends the signal "dropped" when it is dropped.
pub(crate) struct Guard(pub(crate) Arc<Signals>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.say("dropped");
    }
}

/// Returns its argument.
pub(crate) async fn echo(_: Cx, word: Word) -> Result<String> {
    Ok(format!("Echo: {}", word.text))
}

/// Asks for a name and greets.
pub(crate) async fn greet(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who are you?").await?;
    Ok(format!("Hello, {}!", login.name))
}

/// Asks for a name, and returns it with the principal.
pub(crate) async fn whoami(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "Who?").await?;
    let id = cx.principal().id().unwrap_or("anonymous");
    Ok(format!("{} is {id}", login.name))
}

/// Logs, signals that it started, and waits at the gate.
pub(crate) async fn held(cx: Cx, signals: State<Arc<Signals>>) -> Result<String> {
    let _guard = Guard(Arc::clone(&signals));
    cx.log(LogLevel::Info, "started");
    signals.say("started");
    signals.pass().await;
    Ok("let through".into())
}

/// Logs one message.
pub(crate) async fn logs(cx: Cx) -> Result<String> {
    cx.log(LogLevel::Info, "news");
    Ok("logged".into())
}

/// A resource.
pub(crate) async fn note(_: Cx) -> Result<String> {
    Ok("a note".into())
}

/// Returns `Pending` once and wakes itself immediately, unlike `yield_now`, which defers to the runtime.
pub(crate) async fn poll_again() {
    let mut was_polled = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut was_polled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
