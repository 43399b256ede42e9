//! Tools in the default home: the tool's future waits in the memory of its instance.

use crate::restaurant::Restaurant;
use crate::support::{accept, asks, instance, next, request, send, text};
use refrain_rmcp::serve;
use refrain_testkit::Effects;
use refrain_testkit::net::wait::until;
use serde_json::json;

#[tokio::test]
async fn live_tool_runs_once_over_its_rounds() {
    let effects = Effects::new();
    let server = instance(serve(Restaurant {
        effects: effects.clone(),
    }));
    let call = request(
        "tools/call",
        json!({"name": "reserve", "arguments": {"seats": 4}}),
    );
    let (first, _) = send(&server, "", &call).await;
    assert!(asks(&first).contains_key("elicitation-1"));
    let second = next(
        &call,
        &first,
        json!({"elicitation-1": accept(json!({"name": "Ada"}))}),
    );
    let (second_response, _) = send(&server, "", &second).await;
    assert!(asks(&second_response).contains_key("elicitation-2"));
    let answers = json!({"elicitation-2": accept(json!({"hour": 18}))});
    let third = next(&call, &second_response, answers);
    let (last, _) = send(&server, "", &third).await;
    assert_eq!(text(&last), "4 seats for Ada at 18, note 1");
    assert_eq!(effects.of("run"), 1);
}

#[tokio::test]
async fn two_live_callers_are_not_mixed_up() {
    let server = instance(serve(Restaurant::default()));
    let call = request(
        "tools/call",
        json!({"name": "reserve", "arguments": {"seats": 1}}),
    );
    let (ada, _) = send(&server, "ada", &call).await;
    let (bo, _) = send(&server, "bo", &call).await;
    // A token is bound to its caller.
    let stolen = next(
        &call,
        &ada,
        json!({"elicitation-1": accept(json!({"name": "Eve"}))}),
    );
    let (rejected, _) = send(&server, "bo", &stolen).await;
    assert!(rejected["error"].is_object(), "{rejected}");
    for (caller, first) in [("bo", bo), ("ada", ada)] {
        let answer = json!({"elicitation-1": accept(json!({"name": caller}))});
        let (second, _) = send(&server, caller, &next(&call, &first, answer)).await;
        let answer = json!({"elicitation-2": accept(json!({"hour": 18}))});
        let (last, _) = send(&server, caller, &next(&call, &second, answer)).await;
        assert!(
            text(&last).starts_with(&format!("1 seats for {caller}")),
            "{last}"
        );
    }
}

#[tokio::test]
async fn progress_and_logs_reach_the_client() {
    let server = instance(serve(Restaurant::default()));
    let call = request("tools/call", json!({"name": "cook", "arguments": {}}));
    let (response, notifications) = send(&server, "", &call).await;
    assert_eq!(text(&response), "done");
    let progress = notifications
        .iter()
        .filter(|sent| sent["method"] == "notifications/progress");
    let progress: Vec<_> = progress.map(|sent| &sent["params"]).collect();
    assert_eq!(progress.len(), 3, "{notifications:?}");
    assert_eq!(
        (&progress[2]["progress"], &progress[2]["progressToken"]),
        (&json!(3), &json!("p"))
    );
    let log = notifications
        .iter()
        .find(|sent| sent["method"] == "notifications/message");
    assert_eq!(log.expect("a log message")["params"]["data"], "cooked");
}

#[tokio::test]
async fn dropped_call_cancels_the_handler() {
    let effects = Effects::new();
    let server = instance(serve(Restaurant {
        effects: effects.clone(),
    }));
    let call = request("tools/call", json!({"name": "wait", "arguments": {}}));
    let (first, _) = send(&server, "", &call).await;
    asks(&first);
    assert_eq!(effects.of("cancelled"), 0);
    // Ends the calls that wait for an answer.
    server.close_live();
    until("the handler is cancelled", || effects.of("cancelled") == 1).await;
}

#[tokio::test]
async fn server_has_the_name_and_lists_of_the_handler() {
    let server = instance(serve(Restaurant::default()));
    let (discovered, _) = send(&server, "", &request("server/discover", json!({}))).await;
    let result = &discovered["result"];
    assert_eq!(result["instructions"], "Reserve before you cook.");
    let info = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(
        (&info["name"], &info["version"]),
        (&json!("restaurant"), &json!("2.1"))
    );
    let (tools, _) = send(&server, "", &request("tools/list", json!({}))).await;
    let tools = tools["result"]["tools"].as_array().expect("tools");
    let reserve = tools
        .iter()
        .find(|tool| tool["name"] == "reserve")
        .expect("reserve");
    assert_eq!(reserve["description"], "Reserves a table");
    assert_eq!(reserve["inputSchema"]["required"], json!(["seats"]));
}

#[tokio::test]
async fn completions_come_from_the_handler() {
    let server = instance(serve(Restaurant::default()));
    for (reference, argument) in [
        (json!({"type": "ref/prompt", "name": "review"}), "dish"),
        (
            json!({"type": "ref/resource", "uri": "dish://{name}"}),
            "name",
        ),
    ] {
        let params = json!({"ref": reference, "argument": {"name": argument, "value": "s"}});
        let (completed, _) = send(&server, "", &request("completion/complete", params)).await;
        let values = &completed["result"]["completion"]["values"];
        assert_eq!(values, &json!(["soup", "salmon"]), "{completed}");
    }
}
