//! Tools that become tasks.

use crate::samples::Name;
use refrain::prelude::*;
use refrain::server::ServerBuilder;
use refrain::store::MemoryStore;
use refrain::task::TaskOptions;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    let store = Arc::new(MemoryStore::new());
    let options = TaskOptions {
        poll_interval: Duration::from_millis(200),
        ..TaskOptions::default()
    };
    server
        .tasks(store, options)
        .tool(greet())
        .tool(slow_compute())
        .tool(failing_job())
        .tool(protocol_error_job())
        .tool(confirm_delete())
        .tool(multi_input())
        .tool(with_task())
}

#[derive(Deserialize, JsonSchema)]
struct Greet {
    name: String,
}

/// Greets without a task.
#[tool]
async fn greet(_: Cx, args: Greet) -> Result<String> {
    Ok(format!("Hello, {}!", args.name))
}

#[derive(Deserialize, JsonSchema)]
struct SlowCompute {
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    label: Option<String>,
}

/// Sleeps for the given time.
#[tool(task)]
async fn slow_compute(cx: Cx, args: SlowCompute) -> Result<String> {
    let time = Duration::try_from_secs_f64(args.seconds)?;
    cx.status(format!("computing for {time:?}"));
    cx.sleep(time).await;
    let label = args.label.unwrap_or_else(|| "the computation".to_owned());
    Ok(format!("{label} is done after {time:?}"))
}

/// Fails with a tool error after a while.
#[tool(task_required)]
async fn failing_job(cx: Cx) -> Result<String> {
    cx.sleep(Duration::from_millis(900)).await;
    Err(Error::msg("the job has failed"))
}

/// Fails with a protocol error after a while.
#[tool(task)]
async fn protocol_error_job(cx: Cx) -> Result<String> {
    cx.sleep(Duration::from_millis(200)).await;
    Err(Error::internal("the job could not be done"))
}

#[derive(Deserialize, JsonSchema)]
struct ConfirmDelete {
    filename: String,
}

#[derive(Deserialize, Elicit)]
struct DeleteConfirmation {
    confirm: bool,
}

/// Asks for a confirmation.
#[tool(task)]
async fn confirm_delete(cx: Cx, args: ConfirmDelete) -> Result<String> {
    let filename = &args.filename;
    let question = format!("Delete {filename}?");
    let answer: DeleteConfirmation = cx.elicit("confirm", question).await?;
    Ok(if answer.confirm {
        format!("{filename} is deleted")
    } else {
        format!("{filename} is kept")
    })
}

/// Asks two questions concurrently.
#[tool(task)]
async fn multi_input(cx: Cx) -> Result<String> {
    let first = cx.elicit::<Name>("first", "Who comes first?");
    let second = cx.elicit::<Name>("second", "Who comes second?");
    let (first, second) = tokio::try_join!(first, second)?;
    Ok(format!("{}, then {}", first.name, second.name))
}

/// Asks for a name, then becomes a task.
#[tool(name = "test_tool_with_task")]
async fn with_task(cx: Cx) -> Result<String> {
    let Name { name } = cx.elicit("user_name", "What is your name?").await?;
    cx.detach().await?;
    cx.sleep(Duration::from_millis(100)).await;
    Ok(format!("Hello, {name}!"))
}
