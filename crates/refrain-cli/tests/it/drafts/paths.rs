//! The paths of the drafts are separate: tasks and states are valid only on their path and for their caller.

use super::{Speaker, Transport, example};
use crate::metrics::metrics_address;
use crate::support::http::text_of;
use crate::support::{Call, Client, Files, Reply, Serve, run};
use refrain::server::Draft;
use refrain_testkit::net::legacy::initialize;
use serde_json::{Value, json};

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

/// The drafts with tasks.
const WITH_TASKS: [Draft; 2] = [Draft::First, Draft::Second];

/// The requests about a task in a draft.
fn about(draft: Draft, task: &Value) -> Vec<Value> {
    let request = |method: &str| json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"taskId": task}});
    let mut answers = if draft == Draft::First {
        example(1, 13)
    } else {
        example(2, 20)
    };
    let related = "io.modelcontextprotocol/related-task";
    let of_task = json!({related: {"taskId": task}});
    if draft == Draft::First {
        answers["_meta"] = of_task;
    } else {
        answers["params"]["_meta"] = of_task;
    }
    let mut all = ["tasks/get", "tasks/result", "tasks/cancel"]
        .map(request)
        .to_vec();
    all.push(answers);
    all
}

/// Creates a task on the path of a draft, and waits until it asks.
async fn make_task(speaker: &mut Speaker, draft: Draft) -> Value {
    speaker.set_draft(draft);
    let (document, call, get) = if draft == Draft::First {
        (1, 7, 9)
    } else {
        (2, 14, 16)
    };
    let reply = speaker.send_verbatim(&example(document, call)).await;
    let task = reply["result"]["task"]["taskId"].clone();
    speaker.poll_example(document, get, get + 1).await;
    task
}

async fn status(speaker: &mut Speaker, draft: Draft, task: &Value) -> Value {
    speaker.set_draft(draft);
    let reply = speaker.send_verbatim(&about(draft, task)[0]).await;
    reply["result"]["status"].clone()
}

#[tokio::test]
async fn task_exists_only_on_its_path() {
    let files = Files::new();
    let serve = Serve::new().keys(&files.keys("keys"));
    let mut speaker = Speaker::start_http(Draft::Second, serve).await;
    let client = Client::new(speaker.address().expect("HTTP")).with_tasks();
    for home in WITH_TASKS {
        let task = make_task(&mut speaker, home).await;
        for other in WITH_TASKS.into_iter().filter(|other| *other != home) {
            speaker.set_draft(other);
            for request in about(other, &task) {
                let reply = speaker.send_verbatim(&request).await;
                assert_eq!(reply["error"]["code"], -32602, "{request}: {reply}");
            }
        }
        let id = task.as_str().expect("the id is a string");
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let reply = client.about_task(method, id, Some(&json!({}))).await;
            let reply = reply.expect("the server replies");
            assert_eq!(reply["error"]["code"], -32602, "{method}: {reply}");
        }
        assert_eq!(status(&mut speaker, home, &task).await, "input_required");
    }
    // A task of `/mcp` does not exist on the paths of the drafts.
    let id = client.create(Call::new("echo_task", json!({}))).await;
    client.asked(&id, &["echo_input"]).await;
    for draft in WITH_TASKS {
        speaker.set_draft(draft);
        for request in about(draft, &id.as_str().into()) {
            let reply = speaker.send_verbatim(&request).await;
            assert_eq!(reply["error"]["code"], -32602, "{request}: {reply}");
        }
    }
    client.asked(&id, &["echo_input"]).await;
}

/// A call of a tool that is the same on all paths, with or without an answer and a state.
fn order(draft: Draft, answer: Option<(&str, &Value)>) -> Value {
    let mut call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "place_order", "arguments": {"item": "lamp"}}});
    let Some((key, state)) = answer else {
        return call;
    };
    let form = json!({"action": "accept", "content": {"confirm": true}});
    let (answers_name, state_name) = match draft {
        Draft::Second => {
            call["params"]["inputResponses"] = json!({key: form});
            call["params"]["requestState"] = state.clone();
            return call;
        }
        Draft::First => ("input_responses", "request_state"),
        Draft::Sketch => ("dependent_responses", "request_state"),
    };
    call[answers_name] = json!({key: {"result": form}});
    call[state_name] = state.clone();
    call
}

