//! The checks of each backend: calls, the answers of the person, and the expected outcomes.

mod everything;
mod refrain;

pub(crate) use everything::everything;
pub(crate) use refrain::refrain;

use crate::outcome::{Expected, Leeway, Outcome};
use serde_json::{Value, json};

/// One or several calls. Several calls are made at the same time, each on its own connection.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// In the format of the drivers: see `tests/clients/README.md`.
    pub(crate) calls: Vec<Value>,
    pub(crate) expected: Vec<Expected>,
}

impl Check {
    fn new(name: &'static str, call: Value, expected: Expected) -> Self {
        Self {
            name,
            calls: vec![call],
            expected: vec![expected],
        }
    }

    /// Compares the outcome of each call, and says what is wrong with the first bad one.
    pub(crate) fn compare(&self, found: &[Outcome], leeway: Leeway) -> Result<(), String> {
        if found.len() != self.expected.len() {
            return Err(format!("{} outcomes", found.len()));
        }
        let mut pairs = self.expected.iter().zip(found);
        pairs.try_for_each(|(expected, found)| expected.compare(found, leeway))
    }

    fn together<const N: usize>(name: &'static str, calls: [(Value, Expected); N]) -> Self {
        let (calls, expected) = calls.into_iter().unzip();
        Self {
            name,
            calls,
            expected,
        }
    }
}

fn tool(name: &str, arguments: Value, person: Value) -> Value {
    object([
        ("tool", name.into()),
        ("arguments", arguments),
        ("person", person),
    ])
}

fn prompt(name: &str, arguments: Value, person: Value) -> Value {
    object([
        ("prompt", name.into()),
        ("arguments", arguments),
        ("person", person),
    ])
}

fn resource(uri: &str, person: Value) -> Value {
    object([("resource", uri.into()), ("person", person)])
}

fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    members.into_iter().collect()
}

fn complete(kind: &str, reference: &str, argument: &str, value: &str) -> Value {
    json!({ kind: reference, "complete": { "name": argument, "value": value } })
}

fn says(text: &str) -> Expected {
    Expected {
        text: vec![text.to_owned()],
        ..Expected::default()
    }
}

/// A result with these parts in its text.
fn contains(parts: &[&str]) -> Expected {
    Expected {
        text: parts.iter().map(|part| format!("…{part}")).collect(),
        ..Expected::default()
    }
}

