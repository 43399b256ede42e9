//! Checks that every store must pass.
//!
//! They verify the rules of [`TaskStore`](crate::TaskStore) and [`ReplayLog`](crate::ReplayLog). Run all checks of a custom
//! store in one test; a failed check panics:
//!
//! ```
//! use refrain_store::{MemoryStore, Store, contract};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! contract::all(async || Arc::new(MemoryStore::new()) as Arc<dyn Store>).await;
//! # }
//! ```
//!
//! Each check runs on an empty store. For a store that several instances share, run [`shared`] as well, whose checks use
//! two handles of one store.
//!
//! The checks use the store's clock, wait only briefly, and do not fail on a slow machine.

mod admin;
mod answers;
mod claims;
mod commits;
mod fleet;
mod log;
mod owners;
mod support;
mod values;

use crate::store::Store;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use support::Subject;

/// The name of a check and its function.
type Check<S> = (&'static str, fn(S) -> Pin<Box<dyn Future<Output = ()>>>);

macro_rules! checks {
    ($($check:path),* $(,)?) => {
        &[$((stringify!($check), |store| Box::pin($check(store)))),*]
    };
}

const CHECKS: &[Check<Subject>] = checks![
    owners::a_task_is_hidden_from_other_owners,
    owners::anonymous_callers_are_one_owner,
    owners::a_created_task_is_found,
    owners::the_same_id_is_the_same_task,
    owners::the_same_flow_is_the_same_task,
    owners::a_flow_of_another_owner_is_another_task,
    owners::an_id_of_another_owner_is_rejected,
    owners::concurrent_creations_of_a_flow_are_one_task,
    owners::a_cancelled_task_has_ended,
    owners::cancelling_an_ended_task_changes_nothing,
    owners::the_revision_grows_with_every_change,
    owners::hints_report_changes,
    claims::a_task_is_claimed_by_one_worker,
    claims::the_task_that_is_due_longest_is_claimed_first,
    claims::a_claim_is_limited,
    claims::only_tools_of_the_worker_are_claimed,
    claims::an_expired_task_is_claimed_by_any_worker,
    claims::a_claim_returns_the_task,
    claims::a_task_may_be_created_with_a_worker,
    claims::an_expired_lease_is_taken_over,
    claims::a_lower_fence_writes_nothing,
    claims::an_extended_lease_is_held,
    claims::an_expired_lease_can_be_extended,
    claims::a_released_lease_is_not_extended,
    commits::a_commit_writes_all_its_parts,
    commits::a_lost_commit_writes_nothing,
    commits::the_status_follows_the_asks,
    commits::a_used_key_is_not_published_again,
    commits::asks_keep_their_order,
    commits::a_withdrawn_ask_is_closed,
    commits::an_ask_may_be_published_and_withdrawn_at_once,
    commits::a_task_set_down_without_a_limit_waits_until_it_expires,
    commits::a_task_set_down_with_a_limit_is_due_after_it,
    commits::a_wait_ends_when_the_task_expires,
    commits::a_task_handed_on_is_due,
    commits::a_retry_is_due_after_its_wait,
    commits::attempts_are_counted_until_progress,
    commits::a_status_message_stays_until_the_next,
    commits::a_status_message_ends_with_its_task,
    commits::a_completed_task_has_ended,
    commits::a_failed_task_has_ended,
    commits::a_repeated_commit_does_no_harm,
    answers::answers_come_in_the_order_of_their_asks,
    answers::some_answers_may_come_before_others,
    answers::the_first_answer_counts,
    answers::answers_to_keys_that_are_not_open_are_ignored,
    answers::an_answer_wakes_a_task_that_was_set_down,
    answers::an_answer_leaves_a_running_task_with_its_worker,
    answers::an_answer_before_the_set_down_is_not_lost,
    answers::an_answer_during_the_set_down_is_not_lost,
    answers::a_taken_answer_is_not_given_again,
    answers::a_withdrawn_answer_does_not_wake_the_task,
    answers::an_answer_to_an_ended_task_is_ignored,
    answers::one_of_many_concurrent_answers_counts,
    admin::an_operator_sees_every_task,
    admin::the_latest_tasks_are_listed_first,
    admin::a_list_can_be_filtered,
    admin::a_requeued_task_is_due_at_once,
    admin::a_requeued_task_is_lost_to_its_worker,
    admin::a_failed_task_can_be_requeued,
    admin::a_completed_or_cancelled_task_is_not_requeued,
    admin::a_sweep_deletes_ended_tasks,
    admin::a_sweep_keeps_other_tasks,
    admin::a_sweep_is_limited,
    admin::a_swept_task_may_be_created_again,
    log::a_record_begins_once,
    log::a_finished_record_returns_its_value,
    log::a_forgotten_record_may_begin_again,
    log::a_record_that_never_began_is_not_finished,
    log::a_record_expires,
    log::one_of_many_concurrent_begins_is_fresh,
    log::a_spilled_token_is_found,
    log::a_spilled_token_expires,
    log::a_sweep_deletes_expired_records_and_tokens,
    values::bytes_are_kept,
    values::text_is_kept,
    values::similar_keys_are_different_asks,
    values::a_long_time_does_not_overflow,
    values::a_task_without_time_to_live_is_due_at_once,
];

const SHARED: &[Check<(Subject, Subject)>] = checks![
    fleet::a_created_task_is_found_by_the_other,
    fleet::an_answered_task_is_run_by_the_other,
    fleet::each_task_is_claimed_once,
    fleet::a_task_cancelled_by_the_other_is_lost,
    fleet::the_log_and_tokens_are_shared,
];

/// Runs every check, each on an empty store that `make` returns.
///
/// # Panics
///
/// If a check fails. The last line on standard output is its name.
pub async fn all(make: impl AsyncFn() -> Arc<dyn Store>) {
    for (name, check) in CHECKS {
        println!("contract: {name}");
        check(Subject(make().await)).await;
    }
}

/// Runs every check of a shared store, each on two handles of one empty store.
///
/// # Panics
///
/// If a check fails. The last line on standard output is its name.
pub async fn shared(make: impl AsyncFn() -> (Arc<dyn Store>, Arc<dyn Store>)) {
    for (name, check) in SHARED {
        println!("contract: {name}");
        let (one, other) = make().await;
        check((Subject(one), Subject(other))).await;
    }
}
