//! Invalid uses of `#[resource]`.

use refrain::{Cx, Result, resource};

#[resource]
async fn no_uri(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[resource(name = "x")]
async fn still_no_uri(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[resource(uri = 5)]
async fn wrong_literal(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[resource(uri = "etc/hosts")]
async fn no_scheme(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[resource(uri = "items://{id")]
async fn open_bracket(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[resource(uri = "items://id}")]
async fn closed_bracket(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[resource(uri = "items://{}")]
async fn no_variable(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[resource(uri = "items://{year}{id}")]
async fn nothing_between(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[resource(uri = "config://app", mime = "text/plain")]
fn not_async_and_unknown_key(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

fn main() {}
