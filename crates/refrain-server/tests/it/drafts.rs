//! Draft endpoints: waiting for tasks, streams and errors.

use crate::support::tasks::{Work, create_of, eager, work};
use crate::support::{Connection, Request, Response, assert_contains, handle, within};
use refrain_core::{Cx, Principal, Result};
use refrain_server::drafts;
use refrain_server::{AllowedHosts, Server, ServerBuilder, TaskOptions, Tool};
use refrain_store::MemoryStore;
use refrain_testkit::net::until;
use refrain_wire::drafts::Draft;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const WITH_TASKS: [Draft; 2] = [Draft::First, Draft::Second];

/// Reports progress, then asks.
async fn count(cx: Cx) -> Result<String> {
    cx.progress(1.0, Some(2.0), "half");
    let roots = cx.roots("files").await?;
    Ok(format!("{} roots", roots.len()))
}

fn builder(store: &MemoryStore, options: TaskOptions) -> ServerBuilder {
    Server::builder("drafts", "1")
        .tool(Tool::new("work", work))
        .tool(Tool::new("count", count))
        .tasks(Arc::new(store.clone()), options)
}

/// A draft endpoint next to `/mcp`.
struct TestEndpoint {
    draft: Draft,
    address: SocketAddr,
    server: Server,
    serving: JoinHandle<std::io::Result<()>>,
}

impl TestEndpoint {
    async fn start(draft: Draft, store: &MemoryStore, options: TaskOptions) -> Self {
        Self::of(draft, builder(store, options)).await
    }

    async fn of(draft: Draft, builder: ServerBuilder) -> Self {
        let main = Server::builder("main", "1").build().expect("a server");
        let server = builder.share_metrics_with(&main).draft(draft);
        let server = server.build().expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let drafts = vec![(draft, server.clone())];
        let (hosts, stopped) = (AllowedHosts::local(), std::future::pending());
        let serving = drafts::serve(listener, main, drafts, hosts, stopped);
        Self {
            draft,
            address,
            server,
            serving: tokio::spawn(serving),
        }
    }

    /// Sends a message without waiting for the response.
    async fn send(&self, message: &Value) -> Connection {
        self.send_text(&message.to_string()).await
    }

    async fn send_text(&self, body: &str) -> Connection {
        self.send_on(Connection::open(self.address).await, body)
            .await
    }

    /// Sends a message from this loopback address.
    async fn send_from(&self, local: IpAddr, message: &Value) -> Connection {
        let connection = Connection::open_from(local, self.address).await;
        self.send_on(connection, &message.to_string()).await
    }

    async fn send_on(&self, mut connection: Connection, body: &str) -> Connection {
        let path = self.draft.path();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        connection.write((head + body).as_bytes()).await;
        connection
    }

    async fn post(&self, message: &Value) -> Response {
        self.send(message).await.response().await
    }
}

