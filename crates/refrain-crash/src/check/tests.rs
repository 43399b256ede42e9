//! Each test injects one fault into the evidence of a correct run.

use super::*;
use crate::plan::PlanPart;

const LEASE: u64 = 2_000_000;

/// A task of two steps: process 0 tries the first and is killed, process 1 does both.
fn run_with_a_kill() -> Evidence {
    let plan = TaskPlan {
        number: 7,
        parts: vec![PlanPart::Steps(2)],
    };
    let ended = TaskEnd {
        id: "id".to_owned(),
        status: "completed".to_owned(),
        outcome: plan.result(),
        plan,
        faults: Vec::new(),
    };
    let first = vec![acquired(1, 1_000), start(0)];
    let second = vec![
        acquired(2, 2_100_000),
        start(0),
        wrote(2, NextState::Keep, 2_300_000, &[FIRST]),
        wrote(2, NextState::Ended, 2_500_000, &[]),
    ];
    Evidence {
        ended: vec![ended],
        attempts: vec![
            attempt(0, FIRST, 0, 0, 2_000),
            attempt(1, FIRST, 1, 0, 2_200_000),
            attempt(2, SECOND, 1, 0, 2_400_000),
        ],
        effects: vec![effect(FIRST, 0), effect(SECOND, 2)],
        records: vec![first, second],
        disruptions: Disruptions {
            kills: vec![WorkerKill {
                process: 0,
                at: 5_000,
            }],
            ..Disruptions::default()
        },
        lease: LEASE,
        stored: 1,
        expected: 1,
    }
}

const FIRST: Effect = step(7, 0);
const SECOND: Effect = step(7, 1);

const fn step(number: u32, step: u8) -> Effect {
    let part = 0;
    Effect { number, part, step }
}

fn lease(fence: u64) -> LeaseId {
    LeaseId {
        task: "id".to_owned(),
        fence,
    }
}

fn acquired(fence: u64, at: u64) -> RecordEvent {
    acquired_with(fence, at, &[])
}

fn acquired_with(fence: u64, at: u64, journal: &[Effect]) -> RecordEvent {
    RecordEvent::Acquired {
        lease: lease(fence),
        started: at,
        finished: at + 10,
        journal: journal.to_vec(),
    }
}

/// A stop of process 0.
fn stop(from: u64, to: u64) -> WorkerStop {
    WorkerStop {
        process: 0,
        from,
        to,
    }
}

fn extended(fence: u64, started: u64) -> RecordEvent {
    let leases = vec![lease(fence)];
    RecordEvent::Extended { leases, started }
}

fn start(start: u64) -> RecordEvent {
    RecordEvent::Started { number: 7, start }
}

fn wrote(fence: u64, next: NextState, at: u64, journal: &[Effect]) -> RecordEvent {
    RecordEvent::Wrote {
        lease: lease(fence),
        next,
        started: at,
        finished: at + 10,
        journal: journal.to_vec(),
    }
}

fn attempt(id: i64, effect: Effect, process: u32, start: u64, at: u64) -> AttemptRow {
    AttemptRow {
        id,
        effect,
        idempotency_key: format!("key of {effect}"),
        process,
        start,
        at,
    }
}

fn effect(effect: Effect, attempt: i64) -> EffectRow {
    EffectRow {
        idempotency_key: format!("key of {effect}"),
        effect,
        attempt,
    }
}

/// Injects a fault and expects this finding.
#[track_caller]
fn assert_fault(fault: &str, inject: impl FnOnce(&mut Evidence)) {
    let mut evidence = run_with_a_kill();
    inject(&mut evidence);
    let faults = check(&evidence).faults;
    let found = faults.iter().any(|found| found.contains(fault));
    assert!(found, "{fault:?} is not among {faults:#?}");
}

#[test]
fn kill_explains_a_second_attempt() {
    let findings = check(&run_with_a_kill());
    assert_eq!(findings.faults, Vec::<String>::new());
    let causes = RetryCauses {
        killed: 1,
        ..RetryCauses::default()
    };
    assert_eq!(findings.second_attempts, causes);
    assert_eq!(findings.takeovers, 1);
}

#[test]
fn expired_lease_explains_a_second_attempt() {
    let mut evidence = run_with_a_kill();
    evidence.disruptions.kills.clear();
    assert_eq!(check(&evidence).second_attempts.lease_lost, 1);
    evidence.disruptions.restarts.push((1_000_000, 1_500_000));
    assert_eq!(check(&evidence).second_attempts.restarted, 1);
    evidence.disruptions.stops.push(stop(10_000, 3_000_000));
    let findings = check(&evidence);
    assert_eq!(findings.second_attempts.stopped, 1);
    assert_eq!(findings.faults, Vec::<String>::new());
}

#[test]
fn retry_explains_a_second_attempt() {
    let mut evidence = run_with_a_kill();
    evidence.disruptions.kills.clear();
    evidence.records[0].push(wrote(1, NextState::Retry, 3_000, &[]));
    let findings = check(&evidence);
    assert_eq!(findings.second_attempts.retried, 1);
    assert_eq!(findings.faults, Vec::<String>::new());
}

