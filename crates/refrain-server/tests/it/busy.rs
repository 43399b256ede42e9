//! Handlers that cannot get a resource: `Error::busy`.

use crate::support::tasks::{about, eager};
use crate::support::{
    Instance, Login, Request, Response, StdioClient, assert_contains, legacy, login, result, start,
    text, token, within,
};
use refrain_core::{Cx, Error, Result};
use refrain_server::{Prompt, Resource, Server, ServerBuilder, State, Tool};
use refrain_store::MemoryStore;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const MESSAGE: &str = "all printers are in use";

/// A resource that is in use until it is released.
#[derive(Default)]
struct Printer {
    is_free: AtomicBool,
    attempts: AtomicUsize,
}

impl Printer {
    fn acquire(&self) -> Result<()> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        match self.is_free.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err(Error::busy(MESSAGE, Duration::from_millis(2500))),
        }
    }

    fn release(&self) {
        self.is_free.store(true, Ordering::SeqCst);
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }
}

type PrinterState = State<Arc<Printer>>;

async fn print(_: Cx, printer: PrinterState) -> Result<String> {
    printer.acquire()?;
    Ok("printed".into())
}

async fn print_step(cx: Cx, printer: PrinterState) -> Result<String> {
    cx.step("print", async { printer.acquire() }).await?;
    Ok("printed".into())
}

/// The instance starts to drain while the step runs.
async fn drain_and_print(cx: Cx, server: State<Server>, printer: PrinterState) -> Result<String> {
    let work = async {
        server.start_draining();
        printer.acquire()
    };
    cx.step("print", work).await?;
    Ok("printed".into())
}

async fn print_once(cx: Cx, printer: PrinterState) -> Result<String> {
    cx.once("print", async { printer.acquire() }).await?;
    Ok("printed".into())
}

async fn print_with_progress(cx: Cx, printer: PrinterState) -> Result<String> {
    cx.progress(1.0, None, "started");
    print(cx, printer).await
}

async fn ask_and_print(cx: Cx, printer: PrinterState) -> Result<String> {
    let login: Login = cx.elicit("login", "Who prints?").await?;
    printer.acquire()?;
    Ok(login.name)
}

fn builder(printer: &Arc<Printer>) -> ServerBuilder {
    Server::builder("busy", "1")
        .tool(Tool::new("print", print))
        .tool(Tool::new("print_step", print_step))
        .tool(Tool::new("drain_and_print", drain_and_print))
        .tool(Tool::new("print_with_progress", print_with_progress))
        .tool(Tool::new("ask_and_print", ask_and_print))
        .tool(Tool::new("ask_and_print_live", ask_and_print).live())
        .tool(Tool::new("print_live", print).live())
        .tool(Tool::new("print_single_use", print).single_use())
        .tool(Tool::new("print_once", print_once).once())
        .prompt(Prompt::new("print", print))
        .resource(Resource::new("x://print", "print", print))
        .state(printer.clone())
        .single_instance()
}

async fn instance() -> (Instance, Arc<Printer>) {
    let printer = Arc::<Printer>::default();
    (start(builder(&printer)).await, printer)
}

fn tool(name: &str) -> Request {
    Request::tool(name, json!({}))
}

fn error() -> Value {
    json!({"code": -32603, "message": MESSAGE})
}

#[track_caller]
fn assert_busy(response: &Response) {
    assert_eq!(response.status, 503);
    assert_eq!(response.header("retry-after"), Some("3"));
    assert_eq!(response.json()["error"], error());
}

#[tokio::test]
async fn busy_handler_is_answered_with_503() {
    let (instance, printer) = instance().await;
    for request in [
        tool("print"),
        tool("print_step"),
        tool("print_live"),
        Request::prompt("print", json!({})),
        Request::read("x://print"),
    ] {
        assert_busy(&instance.send(&request).await);
    }
    printer.release();
    let reply = instance.send(&tool("print_step")).await.reply();
    assert_eq!(text(&reply), "printed");
}

