//! What networks do to a call of several rounds between our client and a fleet of two: each effect is there once.
//!
//! The proxy in between is a real one, on a real port. Every fault hits the first, the middle and the last round of a
//! tool of each kind.

mod proxy;
mod shop;

use proxy::{Fault, Proxy};
use refrain_client::{Answer, Client, ClientBuilder, ErrorKind, Limits};
use serde_json::{Value, json};
use shop::Shop;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// Time for one cell.
const CELL_TIME: Duration = Duration::from_secs(60);
/// How many rounds a call takes.
const ROUNDS: usize = 3;

/// What was asked, in order.
type Asked = Arc<Mutex<Vec<String>>>;

/// A client that answers what the shop asks, and what it was asked.
fn client() -> (ClientBuilder, Asked) {
    let asked = Asked::default();
    let seen = asked.clone();
    let client = Client::builder().on_form(move |ask| {
        let answer = match ask.key.as_str() {
            "amount" => json!({"amount": 5}),
            "sure" => json!({"sure": true}),
            other => panic!("{other} is not asked by the shop"),
        };
        let mut seen = seen.lock().expect("nobody panics under the lock");
        seen.push(ask.key);
        async { Ok(Answer::accept(answer)?) }
    });
    (client, asked)
}

/// What a fault makes of the number of requests: how many come, and how many are sent on.
fn requests(fault: Fault) -> (usize, usize) {
    match fault {
        Fault::LoseRequest => (ROUNDS + 1, ROUNDS),
        Fault::LoseResponse | Fault::CutHead | Fault::CutBody | Fault::CutStream | Fault::Hold => {
            (ROUNDS + 1, ROUNDS + 1)
        }
        Fault::DoubleAtOnce | Fault::DoubleInTurn | Fault::Late => (ROUNDS, ROUNDS + 1),
        Fault::Delay => (ROUNDS, ROUNDS),
    }
}

/// Calls a tool while this happens to one of its rounds.
async fn cell(tool: &str, fault: Fault, round: usize) {
    let shop = Shop::open().await;
    let proxy = Proxy::start(shop.addresses.clone(), &[(round, fault)]).await;
    let (client, asked) = client();
    let client = match fault {
        // Progress makes the response a stream.
        Fault::CutStream => client.on_progress(|_| ()),
        Fault::Hold => client.limits(Limits {
            silence: Duration::from_millis(300),
            ..Limits::default()
        }),
        _ => client,
    };
    let call = async {
        let client = client.connect(&proxy.url).await.expect("a server");
        let call = refrain_client::Call::tool(tool);
        match client.call(call).await {
            Err(error) if fault == Fault::Hold => {
                assert!(matches!(error.kind, ErrorKind::Late(_)), "{error:?}");
                let pending = error.pending.expect("the call is not lost");
                client.finish(*pending).await
            }
            other => other,
        }
    };
    let result = timeout(CELL_TIME, call).await.expect("the call ends");
    let result = result.expect("the call has a result");
    proxy.send_late().await;

    assert_eq!(text(&result), "5 paid, sure: true");
    assert_eq!(shop.done(), [1, 1, 1], "{:?}", shop.effects);
    let asked = asked.lock().expect("nobody panics under the lock");
    assert_eq!(*asked, ["amount", "sure"], "nobody is asked twice");
    assert_eq!((proxy.came(), proxy.sent_on()), requests(fault));
}

fn text(result: &Value) -> &str {
    assert_ne!(result["isError"], true, "{result}");
    result["content"][0]["text"].as_str().expect("a text")
}

/// A module for each fault, and in it a test for each tool and round.
macro_rules! cells {
    ($($name:ident: $fault:ident,)*) => {
        $(mod $name {
            cells!(@ $fault
                keyed_first: "keyed" 1,
                keyed_middle: "keyed" 2,
                keyed_last: "keyed" 3,
                once_first: "once" 1,
                once_middle: "once" 2,
                once_last: "once" 3,
                single_use_first: "single_use" 1,
                single_use_middle: "single_use" 2,
                single_use_last: "single_use" 3,
            );
        })*
    };
    (@ $fault:ident $($name:ident: $tool:literal $round:literal,)*) => {
        $(#[tokio::test]
        async fn $name() {
            crate::cell($tool, crate::Fault::$fault, $round).await;
        })*
    };
}

cells! {
    request_lost: LoseRequest,
    response_lost: LoseResponse,
    response_cut_in_its_head: CutHead,
    response_cut_in_its_body: CutBody,
    stream_cut: CutStream,
    request_doubled_at_once: DoubleAtOnce,
    request_doubled_in_turn: DoubleInTurn,
    request_repeated_when_all_is_over: Late,
    response_delayed: Delay,
    response_held_back: Hold,
}

/// Every response is lost once.
#[tokio::test]
async fn every_response_lost() {
    for tool in ["keyed", "once", "single_use"] {
        let shop = Shop::open().await;
        let faults = [1, 3, 5].map(|request| (request, Fault::LoseResponse));
        let proxy = Proxy::start(shop.addresses.clone(), &faults).await;
        let (client, asked) = client();
        let call = async {
            let client = client.connect(&proxy.url).await.expect("a server");
            client.call(refrain_client::Call::tool(tool)).await
        };
        let result = timeout(CELL_TIME, call).await.expect("the call ends");
        assert_eq!(text(&result.expect("a result")), "5 paid, sure: true");
        assert_eq!(shop.done(), [1, 1, 1], "{:?}", shop.effects);
        assert_eq!(asked.lock().expect("no panic").len(), 2);
        assert_eq!((proxy.came(), proxy.sent_on()), (6, 6));
    }
}

/// These tests can fail: a first request that cannot be told from its copy is done twice.
#[tokio::test]
async fn without_call_ids_the_first_effect_is_there_twice() {
    for tool in ["keyed", "once", "single_use"] {
        let shop = Shop::open().await;
        let faults = [(1, Fault::LoseResponse)];
        let proxy = Proxy::without_call_ids(shop.addresses.clone(), &faults).await;
        let (client, _asked) = client();
        let call = async {
            let client = client.connect(&proxy.url).await.expect("a server");
            client.call(refrain_client::Call::tool(tool)).await
        };
        let result = timeout(CELL_TIME, call).await.expect("the call ends");
        assert_eq!(text(&result.expect("a result")), "5 paid, sure: true");
        assert_eq!(shop.done(), [2, 1, 1], "{:?}", shop.effects);
    }
}
