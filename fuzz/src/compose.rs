//! Journals and answers composed from the names that the handlers use, which reach deeper than random bytes.

use crate::handlers::fingerprints;
use arbitrary::{Result, Unstructured};
use refrain_wire::{Ask, AskKind};
use serde::Serialize;

/// The names of the handlers' asks, steps and checkpoints, and an unused one.
const NAMES: [&str; 8] = ["n", "s", "item", "work", "roots", "model", "url", "x"];
const WIRE_KEYS: [&str; 10] = [
    "n", "item", "roots", "model", "url", "item#2", "a/n", "b/n", "b/a/n", "roots#2",
];

/// Answers and step results.
const VALUES: [&str; 22] = [
    r#"{"action":"accept","content":{"v":3}}"#,
    r#"{"action":"accept","content":{"v":1}}"#,
    r#"{"action":"accept","content":{"v":-1}}"#,
    r#"{"action":"accept","content":{"v":1.0}}"#,
    r#"{"action":"accept","content":{"v":1e3,"v":2}}"#,
    r#"{"action":"accept","content":{"name":"Ann"}}"#,
    r#"{"action":"accept","content":{"name":"Bo","mail":"b@c.de","born":"2024-02-29","size":"m"}}"#,
    r#"{"action":"accept","content":{"name":"Cy","seen":"2024-02-29T12:00:60.5+01:00","tags":["a","b"]}}"#,
    r#"{"action":"accept","content":{"name":"Di","home":"x:y","height":0.5,"agreed":false}}"#,
    r#"{"action":"accept"}"#,
    r#"{"action":"accept","content":{}}"#,
    r#"{"action":"decline"}"#,
    r#"{"action":"cancel"}"#,
    r#"{"roots":[]}"#,
    r#"{"roots":[{"uri":"file:///a","name":"A"}]}"#,
    r#"{"role":"assistant","model":"m","content":{"type":"text","text":"hello"}}"#,
    r#"{"role":"assistant","model":"m","content":[{"type":"text","text":"a"},{"type":"tool_use"}]}"#,
    "7",
    "true",
    r#""text""#,
    "null",
    "",
];

const FAILURES: [&str; 6] = [
    r#"{"Declined":{"name":"n"}}"#,
    r#"{"Unsupported":{"name":"n","capability":"Form"}}"#,
    r#"{"Invalid":{"name":"n","reason":"why"}}"#,
    r#"{"kind":"Failed","message":"no"}"#,
    r#"{"kind":{"Ask":{"Cancelled":{"name":"n"}}},"message":"no"}"#,
    "{}",
];

/// The serialized form of a journal. Must have the same fields as the type in `refrain-core`.
#[derive(Serialize)]
struct Journal<'a> {
    flow: [u8; 16],
    issued: u64,
    expires: u64,
    deadline: u64,
    version: &'a str,
    round: u32,
    sheds: u32,
    asked: Vec<(&'a str, Key<'a>, u64)>,
    entries: Vec<(Key<'a>, u64, bool, &'a str)>,
    retries: Vec<(Key<'a>, u64, u32, &'a str)>,
    saved: Vec<(Option<&'a str>, &'a str, &'a str)>,
    state: Option<&'a str>,
    trace: Option<([u8; 16], [u8; 8], u8)>,
    used: Vec<&'a str>,
}

#[derive(Serialize)]
struct Key<'a> {
    scope: Option<&'a str>,
    kind: u8,
    name: &'a str,
    ordinal: u32,
}

