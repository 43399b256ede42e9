//! The second draft, and rules of several drafts.

use super::{Speaker, Transport, assert_same, assert_shown, example, posted};
use refrain::server::Draft;
use refrain_testkit::net::legacy::initialize;
use serde_json::json;

pub(super) async fn call_is_repeated_with_answer_and_state() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        speaker.send_example(2, 4, 5).await;
        speaker.send_example(2, 6, 7).await;
    }
}

pub(super) async fn answers_next_to_the_method_are_accepted() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        let mut call = example(2, 4);
        call["id"] = 1.into();
        let reply = speaker.send_verbatim(&call).await;
        assert_shown(2, 1, &reply);
        // "Additional request info (e.g., method, params) would go here."
        let mut again = posted(2, 2);
        again["method"] = call["method"].clone();
        again["params"] = call["params"].clone();
        let reply = speaker.send(again).await;
        let mut done = example(2, 7);
        done["id"] = 2.into();
        assert_same(&done, &reply, (2, 7));
    }
}

pub(super) async fn one_answer_leads_to_the_next_ask() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        speaker.send_example(2, 8, 9).await;
        speaker.send_example(2, 10, 11).await;
        speaker.send_example(2, 12, 13).await;
    }
}

pub(super) async fn task_asks_and_is_answered() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        speaker.send_example(2, 14, 15).await;
        speaker.poll_example(2, 16, 17).await;
        speaker.send_example(2, 18, 19).await;
        // The document has the answer twice. The second one is ignored.
        speaker.send_example(2, 3, 21).await;
        speaker.send_example(2, 20, 21).await;
        speaker.poll_example(2, 22, 23).await;
        speaker.send_example(2, 24, 25).await;
    }
}

pub(super) async fn unrequested_answer_is_ignored() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        speaker.send_example(2, 26, 27).await;
    }
}

pub(super) async fn invalid_answer_is_asked_for_again() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        speaker.send_example(2, 14, 15).await;
        speaker.poll_example(2, 16, 17).await;
        speaker.send_example(2, 28, 29).await;
        // "Server acknowledges but leaves Task status as `input_required`."
        speaker.send_example(2, 16, 17).await;
        let reply = speaker.send(example(2, 18)).await;
        let asks = reply["result"]["inputRequests"].as_object();
        let (key, ask) = asks.and_then(|asks| asks.iter().next()).expect("an ask");
        let schema = "/result/inputRequests/echo_input/params/requestedSchema";
        let first = example(2, 19);
        assert_eq!(
            Some(&ask["params"]["requestedSchema"]),
            first.pointer(schema)
        );
        // The keys of a task are unique.
        assert_ne!(key, "echo_input");
        let mut answers = example(2, 20);
        let good = answers["params"]["inputResponses"]["echo_input"].take();
        answers["params"]["inputResponses"] = json!({key: good});
        let reply = speaker.send(answers).await;
        assert_shown(2, 21, &reply);
        speaker.send_example(2, 24, 25).await;
    }
}

pub(super) async fn two_kinds_of_asks_share_a_round() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        let mut call = example(2, 4);
        call["params"]["name"] = "weather_and_capital".into();
        let reply = speaker.send_verbatim(&call).await;
        let asks = json!({"inputRequests": reply["result"]["inputRequests"]});
        assert_same(&example(2, 30), &asks, (2, 30));
        call["params"]["requestState"] = reply["result"]["requestState"].clone();
        call["params"]["inputResponses"] = posted(2, 31)["inputResponses"].clone();
        let reply = speaker.send_verbatim(&call).await;
        let text = reply["result"]["content"][0]["text"].as_str();
        assert!(text.is_some_and(|text| text.ends_with("The capital of France is Paris.")));
    }
}

#[tokio::test]
async fn task_ignores_an_unrequested_answer() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        speaker.send_example(2, 14, 15).await;
        speaker.poll_example(2, 16, 17).await;
        let mut answers = example(2, 20);
        let good = answers["params"]["inputResponses"]["echo_input"].clone();
        answers["params"]["inputResponses"] = json!({"other": good});
        let reply = speaker.send(answers).await;
        assert_shown(2, 21, &reply);
        speaker.send_example(2, 16, 17).await;
        speaker.send_example(2, 18, 19).await;
        speaker.send_example(2, 20, 21).await;
        speaker.send_example(2, 24, 25).await;
    }
}

