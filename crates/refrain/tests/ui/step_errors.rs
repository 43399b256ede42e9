//! Errors of steps that do not convert by themselves.

use refrain::{Cx, Error, Result, tool};

type Boxed = Box<dyn std::error::Error + Send + Sync>;

async fn stock() -> Result<u32, Boxed> {
    Err("the warehouse is closed".into())
}

async fn price() -> anyhow::Result<u32> {
    anyhow::bail!("no price")
}

/// Returns the stock.
#[tool]
async fn boxed(cx: Cx) -> Result<String> {
    drop(cx.step("stock", stock()));
    Ok(String::new())
}

/// Returns the price.
#[tool]
async fn with_anyhow(cx: Cx) -> Result<String> {
    let price = cx.step_with_key("price", |_| price()).await?;
    Ok(price.to_string())
}

/// Outside of a step.
#[tool]
async fn outside(_cx: Cx) -> Result<String> {
    Ok(price().await?.to_string())
}

/// Returns both.
#[tool]
async fn converted(cx: Cx) -> Result<String> {
    let stock = cx.step("stock", async { stock().await.map_err(Error::boxed) });
    let price = price().await.map_err(Error::boxed)?;
    Ok((stock.await? * price).to_string())
}

fn main() {}
