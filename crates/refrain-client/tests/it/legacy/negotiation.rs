//! Detection of the protocol revision of a server.

use super::support::{FakeServer, Respond, called, is_call, legacy_greeting, spawn, within};
use refrain_client::{Client, ClientLimits, Dialect, Error, ErrorKind, WireMessage};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

async fn connect(server: &FakeServer) -> Result<Client, Error> {
    within("the server", Client::builder().connect(&server.url)).await
}

fn with_short_probe() -> refrain_client::ClientBuilder {
    Client::builder().limits(ClientLimits {
        probe: Duration::from_millis(100),
        ..ClientLimits::default()
    })
}

/// The server exits if its first message is not `initialize`.
#[tokio::test]
async fn remembered_dialect_connects_with_one_process() {
    for version in LEGACY {
        let sent: Arc<Mutex<Vec<String>>> = Arc::default();
        let observed = |record: &Arc<Mutex<Vec<String>>>| {
            let record = Arc::clone(record);
            Client::builder().on_wire(move |message| {
                if let WireMessage::Sent { message } = message {
                    let message: Value = serde_json::from_str(message).unwrap();
                    record.lock().unwrap().push(message["method"].to_string());
                }
            })
        };
        let args = [version, "exit"];
        let client = spawn(observed(&sent), &args).await.unwrap();
        let dialect = client.dialect();
        assert_eq!(dialect.name(), version);
        assert_eq!(sent.lock().unwrap()[0], "\"server/discover\"");
        within("the exit", client.close()).await;
        sent.lock().unwrap().clear();
        let client = spawn(observed(&sent).dialect(dialect), &args)
            .await
            .unwrap();
        assert_eq!(client.dialect(), dialect);
        assert_eq!(client.server().version, version);
        let expected = ["\"initialize\"", "\"notifications/initialized\""];
        assert_eq!(*sent.lock().unwrap(), expected);
        let read: Dialect = serde_json::from_value(json!(dialect)).unwrap();
        assert_eq!(read, dialect);
    }
}

#[tokio::test]
async fn remembered_dialect_of_a_changed_server_is_an_error() {
    for (dialect, version) in [("2024-11-05", "2025-06-18"), ("2025-06-18", "2024-11-05")] {
        let dialect = Dialect::from_name(dialect).unwrap();
        let builder = Client::builder().dialect(dialect);
        let error = spawn(builder, &[version]).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::NoCommonVersion { .. });
    }
    let server = FakeServer::start(|_| Respond::text("done")).await;
    let client = Client::builder().connect(&server.url).await.unwrap();
    assert_eq!(client.dialect(), Dialect::Modern);
}

#[tokio::test]
async fn legacy_process_is_detected_by_any_error() {
    for (version, code) in LEGACY
        .into_iter()
        .zip(["-32601", "-32602", "-32000", "-32700"])
    {
        let client = spawn(Client::builder(), &[version, code]).await.unwrap();
        assert_eq!(client.server().version, version);
        assert_eq!(client.server().name(), Some("old"));
        assert_eq!(client.tools().await.unwrap()[0].name, "form");
    }
}

#[tokio::test]
async fn silent_process_is_legacy() {
    let client = spawn(with_short_probe(), &["2025-06-18", "silent"])
        .await
        .unwrap();
    assert_eq!(client.server().version, "2025-06-18");
}

#[tokio::test]
async fn process_that_exits_on_discover_is_restarted_and_initialized() {
    // The process exits before and after `initialize` was sent.
    for (builder, probe) in [
        (Client::builder(), "exit"),
        (with_short_probe(), "late exit"),
    ] {
        let client = spawn(builder, &["2025-03-26", probe]).await.unwrap();
        assert_eq!(client.server().version, "2025-03-26");
        assert_eq!(called(&client, "meta").await.unwrap(), json!({}));
    }
}

#[tokio::test]
async fn slow_modern_process_is_not_legacy() {
    let client = spawn(with_short_probe(), &["2025-11-25", "late"])
        .await
        .unwrap();
    assert_eq!(client.server().version, "2026-07-28");
    let meta = called(&client, "meta").await.unwrap();
    assert_eq!(
        meta["io.modelcontextprotocol/protocolVersion"],
        "2026-07-28"
    );
}

#[tokio::test]
async fn unknown_revision_is_reported() {
    let error = spawn(Client::builder(), &["2023-01-01"]).await.unwrap_err();
    let ErrorKind::NoCommonVersion { supported } = &error.kind else {
        panic!("{error}");
    };
    assert_eq!(supported, &["2023-01-01"]);
}

