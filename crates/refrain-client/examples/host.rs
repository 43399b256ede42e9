//! A host: calls a tool, answers what it asks, and keeps the call where it cannot.
//!
//! ```sh
//! refrain serve --listen 127.0.0.1:8080 &
//! cargo run -p refrain-client --example host -- http://127.0.0.1:8080/mcp get_weather '{"location": "Oslo"}'
//! ```

use refrain_client::{AskAnswer, CallRequest, Client, ErrorKind, PendingCall, SamplingAnswer};
use serde_json::{Value, json};
use std::error::Error;
use std::path::Path;

/// Where a call waits that could not be answered.
const WAITING: &str = "waiting.json";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: host URL TOOL [ARGUMENTS]";
    let url = arguments.next().ok_or(usage)?;
    let tool = arguments.next().ok_or(usage)?;
    let given = arguments.next().unwrap_or_else(|| "{}".to_owned());
    let Value::Object(given) = serde_json::from_str(&given)? else {
        return Err("ARGUMENTS is a JSON object".into());
    };

    let client = Client::builder()
        .on_form(|ask| async move {
            eprintln!(
                "{} at {}: {}",
                ask.asker.target, ask.asker.address, ask.message
            );
            // A host would show the form here. This one knows one answer, and leaves all else open.
            let fields: Vec<&str> = ask.form.fields().iter().map(|field| field.name()).collect();
            if fields == ["name"] {
                return Ok(AskAnswer::accept(json!({"name": "octocat"}))?);
            }
            Err(format!("nobody here knows {}", fields.join(", ")).into())
        })
        .on_sampling(|_| async { Ok(SamplingAnswer::new("none", "There is no model here.")) })
        .connect(&url)
        .await?;

    // A call that waited goes on; without one, this is a new one.
    let pending = if Path::new(WAITING).exists() {
        serde_json::from_str::<PendingCall>(&std::fs::read_to_string(WAITING)?)?
    } else {
        client.prepare(CallRequest::tool(tool).with_arguments(given))
    };
    match client.finish(pending).await {
        Ok(result) => {
            println!("{result:#}");
            if Path::new(WAITING).exists() {
                std::fs::remove_file(WAITING)?;
            }
            Ok(())
        }
        Err(error) => {
            if let Some(pending) = &error.pending {
                std::fs::write(WAITING, serde_json::to_string(pending)?)?;
                eprintln!("the call waits in {WAITING}");
            }
            match &error.kind {
                ErrorKind::Unanswered(asks) => {
                    for ask in asks {
                        eprintln!("{} is open: {}", ask.key, ask.why);
                    }
                    Ok(())
                }
                _ => Err(error.into()),
            }
        }
    }
}
