//! Invalid uses of `#[prompt]`.

#![allow(unused_imports)]

use refrain::{Cx, Result, prompt};

#[prompt(version = "1")]
async fn unknown_key(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[prompt]
fn not_async(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[prompt]
async fn no_cx() {}

fn main() {}