/// The key of the ask, and the state.
fn asked(draft: Draft, reply: &Value) -> (String, Value) {
    let (asks, state) = match draft {
        Draft::Second => (
            &reply["result"]["inputRequests"],
            &reply["result"]["requestState"],
        ),
        Draft::First => (&reply["input_requests"], &reply["request_state"]),
        Draft::Sketch => (&reply["dependent_requests"], &reply["request_state"]),
    };
    let keys = asks.as_object().unwrap_or_else(|| panic!("{reply}")).keys();
    let keys: Vec<&String> = keys.collect();
    let [key] = keys[..] else {
        panic!("{reply}");
    };
    (key.clone(), state.clone())
}

#[tokio::test]
async fn state_is_valid_only_on_its_path() {
    let files = Files::new();
    let serve = Serve::new().keys(&files.keys("keys"));
    let mut speaker = Speaker::start_http(Draft::Second, serve).await;
    let client = Client::new(speaker.address().expect("HTTP"));
    for home in Draft::ALL {
        speaker.set_draft(home);
        let reply = speaker.send_verbatim(&order(home, None)).await;
        let (key, state) = asked(home, &reply);
        for other in Draft::ALL.into_iter().filter(|other| *other != home) {
            speaker.set_draft(other);
            let reply = speaker
                .send_verbatim(&order(other, Some((&key, &state))))
                .await;
            assert_eq!(reply["error"]["code"], -32602, "{home} on {other}: {reply}");
            let message = reply["error"]["message"]
                .as_str()
                .expect("the message is a string");
            let name = if other == Draft::Second {
                "requestState"
            } else {
                "request_state"
            };
            assert!(message.starts_with(name), "{message}");
        }
        let mut call = Call::order("lamp");
        call.token = Some(state.as_str().expect("a state").to_owned());
        call.answer(&key, &json!({"confirm": true}));
        let refused = client.round(&mut call).await;
        assert!(
            matches!(refused, Reply::Refused { code: -32602, .. }),
            "{refused:?}"
        );
        speaker.set_draft(home);
        let reply = speaker
            .send_verbatim(&order(home, Some((&key, &state))))
            .await;
        assert_eq!(reply["result"]["isError"], false, "{reply}");
    }
    // A state of `/mcp` is not valid on the paths of the drafts.
    let mut call = Call::order("lamp");
    let Reply::Asked(keys) = client.round(&mut call).await else {
        panic!("no ask");
    };
    let key = keys.first().expect("a key");
    let state: Value = call.token.clone().expect("a state").into();
    for draft in Draft::ALL {
        speaker.set_draft(draft);
        let reply = speaker
            .send_verbatim(&order(draft, Some((key, &state))))
            .await;
        assert_eq!(reply["error"]["code"], -32602, "{draft}: {reply}");
    }
    call.answer(key, &json!({"confirm": true}));
    assert!(matches!(client.round(&mut call).await, Reply::Done(_)));
}

#[tokio::test]
async fn tasks_and_states_of_another_caller_are_rejected() {
    let files = Files::new();
    let callers = files.write("callers.txt", &format!("alice {ALICE}\nbob {BOB}\n"));
    let serve = Serve::new().tokens(&callers);
    let mut speaker = Speaker::start_http(Draft::Second, serve).await;
    for draft in WITH_TASKS {
        speaker.set_bearer(ALICE);
        let task = make_task(&mut speaker, draft).await;
        let unknown: Value = task
            .as_str()
            .expect("the id is a string")
            .chars()
            .rev()
            .collect::<String>()
            .into();
        speaker.set_bearer(BOB);
        for (of_alice, of_nobody) in about(draft, &task).iter().zip(about(draft, &unknown)) {
            let reply = speaker.send_verbatim(of_alice).await;
            assert_eq!(reply["error"]["code"], -32602, "{of_alice}: {reply}");
            assert_eq!(reply, speaker.send_verbatim(&of_nobody).await);
        }
        speaker.set_bearer(ALICE);
        assert_eq!(status(&mut speaker, draft, &task).await, "input_required");
    }
    for draft in Draft::ALL {
        speaker.set_draft(draft);
        speaker.set_bearer(ALICE);
        let reply = speaker.send_verbatim(&order(draft, None)).await;
        let (key, state) = asked(draft, &reply);
        let again = order(draft, Some((&key, &state)));
        speaker.set_bearer(BOB);
        let reply = speaker.send_verbatim(&again).await;
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
        speaker.set_bearer(ALICE);
        let reply = speaker.send_verbatim(&again).await;
        assert_eq!(reply["result"]["isError"], false, "{reply}");
    }
}

