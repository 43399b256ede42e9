//! One tool of each kind in every dialect and transport. The outcomes must match docs/reference/dialects.md.

use super::Transport;
use crate::support::{Files, Instance, Serve, root, within};
use refrain_client::wire::drafts::Draft;
use refrain_client::wire::legacy::Revision;
use refrain_client::wire::{Root, SamplingAnswer};
use refrain_client::{
    AskAnswer, CallSpec, Client, ClientBuilder, Dialect, ErrorKind, RoundOutcome,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::process::Command;
use tokio::sync::Barrier;

/// A kind of tool.
struct ToolKind {
    name: &'static str,
    tool: &'static str,
    arguments: fn() -> Value,
    /// The text of its result, without generated ids, and the number of asks.
    text: &'static str,
    asked: usize,
}

const KINDS: [ToolKind; 7] = [
    ToolKind {
        name: "a form",
        tool: "update_work_item",
        arguments: || json!({"workItemId": 4522, "fields": {"System.State": "Resolved"}}),
        text: "Bug #4522 resolved as Duplicate of Bug #4301. State set to Resolved and duplicate link created.",
        asked: 2,
    },
    ToolKind {
        name: "a URL",
        tool: "connect_account",
        arguments: || json!({"service": "example"}),
        text: "Connected to example.",
        asked: 2,
    },
    ToolKind {
        name: "sampling",
        tool: "analyze_data",
        arguments: || json!({"data": "1 2 3"}),
        text: "a model's words",
        asked: 1,
    },
    ToolKind {
        name: "roots",
        tool: "project_roots",
        arguments: || json!({}),
        text: "1 roots:\nfile:///project",
        asked: 1,
    },
    ToolKind {
        name: "a form and sampling at once",
        tool: "weather_and_capital",
        arguments: || json!({"location": "New York"}),
        text: "Current weather in New York:\nTemperature: 72°F\nConditions: Partly cloudy\na model's words",
        asked: 2,
    },
    ToolKind {
        name: "a form after a step",
        tool: "place_order",
        arguments: || json!({"item": "lamp"}),
        text: "Ordered one lamp: reservation …, receipt ….",
        asked: 1,
    },
    ToolKind {
        name: "a task that asks for a form",
        tool: "echo_task",
        arguments: || json!({}),
        text: "Echo: Hello World!",
        asked: 1,
    },
];

/// The columns of the table.
const DIALECTS: [(&str, Option<Dialect>); 7] = [
    ("2026-07-28", None),
    ("2025-11-25", Some(Dialect::Revision(Revision::V2025_11_25))),
    ("2025-06-18", Some(Dialect::Revision(Revision::V2025_06_18))),
    ("2025-03-26", Some(Dialect::Revision(Revision::V2025_03_26))),
    ("draft 2", Some(Dialect::Draft(Draft::Second))),
    ("draft 1", Some(Dialect::Draft(Draft::First))),
    ("sketch", Some(Dialect::Draft(Draft::Sketch))),
];

/// Counts the asks of a client.
struct AskCounter {
    count: AtomicUsize,
    /// Whether all asks are in one round: then no answer is sent before both are received.
    at_once: AtomicBool,
    both: Barrier,
}

impl AskCounter {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            count: AtomicUsize::new(0),
            at_once: AtomicBool::new(false),
            both: Barrier::new(2),
        })
    }

    fn begin(&self, kind: &ToolKind) {
        self.count.store(0, Ordering::Relaxed);
        self.at_once.store(
            kind.name == "a form and sampling at once",
            Ordering::Relaxed,
        );
    }

    /// Counts an ask.
    async fn ask(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.at_once.load(Ordering::Relaxed) {
            within("the other question of the round", self.both.wait()).await;
        }
    }
}

