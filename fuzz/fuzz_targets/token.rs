//! No text opens as a token but one that was sealed, and that one only for the call it was sealed for.
//!
//! The first byte chooses what the others are:
//!
//! | first byte, mod 6 | the others |
//! | --- | --- |
//! | 0 | the text of a token |
//! | 1 | the bytes of a token |
//! | 2 | which token's header, and the bytes after it |
//! | 3 | which token, how it is edited as text, and the edits |
//! | 4 | which token, a second, and the call it is presented for: principal, target and arguments, with 0xFF between |
//! | 5 | the number of edits, the edits, and a journal that is sealed first |

#![no_main]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use libfuzzer_sys::fuzz_target;
use refrain_core::{
    Binding, KeyRing, LiveToken, OpenError, Principal, SealError, Sealer, SealerOptions, Snapshot,
};
use refrain_fuzz::play::encode;
use refrain_fuzz::source::{Fixed, NOW};
use refrain_wire::{CallKind, parse_value, write_canonical};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};

/// Bytes of a token before what is sealed.
const HEADER: usize = 33;

/// A call that tokens are sealed for.
struct Bound {
    principal: Principal,
    kind: CallKind,
    target: &'static str,
    arguments: Option<Value>,
}

struct Sealed {
    token: String,
    call: usize,
    snapshot: Vec<u8>,
}

/// The token of a live call.
struct Held {
    token: String,
    call: usize,
    said: LiveToken,
}

/// Tokens of two instances and three calls, the same in every run.
struct World {
    keys: KeyRing,
    calls: Vec<Bound>,
    tokens: Vec<Sealed>,
    live: Vec<Held>,
}

fn bind(sealer: &Sealer, call: &Bound) -> Binding {
    sealer.bind(
        &call.principal,
        call.kind,
        call.target,
        call.arguments.as_ref(),
    )
}

fn sealer(keys: &KeyRing, seed: u64, audience: &str) -> (Sealer, Arc<Fixed>) {
    let source = Fixed::new(seed);
    let options = SealerOptions {
        audience: audience.to_owned(),
        max_token: 8 * 1024,
        ..SealerOptions::default()
    };
    (Sealer::new(keys.clone(), options, source.clone()), source)
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let source = Fixed::new(1);
        let mut keys = KeyRing::generate(&*source);
        let calls = vec![
            Bound {
                principal: Principal::anonymous(),
                kind: CallKind::Tool,
                target: "tool",
                arguments: None,
            },
            Bound {
                principal: Principal::new("alice"),
                kind: CallKind::Tool,
                target: "tool",
                arguments: Some(json!({"a": 1, "b": [true, null, "x"]})),
            },
            Bound {
                principal: Principal::new("alice"),
                kind: CallKind::Resource,
                target: "file:///a",
                arguments: None,
            },
        ];
        let (mut tokens, mut live) = (Vec::new(), Vec::new());
        for seed in [2, 3] {
            let (sealer, _) = sealer(&keys, seed, "fuzz");
            for (at, call) in calls.iter().enumerate() {
                for version in ["1", "22", "333"] {
                    let binding = bind(&sealer, call);
                    let snapshot = sealer.first(&binding, None);
                    let token = sealer.seal(&binding, &snapshot, version);
                    tokens.push(Sealed {
                        token: token.expect("a new flow is small"),
                        call: at,
                        snapshot: encode(&snapshot, ""),
                    });
                }
            }
            for (at, call) in calls.iter().enumerate() {
                let binding = bind(&sealer, call);
                let said = LiveToken {
                    flow: sealer.first(&binding, None).flow(),
                    round: 2,
                    holder: "a".repeat(at + 1),
                    deadline: NOW + 1000,
                };
                live.push(Held {
                    token: sealer.seal_live(&binding.live(), &said),
                    call: at,
                    said,
                });
            }
            // The second instance seals with a key that came later, and the first one's goes on opening.
            let next = keys.stage(&*source).to_string();
            keys.promote(&next).expect("it was just staged");
        }
        World {
            keys,
            calls,
            tokens,
            live,
        }
    })
}

impl World {
    fn sealer(&self) -> (Sealer, Arc<Fixed>) {
        sealer(&self.keys, 4, "fuzz")
    }

    fn pick(&self, number: u8) -> &Sealed {
        &self.tokens[usize::from(number) % self.tokens.len()]
    }

    /// One of all tokens, live or not.
    fn pick_any(&self, number: u8) -> &str {
        let live = self.live.iter().map(|held| &held.token);
        let all = self.tokens.iter().map(|sealed| &sealed.token).chain(live);
        let count = self.tokens.len() + self.live.len();
        let mut all = all.skip(usize::from(number) % count);
        all.next().expect("there are as many")
    }

    /// Presents a text for every call: only a token that was sealed for it may open, with what was sealed in it.
    fn present(&self, text: &str) {
        let (sealer, _) = self.sealer();
        for (at, call) in self.calls.iter().enumerate() {
            let opened = sealer.open(&bind(&sealer, call), text);
            let sealed = self
                .tokens
                .iter()
                .find(|sealed| sealed.call == at && same(&sealed.token, text));
            let live = sealer.open_live(&bind(&sealer, call), text);
            let held = self
                .live
                .iter()
                .find(|held| held.call == at && same(&held.token, text));
            match (live, held) {
                (Ok(said), Some(held)) => assert_eq!(said, held.said),
                (Ok(_), None) => panic!("it opens as live, and was never sealed"),
                (Err(error), Some(_)) => panic!("it is live, and is refused: {error}"),
                (Err(_), None) => {}
            }
            match (opened, sealed) {
                (Ok(snapshot), Some(sealed)) => assert_eq!(encode(&snapshot, ""), sealed.snapshot),
                (Ok(_), None) => panic!("it opens, and was never sealed"),
                (Err(error), Some(_)) => panic!("it was sealed, and is refused: {error}"),
                (Err(_), None) => {}
            }
        }
    }
}

