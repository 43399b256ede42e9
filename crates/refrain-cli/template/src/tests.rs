//! Tests of the tools. The test kit serves each request with a new instance, all in this process.

use super::server;
use refrain_testkit::{Fleet, Script};
use serde_json::json;

#[tokio::test]
async fn hello_greets_by_name() {
    let script = Script::new().answer("caller", json!({"name": "Ada"}));
    let fleet = Fleet::new(server);
    let outcome = fleet.call("hello", json!({})).script(script).run().await;
    assert_eq!(outcome.text(), "Hello, Ada.");
    assert_eq!(outcome.rounds().len(), 2);
}

#[tokio::test]
async fn order_is_delivered_whichever_instance_crashes() {
    let script = Script::new()
        .answer("confirmation", json!({"confirm": true}))
        .answer("delivery", json!({"arrived": true}));
    let fleet = Fleet::new(server);
    let call = fleet.call("order", json!({"item": "lamp"})).script(script);
    // Makes the call many times: with a crash at each operation of `cx` before the task, and with
    // each response lost.
    let report = call.crash_everywhere().await;
    let expected = "Delivered: receipt for one lamp.";
    assert_eq!(report.undisturbed().text(), expected);
    report.assert_same();
}

#[tokio::test]
async fn declined_order_is_not_paid() {
    let script = Script::new().answer("confirmation", json!({"confirm": false}));
    let fleet = Fleet::new(server);
    let call = fleet.call("order", json!({"item": "lamp"})).script(script);
    assert_eq!(call.run().await.text(), "Nothing was ordered.");
}