/// A client that answers everything and counts asks.
fn client(counter: &Arc<AskCounter>) -> ClientBuilder {
    let count_ask = || {
        let counter = Arc::clone(counter);
        move || Arc::clone(&counter).ask()
    };
    let (form, url, sampling, roots) = (count_ask(), count_ask(), count_ask(), count_ask());
    Client::builder()
        .on_form(move |ask| {
            let counted = form();
            let content = match ask.key.as_str() {
                _ if ask.message.contains("resolution") => json!({"resolution": "Duplicate"}),
                _ if ask.message.contains("original") => json!({"duplicateOfId": 4301}),
                _ if ask.message.contains("Order one") => json!({"confirm": true}),
                _ if ask.message.contains("echo back") => json!({"input": "Hello World!"}),
                _ => json!({"name": "octocat"}),
            };
            async {
                counted.await;
                Ok(AskAnswer::accept(content)?)
            }
        })
        .on_url(move |_| {
            let counted = url();
            async {
                counted.await;
                Ok(AskAnswer::visited())
            }
        })
        .on_sampling(move |_| {
            let counted = sampling();
            async {
                counted.await;
                let answer = json!({"role": "assistant", "model": "a model",
                    "content": {"type": "text", "text": "a model's words"}});
                Ok(serde_json::from_value::<SamplingAnswer>(answer)?)
            }
        })
        .on_roots(move |_| {
            let counted = roots();
            async {
                counted.await;
                Ok(vec![Root {
                    uri: "file:///project".to_owned(),
                    name: None,
                }])
            }
        })
}

/// The servers of both transports, and their ledger.
struct BothServers {
    http: Instance,
    files: Files,
}

impl BothServers {
    async fn start() -> Self {
        let files = Files::new();
        let ledger = files.path("ledger");
        let http = Serve::new()
            .args(["--drafts"])
            .ledger(&ledger)
            .start()
            .await;
        Self { http, files }
    }

    async fn connect(
        &self,
        transport: Transport,
        dialect: Option<Dialect>,
        builder: ClientBuilder,
    ) -> Client {
        let builder = match dialect {
            Some(dialect) => builder.dialect(dialect),
            None => builder,
        };
        let draft = match dialect {
            Some(Dialect::Draft(draft)) => Some(draft),
            _ => None,
        };
        let connected = match transport {
            Transport::Http => {
                let path = draft.map_or("/mcp", Draft::path);
                let url = format!("http://{}{path}", self.http.address);
                within("a connection", builder.connect(&url)).await
            }
            Transport::Stdio => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
                command
                    .args(["serve", "--stdio", "--ledger"])
                    .arg(self.files.path("ledger"))
                    .env("REFRAIN_STORE", "memory:");
                if let Some(draft) = draft {
                    command.args(["--dialect", draft.name()]);
                }
                within("a connection", builder.spawn(command)).await
            }
        };
        connected.expect("a connection")
    }

    fn effects(&self) -> usize {
        let ledger = std::fs::read_to_string(self.files.path("ledger")).expect("a ledger");
        let words = ledger.lines().filter_map(|line| line.split(' ').next());
        words
            .filter(|word| ["reserve", "charge", "done"].contains(word))
            .count()
    }
}

/// The outcome of a call, as in the table.
async fn outcome(client: &Client, kind: &ToolKind, counter: &AskCounter) -> String {
    counter.begin(kind);
    let Value::Object(arguments) = (kind.arguments)() else {
        panic!("arguments are an object");
    };
    let call = CallSpec::tool(kind.tool).with_arguments(arguments);
    let mut task = false;
    let result = match within("a first round", client.start(call)).await {
        Ok(RoundOutcome::Complete(result)) => Ok(result),
        Ok(RoundOutcome::Pending(pending)) => {
            task = pending.task_id().is_some();
            within("the call is done", client.finish(pending)).await
        }
        Err(error) => Err(error),
    };
    match result {
        Ok(result) if result["isError"] == true => {
            let text = result["content"][0]["text"].as_str().expect("a string");
            assert!(text.contains("requires the client capabilities"), "{text}");
            assert_eq!(counter.count.load(Ordering::Relaxed), 0, "{text}");
            "isError".to_owned()
        }
        Ok(result) => {
            assert_eq!(result["isError"], false, "{result}");
            let text = result["content"][0]["text"].as_str().expect("a string");
            assert_eq!(without_ids(text), kind.text);
            let asked = counter.count.load(Ordering::Relaxed);
            assert_eq!(asked, kind.asked, "{}", kind.name);
            match (kind.name, task) {
                ("a task that asks for a form", true) => "as a task",
                ("a task that asks for a form", false) => "inline",
                _ => "yes",
            }
            .to_owned()
        }
        Err(error) => match &error.kind {
            ErrorKind::Rpc(refusal) => {
                assert_eq!(counter.count.load(Ordering::Relaxed), 0, "{refusal}");
                refusal.code.to_string()
            }
            _ => panic!("{}: {error}", kind.name),
        },
    }
}

