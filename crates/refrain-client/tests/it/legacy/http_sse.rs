//! Servers with the HTTP+SSE transport of 2024-11-05.

use super::support::{Events, FakeServer, Received, Respond, called, form, within};
use parking_lot::Mutex;
use refrain_client::{AskAnswer, Client, ClientBuilder, ClientLimits, Dialect, Error, ErrorKind};
use refrain_testkit::net::oauth::CannedResponse;
use serde_json::{Value, json};
use std::net::TcpListener;
use std::sync::Arc;
use tokio::sync::watch;

const VERSION: &str = "2024-11-05";

/// The event streams of a server, the newest last.
type Streams = Arc<Mutex<Vec<Events>>>;

fn send(streams: &Streams, message: &Value) {
    streams.lock().last().expect("a stream").message(message);
}

/// A server whose replies arrive on its event stream. It names this endpoint; the closure answers calls with a message.
async fn server(
    endpoint: &'static str,
    streams: &Streams,
    respond: impl Fn(&Received) -> Option<Value> + Send + Sync + 'static,
) -> FakeServer {
    let streams = Arc::clone(streams);
    let (sender, never) = watch::channel(false);
    FakeServer::start_with(move |request, _| {
        // Kept, so that the response that waits for `never` is never sent.
        let _kept = &sender;
        if request.verb == "GET" {
            let (writer, response) = Events::new();
            writer.event("retry: 10");
            writer.event(&format!("event: endpoint\ndata: {endpoint}"));
            streams.lock().push(writer);
            return response;
        }
        if request.path != "/messages" {
            return Respond::Status(405);
        }
        let reply = match request.method() {
            "initialize" => Some(request.result(&json!({
                "protocolVersion": VERSION,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "oldest", "version": "1"},
            }))),
            "tools/call" if request.tool() == "rejected" => return Respond::Status(500),
            "tools/call" => respond(request),
            _ => None,
        };
        if let Some(reply) = reply {
            send(&streams, &reply);
        }
        match request.tool() {
            "slow" => Respond::When(never.clone(), CannedResponse::new(202)),
            _ => Respond::Status(202),
        }
    })
    .await
}

async fn connect(builder: ClientBuilder, server: &FakeServer) -> Result<Client, Error> {
    within("the server", builder.connect(&server.url)).await
}

fn with_form_handler() -> ClientBuilder {
    Client::builder().on_form(|ask| async move {
        assert_eq!(ask.message, ask.asker.target);
        Ok(AskAnswer::accept(json!({"b": "x"}))?)
    })
}

#[tokio::test]
async fn calls_and_asks_travel_over_the_event_stream() {
    let streams = Streams::default();
    let writer = Arc::clone(&streams);
    let server = server("/messages?session=1", &streams, move |request| {
        let tool = request.tool();
        if tool == "plain" {
            return Some(request.text("done"));
        }
        let ask = json!({
            "jsonrpc": "2.0", "id": request["id"], "method": "elicitation/create", "params": form(tool),
        });
        send(&writer, &ask);
        None
    })
    .await;
    let builder = with_form_handler().header("x-api-key", "k");
    let client = connect(builder, &server).await.unwrap();
    assert_eq!(client.server().version, VERSION);
    assert_eq!(client.dialect(), Dialect::FirstRevision);
    assert_eq!(client.address(), server.url);
    assert_eq!(called(&client, "plain").await.unwrap(), "done");
    let answer_and_end = async {
        let is_answer = |request: &Received| request["result"]["content"]["b"] == "x";
        let answer = server.receives("the answer", is_answer).await;
        send(&streams, &answer.text("answered"));
    };
    let (result, ()) = tokio::join!(called(&client, "ask"), answer_and_end);
    assert_eq!(result.unwrap(), "answered");
    for request in server.received(|request| request.path == "/messages") {
        assert_eq!(request.params["session"], "1");
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(request.header("x-api-key"), Some("k"));
    }
    within("closing", client.close()).await;
    let stream = streams.lock().remove(0);
    within("the end of the stream", stream.closed()).await;
}

#[tokio::test]
async fn remembered_dialect_finds_the_transport() {
    let streams = Streams::default();
    let server = server("/messages", &streams, |request| Some(request.text("done"))).await;
    let builder = Client::builder().dialect(Dialect::FirstRevision);
    let client = connect(builder, &server).await.unwrap();
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    assert_eq!(server.count("server/discover"), 0);
    let other = Client::builder().dialect(Dialect::from_name("2025-06-18").unwrap());
    let error = connect(other, &server).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::NoCommonVersion { .. });
}

