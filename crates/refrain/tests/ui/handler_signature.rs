//! Invalid signatures: all errors are reported together.

#![allow(unused_imports)]

use refrain::{Cx, Result, State, tool};

#[tool]
fn not_async(cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool]
async fn no_arguments() -> Result<String> {
    Ok(String::new())
}

#[tool]
async fn no_cx(args: String) -> Result<String> {
    Ok(args)
}

#[tool]
async fn borrowed_cx(cx: &Cx) -> Result<String> {
    Ok(String::new())
}

#[tool]
async fn borrowed_state(cx: Cx, state: &State<u8>) -> Result<String> {
    Ok(String::new())
}

#[tool]
async fn anything(cx: Cx, args: impl Send) -> Result<String> {
    Ok(String::new())
}

#[tool]
async fn generic<T>(cx: Cx, state: State<T>) -> Result<String> {
    Ok(String::new())
}

#[tool]
async fn no_return_type(cx: Cx) {}

#[tool]
async unsafe fn dangerous(cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool]
fn all_at_once<T>() {}

struct Tracker;

impl Tracker {
    #[tool]
    async fn method(&self, cx: Cx) -> Result<String> {
        Ok(String::new())
    }
}

#[tool]
struct NotAFunction;

fn main() {
    // Uses of an invalid function cause no further errors.
    let _ = (not_async(), no_arguments(), Tracker::method());
}
