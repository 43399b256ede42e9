//! The first draft.

use super::{Speaker, Transport, assert_same, example, posted};
use refrain::server::Draft;
use serde_json::{Value, json};

pub(super) async fn call_is_repeated_with_answer_and_state() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::First, transport).await;
        speaker.send_example(1, 3, 4).await;
        speaker.send_example(1, 5, 6).await;
    }
}

pub(super) async fn task_is_answered_in_twelve_steps() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::First, transport).await;
        speaker.send_example(1, 7, 8).await;
        speaker.poll_example(1, 9, 10).await;
        speaker.send_example(1, 11, 12).await;
        speaker.notify(&posted(1, 13)).await;
        speaker.poll_example(1, 14, 15).await;
        speaker.send_example(1, 16, 17).await;
    }
}

pub(super) async fn two_kinds_of_asks_share_a_round() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::First, transport).await;
        let mut call = example(1, 3);
        call["params"]["name"] = "weather_and_capital".into();
        let reply = speaker.send_verbatim(&call).await;
        assert_same(&example(1, 1), &only(&reply, "input_requests"), (1, 1));
        call["request_state"] = reply["request_state"].clone();
        call["input_responses"] = posted(1, 2)["input_responses"].clone();
        let reply = speaker.send_verbatim(&call).await;
        let text = reply["result"]["content"][0]["text"].as_str();
        assert!(text.is_some_and(|text| text.ends_with("The capital of France is Paris.")));
    }
}

/// An object with one member of a message.
fn only(message: &Value, name: &str) -> Value {
    json!({name: message[name]})
}

#[tokio::test]
async fn answers_without_a_task_are_rejected() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::First, transport).await;
        let mut answers = example(1, 13);
        let reply = speaker.send_verbatim(&answers).await;
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
        assert_eq!(reply["id"], 4);
        answers
            .as_object_mut()
            .expect("the message is an object")
            .remove("_meta");
        let reply = speaker.send_verbatim(&answers).await;
        assert_eq!(reply["error"]["code"], -32600, "{reply}");
    }
}

#[tokio::test]
async fn unusable_answers_leave_the_task_unchanged() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::First, transport).await;
        speaker.send_example(1, 7, 8).await;
        speaker.poll_example(1, 9, 10).await;
        let answers = example(1, 13);
        let mut unasked = answers.clone();
        let good = unasked["input_responses"]["echo_input"].take();
        unasked["input_responses"] = json!({"other": good});
        speaker.notify(&unasked).await;
        speaker.send_example(1, 9, 10).await;
        speaker.send_example(1, 11, 12).await;

        let mut invalid = answers.clone();
        invalid["input_responses"]["echo_input"]["result"]["content"] = json!({"other": "x"});
        speaker.notify(&invalid).await;
        // The task has asked again.
        speaker.send_example(1, 9, 10).await;
        let reply = speaker.send(example(1, 11)).await;
        let asks = reply["input_requests"].as_object().expect("asks");
        // The keys of a task are unique.
        let key = asks.keys().next().expect("an ask");
        assert_ne!(key, "echo_input");
        let mut again = answers;
        again["input_responses"] = json!({key: good});
        speaker.notify(&again).await;
        speaker.send_example(1, 16, 17).await;
    }
}

#[tokio::test]
async fn call_becomes_a_task_only_on_request_and_may_ask_first() {
    let mut speaker = Speaker::start(Draft::First, Transport::Http).await;
    let mut call = example(1, 7);
    call["params"]
        .as_object_mut()
        .expect("params")
        .remove("task");
    let reply = speaker.send_verbatim(&call).await;
    assert!(reply["input_requests"]["echo_input"].is_object(), "{reply}");
    assert_eq!(reply.get("_meta"), None);

    // The call asks first, and then becomes a task.
    let mut call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params":
        {"name": "create_vm", "arguments": {"name": "vm"}, "task": {"ttl": 60000}}});
    let reply = speaker.send_verbatim(&call).await;
    assert!(reply["input_requests"]["size"].is_object(), "{reply}");
    call["request_state"] = reply["request_state"].clone();
    call["input_responses"] =
        json!({"size": {"result": {"action": "accept", "content": {"processors": 2}}}});
    let reply = speaker.send_verbatim(&call).await;
    assert_eq!(reply["result"]["task"]["status"], "Working", "{reply}");
    // The request waits for the result.
    let reply = speaker.send(example(1, 16)).await;
    let text = reply["result"]["content"][0]["text"].as_str();
    assert_eq!(text, Some("vm runs, with 2 processors."), "{reply}");
}

#[tokio::test]
async fn cancelled_task_has_its_status() {
    let mut speaker = Speaker::start(Draft::First, Transport::Http).await;
    speaker.send_example(1, 7, 8).await;
    let mut cancel = example(1, 9);
    cancel["method"] = "tasks/cancel".into();
    let reply = speaker.send(cancel).await;
    assert_eq!(reply["result"]["status"], "Cancelled", "{reply}");
    assert_eq!(reply["result"].get("lastUpdatedAt"), None);
    let reply = speaker.send(example(1, 16)).await;
    assert!(
        reply["error"]["message"]
            .as_str()
            .is_some_and(|it| it.contains("cancelled")),
        "{reply}"
    );
}
