//! A tool without macros, served over standard input and output.
//! Run it with `cargo run -p refrain --example plain`.

use refrain::ask::{Field, Form};
use refrain::server::{Server, Tool, serve_stdio};
use refrain::{Answer, Cx, Result};
use serde_json::{Map, Value, json};

async fn greet(cx: Cx, args: Map<String, Value>) -> Result<String> {
    let form = Form::new([
        Field::string("name").describe("What to call you").min(1.0),
        Field::one_of("language", ["English", "French"]).optional(),
    ]);
    let answer = cx.ask_form("who", "Whom should I greet?", &form).await?;
    let Answer::Accepted(content) = answer else {
        return Ok("You did not tell me your name.".into());
    };
    let name = content["name"].as_str().unwrap_or_default();
    let greeting = match content["language"].as_str() {
        Some("French") => "Bonjour",
        _ => "Hello",
    };
    let mark = if args.contains_key("loud") { "!" } else { "." };
    Ok(format!("{greeting}, {name}{mark}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = json!({"type": "object", "properties": {"loud": {"type": "boolean"}}});
    let greet = Tool::new("greet", greet)
        .describe("Greets a person.")
        .input_schema(schema);
    let server = Server::builder("greeter", "1.0").tool(greet).build()?;
    let input = tokio::io::BufReader::new(tokio::io::stdin());
    serve_stdio(server, input, tokio::io::stdout(), std::future::pending()).await?;
    Ok(())
}