#[tokio::test]
async fn malformed_answer_or_foreign_state_is_rejected() {
    let mut speaker = Speaker::start(Draft::Second, Transport::Http).await;
    for answers in [json!([]), json!({"github_login": 5}), json!("x")] {
        let mut call = example(2, 26);
        call["params"]["inputResponses"] = answers;
        let reply = speaker.send_verbatim(&call).await;
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
    }
    // The state of the document is not valid here.
    let reply = speaker.send_verbatim(&example(2, 6)).await;
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
}

#[tokio::test]
async fn call_becomes_a_task_only_on_request_and_may_ask_first() {
    let mut speaker = Speaker::start(Draft::Second, Transport::Http).await;
    let mut call = example(2, 14);
    call["params"]
        .as_object_mut()
        .expect("params")
        .remove("task");
    let reply = speaker.send_verbatim(&call).await;
    assert!(
        reply["result"]["inputRequests"]["echo_input"].is_object(),
        "{reply}"
    );

    let mut call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params":
        {"name": "create_vm", "arguments": {"name": "vm"}, "task": {}}});
    let reply = speaker.send_verbatim(&call).await;
    assert!(
        reply["result"]["inputRequests"]["size"].is_object(),
        "{reply}"
    );
    call["params"]["requestState"] = reply["result"]["requestState"].clone();
    call["params"]["inputResponses"] =
        json!({"size": {"action": "accept", "content": {"processors": 2}}});
    let reply = speaker.send_verbatim(&call).await;
    assert_eq!(reply["result"]["task"]["status"], "working", "{reply}");
    // The request waits for the result.
    let reply = speaker.send(example(2, 24)).await;
    let text = reply["result"]["content"][0]["text"].as_str();
    assert_eq!(text, Some("vm runs, with 2 processors."), "{reply}");
}

#[tokio::test]
async fn requested_ttl_can_only_be_shorter() {
    let mut speaker = Speaker::start(Draft::Second, Transport::Http).await;
    for (wanted, given) in [
        (json!({"ttl": 5000}), json!(5000)),
        (json!({"ttl": 9_000_000_000_000_u64}), json!(604_800_000)),
        (json!({}), json!(604_800_000)),
    ] {
        let mut call = example(2, 14);
        call["params"]["task"] = wanted;
        let reply = speaker.send_verbatim(&call).await;
        assert_eq!(reply["result"]["task"]["ttl"], given, "{reply}");
    }
    for bad in [json!({"ttl": 0}), json!({"ttl": "60"}), json!(true)] {
        let mut call = example(2, 14);
        call["params"]["task"] = bad;
        let reply = speaker.send_verbatim(&call).await;
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
    }
}

#[tokio::test]
async fn cancelled_task_has_its_status_and_unknown_tasks_are_rejected() {
    let mut speaker = Speaker::start(Draft::Second, Transport::Http).await;
    speaker.send_example(2, 14, 15).await;
    let mut cancel = example(2, 16);
    cancel["method"] = "tasks/cancel".into();
    let reply = speaker.send(cancel).await;
    assert_eq!(reply["result"]["status"], "cancelled", "{reply}");
    // The status message is removed.
    assert_eq!(reply["result"].get("statusMessage"), None, "{reply}");
    let reply = speaker.send(example(2, 24)).await;
    let message = reply["error"]["message"].as_str();
    assert!(
        message.is_some_and(|it| it.contains("cancelled")),
        "{reply}"
    );
    // The task of the document does not exist here.
    for number in [16, 18, 20] {
        let reply = speaker.send_verbatim(&example(2, number)).await;
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
    }
    let mut update = example(2, 16);
    update["method"] = "tasks/update".into();
    assert_eq!(
        speaker.send_verbatim(&update).await["error"]["code"],
        -32601
    );
}

