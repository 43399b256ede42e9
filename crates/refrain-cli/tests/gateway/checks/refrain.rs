//! The checks of `refrain serve`.

use super::{Check, contains, says, tool};
use serde_json::{Value, json};

const USER: &str = "form: Please provide your GitHub username";
const ORIGINAL: &str = "form: Since this is a duplicate, which work item is the original?";

pub(crate) fn refrain() -> Vec<Check> {
    [single_asks(), several_asks()].concat()
}

fn single_asks() -> Vec<Check> {
    let weather = |person| tool("get_weather", json!({ "location": "Oslo" }), person);
    vec![
        Check::new(
            "call",
            tool("echo", json!({ "text": "hi" }), json!({})),
            says("Echo: hi"),
        ),
        Check::new(
            "form",
            weather(json!({ "fields": { "name": "octocat" } })),
            contains(&["Current weather in Oslo:", "72°F"]).asked([USER]),
        ),
        Check::new(
            "form declined",
            weather(json!({ "action": "decline" })),
            says("the user declined \"github_login\"")
                .failed()
                .asked([USER]),
        ),
        Check::new(
            "url",
            tool(
                "connect_account",
                json!({ "service": "example.com" }),
                json!({}),
            ),
            says("Connected to example.com.").asked([
                "url: Please connect your example.com account https://example.com/connect/…",
                "url: Please connect your example.com account\n\nThis has not been completed yet.…",
            ]),
        ),
        Check::new(
            "sampling",
            tool(
                "analyze_data",
                json!({ "data": "1,2,3" }),
                json!({ "said": "The mean is 2." }),
            ),
            says("The mean is 2.").asked(["model: Analyze this data:\n1,2,3"]),
        ),
        Check::new(
            "roots",
            tool("project_roots", json!({}), json!({ "roots": ["garden"] })),
            contains(&["1 roots:", "/garden"]).asked(["roots"]),
        ),
    ]
}

/// Resolves a work item as a duplicate.
fn resolve(id: u32, original: u32) -> Value {
    let arguments = json!({ "workItemId": id, "fields": { "System.State": "Resolved" } });
    let fields = json!({ "resolution": "Duplicate", "duplicateOfId": original });
    tool("update_work_item", arguments, json!({ "fields": fields }))
}

fn several_asks() -> Vec<Check> {
    let both = json!({ "fields": { "name": "octocat" }, "said": "Paris" });
    vec![
        Check::new(
            "two rounds",
            resolve(4522, 4301),
            contains(&["Bug #4522 resolved as Duplicate of Bug #4301."]).asked([
                "form: Resolving Bug #4522 requires a resolution. How was this bug resolved?",
                ORIGINAL,
            ]),
        ),
        Check::new(
            "two asks",
            tool("weather_and_capital", json!({ "location": "Oslo" }), both),
            contains(&["Current weather in Oslo:", "Paris"])
                .asked([USER, "model: What is the capital of France?"]),
        ),
        Check::together(
            "two callers",
            [
                (
                    resolve(7, 5),
                    contains(&["Bug #7 resolved as Duplicate of Bug #5."]).asked([
                        "form: Resolving Bug #7 requires a resolution. How was this bug resolved?",
                        ORIGINAL,
                    ]),
                ),
                (
                    resolve(8, 6),
                    contains(&["Bug #8 resolved as Duplicate of Bug #6."]).asked([
                        "form: Resolving Bug #8 requires a resolution. How was this bug resolved?",
                        ORIGINAL,
                    ]),
                ),
            ],
        ),
    ]
}
