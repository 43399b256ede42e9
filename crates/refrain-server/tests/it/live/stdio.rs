//! Live tools on a pair of streams.

use super::*;
use crate::support::StdioClient;

/// Asks, works until it is dropped, and has its end seen.
async fn asks_and_works(cx: Cx, ledger: Books) -> Result<String> {
    let name: crate::support::Login = cx.elicit("name", "?").await?;
    ledger.write(name.name);
    works(cx, ledger).await
}

#[tokio::test]
async fn a_handler_goes_on_where_it_was() {
    let ledger = Arc::<Ledger>::default();
    let mut client = StdioClient::start(builder(&ledger, &keys()));
    let asks = client.call(&first("inline").id(json!(1))).await;
    let answer = second("inline", &token(&asks)).id(json!(2));
    assert_eq!(text(&client.call(&answer).await), "Done for Ada.");
    // Sent again, it has the same reply.
    assert_eq!(text(&client.call(&answer).await), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn a_cancelled_request_ends_its_call_in_any_round() {
    let ledger = Arc::<Ledger>::default();
    let tool = Tool::new("asks_and_works", asks_and_works).live();
    let mut client = StdioClient::start(builder(&ledger, &keys()).tool(tool));
    let request = first("asks_and_works").meta("refrain/callId", json!("c-1"));
    let asks = client.call(&request.id(json!(1))).await;
    let answer = second("asks_and_works", &token(&asks)).id(json!(2));
    client.send(&answer).await;
    ledger.has("begun").await;
    let params = json!({"requestId": 2});
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    client.message(&cancelled).await;
    ledger.has("dropped").await;
    assert_eq!(ledger.lines(), ["Ada", "begun", "dropped"]);
    // The call is over, and says so.
    let over = client.call(&answer.id(json!(3))).await;
    let message = over["error"]["message"].as_str().expect("an error");
    names(message, &["cancelled"]);
}

#[tokio::test]
async fn what_waits_is_given_up_when_it_is_told_to_stop() {
    let ledger = Arc::<Ledger>::default();
    let mut client = StdioClient::start(builder(&ledger, &keys()));
    client.call(&first("waits")).await;
    client.stop();
    client.stopped().await;
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
}
