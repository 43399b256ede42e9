//! Tokens: sealing, opening, rejection, secrecy.

use crate::support::{self, Clock, NOON, Num, World, handler, num};
use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use refrain_core::{
    Binding, KeyRing, KeyState, LiveToken, OpenError, Principal, SealError, Sealer, SealerOptions,
    Snapshot, SystemSource,
};
use refrain_wire::CallKind;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::Duration;

const NONE: Option<&Value> = None;

/// A token whose journal has an answer and a step.
async fn token_of(world: &World) -> String {
    let handler = handler(|cx| async move {
        let first = cx.elicit::<Num>("first", "?").await?.v;
        let next = cx.step("next", async { refrain_core::ok(5) }).await?;
        let last = cx.elicit::<Num>("last", "?").await?.v;
        Ok(json!([first, next, last]))
    });
    let token = world.first(&handler).await.token();
    world
        .present(&handler, &token, &json!({"first": num(1)}))
        .await
        .token()
}

fn bind(sealer: &Sealer) -> Binding {
    sealer.bind(&Principal::new("alice"), CallKind::Tool, "tool", NONE)
}

fn seal(sealer: &Sealer) -> String {
    let binding = bind(sealer);
    sealer
        .seal(&binding, &sealer.first(&binding, None), "1")
        .unwrap()
}

fn header(token: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(token).unwrap()[..33].to_vec()
}

#[tokio::test]
async fn token_with_a_flipped_bit_is_rejected() {
    let world = World::new();
    let token = token_of(&world).await;
    let sealer = world.sealer();
    let binding = world.binding(&sealer);
    assert!(sealer.open(&binding, &token).is_ok());
    let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let flipped = URL_SAFE_NO_PAD.encode(&bytes);
        let opened = sealer.open(&binding, &flipped);
        let expected = match bit / 8 {
            0 => OpenError::Version,
            1..5 => OpenError::UnknownKey,
            _ => OpenError::Seal,
        };
        assert_eq!(opened.unwrap_err(), expected, "bit {bit}");
    }
    // The same for the bits of the encoded characters.
    for bit in 0..token.len() * 8 {
        let mut bytes = token.clone().into_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(flipped) = String::from_utf8(bytes) {
            assert!(
                sealer.open(&binding, &flipped).is_err(),
                "character bit {bit}"
            );
        }
    }
}

#[tokio::test]
async fn truncated_or_extended_token_is_rejected() {
    let world = World::new();
    let token = token_of(&world).await;
    let sealer = world.sealer();
    let binding = world.binding(&sealer);
    for length in 0..token.len() {
        assert!(
            sealer.open(&binding, &token[..length]).is_err(),
            "{length} characters"
        );
        assert!(sealer.open(&binding, &token[length..]).is_err() || length == 0);
    }
    for more in ["A", "AA", "AAAA", "=", "==", " ", "\n", "\0"] {
        assert!(
            sealer.open(&binding, &format!("{token}{more}")).is_err(),
            "{more:?}"
        );
        assert!(
            sealer.open(&binding, &format!("{more}{token}")).is_err(),
            "{more:?}"
        );
    }
    assert!(sealer.open(&binding, &format!("{token}{token}")).is_err());
}

/// The content of a live call's token.
fn live_content(sealer: &Sealer, deadline: u64) -> LiveToken {
    LiveToken {
        flow: sealer.first(&bind(sealer), Some("c-1")).flow(),
        round: 2,
        holder: "a".into(),
        deadline,
    }
}

#[test]
fn live_token_with_a_flipped_bit_is_rejected() {
    let sealer = World::new().sealer();
    let binding = bind(&sealer);
    let content = live_content(&sealer, NOON + 100);
    let token = sealer.seal_live(&binding.live(), &content);
    assert!(Sealer::is_live_token(&token));
    assert_eq!(sealer.open_live(&binding, &token).unwrap(), content);
    let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let flipped = URL_SAFE_NO_PAD.encode(&bytes);
        let expected = match bit / 8 {
            0 => OpenError::Version,
            1..5 => OpenError::UnknownKey,
            _ => OpenError::Seal,
        };
        let opened = sealer.open_live(&binding, &flipped);
        assert_eq!(opened.unwrap_err(), expected, "bit {bit}");
    }
    for length in 0..token.len() {
        assert!(sealer.open_live(&binding, &token[..length]).is_err());
    }
    let other = sealer.bind(&Principal::new("bob"), CallKind::Tool, "tool", NONE);
    let opened = sealer.open_live(&other, &token);
    assert_eq!(opened.unwrap_err(), OpenError::Seal);
}

