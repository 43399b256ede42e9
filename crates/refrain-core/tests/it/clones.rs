//! Two clones of a virtual machine: sealers in identical states, with identical clocks.

use crate::support::{Clock, World};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use refrain_core::{Binding, FlowId, KeyRing, Principal, Sealer, SealerOptions, SystemSource};
use refrain_wire::CallKind;
use serde_json::json;

/// The length of version, key id, salt and nonce.
const HEADER: usize = 33;

fn clone(keys: &KeyRing) -> Sealer {
    // `Clock` is also the random source: both clones start with the same time and the same random bytes.
    Sealer::new(keys.clone(), SealerOptions::default(), Clock::new())
}

fn bind(sealer: &Sealer, user: &str) -> Binding {
    let arguments = json!({"amount": 5});
    sealer.bind(
        &Principal::new(user),
        CallKind::Tool,
        "pay",
        Some(&arguments),
    )
}

#[test]
fn repeated_nonce_does_not_repeat_the_key_stream() {
    let keys = KeyRing::generate(&SystemSource::new());
    let (one, other) = (clone(&keys), clone(&keys));
    let context = b"context";
    let (first, second) = ([0_u8; 64], [0xff_u8; 64]);
    let (a, b) = (
        one.seal_bytes(context, &first),
        other.seal_bytes(context, &second),
    );
    assert_eq!(
        a[..HEADER],
        b[..HEADER],
        "the clones must repeat salt and nonce"
    );
    let (a, b) = (&a[HEADER..], &b[HEADER..]);
    let differences = a.iter().zip(b).map(|(a, b)| a ^ b);
    let equal = differences
        .take(first.len())
        .filter(|xor| *xor == 0xff)
        .count();
    // With AES-GCM all 64 bytes would be the XOR of the two contents.
    assert!(equal < 16, "{equal} of 64 bytes reveal the key stream");
}

#[test]
fn clones_give_different_callers_different_flows() {
    let keys = KeyRing::generate(&SystemSource::new());
    let (one, other) = (clone(&keys), clone(&keys));
    let flow = |sealer: &Sealer, user| sealer.first(&bind(sealer, user), None).flow();
    assert_ne!(flow(&one, "alice"), flow(&other, "bob"));
}

#[test]
fn flow_id_cannot_be_computed_from_a_token_header() {
    let world = World::new();
    let sealer = world.sealer();
    let binding = bind(&sealer, "mallory");
    let snapshot = sealer.first(&binding, None);
    let token = sealer.seal(&binding, &snapshot, "1").expect("a token");
    let token = URL_SAFE_NO_PAD.decode(token).expect("base64url");
    let (salt, issued) = (&token[5..21], &token[21..25]);
    let victim = sealer.first(&bind(&sealer, "alice"), None).flow();
    // A flow id made of salt, time and counter could be guessed from the header of a token.
    for count in 0_u64..16 {
        let count = count.to_be_bytes();
        let guess: Vec<u8> = [&salt[..6], issued, &count[2..]].concat();
        assert_ne!(victim.as_bytes()[..], guess[..]);
    }
    let shares_bytes = |part: &[u8]| {
        let mut windows = victim.as_bytes().windows(part.len());
        windows.any(|window| window == part)
    };
    assert!(!shares_bytes(&salt[..4]) && !shares_bytes(issued));
}

#[test]
fn flow_id_depends_on_the_secret_key() {
    let flow = || -> FlowId {
        let keys = KeyRing::generate(&SystemSource::new());
        let sealer = Sealer::new(keys, SealerOptions::default(), Clock::new());
        sealer.first(&bind(&sealer, "alice"), None).flow()
    };
    assert_ne!(flow(), flow());
}
