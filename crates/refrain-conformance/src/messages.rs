//! Checks every message that servers sent during a test run against the protocol's own schema.

use jsonschema::Validator;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Faults that are shown; the others are counted.
const SHOWN: usize = 20;

/// What is said of the kind of a message that no schema was given for.
const UNCHECKED: &str = " (not checked)";

/// Where the messages and the schema are.
#[derive(Debug, clap::Args)]
pub(crate) struct Messages {
    /// The directory that `REFRAIN_RECORD` named while the tests ran.
    directory: PathBuf,
    /// The protocol's JSON schema.
    schema: PathBuf,
    /// The JSON schema of the extension for tasks. Without it, messages about tasks are not checked, and are counted.
    tasks: Option<PathBuf>,
    /// The JSON schema of 2025-11-25. Without it, messages to clients of that revision are not checked, and are counted,
    /// as those to clients of still earlier ones are.
    #[arg(long, value_name = "FILE")]
    older: Option<PathBuf>,
}

/// A message, and the method of the request it was sent for.
#[derive(Deserialize)]
struct Sent {
    method: String,
    message: Value,
}

/// Why the check did not pass, or could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Unusable(String),
    #[error("{count} of the messages do not fit the schema:\n{shown}")]
    Misfits { count: usize, shown: String },
}

