//! Tools that do not ask for input.

use crate::samples::{PNG, WAV};
use refrain::prelude::*;
use refrain::server::ServerBuilder;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;

/// Registers the tools. The suite also calls the first one without arguments.
pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    server
        .tool(simple_text())
        .tool(image_content())
        .tool(audio_content())
        .tool(embedded_resource())
        .tool(multiple_content_types())
        .tool(error_handling())
        .tool(tool_with_progress())
        .tool(logging_tool())
        .tool(missing_capability())
        .tool(json_schema_2020_12().input_schema(contact_schema()))
}

/// Returns a text.
#[tool(name = "test_simple_text")]
async fn simple_text(_cx: Cx) -> Result<&'static str> {
    Ok("This is a simple text response for testing.")
}

/// Returns an image.
#[tool(name = "test_image_content")]
async fn image_content(_cx: Cx) -> Result<Content> {
    Ok(Content::image(PNG, "image/png"))
}

/// Returns audio.
#[tool(name = "test_audio_content")]
async fn audio_content(_cx: Cx) -> Result<Content> {
    Ok(Content::audio(WAV, "audio/wav"))
}

/// Returns an embedded resource.
#[tool(name = "test_embedded_resource")]
async fn embedded_resource(_cx: Cx) -> Result<Content> {
    Ok(Content::resource(ResourceContents::text(
        "test://embedded-resource",
        "text/plain",
        "This is an embedded resource content.",
    )))
}

/// Returns a text, an image and a resource.
#[tool(name = "test_multiple_content_types")]
async fn multiple_content_types(_cx: Cx) -> Result<Vec<Content>> {
    Ok(vec![
        Content::text("Multiple content types test:"),
        Content::image(PNG, "image/png"),
        Content::resource(ResourceContents::text(
            "test://mixed-content-resource",
            "application/json",
            r#"{"test":"data","value":123}"#,
        )),
    ])
}

/// Always fails.
#[tool(name = "test_error_handling")]
async fn error_handling(_cx: Cx) -> Result<String> {
    Err(Error::msg(
        "This tool intentionally returns an error for testing",
    ))
}

/// Reports progress.
#[tool(name = "test_tool_with_progress")]
async fn tool_with_progress(cx: Cx) -> Result<&'static str> {
    for (done, state) in [(0.0, "started"), (50.0, "halfway"), (100.0, "done")] {
        cx.progress(done, Some(100.0), state);
        sleep(Duration::from_millis(50)).await;
    }
    Ok("The work is done.")
}

/// Logs two messages.
#[tool(name = "test_logging_tool")]
async fn logging_tool(cx: Cx) -> Result<&'static str> {
    cx.log(LogLevel::Info, "Tool execution started");
    sleep(Duration::from_millis(50)).await;
    cx.log(LogLevel::Info, "Tool execution completed");
    Ok("Two messages were logged.")
}

/// Requires the client's model.
#[tool(name = "test_missing_capability")]
async fn missing_capability(cx: Cx) -> Result<String> {
    let question = SamplingParams::new(100).user("Hello?");
    let answer = cx.sample("question", question).await?;
    Ok(answer.text())
}

#[derive(Deserialize, JsonSchema)]
struct Contact {
    name: Option<String>,
    phone: Option<String>,
    email: Option<String>,
}

/// Returns the contact details of a person.
#[tool(name = "json_schema_2020_12_tool")]
async fn json_schema_2020_12(_cx: Cx, contact: Contact) -> Result<String> {
    let name = contact.name.as_deref().unwrap_or("unknown");
    let contacts: Vec<String> = contact.phone.into_iter().chain(contact.email).collect();
    Ok(format!("{name}: {}", contacts.join(", ")))
}

/// A schema with keywords that a struct cannot express. The suite checks for them.
fn contact_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}
