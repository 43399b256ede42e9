//! Owners and what they may do: creating, looking, calling off.

use super::support::{
    HOUR, alice, answer, assert_lost, assert_none_due, bob, claim, commit, create, create_leased,
    flow, get, id, new, next, pairs, publish, revision, wait_for,
};
use crate::{Commit, Created, Hint, NewTask, Next, Store, StoreError, Task, TaskId, TaskStatus};
use refrain_core::Principal;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Can this principal do anything to the task?
async fn assert_not_there(store: &dyn Store, id: &TaskId, stranger: &Principal) {
    let got = store.get(id, stranger).await.expect("the store answers");
    assert!(got.is_none(), "{stranger:?} sees a stranger's task");
    let answers = pairs(&[("k", "stolen")]);
    assert!(!store.answer(id, stranger, answers).await.expect("no error"));
    assert!(!store.cancel(id, stranger).await.expect("no error"));
}

pub(super) async fn a_stranger_finds_no_task(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("k", "?")])).await;
    let before = revision(&*store, &lease.task).await;
    assert_not_there(&*store, &lease.task, &bob()).await;
    assert_not_there(&*store, &lease.task, &Principal::new("ALICE")).await;
    assert_not_there(&*store, &lease.task, &Principal::new("")).await;
    assert_not_there(&*store, &lease.task, &Principal::anonymous()).await;
    assert_not_there(&*store, &id(), &alice()).await;
    assert_eq!(revision(&*store, &lease.task).await, before);
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.status, TaskStatus::InputRequired);
}

pub(super) async fn the_anonymous_are_one_owner_and_no_other(store: Arc<dyn Store>) {
    let anonymous = Principal::anonymous();
    let mine = NewTask {
        owner: anonymous.clone(),
        ..new()
    };
    let task = create(&*store, mine).await;
    let got = store.get(&task.id, &anonymous).await;
    assert!(got.expect("the store answers").is_some());
    for stranger in ["alice", "", "anonymous"] {
        assert_not_there(&*store, &task.id, &Principal::new(stranger)).await;
    }
    assert!(store.cancel(&task.id, &anonymous).await.expect("no error"));
}

pub(super) async fn a_created_task_is_found_as_it_was_given(store: Arc<dyn Store>) {
    let given = NewTask {
        status_message: Some("begun".to_owned()),
        ..new()
    };
    let made = create(&*store, given.clone()).await;
    let found = get(&*store, &given.id).await;
    for task in [made, found] {
        assert_eq!(task.id, given.id);
        assert_eq!(task.tool, "tool");
        assert_eq!(task.status, TaskStatus::Working);
        assert_eq!(task.status_message.as_deref(), Some("begun"));
        assert_eq!(task.ttl, HOUR);
        assert_eq!(task.poll_interval, Duration::from_millis(500));
        assert_eq!(task.created, task.updated);
        assert!(task.created > SystemTime::UNIX_EPOCH);
        assert!(task.asks.is_empty());
        assert_eq!(task.outcome, None);
    }
}

fn before(created: Result<Created, StoreError>) -> Task {
    match created {
        Ok(Created::Before(task)) => task,
        other => panic!("the task was there before: {other:?}"),
    }
}

pub(super) async fn the_same_id_again_is_the_same_task(store: Arc<dyn Store>) {
    let given = new();
    create(&*store, given.clone()).await;
    let again = NewTask {
        journal: b"another".to_vec(),
        flow: flow(),
        ..given.clone()
    };
    assert_eq!(before(store.create(again).await).id, given.id);
    assert_eq!(claim(&*store).await.journal, b"journal");
}

pub(super) async fn the_same_flow_again_is_the_same_task(store: Arc<dyn Store>) {
    let given = new();
    create(&*store, given.clone()).await;
    let again = NewTask {
        id: id(),
        claimed: Some(("late".to_owned(), HOUR)),
        ..given.clone()
    };
    let other = again.id.clone();
    assert_eq!(before(store.create(again).await).id, given.id);
    let got = store.get(&other, &alice()).await;
    assert!(got.expect("the store answers").is_none());
    assert_eq!(claim(&*store).await.lease.task, given.id);
}

pub(super) async fn a_flow_of_another_owner_is_another_flow(store: Arc<dyn Store>) {
    let given = new();
    create(&*store, given.clone()).await;
    for owner in [bob(), Principal::anonymous(), Principal::new("")] {
        let theirs = NewTask {
            id: id(),
            owner: owner.clone(),
            ..given.clone()
        };
        let task = create(&*store, theirs.clone()).await;
        assert_eq!(task.id, theirs.id);
        let again = NewTask { id: id(), ..theirs };
        assert_eq!(before(store.create(again).await).id, task.id);
        assert_not_there(&*store, &given.id, &owner).await;
    }
}

pub(super) async fn an_id_of_another_owner_is_refused(store: Arc<dyn Store>) {
    let given = new();
    create(&*store, given.clone()).await;
    let theirs = NewTask {
        owner: bob(),
        flow: flow(),
        ..given.clone()
    };
    let refused = store.create(theirs).await;
    assert!(matches!(refused, Err(StoreError::IdInUse)), "{refused:?}");
    assert_not_there(&*store, &given.id, &bob()).await;
}

