//! What networks do to a call of several rounds between our client and a fleet of two: each effect is there once.
//!
//! The proxy in between is a real one, on a real port.

mod rounds;
mod shop;
mod tasks;

use refrain_client::{AskAnswer, CallRequest, Client, ClientBuilder, Error, ErrorKind};
use refrain_testkit::net::FaultProxy;
use refrain_testkit::net::proxy::Plan;
use serde_json::{Value, json};
use shop::Shop;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// Time for one call.
const CALL_TIME: Duration = Duration::from_secs(60);
/// What is asked in every call, in this order.
const ASKS: [&str; 2] = ["amount", "sure"];

/// A call through a proxy, and what it has left behind.
struct Called {
    result: Result<Value, Error>,
    asked: Vec<String>,
    shop: Shop,
    proxy: FaultProxy,
}

/// Calls a tool while things go according to plan. A call that is given up is taken up again, once.
async fn call(
    tool: &str,
    plan: Plan,
    set_up: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Called {
    let shop = Shop::open().await;
    let proxy = FaultProxy::start(shop.addresses.clone(), plan).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let client = Client::builder().on_form(move |ask| {
        let answer = match ask.message.as_str() {
            "How much?" => json!({"amount": 5}),
            "Are you sure?" => json!({"sure": true}),
            other => panic!("{other:?} is not asked by the shop"),
        };
        seen.lock().expect("no panic under the lock").push(ask.key);
        async { Ok(AskAnswer::accept(answer)?) }
    });
    let call = async {
        let client = set_up(client).connect(&proxy.url).await?;
        match client.call(CallRequest::tool(tool)).await {
            Err(error) if matches!(error.kind, ErrorKind::Timeout(_)) => {
                let pending = error.pending.expect("the call is not lost");
                client.finish(*pending).await
            }
            other => other,
        }
    };
    let result = timeout(CALL_TIME, call).await.expect("the call ends");
    proxy.send_late().await;
    let asked = std::mem::take(&mut *asked.lock().expect("no panic under the lock"));
    Called {
        result,
        asked,
        shop,
        proxy,
    }
}

impl Called {
    /// The call has its result, nobody was asked twice, and each effect is there once.
    #[track_caller]
    fn is_done_once(&self) {
        assert_eq!(self.text(), "5 paid, sure: true");
        assert_eq!(self.shop.done(), [1, 1, 1], "{:?}", self.shop.effects);
        assert_eq!(self.asked, ASKS, "nobody is asked twice");
    }

    /// The text of its result.
    #[track_caller]
    fn text(&self) -> &str {
        let result = self.result.as_ref().expect("the call has a result");
        assert_ne!(result["isError"], true, "{result}");
        result["content"][0]["text"].as_str().expect("a text")
    }
}
