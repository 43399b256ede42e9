//! The server for clients of a draft, with the draft's versions of `echo` and `get_weather`.

use super::asks::login_and_capital;
use super::proposals::{self, Echo, GetWeather, echo_text, weather};
use super::tasks::POLL_INTERVAL;
use super::{Ledger, server_with};
use refrain::prelude::*;
use refrain::server::{Draft, ServerBuilder};

/// The server with all tools, as this draft has them.
pub fn server(draft: Draft, ledger: Ledger, accounts: u8) -> ServerBuilder {
    let (echo, get_weather) = match draft {
        Draft::Sketch => (proposals::echo(), get_weather_of_sketch()),
        Draft::First => (
            echo_of_first_draft().poll_interval(POLL_INTERVAL),
            proposals::get_weather(),
        ),
        Draft::Second => (
            echo_of_second_draft().poll_interval(POLL_INTERVAL),
            proposals::get_weather(),
        ),
    };
    server_with(echo, get_weather, ledger, accounts)
}

/// Returns the weather, after asking for a GitHub username and for a model's answer.
#[tool(name = "get_weather")]
async fn get_weather_of_sketch(cx: Cx, args: GetWeather) -> Result<String> {
    login_and_capital(&cx).await?;
    Ok(weather(&args.location))
}

/// Echoes a text; asks for it if missing. Runs as a task if the client requests one.
#[tool(name = "echo", detaches)]
async fn echo_of_first_draft(cx: Cx, args: Echo) -> Result<String> {
    echo(&cx, args, "get/result").await
}

/// Echoes a text; asks for it if missing. Runs as a task if the client requests one.
#[tool(name = "echo", detaches)]
async fn echo_of_second_draft(cx: Cx, args: Echo) -> Result<String> {
    echo(&cx, args, "tasks/result").await
}

/// The echo with the status messages of the draft, in which `result_method` returns the result.
async fn echo(cx: &Cx, args: Echo, result_method: &str) -> Result<String> {
    cx.status("Task has been created for echo tool invocation.");
    cx.detach().await?;
    if args.text.is_none() {
        cx.status("Input Required to Proceed call tasks/result");
    }
    let text = echo_text(cx, args.text).await?;
    cx.status(format!(
        "Task has been completed successfully, call {result_method}"
    ));
    Ok(format!("Echo: {text}"))
}
