//! Helpers shared by the tests, in addition to `refrain_testkit::net`.

pub(crate) use refrain_testkit::net::{
    Events, FakeServer, Received, Respond, serve_forever, until, within,
};

use futures_util::future::BoxFuture;
use http::{HeaderMap, Method};
use refrain_client::{AuthError, Authorize, Client, RejectedRequest};
use serde_json::{Value, json};
use url::Url;

/// A client with default settings.
pub(crate) async fn connect(server: &FakeServer) -> Client {
    let client = Client::builder().connect(&server.url).await;
    client.expect("a connection")
}

/// A server that sends these asks once, and completes with any answers.
pub(crate) async fn server_asking(asks: Value) -> FakeServer {
    FakeServer::start(move |request| match request["params"].get("requestState") {
        None => Respond::asks(asks.clone(), Some("s")),
        Some(_) => Respond::text("done"),
    })
    .await
}

/// A server whose calls become a task, with these results of the task methods.
pub(crate) async fn task_server(
    task: impl Fn(&str) -> Value + Send + Sync + 'static,
) -> FakeServer {
    FakeServer::start(move |request| {
        let method = request["method"].as_str().expect("a method");
        match method {
            "subscriptions/listen" => Respond::Error(-32601, "no such method"),
            "tasks/get" | "tasks/update" | "tasks/cancel" => Respond::Result(task(method)),
            _ => {
                Respond::Result(json!({"resultType": "task", "taskId": "t1", "status": "working"}))
            }
        }
    })
    .await
}

/// An authorization with these headers, which gives up when the server rejects them.
pub(crate) struct HeaderAuth<F>(pub(crate) F);

impl<F> Authorize for HeaderAuth<F>
where
    F: Fn() -> BoxFuture<'static, HeaderMap> + Send + Sync + 'static,
{
    fn headers<'a>(
        &'a self,
        _method: &'a Method,
        _url: &'a Url,
    ) -> BoxFuture<'a, Result<HeaderMap, AuthError>> {
        Box::pin(async { Ok(self.0().await) })
    }

    fn handle_rejection<'a>(
        &'a self,
        _rejection: RejectedRequest<'a>,
    ) -> BoxFuture<'a, Result<bool, AuthError>> {
        Box::pin(async { Ok(false) })
    }
}

/// A form with these optional properties.
pub(crate) fn form(message: &str, properties: Value) -> Value {
    let mut schema = json!({"type": "object"});
    schema["properties"] = properties;
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}
