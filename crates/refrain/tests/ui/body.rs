//! An error in the body of a handler is reported at its place, not at the attribute.

use refrain::{Cx, Result, tool};

/// Counts.
#[tool]
async fn count(_cx: Cx) -> Result<String> {
    let number: u32 = "one";
    Ok(missing(number))
}

fn main() {}
