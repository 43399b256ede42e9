//! The sketch: one more round, without state.

use super::{Speaker, Transport, example};
use refrain::server::Draft;
use serde_json::json;

pub(super) async fn call_is_repeated_with_all_answers() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Sketch, transport).await;
        speaker.send_example(0, 1, 2).await;
        speaker.send_example(0, 3, 4).await;
    }
}

#[tokio::test]
async fn missing_answer_is_asked_again() {
    let mut speaker = Speaker::start(Draft::Sketch, Transport::Http).await;
    let mut half = example(0, 3);
    half["dependent_responses"] =
        json!({"github_login": half["dependent_responses"]["github_login"]});
    let reply = speaker.send_verbatim(&half).await;
    let asks = reply["dependent_requests"].as_object().expect("asks");
    assert_eq!(asks.keys().collect::<Vec<_>>(), ["capital_of_france"]);
    assert_eq!(reply["id"], 3);
}

#[tokio::test]
async fn answer_outside_of_a_result_is_rejected_by_name() {
    let mut speaker = Speaker::start(Draft::Sketch, Transport::Http).await;
    let mut bare = example(0, 3);
    bare["dependent_responses"]["github_login"] = json!({"action": "accept", "content": {}});
    let reply = speaker.send_verbatim(&bare).await;
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    let message = reply["error"]["message"]
        .as_str()
        .expect("the message is a string");
    assert!(
        message.contains(r#"dependent_responses["github_login"]"#),
        "{message}"
    );
}

#[tokio::test]
async fn sketch_has_no_tasks() {
    let mut speaker = Speaker::start(Draft::Sketch, Transport::Http).await;
    let get = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "x"}});
    let reply = speaker.send_verbatim(&get).await;
    assert_eq!(reply["error"]["code"], -32601, "{reply}");
    // A request for a task is ignored.
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "echo_task", "task": {"ttl": 60000}}});
    let reply = speaker.send_verbatim(&call).await;
    assert!(
        reply["dependent_requests"]["echo_input"].is_object(),
        "{reply}"
    );
}
