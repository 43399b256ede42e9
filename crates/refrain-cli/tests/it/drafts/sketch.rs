//! The sketch: one more round, without state.

use super::{Place, Speaker, example};
use refrain::server::Draft;
use serde_json::json;

pub(super) async fn a_call_is_made_again_with_all_that_it_asked() {
    for place in Place::ALL {
        let mut speaker = Speaker::new(Draft::Sketch, place).await;
        speaker.plays(0, 1, 2).await;
        speaker.plays(0, 3, 4).await;
    }
}

#[tokio::test]
async fn what_is_missing_is_asked_again() {
    let mut speaker = Speaker::new(Draft::Sketch, Place::Http).await;
    let mut half = example(0, 3);
    half["dependent_responses"] =
        json!({"github_login": half["dependent_responses"]["github_login"]});
    let said = speaker.say(&half).await;
    let asks = said["dependent_requests"].as_object().expect("asks");
    assert_eq!(asks.keys().collect::<Vec<_>>(), ["capital_of_france"]);
    assert_eq!(said["id"], 3);
}

#[tokio::test]
async fn an_answer_that_is_in_no_result_is_refused_by_its_own_name() {
    let mut speaker = Speaker::new(Draft::Sketch, Place::Http).await;
    let mut bare = example(0, 3);
    bare["dependent_responses"]["github_login"] = json!({"action": "accept", "content": {}});
    let said = speaker.say(&bare).await;
    assert_eq!(said["error"]["code"], -32602, "{said}");
    let message = said["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains(r#"dependent_responses["github_login"]"#),
        "{message}"
    );
}

#[tokio::test]
async fn it_has_no_tasks() {
    let mut speaker = Speaker::new(Draft::Sketch, Place::Http).await;
    let get = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "x"}});
    let said = speaker.say(&get).await;
    assert_eq!(said["error"]["code"], -32601, "{said}");
    // A wish for one is passed over: the call asks like any other.
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "echo_task", "task": {"ttl": 60000}}});
    let said = speaker.say(&call).await;
    assert!(
        said["dependent_requests"]["echo_input"].is_object(),
        "{said}"
    );
}
