//! Network faults between the client and a fleet of two: each effect happens once.
//!
//! The faults are injected by a TCP proxy.

mod rounds;
mod shop;
mod tasks;

use refrain_client::{AskAnswer, CallSpec, Client, ClientBuilder, Error, ErrorKind};
use refrain_testkit::net::FaultProxy;
use refrain_testkit::net::proxy::Plan;
use serde_json::{Value, json};
use shop::Shop;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// The timeout of one call.
const CALL_TIME: Duration = Duration::from_secs(60);
/// The asks of every call, in order.
const ASKS: [&str; 2] = ["amount", "sure"];

/// The outcome of a call through the proxy.
struct FaultyCall {
    result: Result<Value, Error>,
    asked: Vec<String>,
    shop: Shop,
    proxy: FaultProxy,
}

/// Calls a tool with these faults. A call that times out is resumed once. After the call, requests with `Fault::Late` reach
/// the server once more.
async fn call(
    tool: &str,
    plan: Plan,
    set_up: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> FaultyCall {
    let shop = Shop::open().await;
    let proxy = FaultProxy::start(shop.addresses.clone(), plan).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let client = Client::builder().on_form(move |ask| {
        let answer = match ask.message.as_str() {
            "How much?" => json!({"amount": 5}),
            "Are you sure?" => json!({"sure": true}),
            other => panic!("unexpected ask {other:?}"),
        };
        seen.lock().expect("the lock is not poisoned").push(ask.key);
        async { Ok(AskAnswer::accept(answer)?) }
    });
    let call = async {
        let client = set_up(client).connect(&proxy.url).await?;
        match client.call(CallSpec::tool(tool)).await {
            Err(error) if matches!(error.kind, ErrorKind::Timeout(_)) => {
                let pending = error.pending.expect("the error contains the call");
                client.finish(*pending).await
            }
            other => other,
        }
    };
    let result = timeout(CALL_TIME, call)
        .await
        .expect("the call ends in time");
    proxy.repeat_late_requests().await;
    let asked = std::mem::take(&mut *asked.lock().expect("the lock is not poisoned"));
    FaultyCall {
        result,
        asked,
        shop,
        proxy,
    }
}

impl FaultyCall {
    /// Asserts that the call completed, each ask was made once, and each effect happened once.
    #[track_caller]
    fn assert_done_once(&self) {
        assert_eq!(self.text(), "5 paid, sure: true");
        assert_eq!(
            self.shop.effect_counts(),
            [1, 1, 1],
            "{:?}",
            self.shop.effects
        );
        assert_eq!(self.asked, ASKS, "each ask is made once");
    }

    /// The text of the result.
    #[track_caller]
    fn text(&self) -> &str {
        let result = self.result.as_ref().expect("the call has a result");
        assert_ne!(result["isError"], true, "{result}");
        result["content"][0]["text"].as_str().expect("a text")
    }
}
