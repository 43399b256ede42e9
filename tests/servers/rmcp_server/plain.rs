//! The tools that ask nothing, and descriptions of tools.

use rmcp::model::{
    CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult, CompletionInfo,
    ContentBlock, ErrorData, LoggingLevel, LoggingMessageNotificationParam, MetaObject,
    ProgressNotificationParam, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The steps of `slow`.
const STEPS: u8 = 4;

pub(crate) fn add(arguments: &Value) -> Result<CallToolResponse, ErrorData> {
    let number = |name: &str| arguments[name].as_i64().ok_or_else(|| missing(name));
    Ok(text((number("a")? + number("b")?).to_string()))
}

/// Reports progress in four steps.
pub(crate) async fn slow(
    arguments: &Value,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let seconds = arguments["seconds"]
        .as_f64()
        .ok_or_else(|| missing("seconds"))?;
    let pause = Duration::from_secs_f64(seconds / f64::from(STEPS));
    for step in 1..=STEPS {
        if let Some(token) = context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, f64::from(step))
                .with_total(f64::from(STEPS))
                .with_message(format!("step {step}"));
            context
                .peer
                .notify_progress(progress)
                .await
                .map_err(|error| internal(&error))?;
        }
        tokio::time::sleep(pause).await;
    }
    Ok(text("served"))
}

/// Logs two messages, if the client wants them.
pub(crate) async fn log(
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    for (level, message) in [
        (LoggingLevel::Info, "The kitchen is open."),
        (LoggingLevel::Warning, "The kitchen closes soon."),
    ] {
        if context.meta.log_level().is_some() {
            let params = LoggingMessageNotificationParam::new(level, json!(message));
            let sent = context.peer.notify_logging_message(params).await;
            sent.map_err(|error| internal(&error))?;
        }
    }
    Ok(text("logged"))
}

/// Counts the calls of this tool in this process.
pub(crate) fn counter() -> CallToolResponse {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let count = CALLS.fetch_add(1, Ordering::SeqCst) + 1;
    text(json!({ "count": count, "pid": std::process::id() }).to_string())
}

pub(crate) fn fail() -> CallToolResponse {
    CallToolResult::error(vec![ContentBlock::text("the kitchen is closed")]).into()
}

/// The meal of the day.
pub(crate) fn structured() -> CallToolResponse {
    let meal = json!({ "dish": "fish", "price": 12.5, "tags": ["fresh", "local"] });
    let mut result = CallToolResult::structured(meal);
    result.content = vec![ContentBlock::text("fish for 12.5")];
    let meta = Map::from_iter([("com.example/kitchen".to_owned(), json!("open"))]);
    result.meta = Some(MetaObject(meta));
    result.into()
}

/// The known values of an argument that start as the given one.
pub(crate) fn complete(params: &CompleteRequestParams) -> Result<CompleteResult, ErrorData> {
    let known: &[&str] = match &*params.argument.name {
        "style" => &["warmly", "wittily", "briefly"],
        "day" => &["monday", "tuesday"],
        unknown => return Err(missing(unknown)),
    };
    let found = known
        .iter()
        .filter(|value| value.starts_with(&params.argument.value))
        .map(|value| (*value).to_owned());
    let values = CompletionInfo::new(found.collect()).map_err(|error| internal(&error))?;
    Ok(CompleteResult::new(values))
}

pub(crate) fn text(said: impl Into<String>) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(said)]).into()
}

pub(crate) fn missing(what: &str) -> ErrorData {
    ErrorData::invalid_params(format!("{what} is missing"), None)
}

fn internal(error: &impl ToString) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

/// A tool whose arguments have these types, all of them required.
pub(crate) fn tool(name: &'static str, arguments: &[(&str, &str)]) -> Tool {
    Tool::new(name, name, Arc::new(schema(arguments)))
}

/// The tool with structured results.
pub(crate) fn structured_tool() -> Tool {
    let mut output = schema(&[("dish", "string"), ("price", "number")]);
    output["properties"]["tags"] = json!({ "type": "array", "items": { "type": "string" } });
    tool("structured", &[]).with_raw_output_schema(Arc::new(output))
}

fn schema(fields: &[(&str, &str)]) -> Map<String, Value> {
    let properties = fields
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), json!({ "type": kind })));
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("properties".to_owned(), Value::Object(properties.collect())),
        ("required".to_owned(), json!(required)),
    ])
}
