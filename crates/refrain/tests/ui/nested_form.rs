//! A struct inside of a form: only the bound can tell, and it tells where the field is.

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