#[tokio::test]
async fn legacy_http_server_is_detected_by_any_error() {
    type Reject = fn(&super::support::Received) -> Respond;
    let rejections: [Reject; 6] = [
        |request| Respond::Json(400, request.error(-32000, "no session", &Value::Null)),
        |request| Respond::Json(200, request.error(-32602, "bad request", &Value::Null)),
        |_| Respond::Status(400),
        |_| Respond::Raw(404, "text/html", "<h1>Not found</h1>".into()),
        |_| Respond::Json(400, json!({"error": "Missing session"})),
        |_| Respond::Json(422, json!({"detail": []})),
    ];
    for reject in rejections {
        let server = FakeServer::start_with(move |request, _| match request.method() {
            "server/discover" => reject(request),
            _ => legacy_greeting(request, "2025-03-26", "s1").unwrap_or(Respond::Status(500)),
        })
        .await;
        let client = connect(&server).await.unwrap();
        assert_eq!(client.server().version, "2025-03-26");
        let initialize = &server.received(|request| request.method() == "initialize")[0];
        assert_eq!(
            initialize.message["params"]["protocolVersion"],
            "2025-11-25"
        );
    }
}

/// A server that rejects `server/discover` with this error, and accepts `initialize`.
async fn rejecting_server(status: u16, code: i64, data: Value) -> FakeServer {
    FakeServer::start_with(move |request, _| match request.method() {
        "server/discover" => Respond::Json(status, request.error(code, "no", &data)),
        _ => legacy_greeting(request, "2025-06-18", "s1").unwrap_or(Respond::Status(500)),
    })
    .await
}

fn initializations(server: &FakeServer) -> Vec<super::support::Received> {
    server.received(|request| request.method() == "initialize")
}

#[tokio::test]
async fn newer_server_is_not_initialized() {
    let server = rejecting_server(400, -32022, json!({"supported": ["2027-01-01"]})).await;
    let error = connect(&server).await.unwrap_err();
    assert!(error.to_string().contains("2027-01-01"), "{error}");
    assert!(initializations(&server).is_empty());

    for code in [-32020, -32021] {
        let server = rejecting_server(400, code, Value::Null).await;
        let error = connect(&server).await.unwrap_err();
        assert_matches!(error.kind, ErrorKind::Rpc(_));
        assert!(initializations(&server).is_empty());
    }
}

#[tokio::test]
async fn offered_legacy_revision_is_used() {
    let supported = json!({"supported": ["2027-01-01", "2025-03-26", "2025-06-18"]});
    let server = rejecting_server(400, -32022, supported).await;
    let client = connect(&server).await.unwrap();
    assert_eq!(client.server().version, "2025-06-18");
    let initialize = &initializations(&server)[0];
    assert_eq!(
        initialize.message["params"]["protocolVersion"],
        "2025-06-18"
    );
}

#[tokio::test]
async fn server_without_discover_and_initialize_is_modern() {
    let server = FakeServer::start_with(|request, _| match request.method() {
        "tools/call" => Respond::Json(200, request.text("here")),
        _ => Respond::Json(404, request.error(-32601, "no such method", &Value::Null)),
    })
    .await;
    let client = connect(&server).await.unwrap();
    assert_eq!(client.server().version, "2026-07-28");
    assert_eq!(called(&client, "t").await.unwrap(), "here");
    let call = &server.received(is_call)[0];
    let version = "io.modelcontextprotocol/protocolVersion";
    assert_eq!(call.message["params"]["_meta"][version], "2026-07-28");
}

#[tokio::test]
async fn non_mcp_server_is_reported() {
    let server =
        FakeServer::start_with(|_, _| Respond::Raw(404, "text/html", "<h1>Not found</h1>".into()))
            .await;
    let error = connect(&server).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::NotMcp { .. });
    assert!(error.to_string().contains("404"), "{error}");

    let server = FakeServer::start_with(|_, _| Respond::Json(200, json!({"hello": "world"}))).await;
    let error = connect(&server).await.unwrap_err();
    assert_matches!(error.kind, ErrorKind::NotMcp { .. });
    assert!(error.to_string().contains("hello"), "{error}");
}

#[tokio::test]
async fn unauthorized_or_failing_server_is_not_initialized() {
    for status in [401, 403, 500, 503] {
        let server = FakeServer::start_with(move |request, _| match request.method() {
            "server/discover" => Respond::Status(status),
            _ => legacy_greeting(request, "2025-06-18", "s1").unwrap_or(Respond::Status(500)),
        })
        .await;
        connect(&server).await.unwrap_err();
        assert!(initializations(&server).is_empty(), "{status}");
    }
}

#[tokio::test]
async fn process_with_an_invalid_error_is_initialized() {
    let client = spawn(Client::builder(), &["2025-06-18", "odd"]).await;
    assert_eq!(client.unwrap().server().version, "2025-06-18");
}

#[tokio::test]
async fn initialize_without_a_connection_is_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let (reports, mut received) = tokio::sync::mpsc::unbounded_channel();
    let builder = Client::builder()
        .dialect(Dialect::from_name("2025-06-18").unwrap())
        .on_request(move |report| {
            let error_type = report.error_type.as_deref().map(str::to_owned);
            reports.send((report.method, error_type)).ok();
        });
    within("the error", builder.connect(&url))
        .await
        .unwrap_err();
    let (method, error_type) = received.recv().await.unwrap();
    assert_eq!(method, "initialize");
    assert!(error_type.is_some());
}
