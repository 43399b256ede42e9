//! Operations of owners: create, get, cancel; and hints.

use super::support::{HOUR, Subject, alice, asks, bob, flow, id, keep, new, next, pairs, wait_for};
use crate::{Creation, Hint, Lease, NewTask, Next, StoreError, StoredStatus, TaskId};
use refrain_core::Principal;
use std::time::{Duration, SystemTime};

/// Checks that the task does not exist for this principal.
async fn assert_hidden(store: &Subject, id: &TaskId, from: &Principal) {
    let got = store.0.get(id, from).await.expect("no error");
    assert!(got.is_none(), "{from:?} sees the task of another owner");
    for keys in [&[][..], &["k"]] {
        let got = store.0.open_asks(id, from, keys).await.expect("no error");
        assert!(got.is_none(), "{from:?} sees asks of another owner");
    }
    let answers = pairs(&[("k", "stolen")]);
    let none = store.0.answer(id, from, Vec::new()).await;
    assert!(!none.expect("no error"));
    assert!(!store.0.answer(id, from, answers).await.expect("no error"));
    assert!(!store.0.cancel(id, from).await.expect("no error"));
}

pub(super) async fn task_is_hidden_from_other_owners(store: Subject) {
    let lease = store.asking(&["k"]).await;
    let before = store.revision(&lease.task).await;
    for other in ["bob", "ALICE", ""] {
        assert_hidden(&store, &lease.task, &Principal::new(other)).await;
    }
    assert_hidden(&store, &lease.task, &Principal::anonymous()).await;
    assert_hidden(&store, &id(), &alice()).await;
    assert_eq!(store.revision(&lease.task).await, before);
    let task = store.get(&lease.task).await;
    assert_eq!(task.status, StoredStatus::InputRequired);
}

pub(super) async fn anonymous_callers_are_one_owner(store: Subject) {
    let anonymous = Principal::anonymous();
    let task = store.create(new().owner(&anonymous)).await;
    let got = store.0.get(&task.id, &anonymous).await;
    assert!(got.expect("no error").is_some());
    let got = store.0.open_asks(&task.id, &anonymous, &[]).await;
    assert!(got.expect("no error").is_some());
    for other in ["alice", "", "anonymous"] {
        assert_hidden(&store, &task.id, &Principal::new(other)).await;
    }
    let cancelled = store.0.cancel(&task.id, &anonymous).await;
    assert!(cancelled.expect("no error"));
}

pub(super) async fn created_task_is_found(store: Subject) {
    let new_task = NewTask {
        status_message: Some("begun".to_owned()),
        ..new()
    };
    let created = store.create(new_task.clone()).await;
    let found = store.get(&new_task.id).await;
    for task in [created, found] {
        assert_eq!(task.id, new_task.id);
        assert_eq!(task.tool, "tool");
        assert_eq!(task.status, StoredStatus::Working);
        assert_eq!(task.status_message.as_deref(), Some("begun"));
        assert_eq!(task.ttl, HOUR);
        assert_eq!(task.poll_interval, Duration::from_millis(500));
        assert_eq!(task.created, task.updated);
        assert!(task.created > SystemTime::UNIX_EPOCH);
        assert!(task.asks.is_empty());
        assert_eq!(task.outcome, None);
    }
}

pub(super) async fn same_id_is_the_same_task(store: Subject) {
    let new_task = new();
    store.create(new_task.clone()).await;
    let again = NewTask {
        journal: b"another".to_vec(),
        flow: flow(),
        ..new_task.clone()
    };
    assert_eq!(store.create_again(again).await.id, new_task.id);
    assert_eq!(store.claim().await.journal, b"journal");
}

fn with_new_id(task: &NewTask) -> NewTask {
    let id = id();
    NewTask { id, ..task.clone() }
}

pub(super) async fn same_flow_is_the_same_task(store: Subject) {
    let new_task = new();
    store.create(new_task.clone()).await;
    let again = with_new_id(&new_task).claimed("late", HOUR);
    let other = again.id.clone();
    assert_eq!(store.create_again(again).await.id, new_task.id);
    let got = store.0.get(&other, &alice()).await;
    assert!(got.expect("no error").is_none());
    assert_eq!(store.claim().await.lease.task, new_task.id);
}

pub(super) async fn flow_of_another_owner_is_another_task(store: Subject) {
    let new_task = new();
    store.create(new_task.clone()).await;
    for owner in [bob(), Principal::anonymous(), Principal::new("")] {
        let theirs = with_new_id(&new_task).owner(&owner);
        let task = store.create(theirs.clone()).await;
        assert_eq!(task.id, theirs.id);
        let again = with_new_id(&theirs);
        assert_eq!(store.create_again(again).await.id, task.id);
        assert_hidden(&store, &new_task.id, &owner).await;
    }
}

pub(super) async fn id_of_another_owner_is_rejected(store: Subject) {
    let new_task = new();
    store.create(new_task.clone()).await;
    let theirs = NewTask {
        flow: flow(),
        ..new_task.clone().owner(&bob())
    };
    let rejected = store.0.create(theirs).await;
    assert!(matches!(rejected, Err(StoreError::IdInUse)), "{rejected:?}");
    assert_hidden(&store, &new_task.id, &bob()).await;
}

