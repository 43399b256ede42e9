//! Defaults that are not choices of their enum.

use refrain::Elicit;
use serde::Deserialize;

#[derive(Deserialize, Elicit)]
#[serde(rename_all = "lowercase")]
enum Priority {
    Low,
    #[serde(rename = "top")]
    High,
}

#[derive(Deserialize, Elicit)]
struct Valid {
    #[elicit(default = "top")]
    one: Priority,
    #[elicit(default = ["low", "top"])]
    many: Vec<Priority>,
}

#[derive(Deserialize, Elicit)]
struct Invalid {
    #[elicit(default = "High")]
    one: Priority,
    #[elicit(default = "urgent")]
    maybe: Option<Priority>,
    #[elicit(default = ["low", "medium"])]
    many: Vec<Priority>,
}

fn main() {}
