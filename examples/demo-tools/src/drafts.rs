//! Tools that a draft's document shows otherwise than the others do.

use super::asks::login_and_capital;
use super::documents::{Echo, EchoInput, GetWeather, weather};
use super::tasks::POLL_INTERVAL;
use refrain::prelude::*;

/// Tells the weather, once it knows who is asking and what a model says the capital of France is.
#[tool(name = "get_weather")]
pub(super) async fn get_weather_of_sketch(cx: Cx, args: GetWeather) -> Result<String> {
    login_and_capital(&cx).await?;
    Ok(weather(&args.location))
}

/// Echoes a text. Without one, asks for it first. A client that wants a task has one.
#[tool(name = "echo", detaches)]
async fn first(cx: Cx, args: Echo) -> Result<String> {
    echo(&cx, args, "get/result").await
}

/// Echoes a text. Without one, asks for it first. A client that wants a task has one.
#[tool(name = "echo", detaches)]
async fn second(cx: Cx, args: Echo) -> Result<String> {
    echo(&cx, args, "tasks/result").await
}

/// The echo, as a task where it can be one. Where the result is to be had is said as the document says it.
async fn echo(cx: &Cx, args: Echo, where_to: &str) -> Result<String> {
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
        "Task has been completed successfully, call {where_to}"
    ));
    Ok(format!("Echo: {text}"))
}

pub(super) fn echo_of_first() -> Tool {
    first().poll_interval(POLL_INTERVAL)
}

pub(super) fn echo_of_second() -> Tool {
    second().poll_interval(POLL_INTERVAL)
}