#[tokio::test]
async fn busy_later_round_can_be_repeated() {
    let (instance, printer) = instance().await;
    let state = token(&instance.send(&tool("ask_and_print")).await.reply());
    let request = tool("ask_and_print").again(&state, login("Ada"));
    assert_busy(&instance.send(&request).await);
    printer.release();
    assert_eq!(text(&instance.send(&request).await.reply()), "Ada");
}

#[tokio::test]
async fn busy_later_round_of_a_live_call_ends_it() {
    let (instance, printer) = instance().await;
    let first = tool("ask_and_print_live");
    let state = token(&instance.send(&first).await.reply());
    let request = first.again(&state, login("Ada"));
    for _ in 0..2 {
        let response = instance.send(&request).await;
        assert_eq!(response.status, 200);
        assert_eq!(response.reply()["error"], error());
    }
    assert_eq!(printer.attempts(), 1);
}

#[tokio::test]
async fn busy_reply_is_not_recorded() {
    let (instance, printer) = instance().await;
    let requests = ["print", "print_live", "print_single_use"]
        .map(|name| tool(name).meta("refrain/callId", json!(name)));
    for request in &requests {
        assert_busy(&instance.send(request).await);
    }
    printer.release();
    for request in &requests {
        assert_eq!(text(&instance.send(request).await.reply()), "printed");
    }
    assert_eq!(printer.attempts(), 6);
}

#[tokio::test]
async fn busy_step_is_not_handed_on() {
    let (instance, _) = instance().await;
    assert_busy(&instance.send(&tool("drain_and_print")).await);
}

#[tokio::test]
async fn busy_once_is_an_ordinary_error() {
    let (instance, _) = instance().await;
    let reply = instance.send(&tool("print_once")).await.reply();
    assert_eq!(result(&reply)["isError"], true);
    assert_contains(text(&reply), &[MESSAGE]);
}

#[tokio::test]
async fn busy_handler_on_a_stream_is_an_error() {
    let (instance, _) = instance().await;
    let request = tool("print_with_progress").meta("progressToken", json!(1));
    let events = instance.send(&request).await.events();
    assert_eq!(events[0]["params"]["message"], "started");
    assert_eq!(events[1]["error"], error());
}

#[tokio::test]
async fn busy_handler_of_a_legacy_client_is_answered_with_503() {
    let (instance, printer) = instance().await;
    let session = legacy::Session::open(&instance).await;
    assert_busy(&session.post(&legacy::call(1, "print", json!({}))).await);
    let mut asks = session
        .stream(&legacy::call(2, "ask_and_print", json!({})))
        .await;
    let asked = asks.next().await;
    session.post(&legacy::filled_in(&asked, "Ada")).await;
    assert_eq!(asks.next().await["error"], error(), "a stream has begun");
    printer.release();
    let result = session.result(&legacy::call(3, "print", json!({}))).await;
    assert_eq!(result["content"][0]["text"], "printed");
}

#[tokio::test]
async fn busy_handler_on_stdio_is_an_error() {
    let printer = Arc::<Printer>::default();
    let mut client = StdioClient::start(builder(&printer));
    assert_eq!(client.call(&tool("print")).await["error"], error());
    client.leave().await;
}

#[tokio::test]
async fn busy_task_fails() {
    let printer = Arc::<Printer>::default();
    let builder = builder(&printer)
        .tasks(Arc::new(MemoryStore::new()), eager())
        .tool(Tool::new("print_task", print).task());
    let instance = start(builder).await;
    let reply = instance
        .send(&tool("print_task").declares_tasks())
        .await
        .reply();
    let get = about("tasks/get", result(&reply)["taskId"].as_str().expect("id"));
    let task = within("the end of the task", async {
        loop {
            let reply = instance.send(&get).await.reply();
            if result(&reply)["status"] != "working" {
                return result(&reply).clone();
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(task["status"], "failed");
    assert_eq!(task["error"], error());
    assert_eq!(printer.attempts(), 1);
}
