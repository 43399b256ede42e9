//! Invalid enums of choices.

#![allow(unreachable_patterns)]

use refrain::Elicit;
use serde::Deserialize;

#[derive(Deserialize, Elicit)]
enum Data {
    Plain,
    Tuple(u8),
    Named { value: u8 },
}

#[derive(Deserialize, Elicit)]
enum Empty {}

#[derive(Deserialize, Elicit)]
enum Keys {
    #[elicit(description = "x")]
    Unknown,
    #[elicit(title = 1)]
    WrongLiteral,
    #[elicit(title = "")]
    Untitled,
}

#[derive(Deserialize, Elicit)]
#[serde(tag = "kind")]
enum Tagged {
    One,
}

#[derive(Deserialize, Elicit)]
enum SameName {
    One,
    #[serde(rename = "One")]
    Two,
}

fn main() {}
