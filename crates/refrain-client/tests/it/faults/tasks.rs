//! Faults in a call that becomes a task, and in the task requests.

use super::call;
use refrain_testkit::net::proxy::{CALL, Fault, LISTEN, Plan};

/// The tool whose call becomes a task in its second round.
const TOOL: &str = "detached";

/// Calls the tool with a fault in one request.
async fn check_fault(method: &'static str, number: usize, fault: Fault) {
    let plan = Plan::default().fault(method, number, fault);
    let called = call(TOOL, plan, |client| client).await;
    called.assert_done_once();
    let (count, _) = called.proxy.count(method);
    assert!(
        count >= number,
        "{fault:?} was not injected: {count} requests of {method}"
    );
}

/// A module for each fault, with a test for each request.
macro_rules! fault_tests {
    ($($name:ident: $fault:ident,)*) => {
        $(mod $name {
            fault_tests!(@ $fault
                first_round: "tools/call" 1,
                round_that_creates_the_task: "tools/call" 2,
                poll: "tasks/get" 1,
                second_poll: "tasks/get" 2,
                answer: "tasks/update" 1,
            );
        })*
    };
    (@ $fault:ident $($name:ident: $method:literal $number:literal,)*) => {
        $(#[tokio::test]
        async fn $name() {
            super::check_fault($method, $number, super::Fault::$fault).await;
        })*
    };
}

fault_tests! {
    request_lost: LoseRequest,
    response_lost: LoseResponse,
    response_cut_in_head: CutHead,
    response_cut_in_body: CutBody,
    request_doubled_concurrently: DoubleAtOnce,
    request_doubled_sequentially: DoubleInTurn,
    request_repeated_after_completion: Late,
    response_delayed: Delay,
}

#[tokio::test]
async fn missing_notifications_fall_back_to_polling() {
    check_fault(LISTEN, 1, Fault::LoseRequest).await;
    check_fault(LISTEN, 1, Fault::CutFinished).await;
}

#[tokio::test]
async fn call_completes_if_several_responses_are_lost() {
    let methods = [CALL, "tasks/get", "tasks/update"];
    let requests = methods
        .into_iter()
        .flat_map(|method| [(method, 1), (method, 3)]);
    let plan = requests.fold(Plan::default(), |plan, (method, number)| {
        plan.fault(method, number, Fault::LoseResponse)
    });
    let called = call(TOOL, plan, |client| client).await;
    called.assert_done_once();
}
