//! Types that cannot be a form.

#![allow(unreachable_patterns)]

use refrain::Elicit;
use serde::Deserialize;

#[derive(Deserialize, Elicit)]
struct Generic<T> {
    value: T,
}

#[derive(Deserialize, Elicit)]
struct Tuple(String, bool);

#[derive(Deserialize, Elicit)]
struct Unit;

#[derive(Deserialize, Elicit)]
#[elicit(title = "x")]
struct Misplaced {
    name: String,
}

#[derive(Deserialize, Elicit)]
struct Flattened {
    #[serde(flatten)]
    inner: Misplaced,
}

#[derive(Deserialize, Elicit)]
struct SameName {
    name: String,
    #[serde(rename = "name")]
    other: String,
}

#[derive(Elicit)]
union Union {
    number: u32,
}

fn main() {}
