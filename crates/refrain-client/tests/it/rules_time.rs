//! What a server may take, and that it hears when nobody waits any longer.

use crate::support::{until, within};
use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use refrain_client::{Client, ErrorKind, Limits};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(2);

/// Counts the streams that somebody closed.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What the server says to all requests but one.
#[derive(Clone, Copy)]
enum Says {
    Nothing,
    /// That it goes on, for ever.
    Progress,
    /// Nothing but comments for twice the time that it may be silent, and then the result.
    Comments,
}

/// Answers one request at once, and the others so.
async fn endless(says: Says) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let closed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&closed);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            let service = service_fn(move |request: Request<Incoming>| {
                let open = Arc::clone(&count);
                async move {
                    let body = request
                        .into_body()
                        .collect()
                        .await
                        .expect("a body")
                        .to_bytes();
                    let request: Value = serde_json::from_slice(&body).expect("a message");
                    Ok::<_, Infallible>(answer(&request, says, open))
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (url, closed)
}

fn answer(request: &Value, says: Says, closed: Arc<AtomicUsize>) -> Response<Body> {
    if request["method"] == "server/discover" {
        let result = json!({"supportedVersions": ["2026-07-28"], "capabilities": {}});
        let body = json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string();
        let response = Response::builder().header("content-type", "application/json");
        return response
            .body(Full::from(body).boxed_unsync())
            .expect("a response");
    }
    let (id, begun) = (request["id"].clone(), Instant::now());
    let events = unfold(Open(closed), move |open| {
        let id = id.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let event = match says {
                Says::Nothing => std::future::pending().await,
                Says::Progress => {
                    let params = json!({"progress": 1});
                    let method = "notifications/progress";
                    let note = json!({"jsonrpc": "2.0", "method": method, "params": params});
                    format!("data: {note}\n\n")
                }
                Says::Comments if begun.elapsed() < 2 * SHORT => ": still here\n\n".to_owned(),
                Says::Comments => {
                    let result = json!({"resultType": "complete", "content": [], "tools": []});
                    let response = json!({"jsonrpc": "2.0", "id": id, "result": result});
                    format!("data: {response}\n\n")
                }
            };
            Some((Ok(Frame::data(Bytes::from(event))), open))
        }
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    response
        .body(StreamBody::new(events).boxed_unsync())
        .expect("a response")
}

#[tokio::test]
async fn whatever_is_reported_there_is_a_longest_time() {
    let (url, closed) = endless(Says::Progress).await;
    let limits = Limits {
        deadline: Some(SHORT),
        silence: LONG,
        ..Limits::default()
    };
    let client = Client::builder()
        .limits(limits)
        .connect(&url)
        .await
        .unwrap();
    let list = within("the list", client.tools()).await.unwrap_err();
    let call = within("the call", client.call_tool("t", json!({}))).await;
    let task = within("the task", client.task("t1")).await.unwrap_err();
    for error in [list, call.unwrap_err(), task] {
        assert!(matches!(error.kind, ErrorKind::Deadline(_)), "{error}");
    }
    until("the end of all three", || {
        closed.load(Ordering::SeqCst) == 3
    })
    .await;
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_and_told_so() {
    let (url, closed) = endless(Says::Nothing).await;
    let limits = Limits {
        deadline: None,
        silence: SHORT,
        ..Limits::default()
    };
    let client = Client::builder()
        .limits(limits)
        .connect(&url)
        .await
        .unwrap();
    let list = within("the list", client.tools()).await.unwrap_err();
    let call = within("the call", client.call_tool("t", json!({}))).await;
    for error in [list, call.unwrap_err()] {
        assert!(matches!(error.kind, ErrorKind::Late(_)), "{error}");
    }
    until("the end of both", || closed.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn a_comment_is_a_sign_of_life() {
    let (url, _) = endless(Says::Comments).await;
    let limits = Limits {
        silence: SHORT,
        ..Limits::default()
    };
    let client = Client::builder().limits(limits);
    let client = client.connect(&url).await.unwrap();
    let call = within("the call", client.call_tool("t", json!({}))).await;
    call.unwrap();
}
