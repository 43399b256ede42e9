//! Servers that do what they should not.

use crate::support::{Say, Told, asks, done, form};
use refrain_client::wire::AskKind;
use refrain_client::{Client, Error, ErrorKind, Limits};
use serde_json::json;

async fn connect(server: &Told) -> Client {
    let client = Client::builder().by_hand([AskKind::Form]);
    client.connect(&server.url).await.expect("a server")
}

async fn call(server: &Told) -> Result<(), Error> {
    let called = connect(server).await.call_tool("t", json!({})).await;
    called.map(|_| ())
}

#[tokio::test]
async fn a_result_without_a_type_is_complete_and_one_of_another_type_is_refused() {
    let server = Told::start(|_| Say::Result(json!({"content": []}))).await;
    call(&server).await.unwrap();
    for kind in [json!("dance"), json!(null), json!(7)] {
        let server =
            Told::start(move |_| Say::Result(json!({"resultType": kind, "content": []}))).await;
        let error = call(&server).await.unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::UnknownResultType(_)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_state_that_is_too_large_is_refused_and_the_round_before_is_kept() {
    let huge = "x".repeat(10 * 1024 * 1024);
    let server = Told::start(move |request| match request["params"].get("requestState") {
        None => asks(json!({"go": form("Go?", json!({}))}), Some("small")),
        Some(_) => asks(json!({}), Some(&huge)),
    })
    .await;
    let client = connect(&server).await;
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    let mut pending = *error.pending.unwrap();
    pending
        .answer("go", refrain_client::Answer::Decline)
        .unwrap();
    let error = client.finish(pending).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("4194304"), "{error}");
    let pending = error.pending.expect("the round before is there");
    assert_eq!(pending.round(), 1);
    assert!(pending.unanswered().is_empty(), "with its answer");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_not_read_to_its_end() {
    let server = Told::start(|_| done(&"x".repeat(3_000_000))).await;
    let limits = Limits {
        message: 1_000_000,
        ..Limits::default()
    };
    let client = Client::builder()
        .limits(limits)
        .connect(&server.url)
        .await
        .unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert!(
        matches!(
            error.kind,
            ErrorKind::TooLarge {
                limit: 1_000_000,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn too_many_asks_are_refused() {
    let server = Told::start(|_| {
        let many = (0..101).map(|n| (n.to_string(), json!({"method": "roots/list"})));
        asks(many.collect::<serde_json::Map<_, _>>().into(), None)
    })
    .await;
    let error = call(&server).await.unwrap_err();
    assert!(
        matches!(
            error.kind,
            ErrorKind::TooManyAsks {
                asks: 101,
                limit: 100
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn answers_that_make_no_sense_are_shown() {
    for (body, word) in [
        ("{\"jsonrpc\":\"2.0\",", "EOF"),
        ("{\"jsonrpc\":\"2.0\",\"id\":1}", "no JSON-RPC message"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}",
            "another request",
        ),
    ] {
        let server = Told::start(move |_| Say::Raw(200, "application/json", body.to_owned())).await;
        let error = call(&server).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::BadAnswer(_)), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_page_for_people_is_no_mcp_server() {
    let server =
        Told::start_raw(|_| Say::Raw(200, "text/html", "<html>Welcome</html>".to_owned())).await;
    let error = Client::builder().connect(&server.url).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::NotMcp { .. }), "{error}");
    assert!(error.to_string().contains("Welcome"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_so() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let error = Client::builder().connect(&url).await.unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::Unreachable { .. }),
        "{error}"
    );
    for address in [
        "",
        "localhost:80",
        "ftp://example.com/",
        "http://me:secret@localhost/",
    ] {
        let error = Client::builder().connect(address).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Address { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_busy_server_is_asked_again() {
    let times = std::sync::atomic::AtomicUsize::new(0);
    let server =
        Told::start(
            move |_| match times.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => Say::Raw(503, "text/plain", "busy".to_owned()),
                1 => Say::Raw(429, "text/plain", "slower".to_owned()),
                _ => done("done"),
            },
        )
        .await;
    call(&server).await.unwrap();
    assert_eq!(server.requests("tools/call").len(), 3);
}

#[tokio::test]
async fn a_lost_response_is_not_asked_for_again_where_the_work_might_be_done_twice() {
    // This server says nothing of call ids.
    let server = Told::start(|_| Say::Raw(502, "text/plain", "gateway".to_owned())).await;
    let error = call(&server).await.unwrap_err();
    assert_eq!(server.requests("tools/call").len(), 1);
    let pending = error
        .pending
        .expect("whoever knows better may send it again");
    assert_eq!(pending.round(), 0);
}

#[tokio::test]
async fn a_result_that_does_not_fit_is_not_lost() {
    let content = json!([{"type": "hologram", "beams": 7}]);
    let sent = json!({"resultType": "complete", "content": content});
    let answer = sent.clone();
    let server = Told::start(move |_| Say::Result(answer.clone())).await;
    let error = call(&server).await.unwrap_err();
    let ErrorKind::BadResult { result, .. } = error.kind else {
        panic!("{error}")
    };
    assert_eq!(result, sent);
}
