//! Live tools over stdio.

use super::*;
use crate::support::StdioClient;

/// Asks, then runs until it is dropped.
async fn asks_and_works(cx: Cx, ledger: LedgerState) -> Result<String> {
    let name: Login = cx.elicit("name", "?").await?;
    ledger.write(name.name);
    works(cx, ledger).await
}

#[tokio::test]
async fn handler_continues_over_stdio() {
    let ledger = Arc::<Ledger>::default();
    let mut client = StdioClient::start(builder(&ledger, &keys()));
    let asks = client.call(&first_round("inline").id(json!(1))).await;
    let answer = second_round("inline", &token(&asks)).id(json!(2));
    assert_eq!(text(&client.call(&answer).await), "Done for Ada.");
    // The repeated request gets the same reply.
    assert_eq!(text(&client.call(&answer).await), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn cancelled_request_ends_its_call_in_any_round() {
    let ledger = Arc::<Ledger>::default();
    let tool = Tool::new("asks_and_works", asks_and_works).live();
    let mut client = StdioClient::start(builder(&ledger, &keys()).tool(tool));
    let request = identified("asks_and_works");
    let asks = client.call(&request.id(json!(1))).await;
    let answer = second_round("asks_and_works", &token(&asks)).id(json!(2));
    client.send(&answer).await;
    ledger.wait_for("started").await;
    client.message(&cancel(2)).await;
    ledger.wait_for("dropped").await;
    assert_eq!(ledger.lines(), ["Ada", "started", "dropped"]);
    // The call ended with an error.
    let over = client.call(&answer.id(json!(3))).await;
    let message = over["error"]["message"]
        .as_str()
        .expect("the error has a message");
    assert_contains(message, &["cancelled"]);
}

#[tokio::test]
async fn shutdown_cancels_idle_calls_over_stdio() {
    let ledger = Arc::<Ledger>::default();
    let mut client = StdioClient::start(builder(&ledger, &keys()));
    client.call(&first_round("waits")).await;
    client.stop();
    client.stopped().await;
    assert_eq!(ledger.lines(), ["started", "dropped"]);
}