/// Replaces each id by dots.
fn without_ids(text: &str) -> String {
    let mut text = text.to_owned();
    for before in ["reservation ", "receipt "] {
        if let Some(at) = text.find(before) {
            let from = at + before.len();
            text.replace_range(from..from + 8, "…");
        }
    }
    text
}

/// The table of the page: a row for each kind, with a cell for each dialect.
fn table() -> Vec<(String, Vec<String>)> {
    let page = std::fs::read_to_string(root().join("docs/reference/dialects.md"))
        .expect("the page is readable");
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = page
        .lines()
        .skip_while(|line| !line.starts_with("| the tool uses"));
    let head = cells(lines.next().expect("a table"));
    let columns: Vec<&str> = head.iter().skip(1).map(String::as_str).collect();
    assert_eq!(columns, DIALECTS.map(|(name, _)| name));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells = cells(line);
        (cells[0].clone(), cells[1..].to_vec())
    };
    rows.map(row).collect()
}

#[tokio::test]
async fn every_tool_kind_works_in_every_dialect_and_transport() {
    let servers = BothServers::start().await;
    let mut found = Vec::new();
    for (column, (name, dialect)) in DIALECTS.iter().enumerate() {
        for transport in Transport::ALL {
            let counter = AskCounter::new();
            let client = servers.connect(transport, *dialect, client(&counter)).await;
            for (row, kind) in KINDS.iter().enumerate() {
                let before = servers.effects();
                let outcome = outcome(&client, kind, &counter).await;
                // Each effect happened once: two of an order, one of an echo.
                let is_refused = outcome == "isError";
                let effects = match (kind.name, is_refused) {
                    ("a form after a step", false) => 2,
                    ("a task that asks for a form", false) => 1,
                    _ => 0,
                };
                // The effects before the first ask happen in any case.
                let refused = usize::from(kind.name == "a form after a step" && is_refused);
                let made = servers.effects() - before;
                assert_eq!(
                    made,
                    effects + refused,
                    "{name}, {transport:?}, {}",
                    kind.name
                );
                found.push(((row, column), transport, outcome));
            }
            client.close().await;
        }
    }
    let table = table();
    let names: Vec<&str> = table.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, KINDS.map(|kind| kind.name));
    let mut wrong = Vec::new();
    for ((row, column), transport, outcome) in found {
        let cell = &table[row].1[column];
        if *cell != outcome {
            let (kind, dialect) = (KINDS[row].name, DIALECTS[column].0);
            wrong.push(format!(
                "{kind}, {dialect}, {transport:?}: {outcome}, and the page says {cell}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The page shows these commands and their output.
#[tokio::test]
async fn dialect_flag_selects_the_dialect() {
    let servers = BothServers::start().await;
    let address = servers.http.address;
    // The sketch also asks a model.
    let model = r#"capital_of_france={"role":"assistant","model":"m","content":{"type":"text","text":"Paris"}}"#;
    let answers = [
        "--answer",
        r#"github_login={"name":"octocat"}"#,
        "--answer",
        model,
    ];
    for dialect in ["draft-2", "draft-1", "draft-0", "2025-11-25"] {
        let path = Draft::from_name(dialect).map_or("/mcp", Draft::path);
        let url = format!("http://{address}{path}");
        let output = tokio::task::spawn_blocking(move || {
            let words = [
                "call",
                "--dialect",
                dialect,
                &url,
                "get_weather",
                "location=Paris",
            ];
            let keyed = dialect.starts_with("draft");
            // Asks of a legacy server have no key.
            let answers: Vec<&str> = if dialect == Draft::Sketch.name() {
                answers.to_vec()
            } else if keyed {
                answers[..2].to_vec()
            } else {
                vec!["--answer", r#"ask-1={"name":"octocat"}"#]
            };
            crate::support::refrain(words.into_iter().chain(answers))
        });
        let output = output.await.expect("the command runs");
        assert!(output.ok, "{dialect}: {output:?}");
        assert!(
            output.out.contains("Current weather in Paris"),
            "{output:?}"
        );
    }
    let output = crate::support::refrain(["call", "--dialect", "draft-9", "http://x", "t"]);
    assert!(!output.ok && output.err.contains("draft-2"), "{output:?}");
}
