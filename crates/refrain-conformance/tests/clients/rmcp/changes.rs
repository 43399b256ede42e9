//! Subscriptions to changes of lists and resources.

use super::user::User;
use super::{Check, Client, Target, call, checks, final_text, none, wire};
use ::rmcp::model::SubscriptionFilter;
use ::rmcp::service::{Subscription, SubscriptionEnd};
use serde_json::{Value, json};
use std::process::Command;

pub(super) fn checks() -> Vec<(&'static str, Check)> {
    checks! {
        "subscriptions: tools": tools,
        "subscriptions: prompts": prompts,
        "subscriptions: resources": resources,
        "subscriptions: updates of a resource": updates,
        "subscriptions: only what was asked for": filtered,
        "subscriptions: two at once": two,
        "subscriptions: ended by the client": ended_by_client,
        // Last, because over HTTP it stops the shared server.
        "subscriptions: ended by the server": ended_by_server,
    }
}

async fn trigger(client: &Client, what: &str, arguments: Value) -> String {
    final_text(call(client, format!("test_trigger_{what}"), arguments).await)
}

/// Opens a subscription and checks that the server accepts the whole filter.
async fn listen(client: &Client, filter: &Value) -> Subscription {
    let wanted: SubscriptionFilter =
        serde_json::from_value(filter.clone()).expect("a valid filter");
    let subscription = client.listen(wanted).await;
    let subscription = subscription.expect("the subscription is acknowledged");
    assert_eq!(wire(subscription.acknowledged()), *filter);
    subscription
}

/// The next notification, as JSON.
async fn notification(subscription: &mut Subscription) -> Value {
    let notification = subscription.next().await;
    let notification = notification.expect("a valid notification");
    wire(notification.expect("the subscription is open"))
}

/// Checks that each change causes a notification and appears in the list.
async fn change_is_announced_and_listed(
    target: &Target,
    [what, name, method]: [&str; 3],
    filter: &str,
    names: impl AsyncFn(&Client) -> Vec<String>,
) {
    let client = target.connect(User::silent()).await;
    let mut subscription = listen(&client, &json!({filter: true})).await;
    for outcome in ["added", "removed"] {
        assert_eq!(trigger(&client, what, none()).await, outcome);
        let notification = notification(&mut subscription).await;
        assert_eq!(notification["method"], method);
        let listed = names(&client).await.iter().any(|listed| listed == name);
        assert_eq!(listed, outcome == "added");
    }
}

async fn tools(target: &Target) {
    let change = [
        "tool_change",
        "test_added_tool",
        "notifications/tools/list_changed",
    ];
    change_is_announced_and_listed(target, change, "toolsListChanged", async |client| {
        let tools = client.list_all_tools().await.expect("the list succeeds");
        tools.iter().map(|tool| tool.name.to_string()).collect()
    })
    .await;
}

async fn prompts(target: &Target) {
    let change = [
        "prompt_change",
        "test_added_prompt",
        "notifications/prompts/list_changed",
    ];
    change_is_announced_and_listed(target, change, "promptsListChanged", async |client| {
        let prompts = client.list_all_prompts().await.expect("the list succeeds");
        prompts.into_iter().map(|prompt| prompt.name).collect()
    })
    .await;
}

async fn resources(target: &Target) {
    let change = [
        "resource_change",
        "test://added",
        "notifications/resources/list_changed",
    ];
    change_is_announced_and_listed(target, change, "resourcesListChanged", async |client| {
        let resources = client
            .list_all_resources()
            .await
            .expect("the list succeeds");
        resources.into_iter().map(|resource| resource.uri).collect()
    })
    .await;
}

async fn updates(target: &Target) {
    let client = target.connect(User::silent()).await;
    let uri = "test://static-text";
    let filter = json!({"resourceSubscriptions": [uri]});
    let mut subscription = listen(&client, &filter).await;
    // Updates of other resources are not sent.
    let other = json!({"uri": "test://static-binary"});
    trigger(&client, "resource_update", other).await;
    trigger(&client, "resource_update", json!({"uri": uri})).await;
    let notification = notification(&mut subscription).await;
    assert_eq!(notification["method"], "notifications/resources/updated");
    assert_eq!(notification["params"]["uri"], uri);
}

async fn filtered(target: &Target) {
    let client = target.connect(User::silent()).await;
    let mut subscription = listen(&client, &json!({"promptsListChanged": true})).await;
    for outcome in ["added", "removed"] {
        for what in ["tool_change", "resource_change", "prompt_change"] {
            assert_eq!(trigger(&client, what, none()).await, outcome);
        }
        // Any other notification would arrive first.
        let notification = notification(&mut subscription).await;
        assert_eq!(notification["method"], "notifications/prompts/list_changed");
    }
}

async fn two(target: &Target) {
    let client = target.connect(User::silent()).await;
    let mut first = listen(&client, &json!({"toolsListChanged": true})).await;
    let mut second = listen(&client, &json!({"promptsListChanged": true})).await;
    assert_ne!(first.id(), second.id());
    for _ in 0..2 {
        trigger(&client, "tool_change", none()).await;
        trigger(&client, "prompt_change", none()).await;
        let first_notification = notification(&mut first).await;
        assert_eq!(
            first_notification["method"],
            "notifications/tools/list_changed"
        );
        let second_notification = notification(&mut second).await;
        assert_eq!(
            second_notification["method"],
            "notifications/prompts/list_changed"
        );
    }
}

async fn ended_by_client(target: &Target) {
    let client = target.connect(User::silent()).await;
    let mut subscription = listen(&client, &json!({"toolsListChanged": true})).await;
    call(&client, "test_subscriptions", json!({"count": 1})).await;
    subscription.cancel().await.expect("it can be cancelled");
    let none_left = call(&client, "test_subscriptions", json!({"count": 0})).await;
    assert_eq!(final_text(none_left), "0 are open");
}

async fn ended_by_server(target: &Target) {
    let client = target.connect(User::silent()).await;
    let mut subscription = listen(&client, &json!({"toolsListChanged": true})).await;
    let process = final_text(call(&client, "test_process_id", none()).await);
    let killed = Command::new("kill").args(["-TERM", &process]).status();
    assert!(killed.expect("kill(1) can be started").success());
    let notification = subscription
        .next()
        .await
        .expect("the stream ends without an error");
    assert!(notification.is_none(), "{notification:?}");
    let end = subscription.end();
    assert!(matches!(end, Some(SubscriptionEnd::Graceful(_))), "{end:?}");
}
