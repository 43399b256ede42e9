//! Invalid types, which the trait bound of `Tool::new` reports at the function.

use refrain::{Cx, Result, tool};

struct NoSchema;

#[tool]
async fn arguments(_cx: Cx, _args: NoSchema) -> Result<String> {
    Ok(String::new())
}

#[tool]
async fn result(_cx: Cx) -> String {
    String::new()
}

#[tool]
async fn value(_cx: Cx) -> Result<u8> {
    Ok(1)
}

fn main() {}