#[tokio::test]
async fn endpoint_of_another_origin_is_rejected() {
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let elsewhere = format!("http://{}/messages", trap.local_addr().unwrap());
    for endpoint in [elsewhere.leak(), "//example.com/messages", "http://["] {
        let server = server(endpoint, &Streams::default(), |_| None).await;
        let error = connect(Client::builder(), &server).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::NotMcp { .. });
        assert!(error.to_string().contains(endpoint), "{error}");
    }
    let contacted = trap.accept().map(|_| ()).map_err(|error| error.kind());
    assert_eq!(contacted, Err(std::io::ErrorKind::WouldBlock));
}

#[tokio::test]
async fn stream_of_another_kind_is_not_the_transport() {
    for event in ["event: message\ndata: {}", "event: ping\ndata: /messages"] {
        let server = FakeServer::start_with(move |request, _| {
            if request.verb != "GET" {
                return Respond::Status(405);
            }
            let (writer, response) = Events::new();
            writer.event(event);
            response
        })
        .await;
        let error = connect(Client::builder(), &server).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::NotMcp { .. });
        assert!(error.to_string().contains("HTTP status 405"), "{error}");
    }
}

#[tokio::test]
async fn lost_stream_fails_calls_and_is_opened_again() {
    let streams = Streams::default();
    let server = server("/messages", &streams, |request| {
        (request.tool() != "wait").then(|| request.text("done"))
    })
    .await;
    let client = connect(Client::builder(), &server).await.unwrap();
    let waiting = client.call_tool("wait", json!({}));
    let lose = async {
        let is_wait = |request: &Received| request.tool() == "wait";
        server.receives("the call", is_wait).await;
        streams.lock().clear();
    };
    let (error, ()) = tokio::join!(within("the error", waiting), lose);
    let error = error.unwrap_err();
    assert_matches!(error.kind, ErrorKind::ConnectionLost(_));
    assert!(error.is_outcome_unknown());
    assert_eq!(called(&client, "t").await.unwrap(), "done");
    assert_eq!(
        server.count("initialize"),
        3,
        "the first was not posted to the endpoint"
    );
    let waits = server.received(|request| request.tool() == "wait");
    assert_eq!(waits.len(), 1, "the call is not repeated");
}

#[tokio::test]
async fn rejected_post_fails_its_request() {
    let streams = Streams::default();
    let server = server("/messages", &streams, |request| Some(request.text("done"))).await;
    let client = connect(Client::builder(), &server).await.unwrap();
    let error = called(&client, "rejected").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::HttpStatus { status: 500, .. });
    assert_eq!(called(&client, "t").await.unwrap(), "done");
}

#[tokio::test]
async fn too_large_event_fails_calls() {
    let streams = Streams::default();
    let server = server("/messages", &streams, |request| {
        let length = if request.tool() == "long" { 200_000 } else { 1 };
        Some(request.text(&"x".repeat(length)))
    })
    .await;
    let limits = ClientLimits {
        message: 100_000,
        ..ClientLimits::default()
    };
    let client = connect(Client::builder().limits(limits), &server)
        .await
        .unwrap();
    let error = called(&client, "long").await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::TooLarge { .. });
    assert_eq!(called(&client, "t").await.unwrap(), "x");
}

#[tokio::test]
async fn dropped_call_is_cancelled_over_the_endpoint() {
    let server = server("/messages", &Streams::default(), |_| None).await;
    let client = connect(Client::builder(), &server).await.unwrap();
    let is_call = |request: &Received| request.method() == "tools/call";
    let call = tokio::select! {
        ended = client.call_tool("t", json!({})) => panic!("the tool never returns: {ended:?}"),
        call = server.receives("the call", is_call) => call,
    };
    let is_cancelled = |request: &Received| request.method() == "notifications/cancelled";
    let cancelled = server.receives("the cancellation", is_cancelled).await;
    assert_eq!(cancelled["params"]["requestId"], call["id"]);
}

/// Some servers respond to the POST of a request only after they have handled it.
#[tokio::test]
async fn unanswered_post_of_a_request_does_not_delay_answers() {
    let streams = Streams::default();
    let writer = Arc::clone(&streams);
    let server = server("/messages", &streams, move |request| {
        let ask = json!({
            "jsonrpc": "2.0", "id": request["id"], "method": "elicitation/create",
            "params": form("slow"),
        });
        send(&writer, &ask);
        None
    })
    .await;
    let client = connect(with_form_handler(), &server).await.unwrap();
    let answer_and_end = async {
        let is_answer = |request: &Received| request["result"]["content"]["b"] == "x";
        let answer = server.receives("the answer", is_answer).await;
        send(&streams, &answer.text("answered"));
    };
    let (result, ()) = tokio::join!(called(&client, "slow"), answer_and_end);
    assert_eq!(result.unwrap(), "answered");
}
