//! What every store has to keep to, as checks that can be run.
//!
//! The sentences are those of [`TaskStore`](crate::TaskStore) and [`ReplayLog`](crate::ReplayLog). A store of your own
//! runs them all in one test; a check that fails panics:
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
//! Each check is given an empty store that it has for itself. One that several instances share also runs
//! [`shared`], where each check is given two handles of one store.
//!
//! The checks take the store's clock as it is: they never wait for more than a moment, and never fail because something
//! took long.

mod answers;
mod claims;
mod commits;
mod fleet;
mod log;
mod operators;
mod owners;
mod support;
mod values;

use crate::store::Store;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

type CheckFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
type Check = fn(Arc<dyn Store>) -> CheckFuture;
type SharedCheck = fn(Arc<dyn Store>, Arc<dyn Store>) -> CheckFuture;

macro_rules! checks {
    ($($check:path),* $(,)?) => {
        &[$((stringify!($check), |store| Box::pin($check(store)))),*]
    };
}

macro_rules! shared_checks {
    ($($check:path),* $(,)?) => {
        &[$((stringify!($check), |one, other| Box::pin($check(one, other)))),*]
    };
}

const CHECKS: &[(&str, Check)] = checks![
    owners::a_stranger_finds_no_task,
    owners::the_anonymous_are_one_owner_and_no_other,
    owners::a_created_task_is_found_as_it_was_given,
    owners::the_same_id_again_is_the_same_task,
    owners::the_same_flow_again_is_the_same_task,
    owners::a_flow_of_another_owner_is_another_flow,
    owners::an_id_of_another_owner_is_refused,
    owners::a_flow_created_many_times_at_once_is_one_task,
    claims::a_task_is_taken_by_one_worker,
    claims::what_is_longest_due_is_taken_first,
    claims::no_more_are_taken_than_wanted,
    claims::only_the_tools_of_the_worker_are_taken,
    claims::what_has_outlived_its_time_is_taken_by_anyone,
    claims::a_claim_brings_all_that_a_worker_needs,
    claims::a_task_created_with_a_worker_is_that_workers,
    claims::a_lease_that_ran_out_is_taken_over,
    claims::a_lower_fence_writes_nothing,
    claims::a_lease_that_is_extended_is_held,
    claims::a_lease_that_ran_out_can_be_revived,
    claims::a_lease_that_was_given_up_is_not_extended,
    commits::all_of_a_commit_is_done,
    commits::nothing_of_a_lost_commit_is_done,
    commits::the_status_follows_the_asks,
    commits::a_used_key_is_left_as_it_is,
    commits::asks_keep_their_order,
    commits::what_is_withdrawn_needs_no_answer,
    commits::an_ask_may_be_withdrawn_as_it_is_published,
    commits::a_task_set_down_for_good_waits_for_its_end,
    commits::a_task_set_down_for_a_while_is_due_after_it,
    commits::no_wait_is_longer_than_the_life,
    commits::a_task_handed_on_is_due,
    commits::a_retry_is_due_after_its_wait,
    commits::attempts_are_counted_until_it_gets_on,
    commits::a_status_message_stays_until_the_next,
    commits::a_status_message_goes_with_what_it_was_about,
    commits::a_completed_task_is_over,
    commits::a_failed_task_is_over,
    commits::a_commit_done_twice_does_no_harm,
    answers::answers_come_in_the_order_of_their_asks,
    answers::some_answers_may_come_before_others,
    answers::the_first_answer_counts,
    answers::answers_to_what_is_not_open_are_ignored,
    answers::an_answer_wakes_a_task_that_was_set_down,
    answers::an_answer_leaves_a_running_task_with_its_worker,
    answers::an_answer_before_the_set_down_is_not_lost,
    answers::an_answer_beside_the_set_down_is_not_lost,
    answers::a_taken_answer_is_not_given_again,
    answers::a_withdrawn_answer_does_not_wake_the_task,
    answers::an_answer_to_a_task_that_is_over_is_ignored,
    answers::one_of_many_answers_at_once_counts,
    owners::a_cancelled_task_is_over,
    owners::cancelling_what_is_over_changes_nothing,
    owners::the_revision_grows_with_every_change,
    owners::hints_say_what_happened,
    operators::an_operator_sees_every_task,
    operators::the_latest_are_listed_first,
    operators::a_list_can_be_narrowed,
    operators::a_requeued_task_is_due_at_once,
    operators::a_requeued_task_is_lost_to_its_worker,
    operators::a_failed_task_can_be_requeued,
    operators::what_is_done_or_cancelled_is_not_requeued,
    operators::a_sweep_takes_what_is_over,
    operators::a_sweep_leaves_what_is_not_over,
    operators::a_sweep_takes_no_more_than_it_may,
    operators::a_swept_flow_may_become_a_task_again,
    log::what_has_begun_is_fresh_once,
    log::what_was_done_is_given_back,
    log::what_was_taken_back_may_begin_again,
    log::an_end_without_a_beginning_is_not_recorded,
    log::a_record_ends_with_its_time,
    log::one_of_many_beginnings_at_once_is_fresh,
    log::a_token_that_was_kept_is_found,
    log::a_token_ends_with_its_time,
    log::a_sweep_takes_records_and_tokens_whose_time_is_over,
    values::bytes_come_back_as_they_were,
    values::text_comes_back_as_it_was,
    values::a_long_life_does_not_overflow,
    values::a_life_of_no_time_is_over_at_once,
];

const SHARED: &[(&str, SharedCheck)] = shared_checks![
    fleet::what_one_creates_the_other_finds,
    fleet::what_one_answers_the_other_runs,
    fleet::each_task_is_taken_once,
    fleet::a_cancelled_task_is_lost_everywhere,
    fleet::the_log_is_one,
];

/// Runs every check, each on an empty store that `make` gives.
///
/// # Panics
///
/// If the store does not keep to one of them. What was printed last names it.
pub async fn all(make: impl AsyncFn() -> Arc<dyn Store>) {
    for (name, check) in CHECKS {
        println!("contract: {name}");
        check(make().await).await;
    }
}

/// Runs every check of what two instances see of each other, each on two handles of one empty store.
///
/// # Panics
///
/// If the store does not keep to one of them. What was printed last names it.
pub async fn shared(make: impl AsyncFn() -> (Arc<dyn Store>, Arc<dyn Store>)) {
    for (name, check) in SHARED {
        println!("contract: {name}");
        let (one, other) = make().await;
        check(one, other).await;
    }
}
