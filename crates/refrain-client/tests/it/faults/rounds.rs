//! Faults in the first, middle and last round of each kind of tool.

use super::{FaultyCall, call};
use refrain_client::{ClientBuilder, ClientLimits, ErrorKind};
use refrain_testkit::net::proxy::{CALL, Fault, Plan};
use std::time::Duration;

/// The rounds of a call.
const ROUNDS: usize = 3;
/// Tools with different ways to execute an effect once.
const TOOLS: [&str; 3] = ["keyed", "once", "single_use"];

/// Calls a tool with a fault in one round.
async fn call_with_fault(tool: &str, fault: Fault, round: usize) -> FaultyCall {
    let plan = Plan::default().fault(CALL, round, fault);
    let set_up = |client: ClientBuilder| match fault {
        // Progress makes the response a stream.
        Fault::CutFinished => client.on_progress(|_| ()),
        // The client times out, and resumes the call.
        Fault::Hold => client.limits(ClientLimits {
            silence: Duration::from_secs(3),
            ..ClientLimits::default()
        }),
        _ => client,
    };
    call(tool, plan, set_up).await
}

/// The requests that the client sends with this fault, and those that reach the fleet.
fn expected_requests(fault: Fault) -> (usize, usize) {
    match fault {
        Fault::LoseRequest | Fault::Status(_) => (ROUNDS + 1, ROUNDS),
        Fault::LoseResponse
        | Fault::StatusAfter(_)
        | Fault::CutHead
        | Fault::CutBody
        | Fault::CutFinished
        | Fault::CutUnfinished
        | Fault::HangUp
        | Fault::CutSilence(_)
        | Fault::Hold => (ROUNDS + 1, ROUNDS + 1),
        Fault::DoubleAtOnce | Fault::DoubleInTurn | Fault::Late => (ROUNDS, ROUNDS + 1),
        Fault::Delay => (ROUNDS, ROUNDS),
    }
}

async fn check_fault(tool: &str, fault: Fault, round: usize) {
    let called = call_with_fault(tool, fault, round).await;
    called.assert_done_once();
    assert_eq!(called.proxy.count(CALL), expected_requests(fault));
}

/// A module for each fault, with a test for each tool and round.
macro_rules! fault_tests {
    ($($name:ident: $fault:ident,)*) => {
        $(mod $name {
            fault_tests!(@ $fault
                keyed_first: "keyed" 1,
                keyed_middle: "keyed" 2,
                keyed_last: "keyed" 3,
                once_first: "once" 1,
                once_middle: "once" 2,
                once_last: "once" 3,
                single_use_first: "single_use" 1,
                single_use_middle: "single_use" 2,
                single_use_last: "single_use" 3,
            );
        })*
    };
    (@ $fault:ident $($name:ident: $tool:literal $round:literal,)*) => {
        $(#[tokio::test]
        async fn $name() {
            super::check_fault($tool, super::Fault::$fault, $round).await;
        })*
    };
}

fault_tests! {
    request_lost: LoseRequest,
    response_lost: LoseResponse,
    response_cut_in_head: CutHead,
    response_cut_in_body: CutBody,
    stream_cut: CutFinished,
    request_doubled_concurrently: DoubleAtOnce,
    request_doubled_sequentially: DoubleInTurn,
    request_repeated_after_completion: Late,
    response_delayed: Delay,
    response_withheld: Hold,
}

/// The server drops a round whose client disconnects. With an idempotency key, repeating it is safe.
#[tokio::test]
async fn client_disconnect_with_idempotency_key_completes() {
    for round in 1..=ROUNDS {
        check_fault("keyed", Fault::HangUp, round).await;
    }
}

/// Without a key, an interrupted effect may fail the call, but never happens twice.
#[tokio::test]
async fn client_disconnect_without_key_never_repeats_effects() {
    for tool in ["once", "single_use"] {
        for round in 1..=ROUNDS {
            let called = call_with_fault(tool, Fault::HangUp, round).await;
            match &called.result {
                Ok(result) if result["isError"] != true => called.assert_done_once(),
                Ok(_) => {}
                Err(error) => assert!(matches!(error.kind, ErrorKind::Rpc(_)), "{error:?}"),
            }
            let done = called.shop.effect_counts();
            assert!(done.iter().all(|times| *times <= 1), "{tool}: {done:?}");
        }
    }
}

#[tokio::test]
async fn call_completes_if_the_first_response_of_each_round_is_lost() {
    for tool in TOOLS {
        let lost = |plan: Plan, request| plan.fault(CALL, request, Fault::LoseResponse);
        let plan = [1, 3, 5].into_iter().fold(Plan::default(), lost);
        let called = call(tool, plan, |client| client).await;
        called.assert_done_once();
        assert_eq!(called.proxy.count(CALL), (6, 6));
    }
}

#[tokio::test]
async fn retries_are_limited_and_the_call_kept() {
    for tool in TOOLS {
        let retries = 2;
        let lost = |plan: Plan, request| plan.fault(CALL, request, Fault::LoseResponse);
        let plan = (2..=4).fold(Plan::default(), lost);
        let limits = ClientLimits {
            retries,
            ..ClientLimits::default()
        };
        let called = call(tool, plan, |client| client.limits(limits)).await;
        let error = called.result.expect_err("every response was lost");
        assert_matches!(error.kind, ErrorKind::ConnectionLost(_));
        assert!(error.pending.is_some_and(|pending| pending.round() == 1));
        assert_eq!(called.shop.effect_counts(), [1, 1, 0]);
    }
}

/// Without call ids a repeated call might execute twice, so the host has to decide.
#[tokio::test]
async fn nothing_is_retried_without_call_id_support() {
    for tool in TOOLS {
        for round in 1..=ROUNDS {
            let plan = Plan::default().fault(CALL, round, Fault::LoseResponse);
            let called = call(tool, plan.deny_call_ids(), |client| client).await;
            let error = called.result.expect_err("the response was lost");
            assert_matches!(error.kind, ErrorKind::ConnectionLost(_));
            assert!(error.pending.is_some(), "the error contains the call");
            assert_eq!(called.proxy.count(CALL), (round, round));
            let done: usize = called.shop.effect_counts().iter().sum();
            assert_eq!(done, round);
        }
    }
}

/// Shows that these tests can fail: without call ids, a repeated first request executes twice.
#[tokio::test]
async fn hidden_call_ids_duplicate_the_first_effect() {
    for tool in TOOLS {
        let plan = Plan::default().fault(CALL, 1, Fault::LoseResponse);
        let called = call(tool, plan.hide_call_ids(), |client| client).await;
        assert_eq!(called.text(), "5 paid, sure: true");
        assert_eq!(
            called.shop.effect_counts(),
            [2, 1, 1],
            "{:?}",
            called.shop.effects
        );
    }
}
