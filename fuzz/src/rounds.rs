//! Runs rounds and checks their invariants.

use crate::handlers::handler;
use crate::source::FixedSource;
use refrain_core::{
    Claims, End, Env, Event, Flow, Limits, MemoryReplayLog, Pressure, Principal, Snapshot, Start,
    Suspension,
};
use refrain_wire::ratified::write_reply;
use refrain_wire::{Answers, Capabilities, Incomplete, LogLevel, Reply};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// More polls than any round of the handlers needs.
const MAX_POLLS: u32 = 20_000;

/// The environment of a round.
#[derive(Clone, Copy, Debug)]
pub struct RoundSetting {
    /// The number of the handler.
    pub handler: u8,
    /// The capabilities that the client lacks, one bit each.
    pub capabilities: u8,
    /// Bit 0: shed the flow to another instance. Bit 1: no replay log. Bit 2: small limits. Bit 3: crash.
    /// Bit 4: expire. Bit 5: the client wants progress and logs. Bits 6 and 7: the time of the crash or expiry.
    pub mode: u8,
}

impl RoundSetting {
    fn has(self, bit: u8) -> bool {
        self.mode & (1 << bit) != 0
    }

    fn when(self) -> u32 {
        u32::from(self.mode >> 6) * 2
    }

    fn limits(self) -> Limits {
        if self.has(2) {
            return Limits {
                rounds: 4,
                asks: 2,
                entries: 8,
                retries: 1,
                sheds: 1,
                notes: 1,
            };
        }
        Limits::default()
    }

    fn env(self) -> Env {
        let can = |bit: u8| self.capabilities & (1 << bit) == 0;
        Env {
            principal: Principal::new("alice"),
            address: None,
            uri: None,
            capabilities: Capabilities {
                form: can(0),
                url: can(1),
                sampling: can(2),
                sampling_tools: can(3),
                sampling_context: can(3),
                roots: can(4),
                tasks: false,
            },
            extensions: None,
            meta: None,
            log_level: self.has(5).then_some(LogLevel::Debug),
            wants_progress: self.has(5),
            source: FixedSource::new(7),
            limits: self.limits(),
            pressure: self.has(0).then(|| Arc::new(AlwaysShed) as _),
            replay_log: (!self.has(1)).then(|| Arc::new(MemoryReplayLog::new()) as _),
            can_detach: false,
        }
    }
}

struct AlwaysShed;

