//! The checks of `@modelcontextprotocol/server-everything`.

use super::{Check, complete, contains, prompt, resource, says, tool};
use serde_json::{Value, json};

pub(crate) fn everything() -> Vec<Check> {
    [calls(), asks(), others()].concat()
}

fn calls() -> Vec<Check> {
    let weather =
        json!({ "temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82 });
    let operation = json!({ "duration": 0.2, "steps": 4 });
    let mut slow = tool("trigger-long-running-operation", operation, json!({}));
    slow["progress"] = json!(3);
    vec![
        Check::new(
            "call",
            tool("echo", json!({ "message": "hi" }), json!({})),
            says("Echo: hi"),
        ),
        Check::new(
            "structured result",
            tool(
                "get-structured-content",
                json!({ "location": "Chicago" }),
                json!({}),
            ),
            contains(&["Light rain / drizzle"]).structured(weather),
        ),
        Check::new("progress", slow, contains(&["operation completed"])),
    ]
}

/// Asks the model.
fn sample(prompt: &str, said: &str) -> Value {
    let arguments = json!({ "prompt": prompt, "maxTokens": 10 });
    tool(
        "trigger-sampling-request",
        arguments,
        json!({ "said": said }),
    )
}

fn asks() -> Vec<Check> {
    let form = "form: Please provide inputs for the following fields:";
    let elicit = |person| tool("trigger-elicitation-request", json!({}), person);
    vec![
        Check::new(
            "form",
            elicit(json!({ "fields": { "name": "Ada" } })),
            contains(&["- Name: Ada", "\"action\": \"accept\""]).asked([form]),
        ),
        Check::new(
            "form declined",
            elicit(json!({ "action": "decline" })),
            contains(&["User declined"]).asked([form]),
        ),
        Check::new(
            "url",
            tool(
                "trigger-url-elicitation",
                json!({ "url": "https://example.com/login" }),
                json!({}),
            ),
            contains(&["User completed the URL elicitation flow"]).asked([
                "url: Please open the link to complete this action. https://example.com/login",
            ]),
        ),
        Check::new(
            "sampling",
            sample("wine", "Riesling"),
            contains(&["\"text\": \"Riesling\""])
                .asked(["model: Resource trigger-sampling-request context: wine"]),
        ),
        Check::together(
            "two callers",
            [
                (
                    elicit(json!({ "fields": { "name": "Grace" } })),
                    contains(&["- Name: Grace"]).asked([form]),
                ),
                (
                    elicit(json!({ "fields": { "name": "Alan" } })),
                    contains(&["- Name: Alan"]).asked([form]),
                ),
            ],
        ),
        Check::together(
            "two callers, sampling",
            [
                (
                    sample("beer", "Pils"),
                    contains(&["\"text\": \"Pils\""])
                        .asked(["model: Resource trigger-sampling-request context: beer"]),
                ),
                (
                    sample("tea", "Assam"),
                    contains(&["\"text\": \"Assam\""])
                        .asked(["model: Resource trigger-sampling-request context: tea"]),
                ),
            ],
        ),
    ]
}

fn others() -> Vec<Check> {
    vec![
        Check::new(
            "prompt",
            prompt("args-prompt", json!({ "city": "Oslo" }), json!({})),
            says("What's weather in Oslo?"),
        ),
        Check::new(
            "template",
            resource("demo://resource/dynamic/text/7", json!({})),
            contains(&["Resource 7: This is a plaintext resource"]),
        ),
        Check::new(
            "completion",
            complete("prompt", "completable-prompt", "department", "S"),
            says("Sales\nSupport"),
        ),
        Check::new(
            "tools",
            json!({ "list": "tools" }),
            contains(&[
                "echo",
                "trigger-elicitation-request",
                "trigger-sampling-request",
            ]),
        ),
    ]
}