#[test]
fn unplanned_end_is_a_fault() {
    assert_fault("task 7 ended as failed", |run| {
        run.ended[0].status = "failed".to_owned();
    });
    assert_fault("instead of \"<7:0.0> <7:0.1>\"", |run| {
        run.ended[0].outcome = SECOND.to_string();
    });
    assert_fault("the store has 2 tasks", |run| run.stored = 2);
    assert_fault("task 7: hm", |run| {
        run.ended[0].faults.push("hm".to_owned());
    });
}

#[test]
fn missing_or_repeated_effect_is_a_fault() {
    assert_fault("<7:0.1> was not done", |run| drop(run.effects.pop()));
    assert_fault("<7:0.1> was done 2 times", |run| {
        let mut again = effect(SECOND, 2);
        again.idempotency_key = "another".to_owned();
        run.effects.push(again);
    });
    assert_fault("<8:0.0> was done but not planned", |run| {
        run.effects.push(effect(step(8, 0), 2));
    });
    assert_fault("without an attempt at it", |run| run.effects[0].attempt = 9);
}

#[test]
fn idempotency_key_belongs_to_one_step() {
    assert_fault("<7:0.0> had two idempotency keys", |run| {
        run.attempts[1].idempotency_key = "another".to_owned();
    });
    assert_fault("has the idempotency key of another step", |run| {
        run.attempts[2].idempotency_key = run.attempts[0].idempotency_key.clone();
    });
}

#[test]
fn unexplained_second_attempt_is_a_fault() {
    assert_fault("<7:0.1> was tried twice under fence 2", |run| {
        run.attempts.push(attempt(3, SECOND, 1, 0, 2_450_000));
    });
    assert_fault("released the task (Some(Suspended))", |run| {
        run.records[0].push(wrote(1, NextState::Suspended, 4_000, &[]));
    });
    assert_fault("<7:0.1> was tried by process 1 without a lease", |run| {
        run.attempts[2].start = 5;
    });
}

#[test]
fn attempt_after_the_journal_is_a_fault() {
    assert_fault("was in the journal since fence 1", |run| {
        run.records[0].push(wrote(1, NextState::Keep, 3_000, &[FIRST]));
    });
    assert_fault("was in the journal since fence 1", |run| {
        run.records[1][0] = acquired_with(2, 2_100_000, &[FIRST]);
    });
    let journaled = "<7:0.0> was tried by process 0 when it was in the journal";
    assert_fault(journaled, |run| run.attempts[0].at = 2_350_000);
    assert_fault("<7:0.0> was tried by process 0 after <7:0.1> was", |run| {
        run.records[1][2] = wrote(2, NextState::Keep, 2_300_000, &[]);
        run.attempts[0].at = 2_450_000;
    });
    let early = "<7:0.0> was not in the journal yet when process 1 tried <7:0.1>";
    assert_fault(early, |run| {
        run.records[1][2] = wrote(2, NextState::Keep, 2_300_000, &[]);
    });
    assert_fault(early, |run| {
        run.records[1][2] = wrote(2, NextState::Keep, 2_450_000, &[FIRST]);
    });
}

#[test]
fn stop_excuses_one_late_attempt() {
    let mut evidence = run_with_a_kill();
    evidence.disruptions.kills.clear();
    evidence.disruptions.stops.push(stop(1_900, 2_350_000));
    evidence.attempts[0].at = 2_350_000;
    let findings = check(&evidence);
    assert_eq!(findings.faults, Vec::<String>::new());
    assert_eq!(findings.interrupted_attempts, 1);
    // The stop cannot have interrupted a second handler of the same worker.
    evidence.records[0].extend([acquired(3, 2_600_000), start(1)]);
    evidence.attempts.push(attempt(3, SECOND, 0, 1, 2_700_000));
    evidence.records[1].push(wrote(2, NextState::Keep, 2_450_000, &[SECOND]));
    assert!(!check(&evidence).faults.is_empty());
}

#[test]
fn early_takeover_and_write_without_lease_are_faults() {
    let early = "took it 899 ms before the lease of process 0 expired";
    assert_fault(early, |run| run.records[0].push(extended(1, 1_000_000)));
    let stale = "process 0 wrote under fence 1 when process 1 had it under fence 2";
    assert_fault(stale, |run| {
        run.records[0].push(wrote(1, NextState::Keep, 2_200_000, &[]));
    });
    let revived = "process 0 still renewed its lease (fence 1) when process 1 had it under fence 2";
    assert_fault(revived, |run| run.records[0].push(extended(1, 2_200_000)));
    let missing = "<7:0.0> was journaled by process 0 under fence 1, but was missing when process 1 had it under fence 2";
    assert_fault(missing, |run| {
        run.records[0].push(wrote(1, NextState::Keep, 4_000, &[FIRST]));
    });
    assert_fault(
        "fence 1 was assigned to process 0 and to process 1",
        |run| {
            run.records[1][0] = acquired(1, 2_100_000);
        },
    );
    assert_fault("wrote under fence 9, without a lease for it", |run| {
        run.records[0].push(wrote(9, NextState::Keep, 3_000, &[]));
    });
    assert_fault("ran the handler of task 7 without a lease", |run| {
        run.records[0].remove(0);
    });
}