pub(super) async fn a_flow_created_many_times_at_once_is_one_task(store: Arc<dyn Store>) {
    let given = new();
    let creators = (0..8).map(|_| {
        let store = store.clone();
        let new = NewTask {
            id: id(),
            ..given.clone()
        };
        tokio::spawn(async move { store.create(new).await })
    });
    let creators: Vec<_> = creators.collect();
    let (mut new, mut ids) = (0, Vec::new());
    for creator in creators {
        match creator.await.expect("no creator panics") {
            Ok(Created::New(task, _)) => {
                new += 1;
                ids.push(task.id);
            }
            Ok(Created::Before(task)) => ids.push(task.id),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(new, 1, "one of them made the task");
    assert!(ids.iter().all(|id| *id == ids[0]), "and all have it");
}

pub(super) async fn a_cancelled_task_is_over(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, publish(&[("k", "?")])).await;
    assert!(store.cancel(&lease.task, &alice()).await.expect("no error"));
    assert_lost(&*store, &lease).await;
    let task = get(&*store, &lease.task).await;
    assert_eq!(task.status, TaskStatus::Cancelled);
    assert!(task.asks.is_empty() && task.outcome.is_none());
    assert_none_due(&*store).await;
    // Nor has whoever guesses the next fence.
    for fence in 0..lease.fence + 3 {
        let guessed = crate::Lease {
            task: lease.task.clone(),
            fence,
        };
        assert_lost(&*store, &guessed).await;
    }
}

pub(super) async fn cancelling_what_is_over_changes_nothing(store: Arc<dyn Store>) {
    let lease = create_leased(&*store).await;
    commit(&*store, &lease, next(Next::Complete(b"done".to_vec()))).await;
    let before = get(&*store, &lease.task).await;
    assert!(store.cancel(&lease.task, &alice()).await.expect("no error"));
    let after = get(&*store, &lease.task).await;
    assert_eq!(after.status, TaskStatus::Completed);
    assert_eq!(after.outcome.as_deref(), Some(&b"done"[..]));
    assert_eq!(after.revision, before.revision);
    assert_eq!(after.updated, before.updated);
}

pub(super) async fn the_revision_grows_with_every_change(store: Arc<dyn Store>) {
    let task = create(&*store, new()).await;
    let mut last = task.revision;
    let mut grown = |now: u64, what: &str| {
        assert!(now > last, "{what}: {now} is not above {last}");
        last = now;
    };
    let claimed = claim(&*store).await;
    grown(claimed.revision, "taken");
    let lease = claimed.lease;
    let changes = [
        publish(&[("a", "?"), ("b", "?")]),
        Commit {
            journal: Some(b"j".to_vec()),
            ..Commit::default()
        },
        Commit {
            status_message: Some("at work".to_owned()),
            ..Commit::default()
        },
    ];
    for change in changes {
        let committed = commit(&*store, &lease, change).await;
        grown(committed.revision, "committed");
        assert_eq!(revision(&*store, &task.id).await, committed.revision);
        let got = get(&*store, &task.id).await;
        assert_eq!(got.revision, committed.revision);
        assert!(got.updated >= got.created);
    }
    answer(&*store, &task.id, &[("a", "1")]).await;
    grown(revision(&*store, &task.id).await, "answered");
    let still = revision(&*store, &task.id).await;
    answer(&*store, &task.id, &[("a", "2"), ("never asked", "1")]).await;
    assert_eq!(revision(&*store, &task.id).await, still, "nothing new");
    store.requeue(&task.id).await.expect("the store answers");
    grown(revision(&*store, &task.id).await, "requeued");
    let lease = claim(&*store).await.lease;
    grown(revision(&*store, &task.id).await, "taken again");
    let failed = commit(&*store, &lease, next(Next::Fail(b"e".to_vec()))).await;
    grown(failed.revision, "failed");
    store.requeue(&task.id).await.expect("the store answers");
    grown(revision(&*store, &task.id).await, "works again");
    store.cancel(&task.id, &alice()).await.expect("an answer");
    grown(revision(&*store, &task.id).await, "cancelled");
    let unknown = [id()];
    assert_eq!(
        store.revisions(&unknown).await.expect("no error"),
        Vec::new()
    );
    assert_eq!(store.revisions(&[]).await.expect("no error"), Vec::new());
}

pub(super) async fn hints_say_what_happened(store: Arc<dyn Store>) {
    let mut hints = store.hints();
    let task = create(&*store, new()).await.id;
    let hint = |due, own| Hint {
        task: task.clone(),
        due,
        own,
    };
    wait_for(&mut hints, &hint(true, true)).await;
    let lease = claim(&*store).await.lease;
    commit(&*store, &lease, publish(&[("a", "?"), ("b", "?")])).await;
    wait_for(&mut hints, &hint(false, true)).await;
    answer(&*store, &task, &[("a", "1")]).await;
    wait_for(&mut hints, &hint(false, false)).await;
    commit(&*store, &lease, next(Next::SetDown(None))).await;
    wait_for(&mut hints, &hint(true, true)).await;
    let lease = claim(&*store).await.lease;
    commit(&*store, &lease, next(Next::HandOn)).await;
    wait_for(&mut hints, &hint(true, true)).await;
    let lease = claim(&*store).await.lease;
    let set_down = Commit {
        taken: vec!["a".to_owned()],
        ..next(Next::SetDown(None))
    };
    commit(&*store, &lease, set_down).await;
    answer(&*store, &task, &[("b", "2")]).await;
    wait_for(&mut hints, &hint(true, false)).await;
    let lease = claim(&*store).await.lease;
    commit(&*store, &lease, next(Next::Fail(b"e".to_vec()))).await;
    wait_for(&mut hints, &hint(false, true)).await;
    store.requeue(&task).await.expect("the store answers");
    wait_for(&mut hints, &hint(true, false)).await;
    store.cancel(&task, &alice()).await.expect("an answer");
    wait_for(&mut hints, &hint(false, false)).await;
}
