//! An error in the body is reported in the body.

use refrain::{Cx, Result, tool};

/// Counts.
#[tool]
async fn count(_cx: Cx) -> Result<String> {
    let number: u32 = "one";
    Ok(missing(number))
}

fn main() {}
