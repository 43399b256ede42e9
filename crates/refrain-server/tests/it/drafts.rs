//! Servers that are spoken to in a draft: what waits, what streams, and what is refused.

use crate::support::tasks::{create_of, eager};
use crate::support::{Connection, Request, Response, names, within};
use refrain_core::{Cx, Principal, Result};
use refrain_server::drafts;
use refrain_server::{AllowedHosts, Server, ServerBuilder, TaskOptions, Tool};
use refrain_store::{MemoryStore, TaskStore};
use refrain_wire::drafts::Draft;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const WITH_TASKS: [Draft; 2] = [Draft::First, Draft::Second];

async fn work(_: Cx) -> Result<&'static str> {
    Ok("worked")
}

/// Says how far it is, and asks.
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

/// A server beside `/mcp` that speaks a draft.
struct Spoken {
    draft: Draft,
    address: SocketAddr,
    server: Server,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Spoken {
    async fn start(draft: Draft, store: &MemoryStore, options: TaskOptions) -> Self {
        Self::of(draft, builder(store, options)).await
    }

    async fn of(draft: Draft, builder: ServerBuilder) -> Self {
        let main = Server::builder("main", "1").build().expect("a server");
        let server = builder.count_with(&main).draft(draft);
        let server = server.build().expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let spoken = vec![(draft, server.clone())];
        let (hosts, stopped) = (AllowedHosts::local(), std::future::pending());
        let serving = drafts::serve(listener, main, spoken, hosts, stopped);
        Self {
            draft,
            address,
            server,
            serving: tokio::spawn(serving),
        }
    }

    /// Begins to post a message.
    async fn begin(&self, message: &Value) -> Connection {
        self.begin_text(&message.to_string()).await
    }

    async fn begin_text(&self, body: &str) -> Connection {
        let path = self.draft.path();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let mut connection = Connection::open(self.address).await;
        connection.write((head + body).as_bytes()).await;
        connection
    }

    async fn post(&self, message: &Value) -> Response {
        self.begin(message).await.response().await
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn request(method: &str, params: Value) -> Value {
    let mut request = json!({"jsonrpc": "2.0", "id": 7, "method": method});
    request["params"] = params;
    request
}

/// Has two wait for the result of a task, where there is one place: one is refused, whichever it is, and the other waits.
async fn one_of_two(spoken: &Spoken, result: &Value) -> (Response, Connection) {
    let mut one = spoken.begin(result).await;
    let mut other = spoken.begin(result).await;
    tokio::select! {
        refused = one.response() => (refused, other),
        refused = other.response() => (refused, one),
    }
}

#[tokio::test]
async fn who_waits_for_a_task_takes_no_place_of_a_call_and_is_told_when_the_instance_stops() {
    for draft in WITH_TASKS {
        let store = MemoryStore::new();
        let options = TaskOptions {
            waiting: 1,
            ..eager()
        };
        let spoken = Spoken::start(draft, &store, options).await;
        let shared: Arc<dyn TaskStore> = Arc::new(store.clone());
        let tool = format!("{draft}:work");
        let task = create_of(&tool, shared, Principal::anonymous()).await;
        let result = request("tasks/result", json!({"taskId": task.id()}));
        let (refused, mut waiting) = one_of_two(&spoken, &result).await;
        let why = refused.error(503, -32603);
        assert!(why.contains("limit of 1 clients that wait"), "{why}");
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(spoken.server.running(), 0);
        // Any other request about it is done.
        let get = request("tasks/get", json!({"taskId": task.id()}));
        assert_eq!(spoken.post(&get).await.status, 200);

        spoken.server.start_draining();
        let told = waiting.response().await;
        let why = told.error(503, -32603);
        assert!(why.contains("stopping"), "{why}");
        assert_eq!(told.header("retry-after"), Some("1"));
    }
}

#[tokio::test]
async fn a_result_that_is_waited_for_comes() {
    for draft in WITH_TASKS {
        let store = MemoryStore::new();
        let spoken = Spoken::start(draft, &store, eager()).await;
        let shared: Arc<dyn TaskStore> = Arc::new(store.clone());
        let tool = format!("{draft}:work");
        let task = create_of(&tool, shared, Principal::anonymous()).await;
        let result = request("tasks/result", json!({"taskId": task.id()}));
        let mut waiting = spoken.begin(&result).await;
        task.complete(&json!({"content": [], "isError": false}))
            .await;
        let told = waiting.response().await;
        assert_eq!(told.json()["result"]["isError"], false, "{told:?}");
    }
}

#[tokio::test]
async fn a_list_says_which_tools_may_become_tasks() {
    let support = async |draft: Option<Draft>| {
        let server = Server::builder("drafts", "1")
            .tool(Tool::new("plain", work))
            .tool(Tool::new("at_once", work).task())
            .tool(Tool::new("only", work).task_required())
            .tool(Tool::new("later", work).task_after(Duration::from_secs(1)))
            .tool(Tool::new("when_it_wants", work).detaches())
            .tool(Tool::new("live", work).detaches().live())
            .tasks(Arc::new(MemoryStore::new()), eager());
        let list = request("tools/list", json!({}));
        let answer = match draft {
            Some(draft) => Spoken::of(draft, server).await.post(&list).await.json(),
            None => {
                let server = server.build().expect("a server");
                let list = Request::rpc("tools/list", json!({})).message();
                let mut answer = server.handle(&list, Principal::anonymous()).await;
                let answer = within("a list", answer.next()).await;
                serde_json::from_slice::<Value>(&answer.expect("a list")).expect("JSON")
            }
        };
        let tools = answer["result"]["tools"].as_array().expect("tools").clone();
        let told = |tool: &Value| {
            let told = tool["execution"]["taskSupport"].as_str().unwrap_or("-");
            format!("{} {told}", tool["name"].as_str().unwrap_or_default())
        };
        tools.iter().map(told).collect::<Vec<_>>().join(", ")
    };
    let all =
        "plain -, at_once optional, only required, later optional, when_it_wants optional, live -";
    let none = "plain -, at_once -, only -, later -, when_it_wants -, live -";
    for draft in WITH_TASKS {
        assert_eq!(support(Some(draft)).await, all);
    }
    for draft in [Some(Draft::Sketch), None] {
        assert_eq!(support(draft).await, none);
    }
}

#[tokio::test]
async fn a_stream_ends_with_what_is_asked() {
    for draft in Draft::ALL {
        let spoken = Spoken::start(draft, &MemoryStore::new(), eager()).await;
        let call = request(
            "tools/call",
            json!({"name": "count", "_meta": {"progressToken": "p"}}),
        );
        let response = spoken.post(&call).await;
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
async fn what_a_draft_refuses_has_the_status_that_it_has_elsewhere() {
    let spoken = Spoken::start(Draft::Second, &MemoryStore::new(), eager()).await;
    let nope = spoken.post(&request("nope", json!({}))).await;
    nope.error(404, -32601);
    let bad = spoken.post(&request("tools/call", json!([]))).await;
    bad.error(400, -32600);
    let answers = request("tasks/input_response", json!({"inputResponses": {}}));
    let why = spoken.post(&answers).await.error(400, -32602);
    assert!(
        why.contains("related-task") && why.contains("tasks/input_response"),
        "{why}"
    );
}

#[tokio::test]
async fn a_front_without_drafts_says_how_to_have_them() {
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
    let said = String::from_utf8_lossy(&response.body);
    for part in ["/mcp;", "drafts are off", "--drafts", "`drafts::serve`"] {
        assert!(said.contains(part), "{said}");
    }
    serving.abort();
}

/// What happens on a draft's path is among the numbers of the instance.
#[tokio::test]
async fn servers_can_count_together() {
    let main = Server::builder("main", "1").build().expect("a server");
    let beside = builder(&MemoryStore::new(), eager()).count_with(&main);
    let beside = beside.build().expect("a server");
    let mut refused = beside.handle(b"{}", Principal::anonymous()).await;
    let answer = within("an answer", refused.next()).await;
    assert!(answer.is_some());
    beside.start_draining();
    for server in [&main, &beside] {
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
    let spoken = Spoken::start(Draft::Second, &store, eager()).await;
    for (id, method) in [
        ("123456789012345678901234567890", "tools/list"),
        ("123456789012345678901234567890", "initialize"),
        ("-0", "tools/list"),
    ] {
        let body =
            format!(r#"{{"jsonrpc": "2.0", "id": {id}, "method": "{method}", "params": {{}}}}"#);
        let response = spoken.begin_text(&body).await.response().await;
        names(&response.error(400, -32600), &["64 bits"]);
        assert!(response.text().contains(id), "{}", response.text());
    }
}
