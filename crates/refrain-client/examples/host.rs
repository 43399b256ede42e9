//! A minimal host: calls a tool, answers its asks, and stores the call if an ask stays open.
//!
//! ```sh
//! refrain serve --listen 127.0.0.1:8080 &
//! cargo run -p refrain-client --example host -- http://127.0.0.1:8080/mcp get_weather '{"location": "Oslo"}'
//! ```

use refrain_client::{AskAnswer, CallSpec, Client, ErrorKind, PendingCall, SamplingAnswer};
use serde_json::{Value, json};
use std::error::Error;
use std::path::Path;

/// The file for a call with open asks.
const PENDING_FILE: &str = "pending-call.json";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: host URL TOOL [ARGUMENTS]";
    let url = arguments.next().ok_or(usage)?;
    let tool = arguments.next().ok_or(usage)?;
    let tool_arguments = arguments.next().unwrap_or_else(|| "{}".to_owned());
    let Value::Object(tool_arguments) = serde_json::from_str(&tool_arguments)? else {
        return Err("ARGUMENTS must be a JSON object".into());
    };

    let client = Client::builder()
        .on_form(|ask| async move {
            eprintln!(
                "{} at {}: {}",
                ask.asker.target, ask.asker.address, ask.message
            );
            // A real host shows the form. This one answers a single field, and leaves other forms open.
            let fields: Vec<&str> = ask.form.fields().iter().map(|field| field.name()).collect();
            if fields == ["name"] {
                return Ok(AskAnswer::accept(json!({"name": "octocat"}))?);
            }
            Err(format!("no answer for the fields {}", fields.join(", ")).into())
        })
        .on_sampling(|_| async { Ok(SamplingAnswer::new("none", "No model is available.")) })
        .connect(&url)
        .await?;

    // Resume the stored call, or start a new one.
    let pending = if Path::new(PENDING_FILE).exists() {
        serde_json::from_str::<PendingCall>(&std::fs::read_to_string(PENDING_FILE)?)?
    } else {
        client.prepare(CallSpec::tool(tool).with_arguments(tool_arguments))
    };
    match client.finish(pending).await {
        Ok(result) => {
            println!("{result:#}");
            if Path::new(PENDING_FILE).exists() {
                std::fs::remove_file(PENDING_FILE)?;
            }
            Ok(())
        }
        Err(error) => {
            if let Some(pending) = &error.pending {
                std::fs::write(PENDING_FILE, serde_json::to_string(pending)?)?;
                eprintln!("call stored in {PENDING_FILE}; run the same command again to resume it");
            }
            match &error.kind {
                ErrorKind::Unanswered(asks) => {
                    for ask in asks {
                        eprintln!("open ask {}: {}", ask.key, ask.why);
                    }
                    Ok(())
                }
                _ => Err(error.into()),
            }
        }
    }
}