/// The same bytes under another version.
fn as_version(token: &str, version: u8) -> String {
    let mut bytes = URL_SAFE_NO_PAD.decode(token).unwrap();
    bytes[0] = version;
    URL_SAFE_NO_PAD.encode(&bytes)
}

#[test]
fn live_tokens_and_journal_tokens_are_not_interchangeable() {
    let sealer = World::new().sealer();
    let binding = bind(&sealer);
    let live = sealer.seal_live(&binding.live(), &live_content(&sealer, NOON + 100));
    let opened = sealer.open(&binding, &as_version(&live, 1));
    assert_eq!(opened.unwrap_err(), OpenError::Seal);
    let journal = as_version(&seal(&sealer), 2);
    assert!(Sealer::is_live_token(&journal));
    let opened = sealer.open_live(&binding, &journal);
    assert_eq!(opened.unwrap_err(), OpenError::Seal);
    let at_rest = URL_SAFE_NO_PAD.decode(as_version(&live, 129)).unwrap();
    assert_eq!(
        sealer.open_bytes(b"", at_rest).unwrap_err(),
        OpenError::Seal
    );
}

#[test]
fn live_token_format_is_stable() {
    let sealer = World::new().sealer();
    let binding = bind(&sealer);
    let content = live_content(&sealer, NOON + 100);
    // A token of an earlier version, sealed with AES-256-GCM.
    let token = "AkHnU4TKijPicuNzblrDiaMMOwNja0nSAAAAAAAAAAAAMnIF7cMBasQOwQ1QaggC-BHenaxDHB6tsxu1sdf2LvtFVvdc5fuScekbaEmU";
    assert!(Sealer::is_live_token(token));
    assert_eq!(sealer.open_live(&binding, token).unwrap(), content);
}