impl Drop for TestEndpoint {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn request(method: &str, params: Value) -> Value {
    let mut request = json!({"jsonrpc": "2.0", "id": 7, "method": method});
    request["params"] = params;
    request
}

/// Creates a task, and the request for its result.
async fn create_task(draft: Draft, store: &MemoryStore) -> (Work, Value) {
    let tool = format!("{draft}:work");
    let task = create_of(&tool, Arc::new(store.clone()), Principal::anonymous()).await;
    let result = request("tasks/result", json!({"taskId": task.id()}));
    (task, result)
}

/// Lets two clients wait for a task with a limit of one. Returns the rejection of one and the connection of the other.
async fn wait_twice(endpoint: &TestEndpoint, result: &Value) -> (Response, Connection) {
    let mut one = endpoint.send(result).await;
    let mut other = endpoint.send(result).await;
    tokio::select! {
        rejected = one.response() => (rejected, other),
        rejected = other.response() => (rejected, one),
    }
}

#[tokio::test]
async fn waiting_for_a_task_uses_its_own_limit_and_ends_on_shutdown() {
    for draft in WITH_TASKS {
        let store = MemoryStore::new();
        let options = TaskOptions {
            waiting: 1,
            ..eager()
        };
        let endpoint = TestEndpoint::start(draft, &store, options).await;
        let (task, result) = create_task(draft, &store).await;
        let (rejected, mut waiting) = wait_twice(&endpoint, &result).await;
        let message = rejected.error(503, -32603);
        assert!(message.contains("limit of 1 clients waiting"), "{message}");
        assert_eq!(rejected.header("retry-after"), Some("1"));
        // The other client reads the task once before it waits.
        until("no call", || endpoint.server.running() == 0).await;
        // Other requests about the task are handled.
        let get = request("tasks/get", json!({"taskId": task.id()}));
        assert_eq!(endpoint.post(&get).await.status, 200);

        endpoint.server.start_draining();
        let ended = waiting.response().await;
        let message = ended.error(503, -32603);
        assert!(message.contains("shutting down"), "{message}");
        assert_eq!(ended.header("retry-after"), Some("1"));
    }
}

#[tokio::test]
async fn waiting_clients_of_one_caller_are_limited() {
    for draft in WITH_TASKS {
        let store = MemoryStore::new();
        let options = TaskOptions {
            waiting_each: 1,
            ..eager()
        };
        let endpoint = TestEndpoint::start(draft, &store, options).await;
        let (task, result) = create_task(draft, &store).await;
        let (rejected, mut waiting) = wait_twice(&endpoint, &result).await;
        let message = rejected.error(503, -32603);
        assert!(
            message.contains("this caller is at its limit of 1"),
            "{message}"
        );
        assert_eq!(rejected.header("retry-after"), Some("1"));
        // A client at another address can wait, too.
        let mut other = endpoint.send_from([127, 0, 0, 2].into(), &result).await;
        task.complete(&json!({"content": [], "isError": false}))
            .await;
        for waiting in [&mut waiting, &mut other] {
            let response = waiting.response().await;
            assert_eq!(response.json()["result"]["isError"], false, "{response:?}");
        }
    }
}

#[tokio::test]
async fn waiting_client_receives_the_task_result() {
    for draft in WITH_TASKS {
        let store = MemoryStore::new();
        let endpoint = TestEndpoint::start(draft, &store, eager()).await;
        let (task, result) = create_task(draft, &store).await;
        let mut waiting = endpoint.send(&result).await;
        task.complete(&json!({"content": [], "isError": false}))
            .await;
        let response = waiting.response().await;
        assert_eq!(response.json()["result"]["isError"], false, "{response:?}");
    }
}

#[tokio::test]
async fn tool_list_shows_task_support() {
    let support = async |draft: Option<Draft>| {
        let server = Server::builder("drafts", "1")
            .tool(Tool::new("plain", work))
            .tool(Tool::new("at_once", work).task())
            .tool(Tool::new("only", work).task_required())
            .tool(Tool::new("later", work).task_after(Duration::from_secs(1)))
            .tool(Tool::new("detaching", work).detaches())
            .tool(Tool::new("live", work).detaches().live())
            .tasks(Arc::new(MemoryStore::new()), eager());
        let list = request("tools/list", json!({}));
        let answer = match draft {
            Some(draft) => TestEndpoint::of(draft, server)
                .await
                .post(&list)
                .await
                .json(),
            None => {
                let server = server.build().expect("a server");
                let list = Request::rpc("tools/list", json!({}));
                handle(&server, &list, Principal::anonymous()).await
            }
        };
        let tools = answer["result"]["tools"].as_array().expect("tools").clone();
        let describe = |tool: &Value| {
            let support = tool["execution"]["taskSupport"].as_str().unwrap_or("-");
            format!("{} {support}", tool["name"].as_str().unwrap_or_default())
        };
        tools.iter().map(describe).collect::<Vec<_>>().join(", ")
    };
    let all = "plain -, at_once optional, only required, later optional, detaching optional, live optional";
    let none = "plain -, at_once -, only -, later -, detaching -, live -";
    for draft in WITH_TASKS {
        assert_eq!(support(Some(draft)).await, all);
    }
    for draft in [Some(Draft::Sketch), None] {
        assert_eq!(support(draft).await, none);
    }
}

#[tokio::test]
async fn stream_ends_with_the_asks() {
    for draft in Draft::ALL {
        let endpoint = TestEndpoint::start(draft, &MemoryStore::new(), eager()).await;
        let call = request(
            "tools/call",
            json!({"name": "count", "_meta": {"progressToken": "p"}}),
        );
        let response = endpoint.post(&call).await;
        assert_eq!(response.header("content-type"), Some("text/event-stream"));
        let events = response.events();
        let [progress, last] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(progress["method"], "notifications/progress");
        assert_eq!(progress["params"]["progressToken"], "p");
        assert_eq!(last["id"], 7);
        let asks = match draft {
            Draft::Sketch => &last["dependent_requests"],
            Draft::First => &last["input_requests"],
            Draft::Second => &last["result"]["inputRequests"],
        };
        assert_eq!(asks["files"]["method"], "roots/list", "{last}");
        assert_eq!(last.get("result").is_some(), draft == Draft::Second);
        assert_eq!(last["result"].get("resultType"), None);
    }
}

#[tokio::test]
async fn draft_errors_have_the_usual_http_status() {
    let endpoint = TestEndpoint::start(Draft::Second, &MemoryStore::new(), eager()).await;
    let nope = endpoint.post(&request("nope", json!({}))).await;
    nope.error(404, -32601);
    let bad = endpoint.post(&request("tools/call", json!([]))).await;
    bad.error(400, -32600);
    let answers = request("tasks/input_response", json!({"inputResponses": {}}));
    let message = endpoint.post(&answers).await.error(400, -32602);
    assert!(
        message.contains("related-task") && message.contains("tasks/input_response"),
        "{message}"
    );
}

#[tokio::test]
async fn disabled_drafts_error_says_how_to_enable_them() {
    let server = Server::builder("main", "1").build().expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (hosts, stopped) = (AllowedHosts::local(), std::future::pending());
    let serving = tokio::spawn(drafts::serve(listener, server, vec![], hosts, stopped));
    let mut connection = Connection::open(address).await;
    let head = "POST /drafts/2/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    connection.write(head.as_bytes()).await;
    let response = connection.response().await;
    assert_eq!(response.status, 404);
    let body = String::from_utf8_lossy(&response.body);
    for part in [
        "/mcp.",
        "Drafts are disabled",
        "--drafts",
        "`drafts::serve`",
    ] {
        assert!(body.contains(part), "{body}");
    }
    serving.abort();
}

/// Requests of a draft are counted in the metrics of the instance.
#[tokio::test]
async fn servers_can_share_metrics() {
    let main = Server::builder("main", "1").build().expect("a server");
    let other = builder(&MemoryStore::new(), eager()).share_metrics_with(&main);
    let other = other.build().expect("a server");
    let mut rejected = other.handle(b"{}", Principal::anonymous()).await;
    let answer = within("an answer", rejected.next()).await;
    assert!(answer.is_some());
    other.start_draining();
    for server in [&main, &other] {
        let text = server.metrics_text();
        for line in [
            "refrain_requests_refused_total{reason=\"invalid_request\"} 1",
            "refrain_draining 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
}

#[tokio::test]
async fn id_beyond_64_bits_is_rejected_and_not_rounded() {
    let store = MemoryStore::new();
    let endpoint = TestEndpoint::start(Draft::Second, &store, eager()).await;
    for (id, method) in [
        ("123456789012345678901234567890", "tools/list"),
        ("123456789012345678901234567890", "initialize"),
        ("-0", "tools/list"),
    ] {
        let body =
            format!(r#"{{"jsonrpc": "2.0", "id": {id}, "method": "{method}", "params": {{}}}}"#);
        let response = endpoint.send_text(&body).await.response().await;
        assert_contains(&response.error(400, -32600), &["64 bits"]);
        assert!(response.text().contains(id), "{}", response.text());
    }
}
