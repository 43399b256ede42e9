//! The purposes of the state, as the first draft names them: rolling upgrades and load shedding.

use super::Speaker;
use crate::support::{Files, Serve};
use refrain::server::Draft;
use serde_json::{Value, json};

fn call(tool: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments}})
}

/// The keys of the asks in a reply, and the state.
fn incomplete(draft: Draft, reply: &Value) -> (Vec<String>, Value) {
    let (message, asks, state) = match draft {
        Draft::Sketch => (reply, "dependent_requests", "request_state"),
        Draft::First => (reply, "input_requests", "request_state"),
        Draft::Second => (&reply["result"], "inputRequests", "requestState"),
    };
    assert!(message[state].is_string(), "{reply}");
    let asks = message[asks]
        .as_object()
        .map(|asks| asks.keys().cloned().collect());
    (asks.unwrap_or_default(), message[state].clone())
}

/// The call with a form for each key.
fn again(draft: Draft, call: &Value, keys: &[&str], state: Value) -> Value {
    let mut again = call.clone();
    let form = |key: &str| json!({"action": "accept", "content": {"name": format!("my {key}")}});
    let answers = |wrapped: bool| -> Value {
        let answers = keys.iter().map(|key| {
            let answer = form(key);
            let answer = if wrapped {
                json!({"result": answer})
            } else {
                answer
            };
            ((*key).to_owned(), answer)
        });
        Value::Object(answers.collect())
    };
    match draft {
        Draft::Second => {
            again["params"]["requestState"] = state;
            if !keys.is_empty() {
                again["params"]["inputResponses"] = answers(false);
            }
        }
        Draft::First | Draft::Sketch => {
            again["request_state"] = state;
            let name = if draft == Draft::First {
                "input_responses"
            } else {
                "dependent_responses"
            };
            if !keys.is_empty() {
                again[name] = answers(true);
            }
        }
    }
    again
}

#[tokio::test]
async fn answer_is_kept_by_another_version() {
    let files = Files::new();
    let keys = files.keys("keys");
    for draft in Draft::ALL {
        let version = |accounts: &str| Serve::new().keys(&keys).args(["--accounts", accounts]);
        let mut speaker = Speaker::start_http(draft, version("1")).await;
        let mut upgraded = Speaker::start_http(draft, version("2")).await;
        let accounts = call("accounts", &json!({}));
        let (asks, state) = incomplete(draft, &speaker.send_verbatim(&accounts).await);
        assert_eq!(asks, ["github_login", "google_login"]);
        speaker.swap_servers(&mut upgraded);
        let both = again(draft, &accounts, &["github_login", "google_login"], state);
        let (asks, state) = incomplete(draft, &speaker.send_verbatim(&both).await);
        assert_eq!(asks, ["microsoft_login"]);
        let reply = speaker
            .send_verbatim(&again(draft, &accounts, &["microsoft_login"], state))
            .await;
        let text = reply["result"]["content"][0]["text"].as_str();
        let linked = "Linked GitHub my github_login and Microsoft my microsoft_login.";
        assert_eq!(text, Some(linked), "{reply}");
    }
}

#[tokio::test]
async fn computation_is_handed_on_with_state_and_no_asks() {
    let files = Files::new();
    let config = files.write("config.toml", "[limits]\nshed_above = 0\nsheds = 2\n");
    let (keys, ledger) = (files.keys("keys"), files.write("ledger", ""));
    for draft in Draft::ALL {
        let serve = || Serve::new().keys(&keys).config(&config).ledger(&ledger);
        let mut speaker = Speaker::start_http(draft, serve()).await;
        let mut other = Speaker::start_http(draft, serve()).await;
        let sum = call("sum", &json!({"to": 8}));
        let mut reply = speaker.send_verbatim(&sum).await;
        for _ in 0..2 {
            let (asks, state) = incomplete(draft, &reply);
            assert!(asks.is_empty(), "{asks:?}");
            let members = reply.as_object().expect("the message is an object");
            assert_eq!(
                members.contains_key("result"),
                draft == Draft::Second,
                "{reply}"
            );
            speaker.swap_servers(&mut other);
            reply = speaker.send_verbatim(&again(draft, &sum, &[], state)).await;
        }
        let text = reply["result"]["content"][0]["text"].as_str();
        assert_eq!(text, Some("The sum of 1 to 8 is 36."), "{reply}");
    }
    crate::support::Ledger::at(&ledger).assert_added_once(Draft::ALL.len(), 8);
}