pub(super) async fn concurrent_creations_of_a_flow_are_one_task(store: Subject) {
    let new_task = new();
    let create = async |store: Subject, new| store.0.create(new).await;
    let created = store.concurrently(|store, _| create(store, with_new_id(&new_task)));
    let mut new = 0;
    let mut id = |created| match created {
        Ok(Creation::New(task, _)) => {
            new += 1;
            task.id
        }
        Ok(Creation::Existing(task)) => task.id,
        Err(error) => panic!("{error}"),
    };
    let ids: Vec<TaskId> = created.await.into_iter().map(&mut id).collect();
    assert_eq!(new, 1, "one of them created the task");
    assert!(ids.iter().all(|id| *id == ids[0]), "all found it");
}

pub(super) async fn cancelled_task_has_ended(store: Subject) {
    let lease = store.asking(&["k"]).await;
    store.cancel(&lease.task).await;
    store.assert_lost(&lease).await;
    let task = store.get(&lease.task).await;
    assert_eq!(task.status, StoredStatus::Cancelled);
    assert!(task.asks.is_empty() && task.outcome.is_none());
    store.assert_none_due().await;
    // A guessed fence holds no lease either.
    for fence in 0..lease.fence + 3 {
        let task = lease.task.clone();
        store.assert_lost(&Lease { task, fence }).await;
    }
}

pub(super) async fn cancelling_an_ended_task_changes_nothing(store: Subject) {
    let lease = store.lease().await;
    store.then(&lease, Next::Complete(b"done".to_vec())).await;
    let before = store.get(&lease.task).await;
    store.cancel(&lease.task).await;
    let after = store.get(&lease.task).await;
    assert_eq!(after.status, StoredStatus::Completed);
    assert_eq!(after.outcome.as_deref(), Some(&b"done"[..]));
    assert_eq!(after.revision, before.revision);
    assert_eq!(after.updated, before.updated);
}

pub(super) async fn revision_grows_with_every_change(store: Subject) {
    let task = store.create(new()).await;
    let mut last = task.revision;
    let mut assert_grown = |now: u64, what: &str| {
        assert!(now > last, "{what}: {now} is not above {last}");
        last = now;
    };
    let revision = async || store.revision(&task.id).await;
    let claimed = store.claim().await;
    assert_grown(claimed.revision, "claimed");
    let lease = claimed.lease;
    let message = keep().message("at work");
    for change in [asks(&["a", "b"]), keep().journal("j"), message] {
        let committed = store.commit(&lease, change).await;
        assert_grown(committed.revision, "committed");
        assert_eq!(revision().await, committed.revision);
        let got = store.get(&task.id).await;
        assert_eq!(got.revision, committed.revision);
        assert!(got.updated >= got.created);
    }
    store.answer(&lease, &[("a", "1")]).await;
    assert_grown(revision().await, "answered");
    let still = revision().await;
    store
        .answer(&lease, &[("a", "2"), ("never asked", "1")])
        .await;
    assert_eq!(revision().await, still, "nothing new");
    store.requeue(&task.id).await;
    assert_grown(revision().await, "requeued");
    let lease = store.claim().await.lease;
    assert_grown(revision().await, "claimed again");
    let failed = store.commit(&lease, next(Next::Fail(b"e".to_vec()))).await;
    assert_grown(failed.revision, "failed");
    store.requeue(&task.id).await;
    assert_grown(revision().await, "requeued after its failure");
    store.cancel(&task.id).await;
    assert_grown(revision().await, "cancelled");
    for unknown in [vec![id()], Vec::new()] {
        let found = store.0.revisions(&unknown).await.expect("no error");
        assert_eq!(found, Vec::new());
    }
}

pub(super) async fn hints_report_changes(store: Subject) {
    let mut hints = store.0.hints();
    let task = store.create(new()).await.id;
    let mut expect_hint = async |due, own| {
        let task = task.clone();
        wait_for(&mut hints, &Hint { task, due, own }).await;
    };
    expect_hint(true, true).await;
    let lease = store.claim().await.lease;
    store.commit(&lease, asks(&["a", "b"])).await;
    expect_hint(false, true).await;
    store.answer(&lease, &[("a", "1")]).await;
    expect_hint(false, false).await;
    store.then(&lease, Next::Suspend(None)).await;
    expect_hint(true, true).await;
    let lease = store.claim().await.lease;
    store.then(&lease, Next::HandOn).await;
    expect_hint(true, true).await;
    let lease = store.claim().await.lease;
    store.commit(&lease, keep().taken(&["a"]).suspend()).await;
    store.answer(&lease, &[("b", "2")]).await;
    expect_hint(true, false).await;
    let lease = store.claim().await.lease;
    store.then(&lease, Next::Fail(b"e".to_vec())).await;
    expect_hint(false, true).await;
    store.requeue(&task).await;
    expect_hint(true, false).await;
    store.cancel(&task).await;
    expect_hint(false, false).await;
}
