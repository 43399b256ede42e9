//! Drafts: the information that is lost in a translation.

use refrain_wire::TASKS_EXTENSION;
use refrain_wire::drafts::{Draft, TASK_RESULT};
use serde_json::{Value, json};

use crate::drafts::{request, result_round_trip, round_trip};

#[test]
fn first_draft_loses_last_updated_at() {
    let get = request("tasks/get", json!({"taskId": "t"}), true);
    let task = json!({"resultType": "complete", "taskId": "t", "status": "working",
        "createdAt": "a", "lastUpdatedAt": "b", "ttlMs": 1, "pollIntervalMs": 1});
    let mut first = task.clone();
    first["lastUpdatedAt"] = "a".into();
    assert_eq!(result_round_trip(Draft::First, &get, task.clone()), first);
    assert_eq!(result_round_trip(Draft::Second, &get, task.clone()), task);
}

#[test]
fn task_with_error_result_counts_as_failed() {
    let get = request("tasks/get", json!({"taskId": "t"}), true);
    let outcome_request = request(TASK_RESULT, json!({"taskId": "t"}), true);
    for (draft, failed, completed) in [
        (Draft::First, "Failed", "Completed"),
        (Draft::Second, "failed", "completed"),
    ] {
        for (is_error, status) in [(json!(true), failed), (json!(false), completed)] {
            let result = json!({"content": [], "isError": is_error});
            let task = json!({"resultType": "complete", "taskId": "t", "status": "completed",
                "createdAt": "c", "lastUpdatedAt": "c", "result": result});
            let (_, _, server_side) = round_trip(draft, &get);
            let reply = json!({"jsonrpc": "2.0", "id": 7, "result": task});
            let written = server_side
                .write_reply(reply.to_string().as_bytes())
                .unwrap();
            let written: Value = serde_json::from_slice(&written).unwrap();
            assert_eq!(written["result"]["status"], status, "{written}");
            assert_eq!(written["result"].get("result"), None);
            let back = result_round_trip(draft, &outcome_request, task);
            assert_eq!(back["status"], "completed");
            assert_eq!(back["result"], result);
        }
    }
}

#[test]
fn answers_without_method_lose_client_meta() {
    let mut update = request(
        "tasks/update",
        json!({"taskId": "t", "inputResponses": {}}),
        true,
    );
    update["params"]["_meta"]["refrain/callId"] = "c".into();
    let (back, ..) = round_trip(Draft::Second, &update);
    assert_eq!(back, update);
    let (back, ..) = round_trip(Draft::First, &update);
    assert_eq!(back["params"]["_meta"].get("refrain/callId"), None);
    let can = &back["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert!(can["elicitation"].is_object() && can["extensions"][TASKS_EXTENSION].is_object());
}

#[test]
fn ttl_without_task_request_is_lost() {
    for (draft, tasks) in [(Draft::Second, false), (Draft::Sketch, true)] {
        let mut call = request("tools/call", json!({"name": "t"}), tasks);
        call["params"]["_meta"]["refrain/taskTtl"] = 5.into();
        let (back, ..) = round_trip(draft, &call);
        assert_eq!(back["params"]["_meta"].get("refrain/taskTtl"), None);
        let can = &back["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(can.get("extensions"), None, "{draft}");
    }
}

#[test]
fn related_task_of_a_request_is_lost() {
    for draft in Draft::ALL {
        let mut call = request("tools/call", json!({"name": "t"}), false);
        let related = json!({"taskId": "other"});
        call["params"]["_meta"]["io.modelcontextprotocol/related-task"] = related;
        let (back, ..) = round_trip(draft, &call);
        let meta = &back["params"]["_meta"];
        assert_eq!(meta.get("io.modelcontextprotocol/related-task"), None);
    }
}

#[test]
fn cache_hints_are_lost() {
    for draft in Draft::ALL {
        for (method, params, member) in [
            ("tools/list", json!({}), "tools"),
            ("resources/read", json!({"uri": "a:b"}), "contents"),
        ] {
            let mut kept = json!({"resultType": "complete", member: []});
            let back =
                |result| result_round_trip(draft, &request(method, params.clone(), false), result);
            assert_eq!(back(kept.clone()), kept);
            kept["ttlMs"] = 5.into();
            kept["cacheScope"] = "public".into();
            assert_eq!(back(kept), json!({"resultType": "complete", member: []}));
        }
    }
}

#[test]
fn second_draft_detects_incomplete_results_by_members() {
    let call = request("tools/call", json!({"name": "t"}), false);
    for name in ["inputRequests", "requestState"] {
        let result = json!({"resultType": "complete", name: "mine"});
        let back = result_round_trip(Draft::Second, &call, result.clone());
        assert_eq!(back["resultType"], "input_required");
        for draft in [Draft::First, Draft::Sketch] {
            assert_eq!(result_round_trip(draft, &call, result.clone()), result);
        }
    }
}

#[test]
fn task_member_counts_only_if_a_task_was_requested() {
    let result = json!({"resultType": "complete", "task": {"taskId": "mine"}});
    for draft in Draft::ALL {
        for (method, params, tasks) in [
            ("tools/call", json!({"name": "t"}), true),
            ("tools/call", json!({"name": "t"}), false),
            ("prompts/get", json!({"name": "t"}), true),
            ("resources/read", json!({"uri": "a:b"}), true),
        ] {
            let back = result_round_trip(draft, &request(method, params, tasks), result.clone());
            let is_task = draft.has_tasks() && method == "tools/call" && tasks;
            assert_eq!(back["resultType"] == "task", is_task, "{draft}, {method}");
            assert_eq!(back == result, !is_task);
        }
    }
    // A `task` that is not an object is an ordinary member.
    let result = json!({"resultType": "complete", "task": "mine"});
    let call = request("tools/call", json!({"name": "t"}), true);
    assert_eq!(
        result_round_trip(Draft::Second, &call, result.clone()),
        result
    );
}

#[test]
fn empty_incomplete_result_is_lost() {
    let call = request("tools/call", json!({"name": "t"}), false);
    for (draft, kind) in [
        (Draft::Sketch, None),
        (Draft::First, None),
        (Draft::Second, Some("complete")),
    ] {
        let result = json!({"resultType": "input_required"});
        let back = result_round_trip(draft, &call, result);
        assert_eq!(back.get("resultType").and_then(Value::as_str), kind);
    }
}
