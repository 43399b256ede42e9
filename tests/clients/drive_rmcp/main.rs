//! A driver for the Rust SDK (rmcp 3.8.0), which speaks 2026-07-28. See README.md in the folder above.
//!
//! It is an example of `refrain-client`, so that `cargo test` builds it.

#![expect(
    deprecated,
    reason = "rmcp marks what this revision deprecates, and clients still support: sampling, roots and logging"
)]

mod person;

use futures_util::future::join_all;
use person::Person;
use rmcp::model::{
    CallToolRequestParams, CompleteRequestParams, GetPromptRequestParams, LoggingLevel,
    ProtocolVersion, ReadResourceRequestParams, RequestMetaObject,
};
use rmcp::service::{RoleClient, RunningService, ServiceError};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientLifecycleMode, ClientServiceExt};
use serde::Serialize;
use serde_json::{Value, json};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Barrier;
use tokio::time::timeout;

const CALL_TIME: Duration = Duration::from_secs(60);
const NOTIFICATION_TIME: Duration = Duration::from_secs(10);

type Client = RunningService<RoleClient, Person>;
type Failure = Box<dyn Error>;

async fn connect(target: &Value, person: Person) -> Result<Client, Failure> {
    let lifecycle = ClientLifecycleMode::Discover {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
    };
    if let Some(url) = target["url"].as_str() {
        let transport = StreamableHttpClientTransport::from_uri(url);
        return Ok(person.serve_with_lifecycle(transport, lifecycle).await?);
    }
    let parts: Vec<String> = serde_json::from_value(target["command"].clone())?;
    let [program, arguments @ ..] = parts.as_slice() else {
        return Err("a target has a URL or a command".into());
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let transport = TokioChildProcess::new(command)?;
    Ok(person.serve_with_lifecycle(transport, lifecycle).await?)
}

/// A result as JSON, or the text of the error.
fn report<T: Serialize>(result: Result<T, ServiceError>) -> Result<Value, String> {
    let result = result.map_err(|error| error.to_string())?;
    serde_json::to_value(result).map_err(|error| error.to_string())
}

async fn request(client: &Client, call: &Value) -> Result<Value, String> {
    let arguments = call["arguments"].as_object().cloned().unwrap_or_default();
    let text = |key: &str| call[key].as_str();
    if let Some(name) = text("tool") {
        let mut params = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
        let mut meta = RequestMetaObject::default();
        meta.set_log_level(LoggingLevel::Info);
        params.meta = Some(meta);
        return report(client.call_tool(params).await);
    }
    if let Some(argument) = call.get("complete") {
        let reference = match (text("prompt"), text("template")) {
            (Some(name), _) => json!({ "type": "ref/prompt", "name": name }),
            (None, uri) => json!({ "type": "ref/resource", "uri": uri }),
        };
        let params = json!({ "ref": reference, "argument": argument });
        let params: CompleteRequestParams =
            serde_json::from_value(params).map_err(|error| error.to_string())?;
        return report(client.complete(params).await);
    }
    if let Some(name) = text("prompt") {
        let params = GetPromptRequestParams::new(name).with_arguments(arguments);
        return report(client.get_prompt(params).await);
    }
    if let Some(uri) = text("resource") {
        return report(
            client
                .read_resource(ReadResourceRequestParams::new(uri))
                .await,
        );
    }
    match text("list") {
        Some("tools") => report(client.list_tools(None).await),
        Some("prompts") => report(client.list_prompts(None).await),
        Some("resources") => report(client.list_resources(None).await),
        Some("resource_templates") => report(client.list_resource_templates(None).await),
        _ => Err(format!("unknown call {call}")),
    }
}

async fn perform(client: &Client, call: &Value, barrier: Option<Arc<Barrier>>) -> Value {
    let person = client.service();
    person.begin(call, barrier);
    let mut outcome = match timeout(CALL_TIME, request(client, call)).await {
        Ok(Ok(result)) => json!({ "result": result }),
        Ok(Err(error)) => json!({ "error": error }),
        Err(_) => json!({ "error": "no result in time" }),
    };
    let notes = person.notes(call).await;
    outcome["asked"] = json!(person.asked());
    outcome["progress"] = json!(notes.progress);
    outcome["logs"] = json!(notes.logs);
    outcome
}

/// Each call has its own connection. No ask is answered before all of them are open.
async fn perform_together(target: &Value, calls: &[Value]) -> Result<Vec<Value>, Failure> {
    let barrier = Arc::new(Barrier::new(calls.len()));
    let calls = calls.iter().map(async |call| {
        let client = connect(target, Person::default()).await?;
        let outcome = perform(&client, call, Some(barrier.clone())).await;
        client.cancel().await?;
        Ok(outcome)
    });
    join_all(calls).await.into_iter().collect()
}

async fn visit(target: &Value, checks: &[Value]) -> Result<(), Failure> {
    let client = connect(target, Person::default()).await?;
    for check in checks {
        let outcomes = match check["calls"].as_array().map(Vec::as_slice) {
            Some([call]) => vec![perform(&client, call, None).await],
            Some(calls) => perform_together(target, calls).await?,
            None => return Err("a check has calls".into()),
        };
        let outcomes =
            json!({ "target": target["name"], "check": check["name"], "outcomes": outcomes });
        println!("{outcomes}");
    }
    client.cancel().await?;
    Ok(())
}

async fn drive() -> Result<(), Failure> {
    let job: Value = serde_json::from_reader(std::io::stdin())?;
    let (Some(targets), Some(checks)) = (job["targets"].as_array(), job["checks"].as_array())
    else {
        return Err("the job has no targets or no checks".into());
    };
    for target in targets {
        visit(target, checks).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match drive().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
