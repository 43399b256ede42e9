//! The check itself is checked: each fault is made by hand in what is otherwise a run without faults.

use super::*;
use crate::fleet::Kill;
use crate::plan::Part;

const LEASE: u64 = 2_000_000;

/// A task of two steps. Run 0 tries the first, is killed, and run 1 does both.
fn run_with_a_kill() -> Evidence {
    let plan = Plan {
        number: 7,
        parts: vec![Part::Steps(2)],
    };
    let ended = Ended {
        id: "id".to_owned(),
        status: "completed".to_owned(),
        outcome: plan.result(),
        plan,
        complaints: Vec::new(),
    };
    let first = vec![taken(1, 1_000), turn(0)];
    let second = vec![
        taken(2, 2_100_000),
        turn(0),
        wrote(2, After::Keep, 2_300_000, &[FIRST]),
        wrote(2, After::Over, 2_500_000, &[]),
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
        harm: Harm {
            kills: vec![Kill { run: 0, at: 5_000 }],
            stops: Vec::new(),
        },
        restarts: Vec::new(),
        lease: LEASE,
        stored: 1,
    }
}

const FIRST: &str = "<7:0.0>";
const SECOND: &str = "<7:0.1>";

fn hold(fence: u64) -> Hold {
    Hold {
        task: "id".to_owned(),
        fence,
    }
}

fn taken(fence: u64, at: u64) -> Event {
    Event::Taken {
        hold: hold(fence),
        asked: at,
        done: at + 10,
        journal: Vec::new(),
    }
}

fn turn(turn: u64) -> Event {
    Event::Turn { number: 7, turn }
}

fn wrote(fence: u64, then: After, at: u64, journal: &[&str]) -> Event {
    Event::Wrote {
        hold: hold(fence),
        then,
        asked: at,
        done: at + 10,
        journal: journal.iter().map(ToString::to_string).collect(),
    }
}

fn attempt(id: i64, effect: &str, run: i64, turn: i64, at: i64) -> AttemptRow {
    AttemptRow {
        id,
        effect: effect.to_owned(),
        idempotency_key: format!("key of {effect}"),
        run,
        turn,
        at,
        retried: 0,
    }
}

fn effect(effect: &str, attempt: i64) -> EffectRow {
    EffectRow {
        idempotency_key: format!("key of {effect}"),
        effect: effect.to_owned(),
        attempt,
    }
}

/// The faults of a run that is otherwise in order.
#[track_caller]
fn assert_fault(spoil: impl FnOnce(&mut Evidence), fault: &str) {
    let mut evidence = run_with_a_kill();
    spoil(&mut evidence);
    let faults = check(&evidence).faults;
    let found = faults.iter().any(|found| found.contains(fault));
    assert!(found, "{fault:?} is not among {faults:#?}");
}

#[test]
fn a_kill_explains_a_second_attempt() {
    let findings = check(&run_with_a_kill());
    assert_eq!(findings.faults, Vec::<String>::new());
    assert_eq!(findings.explained.killed, 1);
    assert_eq!(findings.explained.total(), 1);
    assert_eq!(findings.takeovers, 1);
}

#[test]
fn a_lease_that_ran_out_explains_one_too() {
    let mut evidence = run_with_a_kill();
    evidence.harm.kills.clear();
    assert_eq!(check(&evidence).explained.lease_lost, 1);
    evidence.restarts.push((1_000_000, 1_500_000));
    assert_eq!(check(&evidence).explained.restarted, 1);
    evidence.harm.stops.push(Stop {
        run: 0,
        from: 10_000,
        to: 3_000_000,
    });
    let findings = check(&evidence);
    assert_eq!(findings.explained.stopped, 1);
    assert_eq!(findings.faults, Vec::<String>::new());
}

#[test]
fn a_step_that_asks_to_be_tried_again_explains_one_too() {
    let mut evidence = run_with_a_kill();
    evidence.harm.kills.clear();
    evidence.records[0].push(wrote(1, After::Retry, 3_000, &[]));
    let findings = check(&evidence);
    assert_eq!(findings.explained.retried, 1);
    assert_eq!(findings.faults, Vec::<String>::new());
}

#[test]
fn tasks_must_end_as_planned() {
    let failed = |it: &mut Evidence| it.ended[0].status = "failed".to_owned();
    assert_fault(failed, "task 7 ended as failed");
    let other = |it: &mut Evidence| it.ended[0].outcome = SECOND.to_owned();
    assert_fault(other, "instead of \"<7:0.0> <7:0.1>\"");
    assert_fault(|it| it.stored = 2, "the store has 2 tasks");
    let complains = |it: &mut Evidence| it.ended[0].complaints.push("hm".to_owned());
    assert_fault(complains, "task 7: hm");
}

#[test]
fn effects_must_be_there_once() {
    let missing = |it: &mut Evidence| drop(it.effects.pop());
    assert_fault(missing, "<7:0.1> was not done");
    let twice = |it: &mut Evidence| {
        let mut again = effect(SECOND, 2);
        again.idempotency_key = "another".to_owned();
        it.effects.push(again);
    };
    assert_fault(twice, "<7:0.1> was done 2 times");
    let unknown = |it: &mut Evidence| it.effects.push(effect("<8:0.0>", 2));
    assert_fault(unknown, "<8:0.0> was done, and is in no plan");
    let unattempted = |it: &mut Evidence| it.effects[0].attempt = 9;
    assert_fault(unattempted, "without an attempt at it");
}

