//! Subscriptions: who listens is told of what changes while the server runs.

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
        // The last check: over HTTP it takes the server from all others.
        "subscriptions: ended by the server": ended_by_server,
    }
}

async fn trigger(client: &Client, what: &str, arguments: Value) -> String {
    final_text(call(client, format!("test_trigger_{what}"), arguments).await)
}

/// Listens, and sees to it that all of the filter is honoured.
async fn listen(client: &Client, filter: &Value) -> Subscription {
    let wanted: SubscriptionFilter =
        serde_json::from_value(filter.clone()).expect("the filter is a filter");
    let subscription = client.listen(wanted).await;
    let subscription = subscription.expect("the subscription is acknowledged");
    assert_eq!(wire(subscription.acknowledged()), *filter);
    subscription
}

/// The method of the next notification.
async fn told(subscription: &mut Subscription) -> Value {
    let notification = subscription.next().await;
    let notification = notification.expect("the stream carries what it may carry");
    wire(notification.expect("the subscription is open"))
}

/// Sees each change of a list as a notification and in the list.
async fn listed_twice(
    target: &Target,
    [what, name, method]: [&str; 3],
    filter: &str,
    names: impl AsyncFn(&Client) -> Vec<String>,
) {
    let client = target.connect(User::silent()).await;
    let mut subscription = listen(&client, &json!({filter: true})).await;
    for outcome in ["added", "removed"] {
        assert_eq!(trigger(&client, what, none()).await, outcome);
        let told = told(&mut subscription).await;
        assert_eq!(told["method"], method);
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
    listed_twice(target, change, "toolsListChanged", async |client| {
        let tools = client.list_all_tools().await.expect("they are listed");
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
    listed_twice(target, change, "promptsListChanged", async |client| {
        let prompts = client.list_all_prompts().await.expect("they are listed");
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
    listed_twice(target, change, "resourcesListChanged", async |client| {
        let resources = client.list_all_resources().await.expect("they are listed");
        resources.into_iter().map(|resource| resource.uri).collect()
    })
    .await;
}

async fn updates(target: &Target) {
    let client = target.connect(User::silent()).await;
    let uri = "test://static-text";
    let filter = json!({"resourceSubscriptions": [uri]});
    let mut subscription = listen(&client, &filter).await;
    // Of another resource nothing is told.
    let other = json!({"uri": "test://static-binary"});
    trigger(&client, "resource_update", other).await;
    trigger(&client, "resource_update", json!({"uri": uri})).await;
    let told = told(&mut subscription).await;
    assert_eq!(told["method"], "notifications/resources/updated");
    assert_eq!(told["params"]["uri"], uri);
}

async fn filtered(target: &Target) {
    let client = target.connect(User::silent()).await;
    let mut subscription = listen(&client, &json!({"promptsListChanged": true})).await;
    for outcome in ["added", "removed"] {
        for what in ["tool_change", "resource_change", "prompt_change"] {
            assert_eq!(trigger(&client, what, none()).await, outcome);
        }
        // Whatever else the server sent would come before.
        let told = told(&mut subscription).await;
        assert_eq!(told["method"], "notifications/prompts/list_changed");
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
        let told_first = told(&mut first).await;
        assert_eq!(told_first["method"], "notifications/tools/list_changed");
        let told_second = told(&mut second).await;
        assert_eq!(told_second["method"], "notifications/prompts/list_changed");
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
    let told = subscription.next().await.expect("the stream ends well");
    assert!(told.is_none(), "{told:?}");
    let end = subscription.end();
    assert!(matches!(end, Some(SubscriptionEnd::Graceful(_))), "{end:?}");
}
