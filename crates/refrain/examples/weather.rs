//! A tool that asks for a name before it answers. Run it with `cargo run -p refrain --example weather`.

use refrain::prelude::*;
use refrain::server::{AllowedHosts, serve};

#[derive(Deserialize, JsonSchema)]
struct GetWeather {
    /// The city.
    location: String,
}

#[derive(Deserialize, Elicit)]
struct Login {
    name: String,
}

/// Returns the weather of a city. Asks for the caller's name first.
#[tool]
async fn get_weather(cx: Cx, args: GetWeather) -> Result<String> {
    let login: Login = cx
        .elicit("github_login", "Please provide your GitHub username")
        .await?;
    Ok(format!("{}, it is sunny in {}.", login.name, args.location))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let server = Server::builder("weather", "1.0")
        .tool(get_weather())
        .build()?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    let interrupted = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    serve(listener, server, AllowedHosts::local(), interrupted).await?;
    Ok(())
}
