//! A value that is not `Send` is reported where it is held across an await.

use refrain::{Cx, Result, tool};
use std::sync::Mutex;
use std::time::Duration;

static COUNT: Mutex<u32> = Mutex::new(0);

/// Counts.
#[tool]
async fn count(cx: Cx) -> Result<String> {
    let mut count = COUNT.lock().unwrap();
    cx.sleep(Duration::from_secs(1)).await;
    *count += 1;
    Ok(count.to_string())
}

fn main() {}
