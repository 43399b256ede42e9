//! The Inspector's command line, one process for each command.

use crate::checks::Check;
use crate::clients::Outcomes;
use crate::gateway::{Address, Target};
use crate::outcome::Outcome;
use refrain_testkit::net::installed::install;
use refrain_testkit::net::mcpdo::{CommandOutput, Mcpdo};
use serde_json::{Value, json};

/// The names of two connections for calls at the same time.
const CONNECTIONS: [&str; 2] = ["first", "second"];
const ROUNDS_MAX: usize = 10;

pub(crate) async fn run(targets: &[Target], checks: &[Check]) -> Outcomes {
    install().await;
    let mut outcomes = Outcomes::new();
    for target in targets {
        let mcpdo = Mcpdo::start().await;
        for connection in CONNECTIONS {
            match &target.address {
                Address::Url(url) => mcpdo.connect_as(connection, &[url]).await,
                Address::Command(command) => {
                    let command = command.iter().map(String::as_str);
                    let command: Vec<&str> = std::iter::once("--").chain(command).collect();
                    mcpdo.connect_as(connection, &command).await;
                }
            }
        }
        for check in checks {
            outcomes.insert((target.name, check.name), perform(&mcpdo, check).await);
        }
        mcpdo.stop().await;
    }
    outcomes
}

/// A call on its connection, and the output of its last command.
struct Running<'a> {
    connection: &'static str,
    call: &'a Value,
    output: CommandOutput,
    outcome: Outcome,
}

/// Sends each round of all calls before any of them is answered.
async fn perform(mcpdo: &Mcpdo, check: &Check) -> Vec<Outcome> {
    let mut calls = Vec::new();
    for (connection, call) in CONNECTIONS.into_iter().zip(&check.calls) {
        if let Some(roots) = call["person"]["roots"].as_array() {
            let root = |name: &Value| json!({ "uri": format!("file:///{}", name.as_str().expect("a name")), "name": name });
            let roots: Value = roots.iter().map(root).collect();
            let set = ["roots/set", "--roots-json", &roots.to_string()];
            mcpdo.run_on(connection, &set).await;
        }
        let command = first_command(call);
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        calls.push(Running {
            connection,
            call,
            output: mcpdo.run_on(connection, &command).await,
            outcome: Outcome::default(),
        });
    }
    for _ in 0..ROUNDS_MAX {
        let mut is_asked = false;
        for running in &mut calls {
            is_asked |= running.answer(mcpdo).await;
        }
        if !is_asked {
            break;
        }
    }
    calls.into_iter().map(Running::finish).collect()
}

impl Running<'_> {
    /// Answers an open question, if there is one.
    async fn answer(&mut self, mcpdo: &Mcpdo) -> bool {
        let ask = &self.output.out["elicitationPending"];
        let (Some(id), Some(message)) = (ask["elicitationId"].as_str(), ask["message"].as_str())
        else {
            return false;
        };
        let person = &self.call["person"];
        let action = person["action"].as_str().unwrap_or("accept");
        let answer = match (ask["url"].as_str(), action) {
            (Some(url), "accept") => {
                self.outcome.asked.push(format!("url: {message} {url}"));
                "--done".to_owned()
            }
            (_, "accept") => {
                self.outcome.asked.push(format!("form: {message}"));
                let mut content = person["fields"].clone();
                let fields = content.as_object_mut().expect("the script has the fields");
                fields.retain(|name, _| ask["requestedSchema"]["properties"].get(name).is_some());
                content.to_string()
            }
            (_, action) => {
                self.outcome.asked.push(format!("form: {message}"));
                format!("--{action}")
            }
        };
        let respond = ["elicitation/respond", id, &answer];
        self.output = mcpdo.run_on(self.connection, &respond).await;
        true
    }

    fn finish(mut self) -> Outcome {
        let out = self.output.out;
        if out.is_null() || out.get("elicitationPending").is_some() {
            self.outcome.error = Some(format!("{out} {}", self.output.error));
        }
        self.outcome.result = if self.call.get("complete").is_some() {
            json!({ "completion": out })
        } else {
            out
        };
        self.outcome
    }
}

fn first_command(call: &Value) -> Vec<String> {
    let text = |key: &str| call[key].as_str().map(str::to_owned);
    let command: Vec<String> = if let Some(argument) = call.get("complete") {
        let (kind, reference) = match text("prompt") {
            Some(name) => ("ref/prompt", name),
            None => ("ref/resource", text("template").expect("a template")),
        };
        let part = |name: &str| argument[name].as_str().expect("a text").to_owned();
        return vec![
            "prompts/complete".to_owned(),
            "--complete-ref-type".to_owned(),
            kind.to_owned(),
            "--complete-ref".to_owned(),
            reference,
            "--complete-arg-name".to_owned(),
            part("name"),
            "--complete-arg-value".to_owned(),
            part("value"),
        ];
    } else if let Some(tool) = text("tool") {
        let arguments = call["arguments"].to_string();
        ["tools/call", &tool, "--tool-args-json", &arguments]
            .map(str::to_owned)
            .into()
    } else if let Some(prompt) = text("prompt") {
        let mut command: Vec<String> = ["prompts/get", &prompt].map(str::to_owned).into();
        for (name, value) in call["arguments"].as_object().into_iter().flatten() {
            command.push("--prompt-args".to_owned());
            command.push(format!("{name}={}", value.as_str().expect("a text")));
        }
        command
    } else if let Some(uri) = text("resource") {
        vec!["resources/read".to_owned(), uri]
    } else {
        match call["list"].as_str() {
            Some("resource_templates") => vec!["resources/templates/list".to_owned()],
            list => vec![format!("{}/list", list.expect("a list"))],
        }
    };
    command
}