#[tokio::test]
async fn ended_task_cannot_be_cancelled() {
    for (draft, document) in [(Draft::First, 1), (Draft::Second, 2)] {
        let mut speaker = Speaker::start(draft, Transport::Http).await;
        let (call, get, result) = match document {
            1 => (7, 9, 16),
            _ => (14, 16, 24),
        };
        let mut echo = example(document, call);
        echo["params"]["arguments"] = json!({"text": "hey"});
        let mut cancel = example(document, get);
        cancel["method"] = "tasks/cancel".into();
        speaker.send_verbatim(&echo).await;
        let reply = speaker.send(example(document, result)).await;
        assert_eq!(
            reply["result"]["content"][0]["text"], "Echo: hey",
            "{reply}"
        );
        let reply = speaker.send(cancel.clone()).await;
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
        let why = reply["error"]["message"].as_str();
        assert!(why.is_some_and(|why| why.contains("completed")), "{reply}");

        speaker.send_verbatim(&example(document, call)).await;
        let reply = speaker.send(cancel.clone()).await;
        let status = reply["result"]["status"].as_str().map(str::to_lowercase);
        assert_eq!(status.as_deref(), Some("cancelled"), "{reply}");
        let reply = speaker.send(cancel).await;
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
    }
}

#[tokio::test]
async fn task_with_a_declined_ask_fails_with_the_reason() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        speaker.send_example(2, 14, 15).await;
        speaker.poll_example(2, 16, 17).await;
        let mut answers = example(2, 20);
        answers["params"]["inputResponses"]["echo_input"] = json!({"action": "decline"});
        let reply = speaker.send(answers).await;
        assert_shown(2, 21, &reply);
        let reply = speaker.send(example(2, 24)).await;
        assert_eq!(reply["result"]["isError"], true, "{reply}");
        let why = reply["result"]["content"][0]["text"].clone();
        let reply = speaker.send(example(2, 22)).await;
        assert_eq!(reply["result"]["status"], "failed", "{reply}");
        assert_eq!(reply["result"]["statusMessage"], why, "{reply}");
    }
}

#[tokio::test]
async fn initialize_always_selects_one_revision() {
    for draft in Draft::ALL {
        for transport in Transport::ALL {
            let mut speaker = Speaker::start(draft, transport).await;
            let capabilities = json!({"elicitation": {}, "sampling": {}});
            let hello = initialize("2025-03-26", &capabilities);
            let reply = speaker.send_verbatim(&hello).await;
            assert_eq!(reply["result"]["protocolVersion"], "2025-11-25", "{reply}");
            // The client supports forms, although the requested revision has none.
            let reply = speaker.send_verbatim(&example(2, 4)).await;
            assert_eq!(reply.get("error"), None, "{reply}");
            assert!(reply.to_string().contains("github_login"), "{reply}");
        }
    }
}

#[tokio::test]
async fn client_can_initialize_ping_and_declare_capabilities() {
    for transport in Transport::ALL {
        let mut speaker = Speaker::start(Draft::Second, transport).await;
        let hello = initialize("2025-11-25", &json!({}));
        let reply = speaker.send_verbatim(&hello).await;
        assert_eq!(reply["result"]["protocolVersion"], "2025-11-25", "{reply}");
        assert_eq!(reply["result"]["serverInfo"]["name"], "refrain");
        assert!(reply["result"]["capabilities"]["tools"].is_object());
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        speaker.notify(&ready).await;
        let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
        assert_eq!(speaker.send_verbatim(&ping).await["result"], json!({}));
        let list = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"});
        let reply = speaker.send_verbatim(&list).await;
        let tools = reply["result"]["tools"].as_array().expect("tools");
        assert!(tools.iter().any(|tool| tool["name"] == "echo"));

        // The client has declared no capabilities.
        let mut call = example(2, 4);
        let reply = speaker.send_verbatim(&call).await;
        assert_eq!(reply["error"]["code"], -32021, "{reply}");
        call["params"]["_meta"] =
            json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
        let reply = speaker.send_verbatim(&call).await;
        assert!(reply["result"]["inputRequests"].is_object(), "{reply}");
    }
}

#[tokio::test]
async fn drafts_are_served_only_with_the_flag() {
    let instance = crate::support::Serve::new().start().await;
    let status = crate::support::http::status_of(instance.address, Draft::Second.path()).await;
    assert_eq!(status.expect("a response"), 404);
    let speaker = Speaker::start(Draft::Second, Transport::Http).await;
    let process = speaker.process().expect("a process");
    for draft in Draft::ALL {
        process.log.wait_for(draft.path(), 1).await;
    }
}