/// Checks all messages, and says how many there were of each kind.
pub(crate) fn check(options: &Messages) -> Result<String, Fault> {
    let schema = read_schema(&options.schema)?;
    let tasks = options.tasks.as_deref().map(read_schema).transpose()?;
    let older = options.older.as_deref().map(read_schema).transpose()?;
    let mut checker = Checker::new(schema, tasks, older);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut misfits = Vec::new();
    for sent in sent(&options.directory)? {
        let kind = match checker.check(&sent) {
            Ok(kind) => kind,
            Err(reason) => {
                misfits.push(format!("for {}: {reason}\n  {}", sent.method, sent.message));
                continue;
            }
        };
        *counts.entry(kind).or_default() += 1;
    }
    if !misfits.is_empty() {
        let count = misfits.len();
        misfits.sort();
        misfits.dedup();
        misfits.truncate(SHOWN);
        return Err(Fault::Misfits {
            count,
            shown: misfits.join("\n"),
        });
    }
    if counts.is_empty() {
        let nothing = "no message was recorded: the check has shown nothing";
        return Err(Fault::Unusable(nothing.into()));
    }
    let mut report = String::new();
    for (kind, count) in &counts {
        // Writing to a string does not fail.
        let _ = writeln!(report, "{count:>7}  {kind}");
    }
    let total: usize = counts.values().sum();
    let unchecked = counts.iter().filter(|(kind, _)| kind.ends_with(UNCHECKED));
    let unchecked: usize = unchecked.map(|(_, count)| count).sum();
    let _ = match unchecked {
        0 => write!(report, "{total:>7}  messages, all of which fit the schema"),
        _ => write!(
            report,
            "{total:>7}  messages, {unchecked} of them not checked, as there is no schema for them; all others fit"
        ),
    };
    Ok(report)
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Fault {
    Fault::Unusable(format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, Fault> {
    std::fs::read_to_string(path).map_err(|error| unusable(path, &error))
}

fn read_schema(path: &Path) -> Result<Value, Fault> {
    serde_json::from_str(&read(path)?).map_err(|error| unusable(path, &error))
}

fn sent(directory: &Path) -> Result<Vec<Sent>, Fault> {
    let files = std::fs::read_dir(directory).map_err(|error| unusable(directory, &error))?;
    let mut all = Vec::new();
    for file in files {
        let path = file.map_err(|error| unusable(directory, &error))?.path();
        let text = read(&path)?;
        // A process that was killed may have left half a line.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            all.push(serde_json::from_str(line).map_err(|error| unusable(&path, &error))?);
        }
    }
    Ok(all)
}

/// The schemas: the protocol's, that of the extension for tasks, and that of the revision before, where there are any.
struct Checker {
    protocol: Schema,
    tasks: Option<Schema>,
    older: Option<Schema>,
}

/// The revision before.
const OLDER: &str = "2025-11-25";

impl Checker {
    fn new(protocol: Value, tasks: Option<Value>, older: Option<Value>) -> Self {
        Self {
            protocol: Schema::new(protocol),
            tasks: tasks.map(Schema::new),
            older: older.map(Schema::new),
        }
    }

    /// Is a message what the schema says it must be? Gives its kind.
    fn check(&mut self, sent: &Sent) -> Result<String, String> {
        let message = &sent.message;
        // A message to an older client has the revision before its method.
        if let Some((revision, method)) = sent.method.split_once(' ') {
            return self.check_older(revision, method, message);
        }
        if let Some(method) = message["method"].as_str() {
            if message.get("id").is_some() {
                return Err("a request; servers send none".into());
            }
            if method == "notifications/tasks" {
                return self.about_tasks(method, "TaskStatusNotification", message);
            }
            let definition = self
                .protocol
                .with_method("ServerNotification", method)
                .ok_or_else(|| format!("{method} is no notification of a server's"))?;
            self.protocol.fits(&definition, message)?;
            return Ok(method.to_owned());
        }
        if let Some(code) = message["error"]["code"].as_i64() {
            self.protocol.fits("JSONRPCErrorResponse", message)?;
            let special = match code {
                -32020 => Some("HeaderMismatchError"),
                -32021 => Some("MissingRequiredClientCapabilityError"),
                -32022 => Some("UnsupportedProtocolVersionError"),
                _ => None,
            };
            if let Some(definition) = special {
                self.protocol.fits(definition, message)?;
            }
            return Ok(format!("error {code}"));
        }
        self.protocol.fits("JSONRPCResultResponse", message)?;
        let result = &message["result"];
        let of_task = match (sent.method.as_str(), result["resultType"].as_str()) {
            ("tools/call", Some("task")) => Some("CreateTaskResult"),
            ("tasks/get", Some("complete")) => Some("GetTaskResult"),
            ("tasks/update", Some("complete")) => Some("UpdateTaskResult"),
            ("tasks/cancel", Some("complete")) => Some("CancelTaskResult"),
            _ => None,
        };
        if let Some(definition) = of_task {
            return self.about_tasks(
                &format!("{}: {definition}", sent.method),
                definition,
                result,
            );
        }
        let (definition, asks) = match sent.method.as_str() {
            "tools/call" => ("CallToolResult", true),
            "prompts/get" => ("GetPromptResult", true),
            "resources/read" => ("ReadResourceResult", true),
            "server/discover" => ("DiscoverResult", false),
            "tools/list" => ("ListToolsResult", false),
            "prompts/list" => ("ListPromptsResult", false),
            "resources/list" => ("ListResourcesResult", false),
            "resources/templates/list" => ("ListResourceTemplatesResult", false),
            "completion/complete" => ("CompleteResult", false),
            "subscriptions/listen" => ("SubscriptionsListenResult", false),
            other => return Err(format!("a result for {other:?}, which has none")),
        };
        let definition = match result["resultType"].as_str() {
            Some("complete") => definition,
            Some("input_required") if asks => "InputRequiredResult",
            _ => return Err("resultType is not one that this method may have".into()),
        };
        self.protocol.fits(definition, result)?;
        Ok(format!("{}: {definition}", sent.method))
    }

    /// Is a message to an older client what the schema of its revision says it must be? Gives its kind.
    fn check_older(
        &mut self,
        revision: &str,
        method: &str,
        message: &Value,
    ) -> Result<String, String> {
        let schema = self.older.as_mut().filter(|_| revision == OLDER);
        let Some(schema) = schema else {
            return Ok(format!("{revision}{UNCHECKED}"));
        };
        if let Some(sent) = message["method"].as_str() {
            let (list, what) = match message.get("id") {
                Some(_) => ("ServerRequest", "request"),
                None => ("ServerNotification", "notification"),
            };
            let definition = schema
                .with_method(list, sent)
                .ok_or_else(|| format!("{sent} is no {what} of a server's"))?;
            schema.fits(&definition, message)?;
            return Ok(format!("{revision} {sent}"));
        }
        if let Some(code) = message["error"]["code"].as_i64() {
            schema.fits("JSONRPCErrorResponse", message)?;
            return Ok(format!("{revision} error {code}"));
        }
        schema.fits("JSONRPCResultResponse", message)?;
        let definition = match method {
            "initialize" => "InitializeResult",
            "tools/call" => "CallToolResult",
            "prompts/get" => "GetPromptResult",
            "resources/read" => "ReadResourceResult",
            "tools/list" => "ListToolsResult",
            "prompts/list" => "ListPromptsResult",
            "resources/list" => "ListResourcesResult",
            "resources/templates/list" => "ListResourceTemplatesResult",
            "completion/complete" => "CompleteResult",
            "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
                "EmptyResult"
            }
            other => return Err(format!("a result for {other:?}, which has none")),
        };
        let result = &message["result"];
        for later in ["resultType", "ttlMs", "cacheScope"] {
            if result.get(later).is_some() {
                return Err(format!("{later} is not of this revision"));
            }
        }
        schema.fits(definition, result)?;
        Ok(format!("{revision} {method}: {definition}"))
    }

    /// Is something about a task what the extension's schema says it must be? Gives its kind.
    fn about_tasks(
        &mut self,
        kind: &str,
        definition: &str,
        value: &Value,
    ) -> Result<String, String> {
        let Some(schema) = &mut self.tasks else {
            return Ok(format!("{kind}{UNCHECKED}"));
        };
        schema.fits(definition, value)?;
        // The schema leaves open what a finished call is like: it is what the call itself would have had, without the
        // member that tells apart what a call may have.
        let task = value.get("params").unwrap_or(value);
        if let Some(Value::Object(result)) = task.get("result") {
            let mut result = result.clone();
            if result
                .insert("resultType".into(), json!("complete"))
                .is_some()
            {
                return Err("the result of a task has a resultType of its own".into());
            }
            self.protocol.fits("CallToolResult", &result.into())?;
        }
        Ok(kind.to_owned())
    }
}

/// The definitions of a schema, each made ready when it is first needed.
struct Schema {
    schema: Value,
    ready: BTreeMap<String, Validator>,
}

impl Schema {
    fn new(schema: Value) -> Self {
        Self {
            schema,
            ready: BTreeMap::new(),
        }
    }

    /// The definition in this list of the message with this method.
    fn with_method(&self, list: &str, method: &str) -> Option<String> {
        let all = self.schema["$defs"][list]["anyOf"].as_array()?;
        all.iter()
            .filter_map(|one| one["$ref"].as_str()?.strip_prefix("#/$defs/"))
            .find(|name| self.schema["$defs"][name]["properties"]["method"]["const"] == method)
            .map(str::to_owned)
    }

    fn fits(&mut self, definition: &str, value: &Value) -> Result<(), String> {
        if !self.ready.contains_key(definition) {
            let schema =
                json!({"$ref": format!("#/$defs/{definition}"), "$defs": self.schema["$defs"]});
            let validator = jsonschema::options()
                .should_validate_formats(true)
                .build(&schema)
                .map_err(|error| format!("the schema has no usable {definition}: {error}"))?;
            self.ready.insert(definition.to_owned(), validator);
        }
        let faults: Vec<String> = self.ready[definition]
            .iter_errors(value)
            .take(3)
            .map(|error| format!("{}: {error}", error.instance_path().as_str()))
            .collect();
        if faults.is_empty() {
            return Ok(());
        }
        Err(format!("no {definition}: {}", faults.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schema with the little that is needed here.
    fn checker() -> Checker {
        let protocol = json!({"$defs": {
            "ServerNotification": {"anyOf": [{"$ref": "#/$defs/Ping"}]},
            "Ping": {"properties": {"method": {"const": "notifications/ping"}}, "required": ["params"]},
            "JSONRPCErrorResponse": {"required": ["error", "jsonrpc"]},
            "JSONRPCResultResponse": {"required": ["id", "jsonrpc", "result"]},
            "CallToolResult": {"required": ["content"]},
            "InputRequiredResult": {"required": ["resultType"]},
        }});
        Checker::new(protocol, None, None)
    }

    /// The same with a schema for tasks.
    fn task_checker() -> Checker {
        let tasks = json!({"$defs": {
            "TaskStatusNotification": {"required": ["params"]},
            "CreateTaskResult": {"required": ["taskId"]},
            "GetTaskResult": {"required": ["taskId"]},
            "UpdateTaskResult": {"required": ["resultType"]},
            "CancelTaskResult": {"required": ["resultType"]},
        }});
        Checker {
            tasks: Some(Schema::new(tasks)),
            ..checker()
        }
    }

    fn sent(method: &str, message: Value) -> Sent {
        let method = method.to_owned();
        Sent { method, message }
    }

    #[test]
    fn messages_are_held_to_the_definition_of_their_kind() {
        let result = |result: Value| json!({"jsonrpc": "2.0", "id": 1, "result": result});
        let good = result(json!({"resultType": "complete", "content": []}));
        assert!(checker().check(&sent("tools/call", good.clone())).is_ok());
        let asks = result(json!({"resultType": "input_required"}));
        assert!(checker().check(&sent("tools/call", asks.clone())).is_ok());
        let ping = json!({"method": "notifications/ping", "params": {}});
        assert!(checker().check(&sent("", ping)).is_ok());
        for (method, bad) in [
            // A result without what its kind needs is not saved by being an interim one as well.
            ("tools/call", result(json!({"resultType": "complete"}))),
            ("tools/call", result(json!({"content": []}))),
            ("tools/list", asks),
            ("no/method", good),
            (
                "tools/call",
                json!({"jsonrpc": "2.0", "result": {"resultType": "complete", "content": []}}),
            ),
            ("", json!({"method": "notifications/ping"})),
            ("", json!({"method": "notifications/other", "params": {}})),
            (
                "",
                json!({"id": 1, "method": "notifications/ping", "params": {}}),
            ),
            ("", json!({"error": {"code": -1}})),
        ] {
            let shown = bad.to_string();
            assert!(checker().check(&sent(method, bad)).is_err(), "{shown}");
        }
    }

    #[test]
    fn messages_about_tasks_are_held_to_the_schema_of_the_extension() {
        let result = |result: Value| json!({"jsonrpc": "2.0", "id": 1, "result": result});
        let created = result(json!({"resultType": "task", "taskId": "a"}));
        let done = json!({"content": []});
        let got =
            |done: &Value| result(json!({"resultType": "complete", "taskId": "a", "result": done}));
        let ack = result(json!({"resultType": "complete"}));
        let news =
            |done: &Value| json!({"method": "notifications/tasks", "params": {"result": done}});
        for (method, good) in [
            ("tools/call", created.clone()),
            ("tasks/get", got(&done)),
            ("tasks/update", ack.clone()),
            ("tasks/cancel", ack.clone()),
            ("subscriptions/listen", news(&done)),
        ] {
            let shown = good.to_string();
            let sent = sent(method, good);
            let kind = task_checker().check(&sent).expect(&shown);
            assert_eq!(checker().check(&sent), Ok(format!("{kind}{UNCHECKED}")));
        }
        for (method, bad) in [
            // Only a call may become a task, and only a tool's.
            ("prompts/get", created.clone()),
            ("tasks/get", created),
            ("tools/call", result(json!({"resultType": "task"}))),
            ("tasks/get", ack.clone()),
            ("tasks/get", got(&json!({}))),
            (
                "tasks/get",
                got(&json!({"resultType": "complete", "content": []})),
            ),
            ("tasks/list", ack),
            ("subscriptions/listen", news(&json!({}))),
            (
                "subscriptions/listen",
                json!({"method": "notifications/tasks"}),
            ),
        ] {
            let shown = bad.to_string();
            assert!(task_checker().check(&sent(method, bad)).is_err(), "{shown}");
        }
    }

    #[test]
    fn messages_to_older_clients_are_held_to_the_schema_of_their_revision() {
        let older = json!({"$defs": {
            "ServerRequest": {"anyOf": [{"$ref": "#/$defs/Ping"}]},
            "Ping": {"properties": {"method": {"const": "ping"}}, "required": ["jsonrpc"]},
            "JSONRPCResultResponse": {"required": ["id", "jsonrpc", "result"]},
            "CallToolResult": {"required": ["content"]},
        }});
        let mut checker = Checker {
            older: Some(Schema::new(older)),
            ..checker()
        };
        let result = |result: Value| json!({"jsonrpc": "2.0", "id": 1, "result": result});
        let good = result(json!({"content": []}));
        let kind = checker.check(&sent("2025-11-25 tools/call", good.clone()));
        assert_eq!(kind.as_deref(), Ok("2025-11-25 tools/call: CallToolResult"));
        let unchecked = checker.check(&sent("2025-03-26 tools/call", good.clone()));
        assert!(unchecked.is_ok_and(|kind| kind.ends_with(UNCHECKED)));
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        assert!(checker.check(&sent("2025-11-25 tools/call", ping)).is_ok());
        for (method, bad) in [
            ("2025-11-25 tools/call", result(json!({}))),
            (
                "2025-11-25 tools/call",
                result(json!({"content": [], "ttlMs": 1})),
            ),
            ("2025-11-25 tasks/get", good),
            (
                "2025-11-25 ",
                json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get"}),
            ),
        ] {
            let shown = bad.to_string();
            assert!(checker.check(&sent(method, bad)).is_err(), "{shown}");
        }
    }
}