#[test]
fn keys_belong_to_one_step_and_stay() {
    let changed = |it: &mut Evidence| it.attempts[1].idempotency_key = "another".to_owned();
    assert_fault(changed, "<7:0.0> had two idempotency keys");
    let shared = |it: &mut Evidence| {
        it.attempts[2].idempotency_key = it.attempts[0].idempotency_key.clone();
    };
    assert_fault(shared, "has the idempotency key of another step");
}

#[test]
fn a_second_attempt_needs_an_explanation() {
    let same_turn = |it: &mut Evidence| it.attempts.push(attempt(3, SECOND, 1, 0, 2_450_000));
    assert_fault(same_turn, "<7:0.1> was tried twice under fence 2");
    let set_down = |it: &mut Evidence| {
        it.records[0].push(wrote(1, After::SetDown, 4_000, &[]));
    };
    assert_fault(set_down, "had given the task up (Some(SetDown))");
    let without_lease = |it: &mut Evidence| it.attempts[2].turn = 5;
    assert_fault(without_lease, "<7:0.1> was tried by run 1 without a lease");
}

#[test]
fn nothing_is_tried_after_it_was_journaled() {
    let written = |it: &mut Evidence| {
        it.records[0].push(wrote(1, After::Keep, 3_000, &[FIRST]));
    };
    assert_fault(written, "was in the journal since fence 1");
    let came_with_it = |it: &mut Evidence| {
        it.records[1][0] = Event::Taken {
            hold: hold(2),
            asked: 2_100_000,
            done: 2_100_010,
            journal: vec![FIRST.to_owned()],
        };
    };
    assert_fault(came_with_it, "was in the journal since fence 1");
    let later = |it: &mut Evidence| it.attempts[0].at = 2_350_000;
    assert_fault(
        later,
        "<7:0.0> was tried by run 0 when it was in the journal",
    );
    let out_of_order = |it: &mut Evidence| {
        it.records[1][2] = wrote(2, After::Keep, 2_300_000, &[]);
        it.attempts[0].at = 2_450_000;
    };
    assert_fault(out_of_order, "<7:0.0> was tried by run 0 after <7:0.1> was");
    let never = |it: &mut Evidence| it.records[1][2] = wrote(2, After::Keep, 2_300_000, &[]);
    assert_fault(
        never,
        "<7:0.0> was not in the journal yet when run 1 tried <7:0.1>",
    );
    let too_late = |it: &mut Evidence| {
        it.records[1][2] = wrote(2, After::Keep, 2_450_000, &[FIRST]);
    };
    assert_fault(
        too_late,
        "<7:0.0> was not in the journal yet when run 1 tried <7:0.1>",
    );
}

#[test]
fn a_stop_can_catch_one_handler_unawares() {
    let mut evidence = run_with_a_kill();
    evidence.harm.kills.clear();
    evidence.harm.stops.push(Stop {
        run: 0,
        from: 1_900,
        to: 2_350_000,
    });
    evidence.attempts[0].at = 2_350_000;
    let findings = check(&evidence);
    assert_eq!(findings.faults, Vec::<String>::new());
    assert_eq!(findings.caught_unawares, 1);
    // Another handler of the same worker cannot have been in the middle of it as well.
    evidence.records[0].extend([taken(3, 2_600_000), turn(1)]);
    evidence.attempts.push(attempt(3, SECOND, 0, 1, 2_700_000));
    evidence.records[1].push(wrote(2, After::Keep, 2_450_000, &[SECOND]));
    assert!(!check(&evidence).faults.is_empty());
}

#[test]
fn leases_are_taken_when_they_have_run_out_and_needed_to_write() {
    let early = |it: &mut Evidence| {
        let extended = Event::Extended {
            holds: vec![hold(1)],
            asked: 1_000_000,
        };
        it.records[0].push(extended);
    };
    assert_fault(
        early,
        "took it 899 ms before the lease of run 0 had run out",
    );
    let stale = |it: &mut Evidence| {
        it.records[0].push(wrote(1, After::Keep, 2_200_000, &[]));
    };
    assert_fault(
        stale,
        "run 0 wrote under fence 1 when run 1 had it under fence 2",
    );
    let revived = |it: &mut Evidence| {
        let extended = Event::Extended {
            holds: vec![hold(1)],
            asked: 2_200_000,
        };
        it.records[0].push(extended);
    };
    assert_fault(
        revived,
        "run 0 held fence 1 for longer when run 1 had it under fence 2",
    );
    let lost = |it: &mut Evidence| {
        it.records[0].push(wrote(1, After::Keep, 4_000, &[FIRST]));
    };
    let missing = "<7:0.0> was journaled by run 0 under fence 1, and not there when run 1 had it under fence 2";
    assert_fault(lost, missing);
    let shared = |it: &mut Evidence| it.records[1][0] = taken(1, 2_100_000);
    assert_fault(shared, "fence 1 was given to run 0 and to run 1");
    let foreign = |it: &mut Evidence| {
        it.records[0].push(wrote(9, After::Keep, 3_000, &[]));
    };
    assert_fault(foreign, "wrote under fence 9, which it was never given");
    let unheld = |it: &mut Evidence| drop(it.records[0].remove(0));
    assert_fault(unheld, "ran the handler of task 7 without a lease");
}
