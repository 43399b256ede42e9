//! The tests change the evidence of a correct run.

use super::*;

const SECOND: u64 = 1_000_000;

fn call(number: u32, home: CallHome) -> CallEnd {
    CallEnd {
        number: FIRST_CALL + number,
        home,
        outcome: CallOutcome::Completed(TaskPlan::call(FIRST_CALL + number).result()),
        from: 10 * SECOND,
        to: 12 * SECOND,
    }
}

/// One completed call of each home, and a kill during all of them.
fn correct() -> CallEvidence {
    let ended = vec![
        call(0, CallHome::Client),
        call(1, CallHome::Live),
        call(2, CallHome::Legacy),
    ];
    let effects = ended
        .iter()
        .flat_map(|call| TaskPlan::call(call.number).effects());
    let (mut attempts, mut done) = (Vec::new(), Vec::new());
    for (id, effect) in (0..).zip(effects) {
        let idempotency_key = effect.to_string();
        attempts.push(AttemptRow {
            id,
            effect,
            idempotency_key: idempotency_key.clone(),
            process: 0,
            start: 0,
            at: 11 * SECOND,
        });
        done.push(EffectRow {
            idempotency_key,
            effect,
            attempt: id,
        });
    }
    CallEvidence {
        ended,
        attempts,
        effects: done,
        kills: vec![11 * SECOND],
    }
}

#[track_caller]
fn assert_fault(expected: &str, change: impl FnOnce(&mut CallEvidence)) {
    let mut evidence = correct();
    change(&mut evidence);
    let faults = check(&evidence).faults;
    assert!(
        faults.iter().any(|fault| fault.contains(expected)),
        "{faults:?}"
    );
}

#[test]
fn correct_calls_have_no_fault() {
    let findings = check(&correct());
    assert_eq!(findings.faults, [""; 0]);
    assert_eq!(findings.completed.values().sum::<u64>(), 3);
    assert_eq!(findings.second_attempts, 0);
}

#[test]
fn wrong_result_is_found() {
    assert_fault("returned \"no\"", |calls| {
        calls.ended[0].outcome = CallOutcome::Completed("no".to_owned());
    });
}

#[test]
fn lost_call_needs_a_kill_and_a_home_in_memory() {
    let lost = || CallOutcome::Lost("the call was lost".to_owned());
    let mut evidence = correct();
    evidence.ended[1].outcome = lost();
    evidence
        .effects
        .retain(|row| row.effect.number != FIRST_CALL + 1);
    assert_eq!(check(&evidence).faults, [""; 0]);
    assert_fault("no instance was killed", |calls| {
        calls.ended[1].outcome = lost();
        calls.kills = vec![7 * SECOND, 13 * SECOND];
    });
    assert_fault("Client call", |calls| calls.ended[0].outcome = lost());
}

#[test]
fn repeated_and_missing_effects_are_found() {
    assert_fault("was done 2 times", |calls| {
        calls.effects.push(calls.effects[0].clone());
    });
    assert_fault("was done 0 times", |calls| drop(calls.effects.pop()));
    assert_fault("was not planned", |calls| {
        calls.effects[0].effect.number = FIRST_CALL + 9;
    });
}

#[test]
fn repeated_attempt_needs_a_kill_and_a_journal_at_the_client() {
    let repeat = |calls: &mut CallEvidence, index: usize| {
        calls.attempts.push(calls.attempts[index].clone());
    };
    let mut evidence = correct();
    repeat(&mut evidence, 0);
    let findings = check(&evidence);
    assert_eq!((findings.faults, findings.second_attempts), (vec![], 1));
    assert_fault("was tried 2 times", |calls| {
        repeat(calls, 0);
        calls.kills.clear();
    });
    assert_fault("Live call was tried 2 times", |calls| repeat(calls, 2));
}