/// Composes an encoded journal.
pub fn journal(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let journal = Journal {
        flow: [9; 16],
        issued: 1,
        expires: 2,
        deadline: u.arbitrary()?,
        version: "1",
        round: number(u, 33)?,
        sheds: number(u, 3)?,
        asked: list(u, 6, |u| {
            Ok((text(u, &WIRE_KEYS)?, key(u)?, fingerprint(u)?))
        })?,
        entries: list(u, 40, |u| {
            let key = key(u)?;
            let failed = u.ratio(1, 6)?;
            let value = if failed {
                text(u, &FAILURES)?
            } else {
                text(u, &VALUES)?
            };
            Ok((key, fingerprint(u)?, failed, value))
        })?,
        retries: list(u, 4, |u| {
            let (key, count) = (key(u)?, number(u, 5)?);
            Ok((key, fingerprint(u)?, count, "why"))
        })?,
        saved: list(u, 3, |u| Ok((scope(u)?, "at", text(u, &["1", "3", "{}"])?)))?,
        state: u
            .ratio(1, 2)?
            .then(|| text(u, &["1", "2", "3", "{"]))
            .transpose()?,
        trace: u.ratio(1, 4)?.then(|| u.arbitrary()).transpose()?,
        used: list(u, 3, |u| text(u, &WIRE_KEYS))?,
    };
    Ok(postcard::to_allocvec(&journal).expect("writing to a vector does not fail"))
}

/// Composes answers as JSON.
pub fn answers(u: &mut Unstructured<'_>) -> Result<String> {
    let pairs = list(u, 6, |u| Ok((text(u, &WIRE_KEYS)?, text(u, &VALUES)?)))?;
    Ok(object(pairs))
}

/// Answers to these asks, selected by a seed. Some are missing or invalid.
pub fn answers_to(asks: &[(String, Ask)], mut choice: u64) -> String {
    let mut pairs = Vec::new();
    for (key, ask) in asks {
        choice = crate::source::mix(choice);
        let candidates = match ask.kind() {
            AskKind::Form => &VALUES[..13],
            AskKind::Url => &VALUES[9..13],
            AskKind::Sampling => &VALUES[15..17],
            AskKind::Roots => &VALUES[13..15],
        };
        if !choice.is_multiple_of(8) {
            let at = (choice >> 8) as usize % candidates.len();
            pairs.push((key.as_str(), candidates[at]));
        }
    }
    object(pairs)
}

fn object(pairs: Vec<(&str, &str)>) -> String {
    let mut json = String::from("{");
    for (key, value) in pairs {
        let comma = if json.len() > 1 { "," } else { "" };
        let key = serde_json::Value::from(key);
        json.push_str(&format!("{comma}{key}:{value}"));
    }
    json + "}"
}

/// Usually one of the known texts, sometimes a random one.
fn text<'a>(u: &mut Unstructured<'a>, known: &[&'static str]) -> Result<&'a str> {
    if u.ratio(1, 20)? {
        return u.arbitrary();
    }
    Ok(u.choose(known)?)
}

/// Usually a small number, sometimes a random one.
fn number(u: &mut Unstructured<'_>, max: u32) -> Result<u32> {
    if u.ratio(1, 20)? {
        return u.arbitrary();
    }
    u.int_in_range(0..=max)
}

/// Usually the fingerprint of one of the handlers' forms.
fn fingerprint(u: &mut Unstructured<'_>) -> Result<u64> {
    let known = u.choose(fingerprints())?;
    Ok(known.wrapping_add(u64::from(u.ratio(1, 10)?)))
}

fn scope<'a>(u: &mut Unstructured<'a>) -> Result<Option<&'a str>> {
    let scoped = u.ratio(1, 4)?;
    scoped.then(|| text(u, &["a", "b", "b/a"])).transpose()
}

fn key<'a>(u: &mut Unstructured<'a>) -> Result<Key<'a>> {
    let scope = scope(u)?;
    let kind = u.int_in_range(0..=8)?;
    let name = match kind {
        // The clock and random numbers have no names.
        7 | 8 => "",
        _ => text(u, &NAMES)?,
    };
    let ordinal = 1 + number(u, 4)?.min(u32::MAX - 1);
    Ok(Key {
        scope,
        kind,
        name,
        ordinal,
    })
}

fn list<'a, T>(
    u: &mut Unstructured<'a>,
    max: u32,
    mut one: impl FnMut(&mut Unstructured<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    while (all.len() as u32) < max && !u.is_empty() && u.ratio(7, 8)? {
        all.push(one(u)?);
    }
    Ok(all)
}
