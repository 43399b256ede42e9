//! A handler that is not registered with a server is dead code.

#![deny(dead_code)]

use refrain::prelude::*;

/// Greets.
#[tool]
async fn registered(_cx: Cx) -> Result<String> {
    Ok("hello".into())
}

/// Greets, too.
#[tool]
async fn forgotten_tool(_cx: Cx) -> Result<String> {
    Ok("hello".into())
}

/// A prompt.
#[prompt]
async fn forgotten_prompt(_cx: Cx) -> Result<String> {
    Ok("hello".into())
}

/// A resource.
#[resource(uri = "config://app")]
async fn forgotten_resource(_cx: Cx) -> Result<String> {
    Ok("hello".into())
}

fn main() {
    let _ = Server::builder("test", "1.0").tool(registered());
}
