//! Prompts that do not ask for input.

use crate::samples::PNG;
use refrain::prelude::*;
use refrain::server::ServerBuilder;

pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    server
        .prompt(simple())
        .prompt(with_arguments().suggest("arg1", ["test", "testing", "paris", "park", "party"]))
        .prompt(with_embedded_resource())
        .prompt(with_image())
}

/// A text.
#[prompt(name = "test_simple_prompt")]
async fn simple(_cx: Cx) -> Result<String> {
    Ok("This is a simple prompt for testing.".to_owned())
}

#[derive(Deserialize, JsonSchema)]
struct TwoArguments {
    /// First test argument.
    arg1: String,
    /// Second test argument.
    arg2: String,
}

/// A text with two arguments.
#[prompt(name = "test_prompt_with_arguments")]
async fn with_arguments(_cx: Cx, TwoArguments { arg1, arg2 }: TwoArguments) -> Result<String> {
    Ok(format!(
        "Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"
    ))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EmbeddedUri {
    /// URI of the resource to embed.
    resource_uri: String,
}

/// A resource and a request to process it.
#[prompt(name = "test_prompt_with_embedded_resource")]
async fn with_embedded_resource(_cx: Cx, embedded: EmbeddedUri) -> Result<Vec<PromptMessage>> {
    let resource = ResourceContents::text(
        embedded.resource_uri,
        "text/plain",
        "Embedded resource content for testing.",
    );
    Ok(vec![
        PromptMessage::user(Content::resource(resource)),
        PromptMessage::user("Please process the embedded resource above."),
    ])
}

/// An image and a request to analyze it.
#[prompt(name = "test_prompt_with_image")]
async fn with_image(_cx: Cx) -> Result<Vec<PromptMessage>> {
    Ok(vec![
        PromptMessage::user(Content::image(PNG, "image/png")),
        PromptMessage::user("Please analyze the image above."),
    ])
}