impl Expected {
    fn asked<const N: usize>(mut self, asked: [&'static str; N]) -> Self {
        self.asked = asked.to_vec();
        self
    }

    fn failed(mut self) -> Self {
        self.is_error = true;
        self
    }

    fn structured(mut self, structured: Value) -> Self {
        self.structured = Some(structured);
        self
    }
}

/// The checks of the servers in `tests/servers`.
pub(crate) fn restaurant() -> Vec<Check> {
    [calls(), asks(), several_asks(), others()].concat()
}

/// The checks of [`restaurant`], and one of a tool that asks for a booking in another way.
pub(crate) fn restaurant_with(name: &'static str, tool: &str) -> Vec<Check> {
    let mut checks = restaurant();
    checks.push(form(name, tool));
    checks
}

fn form(name: &'static str, book_table: &str) -> Check {
    let booking = json!({ "fields": { "date": "2026-12-24", "guests": 4 } });
    Check::new(
        name,
        tool(book_table, json!({}), booking),
        says("a table for 4 on 2026-12-24, inside").asked(["form: When, and for how many?"]),
    )
}

fn calls() -> Vec<Check> {
    let meal = json!({ "dish": "fish", "price": 12.5, "tags": ["fresh", "local"] });
    let mut slow = tool("slow", json!({ "seconds": 0.2 }), json!({}));
    slow["progress"] = json!(4);
    let mut log = tool("log", json!({}), json!({}));
    log["logs"] = json!(2);
    vec![
        Check::new(
            "call",
            tool("echo", json!({ "text": "Smørrebrød" }), json!({})),
            says("Smørrebrød"),
        ),
        Check::new(
            "error result",
            tool("fail", json!({}), json!({})),
            says("the kitchen is closed").failed(),
        ),
        Check::new(
            "structured result",
            tool("structured", json!({}), json!({})),
            Expected {
                meta: Some(("com.example/kitchen", json!("open"))),
                ..says("fish for 12.5").structured(meal)
            },
        ),
        Check::new(
            "progress",
            slow,
            Expected {
                progress: vec![1.0, 2.0, 3.0, 4.0],
                ..says("served")
            },
        ),
        Check::new(
            "logs",
            log,
            Expected {
                logs: vec![
                    "info: The kitchen is open.",
                    "warning: The kitchen closes soon.",
                ],
                ..says("logged")
            },
        ),
    ]
}

fn asks() -> Vec<Check> {
    let wine = || json!({ "about": "wine" });
    vec![
        form("form", "book_table"),
        Check::new(
            "form declined",
            tool("book_table", json!({}), json!({ "action": "decline" })),
            says("no table was booked: decline").asked(["form: When, and for how many?"]),
        ),
        Check::new(
            "url",
            tool("sign_in", json!({}), json!({})),
            says("signed in").asked(["url: Please sign in. https://example.com/login?for=you"]),
        ),
        Check::new(
            "sampling",
            tool("suggest", wine(), json!({ "said": "Riesling" })),
            contains(&["the model ", " said: Riesling"]).asked(["model: What about wine?"]),
        ),
        Check::new(
            "sampling with tools",
            tool(
                "suggest_with_tools",
                wine(),
                json!({ "input": { "country": "Germany" } }),
            ),
            says("the model called list_wines(Germany)")
                .asked(["model with list_wines: What about wine?"]),
        ),
        Check::new(
            "roots",
            tool("list_places", json!({}), json!({ "roots": ["garden"] })),
            says("garden").asked(["roots"]),
        ),
    ]
}

fn trip(city: &str, nights: u8) -> Value {
    tool(
        "plan_trip",
        json!({}),
        json!({ "fields": { "city": city, "nights": nights } }),
    )
}

fn several_asks() -> Vec<Check> {
    let dinner = json!({ "fields": { "dish": "fish" }, "said": "Riesling", "roots": ["garden"] });
    vec![
        Check::new(
            "two rounds",
            trip("Oslo", 3),
            says("3 nights in Oslo").asked(["form: Where to?", "form: How many nights in Oslo?"]),
        ),
        Check::new(
            "three asks",
            tool("order_dinner", json!({}), dinner),
            says("fish with Riesling in garden").asked([
                "form: What would you like?",
                "model: Which wine?",
                "roots",
            ]),
        ),
        Check::together(
            "two callers",
            [
                (
                    trip("Rome", 4),
                    says("4 nights in Rome")
                        .asked(["form: Where to?", "form: How many nights in Rome?"]),
                ),
                (
                    trip("Bern", 5),
                    says("5 nights in Bern")
                        .asked(["form: Where to?", "form: How many nights in Bern?"]),
                ),
            ],
        ),
    ]
}

fn others() -> Vec<Check> {
    let name = || json!({ "fields": { "name": "Ada" } });
    let tools = [
        "add",
        "effects",
        "book_table",
        "plan_trip",
        "order_dinner",
        "sign_in",
        "suggest",
        "suggest_with_tools",
        "list_places",
        "echo",
        "slow",
        "log",
        "counter",
        "fail",
        "structured",
    ];
    vec![
        Check::new(
            "prompt",
            prompt("greeting", json!({ "style": "warmly" }), name()),
            says("Greet Ada, warmly.").asked(["form: Who is to be greeted?"]),
        ),
        Check::new(
            "resource",
            resource("restaurant://menu", json!({})),
            says("fish, cheese"),
        ),
        Check::new(
            "template",
            resource("restaurant://diary/monday", name()),
            says("Ada on monday").asked(["form: Whose diary?"]),
        ),
        Check::new(
            "completion",
            complete("prompt", "greeting", "style", "w"),
            says("warmly\nwittily"),
        ),
        Check::new(
            "template completion",
            complete("template", "restaurant://diary/{day}", "day", "m"),
            says("monday"),
        ),
        Check::new("tools", json!({ "list": "tools" }), contains(&tools)),
        Check::new("prompts", json!({ "list": "prompts" }), says("greeting")),
        Check::new("resources", json!({ "list": "resources" }), says("menu")),
        Check::new(
            "templates",
            json!({ "list": "resource_templates" }),
            says("diary"),
        ),
    ]
}
