//! Only sealed tokens can be opened, and only for the call that they were sealed for.
//!
//! The first byte selects the meaning of the rest:
//!
//! | first byte, mod 6 | rest |
//! | --- | --- |
//! | 0 | the text of a token |
//! | 1 | the bytes of a token |
//! | 2 | the number of a token whose header is used, and the bytes after the header |
//! | 3 | the number of a token, whether to edit its text or its bytes, and the edits |
//! | 4 | the number of a token, the kind of call, a time in seconds, and the call: principal, target and arguments, separated by 0xFF |
//! | 5 | the number of edits, the edits, and a journal to seal |

#![no_main]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use libfuzzer_sys::fuzz_target;
use refrain_core::{
    Binding, KeyRing, LiveToken, OpenError, Principal, SealError, Sealer, SealerOptions, Snapshot,
};
use refrain_fuzz::rounds::encode;
use refrain_fuzz::source::{FixedSource, NOW};
use refrain_wire::{CallKind, parse_value, write_canonical};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};

/// The length of a token's header in bytes.
const HEADER: usize = 33;

/// A call that tokens are bound to.
struct BoundCall {
    principal: Principal,
    kind: CallKind,
    target: &'static str,
    arguments: Option<Value>,
}

struct SealedToken {
    token: String,
    call: usize,
    snapshot: Vec<u8>,
}

/// The token of a live call.
struct SealedLiveToken {
    token: String,
    call: usize,
    content: LiveToken,
}

/// The tokens of two instances for three calls.
struct World {
    keys: KeyRing,
    calls: Vec<BoundCall>,
    tokens: Vec<SealedToken>,
    live: Vec<SealedLiveToken>,
}

fn bind(sealer: &Sealer, call: &BoundCall) -> Binding {
    sealer.bind(
        &call.principal,
        call.kind,
        call.target,
        call.arguments.as_ref(),
    )
}

fn sealer(keys: &KeyRing, seed: u64, audience: &str) -> (Sealer, Arc<FixedSource>) {
    let source = FixedSource::new(seed);
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
        let source = FixedSource::new(1);
        let mut keys = KeyRing::generate(&*source);
        let calls = vec![
            BoundCall {
                principal: Principal::anonymous(),
                kind: CallKind::Tool,
                target: "tool",
                arguments: None,
            },
            BoundCall {
                principal: Principal::new("alice"),
                kind: CallKind::Tool,
                target: "tool",
                arguments: Some(json!({"a": 1, "b": [true, null, "x"]})),
            },
            BoundCall {
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
                    tokens.push(SealedToken {
                        token: token.expect("a new flow is small"),
                        call: at,
                        snapshot: encode(&snapshot, ""),
                    });
                }
            }
            for (at, call) in calls.iter().enumerate() {
                let binding = bind(&sealer, call);
                let content = LiveToken {
                    flow: sealer.first(&binding, None).flow(),
                    round: 2,
                    holder: "a".repeat(at + 1),
                    deadline: NOW + 1000,
                };
                live.push(SealedLiveToken {
                    token: sealer.seal_live(&binding.live(), &content),
                    call: at,
                    content,
                });
            }
            // The second instance seals with a newer key. Tokens of the old key still open.
            let next = keys.stage(&*source).to_string();
            keys.promote(&next).expect("the key is staged");
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
    fn sealer(&self) -> (Sealer, Arc<FixedSource>) {
        sealer(&self.keys, 4, "fuzz")
    }

    fn pick(&self, number: u8) -> &SealedToken {
        &self.tokens[usize::from(number) % self.tokens.len()]
    }

    /// One of all tokens, including live ones.
    fn pick_any(&self, number: u8) -> &str {
        let live = self.live.iter().map(|held| &held.token);
        let all = self.tokens.iter().map(|sealed| &sealed.token).chain(live);
        let count = self.tokens.len() + self.live.len();
        let mut all = all.skip(usize::from(number) % count);
        all.next().expect("the index is in range")
    }

    /// Opens a text for every call. Only a token for that call may open, with its original content.
    fn check_opens(&self, text: &str) {
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
                (Ok(content), Some(held)) => assert_eq!(content, held.content),
                (Ok(_), None) => panic!("a text that was never sealed opens as a live token"),
                (Err(error), Some(_)) => panic!("a live token is rejected: {error}"),
                (Err(_), None) => {}
            }
            match (opened, sealed) {
                (Ok(snapshot), Some(sealed)) => assert_eq!(encode(&snapshot, ""), sealed.snapshot),
                (Ok(_), None) => panic!("a text that was never sealed opens"),
                (Err(error), Some(_)) => panic!("a sealed token is rejected: {error}"),
                (Err(_), None) => {}
            }
        }
    }
}

/// Compares without a library call, because the fuzzer would learn the expected text from it.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |d, (a, b)| d | (a ^ b)) == 0
}

fuzz_target!(|data: &[u8]| {
    let Some((case, data)) = data.split_first() else {
        return;
    };
    let world = world();
    match case % 6 {
        0 => world.check_opens(&String::from_utf8_lossy(data)),
        1 => world.check_opens(&URL_SAFE_NO_PAD.encode(data)),
        2 => {
            let Some((which, tail)) = data.split_first() else {
                return;
            };
            let token = URL_SAFE_NO_PAD.decode(world.pick_any(*which));
            let mut bytes = token.expect("a token is base64url");
            bytes.truncate(HEADER);
            bytes.extend_from_slice(tail);
            world.check_opens(&URL_SAFE_NO_PAD.encode(&bytes));
        }
        3 => {
            let [which, as_text, edits @ ..] = data else {
                return;
            };
            let token = world.pick_any(*which);
            world.check_opens(&apply_edits(token, as_text & 1 != 0, edits));
        }
        4 => check_binding(world, data),
        _ => check_journal(world, data),
    }
});

/// Applies edits of three bytes each to the text or the bytes of a token.
fn apply_edits(token: &str, as_text: bool, edits: &[u8]) -> String {
    let mut bytes = if as_text {
        token.as_bytes().to_vec()
    } else {
        URL_SAFE_NO_PAD.decode(token).expect("a token is base64url")
    };
    for edit in edits.chunks_exact(3).take(16) {
        let [operation, offset, value] = edit else {
            continue;
        };
        // The upper half of the operation extends the offset beyond one byte.
        let offset = usize::from(*offset) + usize::from(operation >> 4) * 256;
        let at = offset % (bytes.len() + 1);
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

/// A token opens only for its call, until it expires.
fn check_binding(world: &World, data: &[u8]) {
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

/// A sealed journal opens unchanged, and is rejected after an edit.
fn check_journal(world: &World, data: &[u8]) {
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
    // Another audience, so that these tokens do not open for the calls above.
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
        // The flow itself may have expired.
        Err(error) => assert_eq!(error, OpenError::Expired),
    }
    world.check_opens(&token);
    for as_text in [false, true] {
        let text = apply_edits(&token, as_text, edits);
        if !same(&text, &token) {
            assert!(
                sealer.open(&binding, &text).is_err(),
                "an edited token opens"
            );
        }
    }
}
