//! Invalid keys of form fields.

use refrain::Elicit;
use serde::Deserialize;

#[derive(Deserialize, Elicit)]
enum Color {
    Red,
}

#[derive(Deserialize, Elicit)]
struct Keys {
    #[elicit(label = "Name")]
    unknown: String,
    #[elicit(title = "One", title = "Two")]
    twice: String,
    #[elicit(title = "One")]
    #[elicit(title = "Two")]
    twice_apart: String,
    #[elicit(title = 1)]
    wrong_literal: String,
    #[elicit]
    empty: String,
}

#[derive(Deserialize, Elicit)]
struct Formats {
    #[elicit(format = "email")]
    number: u8,
    #[elicit(format = "phone")]
    unknown: String,
}

#[derive(Deserialize, Elicit)]
struct Limits {
    #[elicit(min = 10, max = 1)]
    reversed: u8,
    #[elicit(min = -1)]
    negative_length: String,
    #[elicit(max = 2.5)]
    half: i32,
    #[elicit(min = "one")]
    text: f64,
    #[elicit(min = 1)]
    truth: bool,
    #[elicit(max = 1)]
    choice: Color,
    #[elicit(max = 1.5)]
    choices: Vec<Color>,
    #[elicit(max = 9007199254740993)]
    inexact: u64,
    #[elicit(min = -1, max = 256)]
    byte: u8,
}

#[derive(Deserialize, Elicit)]
struct Defaults {
    #[elicit(default = 1)]
    text: String,
    #[elicit(default = "yes")]
    truth: bool,
    #[elicit(default = 1.5)]
    whole: i32,
    #[elicit(default = "x")]
    number: f64,
    #[elicit(default = Color::Red)]
    choice: Color,
    #[elicit(default = "Red")]
    choices: Vec<Color>,
    #[elicit(default = [1])]
    numbers: Vec<Color>,
    #[elicit(max = 3, default = 4)]
    over: u8,
    #[elicit(min = 3, default = "ab")]
    short: String,
    #[elicit(min = 1, default = [])]
    few: Vec<Color>,
    #[elicit(default = 300)]
    unfit: u8,
}

fn main() {}
