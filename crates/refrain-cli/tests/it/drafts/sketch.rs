//! The sketch: one more round, without state.

use super::{Speaker, Transport, example};
use refrain::server::Draft;
use serde_json::json;

pub(super) async fn call_is_repeated_with_all_answers() {
    for place in Transport::ALL {
        let mut speaker = Speaker::new(Draft::Sketch, place).await;
        speaker.plays(0, 1, 2).await;
        speaker.plays(0, 3, 4).await;
    }
}

#[tokio::test]
async fn missing_answer_is_asked_again() {
    let mut speaker = Speaker::new(Draft::Sketch, Transport::Http).await;
    let mut half = example(0, 3);
    half["dependent_responses"] =
        json!({"github_login": half["dependent_responses"]["github_login"]});
    let said = speaker.say(&half).await;
    let asks = said["dependent_requests"].as_object().expect("asks");
    assert_eq!(asks.keys().collect::<Vec<_>>(), ["capital_of_france"]);
    assert_eq!(said["id"], 3);
}

#[tokio::test]
async fn answer_outside_of_a_result_is_rejected_by_name() {
    let mut speaker = Speaker::new(Draft::Sketch, Transport::Http).await;
    let mut bare = example(0, 3);
    bare["dependent_responses"]["github_login"] = json!({"action": "accept", "content": {}});
    let said = speaker.say(&bare).await;
    assert_eq!(said["error"]["code"], -32602, "{said}");
    let message = said["error"]["message"]
        .as_str()
        .expect("the message is a string");
    assert!(
        message.contains(r#"dependent_responses["github_login"]"#),
        "{message}"
    );
}

#[tokio::test]
async fn sketch_has_no_tasks() {
    let mut speaker = Speaker::new(Draft::Sketch, Transport::Http).await;
    let get = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "x"}});
    let said = speaker.say(&get).await;
    assert_eq!(said["error"]["code"], -32601, "{said}");
    // A request for a task is ignored.
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "echo_task", "task": {"ttl": 60000}}});
    let said = speaker.say(&call).await;
    assert!(
        said["dependent_requests"]["echo_input"].is_object(),
        "{said}"
    );
}
