//! The first draft.

use super::{Place, Speaker, assert_same, example, posted};
use refrain::server::Draft;
use serde_json::{Value, json};

pub(super) async fn a_call_is_made_again_with_the_answer_and_the_state() {
    for place in Place::ALL {
        let mut speaker = Speaker::new(Draft::First, place).await;
        speaker.plays(1, 3, 4).await;
        speaker.plays(1, 5, 6).await;
    }
}

pub(super) async fn a_task_asks_and_is_answered_in_twelve_steps() {
    for place in Place::ALL {
        let mut speaker = Speaker::new(Draft::First, place).await;
        speaker.plays(1, 7, 8).await;
        speaker.polls(1, 9, 10).await;
        speaker.plays(1, 11, 12).await;
        speaker.tell(&posted(1, 13)).await;
        speaker.polls(1, 14, 15).await;
        speaker.plays(1, 16, 17).await;
    }
}

pub(super) async fn two_kinds_of_asks_come_and_go_together() {
    for place in Place::ALL {
        let mut speaker = Speaker::new(Draft::First, place).await;
        let mut call = example(1, 3);
        call["params"]["name"] = "weather_and_capital".into();
        let said = speaker.say(&call).await;
        assert_same(&example(1, 1), &only(&said, "input_requests"), (1, 1));
        call["request_state"] = said["request_state"].clone();
        call["input_responses"] = posted(1, 2)["input_responses"].clone();
        let said = speaker.say(&call).await;
        let text = said["result"]["content"][0]["text"].as_str();
        assert!(text.is_some_and(|text| text.ends_with("The capital of France is Paris.")));
    }
}

/// One member of a message, as the document shows it.
fn only(message: &Value, name: &str) -> Value {
    json!({name: message[name]})
}

#[tokio::test]
async fn answers_that_are_for_no_task_are_refused() {
    for place in Place::ALL {
        let mut speaker = Speaker::new(Draft::First, place).await;
        let mut answers = example(1, 13);
        let said = speaker.say(&answers).await;
        assert_eq!(said["error"]["code"], -32602, "{said}");
        assert_eq!(said["id"], 4);
        answers.as_object_mut().expect("a message").remove("_meta");
        let said = speaker.say(&answers).await;
        assert_eq!(said["error"]["code"], -32600, "{said}");
    }
}

#[tokio::test]
async fn a_task_is_left_as_it_is_by_answers_that_it_cannot_use() {
    for place in Place::ALL {
        let mut speaker = Speaker::new(Draft::First, place).await;
        speaker.plays(1, 7, 8).await;
        speaker.polls(1, 9, 10).await;
        let answers = example(1, 13);
        let mut unasked = answers.clone();
        let good = unasked["input_responses"]["echo_input"].take();
        unasked["input_responses"] = json!({"other": good});
        speaker.tell(&unasked).await;
        speaker.plays(1, 9, 10).await;
        speaker.plays(1, 11, 12).await;

        let mut misfit = answers.clone();
        misfit["input_responses"]["echo_input"]["result"]["content"] = json!({"other": "x"});
        speaker.tell(&misfit).await;
        // By then it has asked again.
        speaker.plays(1, 9, 10).await;
        let said = speaker.post(example(1, 11)).await;
        let asks = said["input_requests"].as_object().expect("asks");
        // A key of a task is used once.
        let key = asks.keys().next().expect("an ask");
        assert_ne!(key, "echo_input");
        let mut again = answers;
        again["input_responses"] = json!({key: good});
        speaker.tell(&again).await;
        speaker.plays(1, 16, 17).await;
    }
}

#[tokio::test]
async fn a_call_that_wants_no_task_is_none_and_one_that_does_may_ask_first() {
    let mut speaker = Speaker::new(Draft::First, Place::Http).await;
    let mut call = example(1, 7);
    call["params"]
        .as_object_mut()
        .expect("params")
        .remove("task");
    let said = speaker.say(&call).await;
    assert!(said["input_requests"]["echo_input"].is_object(), "{said}");
    assert_eq!(said.get("_meta"), None);

    // From rounds to a task, as soon as it is known what is to be done.
    let mut call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params":
        {"name": "create_vm", "arguments": {"name": "vm"}, "task": {"ttl": 60000}}});
    let said = speaker.say(&call).await;
    assert!(said["input_requests"]["size"].is_object(), "{said}");
    call["request_state"] = said["request_state"].clone();
    call["input_responses"] =
        json!({"size": {"result": {"action": "accept", "content": {"processors": 2}}}});
    let said = speaker.say(&call).await;
    assert_eq!(said["result"]["task"]["status"], "Working", "{said}");
    // The result is waited for.
    let said = speaker.post(example(1, 16)).await;
    let text = said["result"]["content"][0]["text"].as_str();
    assert_eq!(text, Some("vm runs, with 2 processors."), "{said}");
}

#[tokio::test]
async fn a_task_that_is_called_off_is_shown() {
    let mut speaker = Speaker::new(Draft::First, Place::Http).await;
    speaker.plays(1, 7, 8).await;
    let mut cancel = example(1, 9);
    cancel["method"] = "tasks/cancel".into();
    let said = speaker.post(cancel).await;
    assert_eq!(said["result"]["status"], "Cancelled", "{said}");
    assert_eq!(said["result"].get("lastUpdatedAt"), None);
    let said = speaker.post(example(1, 16)).await;
    assert!(
        said["error"]["message"]
            .as_str()
            .is_some_and(|it| it.contains("cancelled")),
        "{said}"
    );
}