#[test]
fn live_token_is_valid_until_its_deadline() {
    let clock = Clock::new();
    let options = SealerOptions::default();
    let (ttl, skew) = (options.ttl.as_secs(), options.skew.as_secs());
    let keys = KeyRing::generate(&SystemSource::new());
    let sealer = Sealer::new(keys, options, clock.clone());
    let (binding, deadline) = (bind(&sealer), NOON + 10 * ttl);
    let token = sealer.seal_live(&binding.live(), &live_content(&sealer, deadline));
    for (at, expected) in [
        (NOON - skew - 1, Some(OpenError::NotYetValid)),
        (NOON - skew, None),
        (NOON + ttl + skew + 1, None),
        (deadline + skew, None),
        (deadline + skew + 1, Some(OpenError::Expired)),
    ] {
        clock.set(at);
        assert_eq!(sealer.open_live(&binding, &token).err(), expected, "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn arbitrary_text_does_not_open(text in "\\PC{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let world = World::new();
        let sealer = world.sealer();
        let binding = world.binding(&sealer);
        prop_assert!(sealer.open(&binding, &text).is_err());
        prop_assert!(sealer.open(&binding, &URL_SAFE_NO_PAD.encode(&bytes)).is_err());
        // Nor with a valid header.
        let mut forged = header(&seal(&sealer));
        forged.extend(&bytes);
        prop_assert!(sealer.open(&binding, &URL_SAFE_NO_PAD.encode(&forged)).is_err());
    }

    #[test]
    fn malformed_journal_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        // A snapshot that was decoded can be encoded again.
        if let Some((claims, snapshot)) = Snapshot::decode(&bytes) {
            let again = snapshot.encode(&claims, &[], 0);
            prop_assert!(Snapshot::decode(&again).is_some());
        }
    }
}

#[tokio::test]
async fn other_encodings_of_a_token_are_rejected() {
    // Lengths with all three remainders, so that padding and unused bits occur.
    let world = World::new();
    let sealer = world.sealer();
    let binding = world.binding(&sealer);
    let snapshot = sealer.first(&binding, None);
    let mut padded = 0;
    let mut spare = 0;
    for version in ["1", "11", "111"] {
        let token = sealer.seal(&binding, &snapshot, version).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        assert!(sealer.open(&binding, &token).is_ok());
        let with_padding = URL_SAFE.encode(&bytes);
        if with_padding != token {
            padded += 1;
            assert_eq!(
                sealer.open(&binding, &with_padding).unwrap_err(),
                OpenError::Encoding
            );
        }
        // The last character of such a token has unused bits.
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        for last in alphabet
            .iter()
            .filter(|c| **c != *token.as_bytes().last().unwrap())
        {
            let other = format!("{}{}", &token[..token.len() - 1], char::from(*last));
            let error = sealer.open(&binding, &other).unwrap_err();
            spare += usize::from(error == OpenError::Encoding);
        }
        for (url, plain) in [('-', '+'), ('_', '/')] {
            let plainly = token.replace(url, &plain.to_string());
            assert_eq!(plainly != token, sealer.open(&binding, &plainly).is_err());
        }
    }
    assert_eq!(padded, 2);
    assert!(spare > 0);
}

#[tokio::test]
async fn token_is_bound_to_its_call() {
    let world = World::new();
    let token = token_of(&world).await;
    let sealer = world.sealer();
    let alice = Principal::new("alice");
    let args = json!({"a": 1});
    assert!(sealer.open(&world.binding(&sealer), &token).is_ok());
    let others = [
        sealer.bind(&Principal::new("bob"), CallKind::Tool, "tool", NONE),
        sealer.bind(&Principal::new(""), CallKind::Tool, "tool", NONE),
        sealer.bind(&Principal::anonymous(), CallKind::Tool, "tool", NONE),
        sealer.bind(&alice, CallKind::Prompt, "tool", NONE),
        sealer.bind(&alice, CallKind::Resource, "tool", NONE),
        sealer.bind(&alice, CallKind::Tool, "other", NONE),
        sealer.bind(&alice, CallKind::Tool, "tool", Some(&args)),
    ];
    for (i, other) in others.iter().enumerate() {
        assert_eq!(
            sealer.open(other, &token).unwrap_err(),
            OpenError::Seal,
            "binding {i}"
        );
    }
    let mut elsewhere = world.clone();
    elsewhere.options.audience = "another service".into();
    let sealer = elsewhere.sealer();
    assert_eq!(
        sealer.open(&bind(&sealer), &token).unwrap_err(),
        OpenError::Seal
    );
    let mut stranger = world.clone();
    stranger.keys = KeyRing::generate(&*world.clock);
    let sealer = stranger.sealer();
    assert_eq!(
        sealer.open(&bind(&sealer), &token).unwrap_err(),
        OpenError::UnknownKey
    );
    assert_ne!(
        sealer.bind(&Principal::new(""), CallKind::Tool, "tool", NONE),
        sealer.bind(&Principal::anonymous(), CallKind::Tool, "tool", NONE),
    );
}

#[test]
fn equivalent_arguments_have_the_same_binding() {
    let world = World::new();
    let sealer = world.sealer();
    let bind = |text: &str| {
        let args: Value = refrain_wire::parse_value(text).unwrap();
        sealer.bind(&world.principal, CallKind::Tool, "tool", Some(&args))
    };
    let one = bind(r#"{"b":1,"a":{"y":[1,2],"x":"é"}}"#);
    assert_eq!(
        one,
        bind("{ \"a\" : {\"x\":\"\\u00e9\", \"y\":[1.0, 2e0]},\n\"b\":1.0 }")
    );
    assert_eq!(
        sealer.bind(&world.principal, CallKind::Tool, "tool", NONE),
        bind("{}")
    );
    let different = [
        r#"{"b":1,"a":{"y":[2,1],"x":"é"}}"#,
        r#"{"b":1.5,"a":{"y":[1,2],"x":"é"}}"#,
        r#"{"b":"1","a":{"y":[1,2],"x":"é"}}"#,
        r#"{"b":1,"a":{"y":[1,2],"x":"é"},"c":null}"#,
        "{}",
    ];
    for text in different {
        assert_ne!(one, bind(text), "{text}");
    }
}

#[test]
fn expired_and_future_tokens_are_rejected() {
    let mut world = World::new();
    world.options = SealerOptions {
        ttl: Duration::from_secs(100),
        flow_ttl: Duration::from_secs(250),
        skew: Duration::from_secs(10),
        ..SealerOptions::default()
    };
    let sealer = world.sealer();
    let binding = bind(&sealer);
    let flow = sealer.first(&binding, None);
    let first = sealer.seal(&binding, &flow, "1").unwrap();
    let open_at = |token: &str, seconds: i64| {
        world.clock.set(NOON.checked_add_signed(seconds).unwrap());
        world.sealer().open(&binding, token).map(drop)
    };
    assert_eq!(open_at(&first, 110), Ok(()));
    assert_eq!(open_at(&first, 111), Err(OpenError::Expired));
    assert_eq!(open_at(&first, -10), Ok(()));
    assert_eq!(open_at(&first, -11), Err(OpenError::NotYetValid));
    // A later round has a new token; the flow's deadline stays.
    world.clock.set(NOON + 200);
    let flow = sealer.open(&binding, &first).err().map(|_| flow).unwrap();
    let second = sealer.seal(&binding, &flow, "1").unwrap();
    assert_eq!(open_at(&second, 260), Ok(()));
    assert_eq!(open_at(&second, 261), Err(OpenError::Expired));
    // An unlimited lifetime does not overflow.
    world.options.ttl = Duration::MAX;
    world.options.flow_ttl = Duration::MAX;
    let sealer = world.sealer();
    assert!(sealer.open(&bind(&sealer), &seal(&sealer)).is_ok());
}

#[test]
fn too_long_token_is_rejected() {
    let mut world = World::new();
    let sealer = world.sealer();
    let token = seal(&sealer);
    world.options.max_token = token.len() - 1;
    let narrow = world.sealer();
    assert_eq!(
        narrow.open(&bind(&narrow), &token).unwrap_err(),
        OpenError::Length
    );
    assert_eq!(
        sealer.open(&bind(&sealer), "").unwrap_err(),
        OpenError::Length
    );
}

#[test]
fn token_may_be_as_long_as_the_limit() {
    let world = World::new();
    let sealer = world.sealer();
    let binding = bind(&sealer);
    let flow = sealer.first(&binding, None);
    // Lengths with all three remainders.
    for version in ["1", "12", "123"] {
        let length = sealer.seal(&binding, &flow, version).unwrap().len();
        let up_to = |limit| sealer.seal_up_to(&binding, &flow, version, limit);
        assert_eq!(up_to(length).unwrap().len(), length);
        let Err(SealError::TooLarge { size, .. }) = up_to(length - 1) else {
            panic!("the token fits into {} characters", length - 1)
        };
        assert_eq!(size, length);
    }
}

#[test]
fn too_large_token_uses_no_nonce() {
    let sealer = World::new().sealer();
    let binding = bind(&sealer);
    let flow = sealer.first(&binding, None);
    let counter = |token: String| {
        let sealed = URL_SAFE_NO_PAD.decode(token).expect("base64url");
        // After version, key id, salt and time.
        u64::from_be_bytes(sealed[25..33].try_into().expect("eight bytes"))
    };
    let before = counter(sealer.seal(&binding, &flow, "1").expect("it fits"));
    let long = "1".repeat(100_000);
    for version in ["1", &long] {
        let rejected = sealer.seal_up_to(&binding, &flow, version, 100);
        assert!(rejected.is_err());
    }
    let after = counter(sealer.seal(&binding, &flow, "1").expect("it fits"));
    assert_eq!(after, before + 1);
}

#[tokio::test]
async fn too_large_journal_error_names_the_largest_entry() {
    let world = World::new();
    let sealer = world.sealer();
    let binding = world.binding(&sealer);
    let handler = handler(|cx| async move {
        cx.step("small", async { refrain_core::ok(5) }).await?;
        let scope = cx.scope("files");
        scope
            .step("huge", async { refrain_core::ok("x".repeat(70_000)) })
            .await?;
        Ok(cx.elicit::<Num>("n", "?").await?.v)
    });
    let start = refrain_core::Start::first(sealer.first(&binding, None), None);
    let mut flow = refrain_core::Flow::new(world.env(), start, &handler);
    let (event, _) = support::drive(&mut flow, &mut Vec::new()).await;
    let refrain_core::Event::Suspended(cut) = event else {
        panic!("{event:?}")
    };
    let error = sealer.seal(&binding, &cut.snapshot, "1").unwrap_err();
    let SealError::TooLarge {
        size,
        limit,
        largest,
    } = &error;
    assert!(*size > 70_000 && *limit == 64 * 1024, "{error}");
    assert_eq!(largest, "files/huge with 70002 bytes");
    assert!(error.to_string().contains("files/huge"), "{error}");
}

#[test]
fn keys_can_be_rotated() {
    let world = World::new();
    let source = &*world.clock;
    let instance =
        |keys: &KeyRing| Sealer::new(keys.clone(), world.options.clone(), world.clock.clone());
    let opens = |by: &Sealer, token: &str| by.open(&bind(by), token).map(drop);
    let old = world.keys.clone();
    let old_id = old.list().next().unwrap().0.to_string();
    let (a, b) = (instance(&old), instance(&old));
    let under_old = seal(&a);

    // Stage a new key on all instances; then one instance promotes it before the other.
    let mut staged = old.clone();
    let new_id = staged.stage(source).to_string();
    a.reload(staged.clone());
    b.reload(staged.clone());
    assert_eq!(
        header(&seal(&a))[1..5],
        header(&under_old)[1..5],
        "staged keys do not mint"
    );
    let mut promoted = staged.clone();
    promoted.promote(&new_id).unwrap();
    a.reload(promoted.clone());
    let under_new = seal(&a);
    assert_ne!(header(&under_new)[1..5], header(&under_old)[1..5]);
    assert_eq!(opens(&b, &under_new), Ok(()), "a staged key opens");
    assert_eq!(opens(&a, &under_old), Ok(()), "a retiring key opens");
    assert_eq!(
        opens(&instance(&old), &under_new),
        Err(OpenError::UnknownKey)
    );

    // A removed key opens no token, not even one that it opened before.
    let states: Vec<KeyState> = promoted.list().map(|(_, state)| state).collect();
    assert_eq!(states, [KeyState::Retiring, KeyState::Minting]);
    assert!(promoted.retire(&new_id).is_err(), "a minting key stays");
    assert!(promoted.promote("00000000").is_err());
    promoted.retire(&old_id).unwrap();
    a.reload(promoted);
    assert_eq!(opens(&a, &under_old), Err(OpenError::UnknownKey));
    assert_eq!(opens(&a, &under_new), Ok(()));
}

#[test]
fn nonces_are_unique() {
    let world = World::new();
    let (a, b) = (world.sealer(), world.sealer());
    let mut headers = HashSet::new();
    let mut salts = HashSet::new();
    for round in 0..4000 {
        if round % 500 == 0 {
            world.clock.advance(400);
        }
        for sealer in [&a, &b] {
            let header = header(&seal(sealer));
            salts.insert(header[5..21].to_vec());
            assert!(headers.insert(header), "a salt and a nonce were used twice");
        }
    }
    // Two instances, each with a new salt after fifteen minutes.
    assert!(salts.len() >= 4, "{} salts", salts.len());
    // The header also has the time, since a machine restored from a snapshot repeats salt and
    // counter.
    assert_ne!(header(&seal(&a))[21..25], [0; 4]);
    a.reload(world.keys.clone());
    assert!(
        salts.insert(header(&seal(&a))[5..21].to_vec()),
        "a reload draws a new salt"
    );
}

#[test]
fn debug_output_contains_no_secrets() {
    let keys = KeyRing::generate(&SystemSource::new());
    let text = keys.to_text();
    let secret = text.split_whitespace().last().unwrap();
    let bytes = URL_SAFE_NO_PAD.decode(secret).unwrap();
    let sealer = Sealer::new(keys.clone(), SealerOptions::default(), Clock::new());
    for shown in [
        format!("{keys:?}{sealer:?}"),
        format!("{keys:#?}{sealer:#?}"),
    ] {
        assert!(!shown.contains(secret), "{shown}");
        let numbers = format!("{:?}", &bytes[..4]);
        assert!(!shown.contains(numbers.trim_matches(['[', ']'])), "{shown}");
        assert!(
            shown.contains(&keys.list().next().unwrap().0.to_string()),
            "{shown}"
        );
    }
}

#[test]
fn key_ring_text_round_trips() {
    let source = Clock::new();
    let mut keys = KeyRing::generate(&*source);
    keys.stage(&*source);
    assert_eq!(keys.to_text().parse::<KeyRing>().unwrap(), keys);
    let lines: Vec<String> = keys.to_text().lines().skip(1).map(str::to_owned).collect();
    // As in an environment variable.
    assert_eq!(lines.join(",").parse::<KeyRing>().unwrap(), keys);
    let spaced = format!("\n# a, comment\n\n  {}  \r\n{}\n", lines[0], lines[1]);
    assert_eq!(spaced.parse::<KeyRing>().unwrap(), keys);
}

#[test]
fn invalid_key_ring_error_names_the_line() {
    let source = Clock::new();
    let good = KeyRing::generate(&*source).to_text();
    let good = good.lines().last().unwrap();
    let other = KeyRing::generate(&*source).to_text();
    let other = other.lines().last().unwrap();
    let (id, secret) = (&good[..8], good.split(' ').next_back().unwrap());
    let cases = [
        (
            format!("# one, two\n\n{id} minting"),
            "line 3",
            "ID STATE SECRET",
        ),
        (
            format!("{good}\n{id} sleeping {secret}"),
            "line 2",
            "staged, minting or retiring",
        ),
        (
            format!("{id} minting {}", &secret[1..]),
            "line 1",
            "32 bytes",
        ),
        (format!("{id} minting {secret}="), "line 1", "32 bytes"),
        (
            format!("00000000 minting {secret}"),
            "line 1",
            "does not belong",
        ),
        (format!("{good}\n# x\n{good}"), "line 3", "duplicate key"),
        (String::new(), "exactly one key that seals new tokens", "0"),
        (
            format!("{good}\n{other}"),
            "exactly one key that seals new tokens",
            "2",
        ),
    ];
    for (text, line, reason) in cases {
        let error = text.parse::<KeyRing>().unwrap_err().to_string();
        assert!(
            error.contains(line) && error.contains(reason),
            "{text:?}: {error}"
        );
        assert!(!error.contains(secret), "{error}");
    }
}

#[test]
fn call_id_determines_the_flow() {
    let world = World::new();
    let (a, b) = (world.sealer(), world.sealer());
    let flow = |sealer: &Sealer, user: &str, id: Option<&str>| {
        let binding = sealer.bind(&Principal::new(user), CallKind::Tool, "tool", NONE);
        sealer.first(&binding, id).flow()
    };
    assert_eq!(flow(&a, "alice", Some("7")), flow(&b, "alice", Some("7")));
    assert_ne!(flow(&a, "alice", Some("7")), flow(&a, "alice", Some("8")));
    assert_ne!(flow(&a, "alice", Some("7")), flow(&a, "bob", Some("7")));
    let fresh: HashSet<_> = (0..1000).map(|_| flow(&a, "alice", None)).collect();
    assert_eq!(fresh.len(), 1000);
    assert!(!fresh.contains(&flow(&b, "alice", None)));
}
