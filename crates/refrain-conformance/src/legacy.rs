//! Tools and a resource for clients of 2025-11-25, which receive asks during a call.

use refrain::ask::{Field, Form};
use refrain::prelude::*;
use refrain::server::ServerBuilder;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;

pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    server
        .tool(tool_with_logging())
        .tool(sampling())
        .tool(elicitation())
        .tool(defaults())
        .tool(enums())
        .resource(watched())
}

/// Logs messages while it works.
#[tool(name = "test_tool_with_logging")]
async fn tool_with_logging(cx: Cx) -> Result<&'static str> {
    for state in [
        "execution started",
        "processing data",
        "execution completed",
    ] {
        cx.log(LogLevel::Info, format!("Tool {state}"));
        sleep(Duration::from_millis(50)).await;
    }
    Ok("Three messages were logged.")
}

#[derive(Deserialize, JsonSchema)]
struct SamplingPrompt {
    /// The prompt for the model.
    prompt: String,
}

/// Asks the client's model.
#[tool(name = "test_sampling")]
async fn sampling(cx: Cx, args: SamplingPrompt) -> Result<String> {
    let question = SamplingParams::new(100).user(args.prompt);
    let answer = cx.sample("answer", question).await?;
    Ok(format!("LLM response: {}", answer.text()))
}

#[derive(Deserialize, JsonSchema)]
struct ElicitationMessage {
    /// The message for the user.
    message: String,
}

/// Asks the user for a name and an e-mail address.
#[tool(name = "test_elicitation")]
async fn elicitation(cx: Cx, args: ElicitationMessage) -> Result<String> {
    let form = Form::new([
        Field::string("username").describe("User's response"),
        Field::string("email").describe("User's email address"),
    ]);
    let answer = cx.ask_form("user", args.message, &form).await?;
    Ok(format!("User response: {}", describe(answer)))
}

/// Asks with default values.
#[tool(name = "test_elicitation_sep1034_defaults")]
async fn defaults(cx: Cx) -> Result<String> {
    let form = Form::new([
        Field::string("name").default_value("John Doe"),
        Field::integer("age").default_value(30),
        Field::number("score").default_value(95.5),
        Field::one_of("status", ["active", "inactive", "pending"]).default_value("active"),
        Field::boolean("verified").default_value(true),
    ]);
    let message = "Please review and update the form fields with defaults";
    let answer = cx.ask_form("form", message, &form).await?;
    Ok(format!("Elicitation completed: {}", describe(answer)))
}

/// Asks for choices in all supported schema forms.
#[tool(name = "test_elicitation_sep1330_enums")]
async fn enums(cx: Cx) -> Result<String> {
    let titled = |titles: [&str; 3]| -> Value {
        let choices = ["value1", "value2", "value3"].into_iter().zip(titles);
        let choices = choices.map(|(value, title)| json!({"const": value, "title": title}));
        choices.collect()
    };
    let options = ["option1", "option2", "option3"];
    let schema = json!({"type": "object", "properties": {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled(["First Option", "Second Option", "Third Option"])},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled(["First Choice", "Second Choice", "Third Choice"])}},
    }});
    let schema = to_raw_value(&schema).map_err(Error::internal)?;
    let form = Form::parse(&schema).map_err(Error::internal)?;
    let message = "Please select options from the enum fields";
    let answer = cx.ask_form("form", message, &form).await?;
    Ok(format!("Elicitation completed: {}", describe(answer)))
}

fn describe(answer: Answer<Value>) -> String {
    match answer {
        Answer::Accepted(content) => format!("action=accept, content={content}"),
        Answer::Declined => "action=decline, content={}".to_owned(),
        Answer::Cancelled => "action=cancel, content={}".to_owned(),
    }
}

/// A text that clients can subscribe to.
#[resource(uri = "test://watched-resource", mime_type = "text/plain")]
async fn watched(_cx: Cx) -> Result<String> {
    Ok("Watched resource content".to_owned())
}
