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
mod outbox;
mod owners;
mod quotas;
mod support;
mod turns;
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
    owners::task_is_hidden_from_other_owners,
    owners::anonymous_callers_are_one_owner,
    owners::created_task_is_found,
    owners::same_id_is_the_same_task,
    owners::same_flow_is_the_same_task,
    owners::flow_of_another_owner_is_another_task,
    owners::id_of_another_owner_is_rejected,
    owners::concurrent_creations_of_a_flow_are_one_task,
    owners::cancelled_task_has_ended,
    owners::cancelling_an_ended_task_changes_nothing,
    owners::revision_grows_with_every_change,
    owners::hints_report_changes,
    claims::task_is_claimed_by_one_worker,
    claims::task_that_is_due_longest_is_claimed_first,
    turns::owners_take_turns,
    turns::anonymous_accounts_take_turns,
    turns::tasks_of_anonymous_callers_can_be_excluded,
    turns::task_of_a_new_owner_comes_next,
    turns::owner_with_one_task_at_a_time_leaves_turns_to_others,
    turns::returned_tasks_take_their_turns,
    turns::unclaimable_task_does_not_block_other_owners,
    turns::excluded_owner_is_skipped,
    turns::ready_task_that_changes_leaves_the_queue,
    quotas::unfinished_tasks_are_limited,
    quotas::anonymous_accounts_have_their_own_quota,
    quotas::last_quarter_of_all_bytes_is_for_small_accounts,
    quotas::anonymous_callers_leave_bytes_to_others,
    quotas::bytes_of_tasks_are_limited,
    quotas::bytes_of_tokens_are_limited,
    quotas::bytes_of_records_are_limited,
    quotas::records_without_outcomes_are_limited,
    quotas::expired_record_counts_for_its_new_account,
    quotas::bytes_of_commits_are_limited,
    quotas::failure_of_task_over_its_quota_is_stored,
    quotas::bytes_of_answers_are_limited,
    quotas::bytes_of_all_owners_are_limited,
    quotas::completed_or_cancelled_task_frees_its_bytes,
    quotas::deleted_data_does_not_count,
    quotas::concurrent_sweeps_lose_no_usage,
    quotas::concurrent_creations_exceed_the_quota_by_at_most_one_each,
    claims::claim_is_limited,
    claims::only_tools_of_the_worker_are_claimed,
    claims::expired_task_is_claimed_by_any_worker,
    claims::claim_returns_the_task,
    claims::task_may_be_created_with_a_worker,
    claims::expired_lease_is_taken_over,
    claims::lower_fence_writes_nothing,
    claims::extended_lease_is_held,
    claims::expired_lease_can_be_extended,
    claims::released_lease_is_not_extended,
    commits::commit_writes_all_its_parts,
    commits::lost_commit_writes_nothing,
    commits::lost_commit_does_not_affect_concurrent_ones,
    commits::status_follows_the_asks,
    commits::used_key_is_not_published_again,
    commits::asks_keep_their_order,
    commits::withdrawn_ask_is_closed,
    commits::ask_may_be_published_and_withdrawn_at_once,
    commits::task_suspended_without_a_limit_waits_until_it_expires,
    commits::task_suspended_with_a_limit_is_due_after_it,
    commits::wait_ends_when_the_task_expires,
    commits::task_handed_on_is_due,
    commits::retry_is_due_after_its_wait,
    commits::attempts_are_counted_until_progress,
    commits::status_message_stays_until_the_next,
    commits::status_message_ends_with_its_task,
    commits::completed_task_has_ended,
    commits::failed_task_has_ended,
    commits::repeated_commit_has_no_effect,
    answers::answers_come_in_the_order_of_their_asks,
    answers::answers_may_arrive_separately,
    answers::open_asks_are_found_by_key,
    answers::ended_task_has_no_open_asks,
    answers::first_answer_counts,
    answers::answers_to_keys_that_are_not_open_are_ignored,
    answers::answer_wakes_a_suspended_task,
    answers::answer_leaves_a_running_task_with_its_worker,
    answers::answer_before_the_suspension_is_not_lost,
    answers::answer_during_the_suspension_is_not_lost,
    answers::taken_answer_is_not_returned_again,
    answers::withdrawn_answer_does_not_wake_the_task,
    answers::answer_to_an_ended_task_is_ignored,
    answers::one_of_many_concurrent_answers_counts,
    admin::list_contains_tasks_of_all_owners,
    admin::latest_tasks_are_listed_first,
    admin::list_can_be_filtered,
    admin::requeued_task_is_due_at_once,
    admin::requeued_task_is_lost_to_its_worker,
    admin::failed_task_can_be_requeued,
    admin::completed_or_cancelled_task_is_not_requeued,
    admin::sweep_deletes_ended_tasks,
    admin::sweep_keeps_other_tasks,
    admin::sweep_is_limited,
    admin::swept_task_may_be_created_again,
    log::record_begins_once,
    log::finished_record_returns_its_value,
    log::forgotten_record_may_begin_again,
    log::record_that_never_began_is_not_finished,
    log::record_expires,
    log::one_of_many_concurrent_begins_is_fresh,
    log::spilled_token_is_found,
    log::spilled_token_expires,
    log::sweep_deletes_expired_records_and_tokens,
    outbox::ended_task_is_delivered_to_each_endpoint,
    outbox::task_without_webhooks_adds_no_delivery,
    outbox::every_end_adds_a_delivery,
    outbox::lost_commit_adds_no_delivery,
    outbox::requeued_task_is_delivered_again,
    outbox::claimed_delivery_is_due_again_after_its_lease,
    outbox::failed_delivery_waits_for_its_retry,
    outbox::late_retry_does_not_affect_a_newer_claim,
    outbox::finished_delivery_is_deleted,
    outbox::delivery_outlives_its_task,
    outbox::claims_of_deliveries_are_limited,
    outbox::each_delivery_is_claimed_once,
    outbox::trim_deletes_old_deliveries,
    outbox::trim_keeps_the_latest_rows,
    outbox::trim_drops_deliveries_of_the_caller_with_the_most,
    outbox::deliveries_of_two_callers_take_turns,
    values::bytes_are_kept,
    values::text_is_kept,
    values::similar_keys_are_different_asks,
    values::long_time_does_not_overflow,
    values::task_without_time_to_live_is_due_at_once,
];

const SHARED: &[Check<(Subject, Subject)>] = checks![
    fleet::created_task_is_found_by_the_other,
    fleet::answered_task_is_run_by_the_other,
    fleet::each_task_is_claimed_once,
    fleet::task_cancelled_by_the_other_is_lost,
    fleet::log_and_tokens_are_shared,
    outbox::two_handles_claim_each_delivery_once,
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