#[tokio::test]
async fn metrics_count_all_paths() {
    let serve = Serve::new().args(["--metrics", "127.0.0.1:0"]);
    let mut speaker = Speaker::start_http(Draft::Sketch, serve).await;
    for draft in Draft::ALL {
        speaker.set_draft(draft);
        speaker.send_verbatim(&order(draft, None)).await;
    }
    let log = &speaker.process().expect("a process").log;
    let text = text_of(metrics_address(log).await, "/metrics").await;
    let line = "refrain_calls_total{method=\"tools/call\",target=\"place_order\"} 3";
    assert!(text.lines().any(|l| l == line), "{text}");
}

/// Lists are those of 2025-11-25.
#[tokio::test]
async fn lists_are_the_same_with_and_without_initialize() {
    for draft in Draft::ALL {
        for transport in Transport::ALL {
            let mut speaker = Speaker::start(draft, transport).await;
            let list = |method: &str| json!({"jsonrpc": "2.0", "id": 3, "method": method});
            let methods = [
                "tools/list",
                "prompts/list",
                "resources/list",
                "resources/templates/list",
            ];
            let mut without = Vec::new();
            for method in methods {
                without.push(speaker.send_verbatim(&list(method)).await);
            }
            let hello = initialize("2025-11-25", &json!({}));
            let reply = speaker.send_verbatim(&hello).await;
            let tasks = json!({"cancel": {}, "requests": {"tools": {"call": {}}}});
            let tasks = draft.has_tasks().then_some(&tasks);
            assert_eq!(
                reply["result"]["capabilities"].get("tasks"),
                tasks,
                "{reply}"
            );
            for (method, without) in methods.into_iter().zip(&without) {
                assert_eq!(
                    &speaker.send_verbatim(&list(method)).await,
                    without,
                    "{draft}, {method}"
                );
            }
            let result = without[0]["result"].as_object().expect("the call succeeds");
            assert_eq!(result.keys().collect::<Vec<_>>(), ["tools"]);
            assert_eq!(without[1]["result"], json!({"prompts": []}));
            let tools = result["tools"].as_array().expect("tools");
            let support = |name: &str| {
                let tool = tools.iter().find(|tool| tool["name"] == name);
                tool.expect("the tool").get("execution").cloned()
            };
            let optional = draft
                .has_tasks()
                .then(|| json!({"taskSupport": "optional"}));
            for task in ["echo", "echo_task", "create_vm"] {
                assert_eq!(support(task), optional, "{task}");
            }
            // `get_weather` never becomes a task, and `change_seat` is a live tool.
            for none in ["get_weather", "change_seat"] {
                assert_eq!(support(none), None, "{none}");
            }
        }
    }
}

#[tokio::test]
async fn serve_dialect_flag_requires_stdio() {
    for flags in [&["--listen", "127.0.0.1:0"][..], &["--drafts"], &[]] {
        let serve = ["serve", "--dialect", "draft-2"];
        let output = run(serve.iter().chain(flags)).await;
        assert!(!output.ok, "{flags:?}: {output:?}");
        for word in ["--dialect", "--stdio", "--drafts"] {
            assert!(output.err.contains(word), "{flags:?}: {output:?}");
        }
    }
}
