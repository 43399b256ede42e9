//! Versions of tools that differ in a draft.

use super::asks::login_and_capital;
use super::proposals::{Echo, EchoInput, GetWeather, weather};
use super::tasks::POLL_INTERVAL;
use refrain::prelude::*;

/// Returns the weather, after asking for a GitHub username and for a model's answer.
#[tool(name = "get_weather")]
pub(super) async fn get_weather_of_sketch(cx: Cx, args: GetWeather) -> Result<String> {
    login_and_capital(&cx).await?;
    Ok(weather(&args.location))
}

/// Echoes a text; asks for it if missing. Runs as a task if the client requests one.
#[tool(name = "echo", detaches)]
async fn first(cx: Cx, args: Echo) -> Result<String> {
    echo(&cx, args, "get/result").await
}

/// Echoes a text; asks for it if missing. Runs as a task if the client requests one.
#[tool(name = "echo", detaches)]
async fn second(cx: Cx, args: Echo) -> Result<String> {
    echo(&cx, args, "tasks/result").await
}

/// The echo with the status messages of the draft, in which `result_method` returns the result.
async fn echo(cx: &Cx, args: Echo, result_method: &str) -> Result<String> {
    cx.status("Task has been created for echo tool invocation.");
    cx.detach().await?;
    let text = match args.text {
        Some(text) => text,
        None => {
            cx.status("Input Required to Proceed call tasks/result");
            let message = "Please provide the input string to echo back";
            cx.elicit::<EchoInput>("echo_input", message).await?.input
        }
    };
    cx.status(format!(
        "Task has been completed successfully, call {result_method}"
    ));
    Ok(format!("Echo: {text}"))
}

pub(super) fn echo_of_first() -> Tool {
    first().poll_interval(POLL_INTERVAL)
}

pub(super) fn echo_of_second() -> Tool {
    second().poll_interval(POLL_INTERVAL)
}