impl Pressure for AlwaysShed {
    fn should_hand_on(&self) -> bool {
        true
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a round to its end. `None` if the flow has ended.
///
/// # Panics
///
/// If an invariant is violated.
pub fn round(start: Start, setting: RoundSetting) -> Option<Suspension> {
    let began = start.round();
    let mut flow = Flow::new(setting.env(), start, handler(setting.handler));
    if setting.has(3) {
        flow.crash_after(setting.when());
    }
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    let mut cx = Context::from_waker(&waker);
    for polls in 0..MAX_POLLS {
        if setting.has(4) && polls == setting.when() {
            let event = flow.expire();
            assert!(
                !matches!(event, Event::Ended(End::Complete(_) | End::Failed(_))),
                "{event:?}"
            );
            return check_end(event, began, setting);
        }
        match flow.poll(&mut cx) {
            Poll::Pending => {
                // Only the flow wakes the handlers.
                let woken = flag.0.swap(false, Ordering::Relaxed);
                assert!(woken, "the flow is pending and was not woken");
            }
            Poll::Ready(Event::Notes(notes)) => assert!(!notes.is_empty()),
            Poll::Ready(Event::Settle) => {}
            Poll::Ready(event) => {
                assert!(setting.has(5) || flow.take_notes().is_empty());
                return check_end(event, began, setting);
            }
        }
    }
    panic!("the round did not end within {MAX_POLLS} polls");
}

fn check_end(event: Event, began: u32, setting: RoundSetting) -> Option<Suspension> {
    match event {
        Event::Suspended(cut) => {
            check_cut(&cut, began, setting);
            Some(cut)
        }
        Event::Ended(End::Complete(body)) => {
            let text = format!("{{{}}}", body.members());
            assert!(serde_json::from_str::<IgnoredAny>(&text).is_ok(), "{text}");
            None
        }
        Event::Ended(End::Failed(_)) => None,
        Event::Ended(End::Fault(fault)) => {
            assert!(!fault.message.is_empty());
            None
        }
        Event::Detach | Event::Write(_) => panic!("only tasks detach or write"),
        Event::Crashed => {
            assert!(setting.has(3), "the round crashed without a request");
            None
        }
        Event::Ended(End::Panicked(message)) => panic!("the handler panicked: {message}"),
        Event::Notes(_) | Event::Settle => panic!("the flow has not ended"),
    }
}

fn check_cut(cut: &Suspension, began: u32, setting: RoundSetting) {
    assert_eq!(cut.snapshot.round(), began + 1);
    assert!(began < setting.limits().rounds);
    assert!(cut.asks.len() <= setting.limits().asks);
    let mut keys: Vec<&str> = cut.asks.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    let distinct = keys.windows(2).all(|pair| pair[0] != pair[1]);
    assert!(distinct, "duplicate keys of asks: {keys:?}");
    let reply = Reply::Incomplete(Incomplete {
        asks: cut.asks.clone(),
        state: Some("t".to_owned()),
    });
    let server = RawValue::from_string("{}".to_owned()).expect("an object is JSON");
    let mut out = Vec::new();
    write_reply(&mut out, None, &reply, &server);
    let valid = serde_json::from_slice::<IgnoredAny>(&out).is_ok();
    assert!(valid, "{}", String::from_utf8_lossy(&out));
}

/// Encodes the journal.
pub fn encode(snapshot: &Snapshot, version: &str) -> Vec<u8> {
    let claims = Claims {
        issued: 1,
        expires: 2,
        version,
    };
    snapshot.encode(&claims, &[], 0)
}

/// Encodes and decodes a snapshot, as for another instance.
///
/// # Panics
///
/// If the snapshot changes.
pub fn reencode(snapshot: &Snapshot) -> Snapshot {
    let bytes = encode(snapshot, "1");
    let (claims, read) = Snapshot::decode(&bytes).expect("an encoded snapshot can be decoded");
    assert_eq!((claims.issued, claims.expires, claims.version), (1, 2, "1"));
    assert_eq!(read.flow(), snapshot.flow());
    assert_eq!(read.round(), snapshot.round());
    assert_eq!(read.entry_count(), snapshot.entry_count());
    assert_eq!(read.largest_part(), snapshot.largest_part());
    assert_eq!(encode(&read, "1"), bytes, "the encoding changed");
    read
}

/// Starts a round and runs it to its end.
pub fn round_once(
    snapshot: &Snapshot,
    answers: Option<&Answers<'_>>,
    first: bool,
    setting: RoundSetting,
) -> Option<Suspension> {
    let snapshot = snapshot.clone();
    let start = if first {
        Start::first(snapshot, answers)
    } else {
        Start::resumed(snapshot, answers).ok()?
    };
    round(start, setting)
}

/// Runs a round twice and checks that the outcome is the same.
pub fn round_twice(
    snapshot: &Snapshot,
    answers: Option<&Answers<'_>>,
    first: bool,
    setting: RoundSetting,
) -> Option<Suspension> {
    let one = round_once(snapshot, answers, first, setting);
    let two = round_once(snapshot, answers, first, setting);
    assert_eq!(summary(one.as_ref()), summary(two.as_ref()));
    one
}

fn summary(cut: Option<&Suspension>) -> Option<(Vec<u8>, String, bool)> {
    cut.map(|cut| {
        let bytes = encode(&cut.snapshot, "1");
        (bytes, format!("{:?}", cut.asks), cut.handed_on)
    })
}
