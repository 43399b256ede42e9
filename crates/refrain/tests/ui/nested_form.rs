//! A struct inside a form, which a trait bound reports at the field.

use refrain::Elicit;
use serde::Deserialize;

#[derive(Deserialize, Elicit)]
struct Address {
    street: String,
}

#[derive(Deserialize, Elicit)]
struct Person {
    name: String,
    address: Address,
    others: Vec<Address>,
}

fn main() {}
