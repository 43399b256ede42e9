//! Invalid keys of `#[tool]`.

use refrain::{Cx, Result, tool};

#[tool(nam = "x")]
async fn unknown(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool(alive, color = "red")]
async fn two_unknown(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool(title = "One", title = "Two")]
async fn twice(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool(name = 3, title = true, version = 1.0)]
async fn wrong_literals(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool(title)]
async fn no_value(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool(once = true)]
async fn flag_with_value(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool(name = "")]
async fn empty_name(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool("x")]
async fn no_key(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

#[tool(name("x"))]
async fn brackets(_cx: Cx) -> Result<String> {
    Ok(String::new())
}

fn main() {}