/// Compares without a library call, which would tell the fuzzer what to write.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |d, (a, b)| d | (a ^ b)) == 0
}

fuzz_target!(|data: &[u8]| {
    let Some((case, data)) = data.split_first() else {
        return;
    };
    let world = world();
    match case % 6 {
        0 => world.present(&String::from_utf8_lossy(data)),
        1 => world.present(&URL_SAFE_NO_PAD.encode(data)),
        2 => {
            let Some((which, tail)) = data.split_first() else {
                return;
            };
            let token = URL_SAFE_NO_PAD.decode(world.pick_any(*which));
            let mut bytes = token.expect("a token is base64url");
            bytes.truncate(HEADER);
            bytes.extend_from_slice(tail);
            world.present(&URL_SAFE_NO_PAD.encode(&bytes));
        }
        3 => {
            let [which, as_text, edits @ ..] = data else {
                return;
            };
            let token = world.pick_any(*which);
            world.present(&edited(token, as_text & 1 != 0, edits));
        }
        4 => elsewhere(world, data),
        _ => sealed(world, data),
    }
});

/// A token after some edits, three bytes each, to its characters or to the bytes they stand for.
fn edited(token: &str, as_text: bool, edits: &[u8]) -> String {
    let mut bytes = if as_text {
        token.as_bytes().to_vec()
    } else {
        URL_SAFE_NO_PAD.decode(token).expect("a token is base64url")
    };
    for edit in edits.chunks_exact(3).take(16) {
        let [operation, place, value] = edit else {
            continue;
        };
        // The upper half of the operation reaches the places that one byte does not.
        let place = usize::from(*place) + usize::from(operation >> 4) * 256;
        let at = place % (bytes.len() + 1);
        match operation % 6 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, *value),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 if at < bytes.len() => bytes[at] = *value,
            4 if at < bytes.len() => bytes[at] ^= 1 << (value % 8),
            5 if !bytes.is_empty() => bytes.rotate_left(at),
            _ => {}
        }
    }
    if as_text {
        String::from_utf8_lossy(&bytes).into_owned()
    } else {
        URL_SAFE_NO_PAD.encode(&bytes)
    }
}

/// A token opens for its own call, in its time, and for no other.
fn elsewhere(world: &World, data: &[u8]) {
    let [which, kind, a, b, call @ ..] = data else {
        return;
    };
    let sealed = world.pick(*which);
    let own = &world.calls[sealed.call];
    let mut fields = call.splitn(3, |byte| *byte == 0xff);
    let mut field = || fields.next().map(String::from_utf8_lossy);
    let principal = field().filter(|id| !id.is_empty());
    let principal = principal.map_or(Principal::anonymous(), |id| Principal::new(&*id));
    let target = field().unwrap_or_default();
    let arguments = field().and_then(|text| parse_value(&text).ok());
    let arguments = arguments.filter(Value::is_object);
    let kind = [CallKind::Tool, CallKind::Prompt, CallKind::Resource][usize::from(*kind) % 3];

    let (sealer, source) = world.sealer();
    let binding = sealer.bind(&principal, kind, &target, arguments.as_ref());
    let same_call = principal == own.principal
        && kind == own.kind
        && target == own.target
        && canonical(arguments.as_ref()) == canonical(own.arguments.as_ref());
    assert_eq!(binding == bind(&sealer, own), same_call);

    let seconds = u64::from(u16::from_be_bytes([*a, *b]));
    let options = sealer.options();
    let (ttl, skew) = (options.ttl.as_secs(), options.skew.as_secs());
    source.set(NOW - 2 * skew + seconds);
    let expected = match seconds {
        _ if !same_call => Err(OpenError::Seal),
        early if early < skew => Err(OpenError::NotYetValid),
        late if late > ttl + 3 * skew => Err(OpenError::Expired),
        _ => Ok(()),
    };
    let opened = sealer.open(&binding, &sealed.token);
    assert_eq!(opened.map(drop), expected, "after {seconds} seconds");
}

fn canonical(arguments: Option<&Value>) -> Vec<u8> {
    let mut out = Vec::new();
    write_canonical(arguments.unwrap_or(&json!({})), &mut out);
    out
}

/// Any journal that is sealed opens as it was, and is refused once edited.
fn sealed(world: &World, data: &[u8]) {
    let Some((edits, data)) = data.split_first() else {
        return;
    };
    let edits = usize::from(edits % 8) * 3;
    let Some((edits, journal)) = data.split_at_checked(edits) else {
        return;
    };
    let Some((claims, snapshot)) = Snapshot::decode(journal) else {
        return;
    };
    // An audience of its own: none of these opens for the calls above.
    let (sealer, _) = sealer(&world.keys, 5, "other");
    let binding = bind(&sealer, &world.calls[1]);
    let token = match sealer.seal(&binding, &snapshot, claims.version) {
        Ok(token) => token,
        Err(SealError::TooLarge { size, limit, .. }) => {
            assert!(size > limit);
            return;
        }
    };
    assert!(token.len() <= sealer.options().max_token);
    match sealer.open(&binding, &token) {
        Ok(opened) => assert_eq!(encode(&opened, ""), encode(&snapshot, "")),
        // The flow's own time may be over.
        Err(error) => assert_eq!(error, OpenError::Expired),
    }
    world.present(&token);
    for as_text in [false, true] {
        let text = edited(&token, as_text, edits);
        if !same(&text, &token) {
            assert!(sealer.open(&binding, &text).is_err(), "edited, and opens");
        }
    }
}
