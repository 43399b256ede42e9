//! A complete server: one tool and the command line of `refrain-app`. To run it as an instance of a fleet,
//! with the keys that `keys new fleet.keys` made and a file with a line `PRINCIPAL ACCESS_TOKEN` for each caller:
//! `cargo run -p refrain-example-hello -- serve --keys fleet.keys --tokens callers.txt --metrics 127.0.0.1:9464`.

use refrain::prelude::*;
use std::process::ExitCode;

#[derive(Deserialize, Elicit)]
struct Login {
    name: String,
}

/// Greets the caller by name.
#[tool]
async fn hello(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "What should I call you?").await?;
    Ok(format!("Hello, {}.", login.name))
}

fn main() -> ExitCode {
    refrain_app::run(Server::builder("hello", "1.0").tool(hello()))
}
