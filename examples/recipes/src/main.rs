//! Recipes: one file for each, with its test. Run one with `cargo run -p refrain-recipes -- NAME`, and call it with
//! `refrain call`. The `main` of a separate crate would be `refrain_app::run(server())`; `protected` and `axum` show how
//! to serve without it.

mod approval;
mod axum_app;
mod expenses;
mod import;
mod protected;
mod slogan;
mod wizard;

use clap::Parser;
use refrain::server::ServerBuilder;
use refrain_app::{App, AppError, ServeOptions, print_error, runtime};
use std::process::ExitCode;

/// Servers for common use cases.
#[derive(Parser)]
enum Recipe {
    /// A deployment that several people approve, as a task.
    Approval(Box<ServeOptions>),
    /// An expense report, collected in several rounds.
    Expenses(Box<ServeOptions>),
    /// A long import with progress.
    Import(Box<ServeOptions>),
    /// A wizard whose next form depends on the last answer.
    Wizard(Box<ServeOptions>),
    /// A text that the client's model writes and reviews in a loop.
    Slogan(Box<ServeOptions>),
    /// A server that accepts access tokens of an authorization server.
    Protected(protected::Settings),
    /// An axum application with the MCP endpoint as one of its routes.
    Axum,
}

fn main() -> ExitCode {
    let result = match Recipe::parse() {
        Recipe::Approval(options) => serve(approval::server, &options),
        Recipe::Expenses(options) => serve(expenses::server, &options),
        Recipe::Import(options) => serve(import::server, &options),
        Recipe::Wizard(options) => serve(wizard::server, &options),
        Recipe::Slogan(options) => serve(slogan::server, &options),
        Recipe::Protected(settings) => block_on(protected::run(settings)),
        Recipe::Axum => block_on(axum_app::run()),
    };
    result.unwrap_or_else(|error| {
        print_error(&error.to_string());
        ExitCode::FAILURE
    })
}

fn serve(server: fn() -> ServerBuilder, options: &ServeOptions) -> Result<ExitCode, AppError> {
    App::with_flags("recipes", move |_| Ok(server())).serve(options)
}

/// The text of a result, for the tests.
#[cfg(test)]
fn text(result: Result<refrain_client::ToolResult, refrain_client::Error>) -> String {
    let result = result.expect("a result");
    result.content[0].as_text().expect("a text").to_owned()
}

fn block_on(work: impl Future<Output = Result<(), AppError>>) -> Result<ExitCode, AppError> {
    runtime()?.block_on(work)?;
    Ok(ExitCode::SUCCESS)
}
