//! Field types that a form does not support.

use refrain::Elicit;
use serde::Deserialize;
use std::collections::HashMap;

#[derive(Deserialize, Elicit)]
struct Form {
    tuple: (u8, u8),
    map: HashMap<String, String>,
    array: [u8; 4],
    list: Vec<String>,
    lists: Vec<Vec<Color>>,
    twice: Option<Option<bool>>,
    large: u128,
    letter: char,
    fine: String,
}

#[derive(Deserialize, Elicit)]
enum Color {
    Red,
}

fn main() {
    // The type still has a form, so that its uses cause no further errors.
    let _ = <Form as Elicit>::form();
}
