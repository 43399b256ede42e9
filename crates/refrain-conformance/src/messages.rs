//! Validates recorded server messages against the JSON schema of the protocol.

use jsonschema::Validator;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

/// The maximum number of invalid messages in the report.
const MAX_SHOWN: usize = 20;

/// The suffix of message kinds without a schema.
const UNCHECKED: &str = " (not checked)";

/// The last legacy revision.
const LEGACY: &str = "2025-11-25";

/// The recorded messages and the schemas.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckOptions {
    /// The directory that `REFRAIN_RECORD` named during the tests.
    directory: PathBuf,
    /// The protocol's JSON schema.
    schema: PathBuf,
    /// The JSON schema of the tasks extension. Without it, task messages are only counted.
    tasks: Option<PathBuf>,
    /// The JSON schema of 2025-11-25. Without it, messages of that revision are only counted. Messages of earlier
    /// revisions are always only counted.
    #[arg(long, value_name = "FILE")]
    legacy: Option<PathBuf>,
}

/// A recorded message with the method of its request.
#[derive(Deserialize)]
struct RecordedMessage {
    method: String,
    message: Value,
}

/// A failed check.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("no messages were recorded; run the tests with REFRAIN_RECORD set to this directory")]
    NoMessage,
    #[error("{count} messages do not match the schema:\n{shown}")]
    Invalid { count: usize, shown: String },
}

/// An invalid message.
#[derive(Debug, PartialEq, thiserror::Error)]
enum InvalidMessage {
    #[error("servers do not send requests in this revision")]
    Request,
    #[error("servers do not send {0}")]
    Method(String),
    #[error("unknown method {0:?}")]
    NoResult(String),
    #[error("invalid resultType for this method")]
    ResultType,
    #[error("the result of a task must not have a resultType")]
    TaskResultType,
    #[error("{0} does not exist in this revision")]
    NewMember(&'static str),
    #[error("invalid {definition}: {reason}")]
    Schema { definition: String, reason: String },
}

/// Checks all messages. Returns a report with the number of messages of each kind.
pub(crate) fn check(options: &CheckOptions) -> Result<String, CheckError> {
    let read_schema = |path: &PathBuf| {
        let text = with_path(path, std::fs::read_to_string(path))?;
        with_path(path, serde_json::from_str(&text)).map(Schema::new)
    };
    let mut checker = SchemaChecker {
        protocol: read_schema(&options.schema)?,
        tasks: options.tasks.as_ref().map(read_schema).transpose()?,
        legacy: options.legacy.as_ref().map(read_schema).transpose()?,
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut invalid = Vec::new();
    for sent in read_recorded(&options.directory)? {
        match checker.check(&sent) {
            Ok(kind) => *counts.entry(kind).or_default() += 1,
            Err(reason) => {
                invalid.push(format!("for {}: {reason}\n  {}", sent.method, sent.message));
            }
        }
    }
    if !invalid.is_empty() {
        let count = invalid.len();
        invalid.sort();
        invalid.dedup();
        invalid.truncate(MAX_SHOWN);
        let shown = invalid.join("\n");
        return Err(CheckError::Invalid { count, shown });
    }
    if counts.is_empty() {
        return Err(CheckError::NoMessage);
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
        0 => write!(report, "{total:>7}  messages, all valid"),
        _ => write!(
            report,
            "{total:>7}  messages, {unchecked} not checked for lack of a schema; all others valid"
        ),
    };
    Ok(report)
}

/// Adds the path to an error.
fn with_path<T>(path: &Path, result: Result<T, impl Into<io::Error>>) -> Result<T, CheckError> {
    result.map_err(|error| CheckError::File {
        path: path.to_owned(),
        source: error.into(),
    })
}

fn read_recorded(directory: &Path) -> Result<Vec<RecordedMessage>, CheckError> {
    let mut all = Vec::new();
    for file in with_path(directory, std::fs::read_dir(directory))? {
        let path = with_path(directory, file)?.path();
        let text = with_path(&path, std::fs::read_to_string(&path))?;
        // A process that was killed may have left an incomplete line.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in complete.lines() {
            all.push(with_path(&path, serde_json::from_str(line))?);
        }
    }
    Ok(all)
}

/// The schemas of the protocol, the tasks extension and the last legacy revision.
struct SchemaChecker {
    protocol: Schema,
    tasks: Option<Schema>,
    legacy: Option<Schema>,
}

impl SchemaChecker {
    /// Checks a message and returns its kind.
    fn check(&mut self, sent: &RecordedMessage) -> Result<String, InvalidMessage> {
        // For legacy clients, the recorder writes the revision before the method.
        match (sent.method.split_once(' '), &mut self.legacy) {
            (None, _) => self.check_current(&sent.method, &sent.message),
            (Some((LEGACY, method)), Some(schema)) => {
                let kind = check_legacy(schema, method, &sent.message)?;
                Ok(format!("{LEGACY} {kind}"))
            }
            (Some((revision, _)), _) => Ok(format!("{revision}{UNCHECKED}")),
        }
    }

    fn check_current(&mut self, method: &str, message: &Value) -> Result<String, InvalidMessage> {
        if message["method"] == "notifications/tasks" && message.get("id").is_none() {
            return self.check_task("notifications/tasks", "TaskStatusNotification", message);
        }
        if message.get("method").is_some() && message.get("id").is_some() {
            return Err(InvalidMessage::Request);
        }
        if let Some(kind) = self.protocol.check_envelope(message)? {
            let special = match message["error"]["code"].as_i64() {
                Some(-32020) => Some("HeaderMismatchError"),
                Some(-32021) => Some("MissingRequiredClientCapabilityError"),
                Some(-32022) => Some("UnsupportedProtocolVersionError"),
                _ => None,
            };
            if let Some(definition) = special {
                self.protocol.check(definition, message)?;
            }
            return Ok(kind);
        }
        let result = &message["result"];
        let result_type = result["resultType"].as_str();
        let task_definition = match (method, result_type) {
            ("tools/call", Some("task")) => Some("CreateTaskResult"),
            ("tasks/get", Some("complete")) => Some("GetTaskResult"),
            ("tasks/update", Some("complete")) => Some("UpdateTaskResult"),
            ("tasks/cancel", Some("complete")) => Some("CancelTaskResult"),
            _ => None,
        };
        if let Some(definition) = task_definition {
            return self.check_task(&format!("{method}: {definition}"), definition, result);
        }
        // The skills extension has no schema of messages. Its results are complete results of the protocol.
        if matches!(method, "skills/list" | "skills/get") && result_type == Some("complete") {
            self.protocol.check("Result", result)?;
            return Ok(format!("{method}{UNCHECKED}"));
        }
        let definition = match method {
            "server/discover" => "DiscoverResult",
            "subscriptions/listen" => "SubscriptionsListenResult",
            _ => result_of(method)?,
        };
        let can_ask = ["tools/call", "prompts/get", "resources/read"].contains(&method);
        let definition = match result_type {
            Some("complete") => definition,
            Some("input_required") if can_ask => "InputRequiredResult",
            _ => return Err(InvalidMessage::ResultType),
        };
        self.protocol.check(definition, result)?;
        Ok(format!("{method}: {definition}"))
    }

    /// Checks a task message and returns its kind.
    fn check_task(
        &mut self,
        kind: &str,
        definition: &str,
        value: &Value,
    ) -> Result<String, InvalidMessage> {
        let Some(schema) = &mut self.tasks else {
            return Ok(format!("{kind}{UNCHECKED}"));
        };
        schema.check(definition, value)?;
        // The schema leaves the result of a finished task open. It must be the result of the call without `resultType`.
        let task = value.get("params").unwrap_or(value);
        if let Some(Value::Object(result)) = task.get("result") {
            let mut result = result.clone();
            let replaced = result.insert("resultType".into(), json!("complete"));
            if replaced.is_some() {
                return Err(InvalidMessage::TaskResultType);
            }
            self.protocol.check("CallToolResult", &result.into())?;
        }
        Ok(kind.to_owned())
    }
}

fn check_legacy(
    schema: &mut Schema,
    method: &str,
    message: &Value,
) -> Result<String, InvalidMessage> {
    if let Some(kind) = schema.check_envelope(message)? {
        return Ok(kind);
    }
    let definition = match method {
        "initialize" => "InitializeResult",
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
            "EmptyResult"
        }
        _ => result_of(method)?,
    };
    let result = &message["result"];
    for new_member in ["resultType", "ttlMs", "cacheScope"] {
        if result.get(new_member).is_some() {
            return Err(InvalidMessage::NewMember(new_member));
        }
    }
    schema.check(definition, result)?;
    Ok(format!("{method}: {definition}"))
}

/// The result definition of a method that both revisions have.
fn result_of(method: &str) -> Result<&'static str, InvalidMessage> {
    Ok(match method {
        "tools/call" => "CallToolResult",
        "prompts/get" => "GetPromptResult",
        "resources/read" => "ReadResourceResult",
        "tools/list" => "ListToolsResult",
        "prompts/list" => "ListPromptsResult",
        "resources/list" => "ListResourcesResult",
        "resources/templates/list" => "ListResourceTemplatesResult",
        "completion/complete" => "CompleteResult",
        other => return Err(InvalidMessage::NoResult(other.to_owned())),
    })
}

/// A schema with cached validators of its definitions.
struct Schema {
    schema: Value,
    validators: BTreeMap<String, Validator>,
}

impl Schema {
    fn new(schema: Value) -> Self {
        Self {
            schema,
            validators: BTreeMap::new(),
        }
    }

    /// Checks a notification, request or error and returns its kind. `None` for a result.
    fn check_envelope(&mut self, message: &Value) -> Result<Option<String>, InvalidMessage> {
        if let Some(method) = message["method"].as_str() {
            let list = match message.get("id") {
                Some(_) => "ServerRequest",
                None => "ServerNotification",
            };
            let definition = self.definition_of(list, method);
            let definition = definition.ok_or_else(|| InvalidMessage::Method(method.to_owned()))?;
            self.check(&definition, message)?;
            return Ok(Some(method.to_owned()));
        }
        if let Some(code) = message["error"]["code"].as_i64() {
            self.check("JSONRPCErrorResponse", message)?;
            return Ok(Some(format!("error {code}")));
        }
        self.check("JSONRPCResultResponse", message)?;
        Ok(None)
    }

    /// The definition of a method in a list of alternatives.
    fn definition_of(&self, list: &str, method: &str) -> Option<String> {
        let all = self.schema["$defs"][list]["anyOf"].as_array()?;
        all.iter()
            .filter_map(|alternative| alternative["$ref"].as_str()?.strip_prefix("#/$defs/"))
            .find(|name| self.schema["$defs"][name]["properties"]["method"]["const"] == method)
            .map(str::to_owned)
    }

    fn check(&mut self, definition: &str, value: &Value) -> Result<(), InvalidMessage> {
        let invalid = |reason: String| InvalidMessage::Schema {
            definition: definition.to_owned(),
            reason,
        };
        if !self.validators.contains_key(definition) {
            let schema =
                json!({"$ref": format!("#/$defs/{definition}"), "$defs": self.schema["$defs"]});
            let validator = jsonschema::options()
                .should_validate_formats(true)
                .build(&schema)
                .map_err(|error| {
                    invalid(format!("the definition is not a valid schema: {error}"))
                })?;
            self.validators.insert(definition.to_owned(), validator);
        }
        let errors = self.validators[definition].iter_errors(value).take(3);
        let errors: Vec<String> = errors
            .map(|error| format!("{}: {error}", error.instance_path().as_str()))
            .collect();
        match errors.is_empty() {
            true => Ok(()),
            false => Err(invalid(errors.join("; "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checker(tasks: Option<Value>, legacy: Option<Value>) -> SchemaChecker {
        let protocol = json!({"$defs": {
            "ServerNotification": {"anyOf": [{"$ref": "#/$defs/Ping"}]},
            "Ping": {"properties": {"method": {"const": "notifications/ping"}}, "required": ["params"]},
            "JSONRPCErrorResponse": {"required": ["error", "jsonrpc"]},
            "JSONRPCResultResponse": {"required": ["id", "jsonrpc", "result"]},
            "CallToolResult": {"required": ["content"]},
            "InputRequiredResult": {"required": ["resultType"]},
        }});
        SchemaChecker {
            protocol: Schema::new(protocol),
            tasks: tasks.map(Schema::new),
            legacy: legacy.map(Schema::new),
        }
    }

    fn check(
        checker: &mut SchemaChecker,
        method: &str,
        message: &Value,
    ) -> Result<String, InvalidMessage> {
        let (method, message) = (method.to_owned(), message.clone());
        checker.check(&RecordedMessage { method, message })
    }

    #[track_caller]
    fn assert_invalid<const N: usize>(checker: &mut SchemaChecker, messages: [(&str, Value); N]) {
        for (method, message) in messages {
            assert!(check(checker, method, &message).is_err(), "{message}");
        }
    }

    fn response(result: Value) -> Value {
        let mut response = json!({"jsonrpc": "2.0", "id": 1});
        response["result"] = result;
        response
    }

    #[test]
    fn messages_are_checked_against_their_definition() {
        let mut checker = checker(None, None);
        let good = response(json!({"resultType": "complete", "content": []}));
        let asks = response(json!({"resultType": "input_required"}));
        let ping = json!({"method": "notifications/ping", "params": {}});
        for (method, message) in [("tools/call", &good), ("tools/call", &asks), ("", &ping)] {
            assert!(check(&mut checker, method, message).is_ok(), "{message}");
        }
        let without_id =
            json!({"jsonrpc": "2.0", "result": {"resultType": "complete", "content": []}});
        let ping_with_id = json!({"id": 1, "method": "notifications/ping", "params": {}});
        let invalid = [
            // An invalid result is not accepted as an incomplete one.
            ("tools/call", response(json!({"resultType": "complete"}))),
            ("tools/call", response(json!({"content": []}))),
            ("tools/list", asks),
            ("no/method", good),
            ("tools/call", without_id),
            ("", json!({"method": "notifications/ping"})),
            ("", json!({"method": "notifications/other", "params": {}})),
            ("", ping_with_id),
            ("", json!({"error": {"code": -1}})),
        ];
        assert_invalid(&mut checker, invalid);
    }

    #[test]
    fn task_messages_are_checked_against_the_extension() {
        let tasks = json!({"$defs": {
            "TaskStatusNotification": {"required": ["params"]},
            "CreateTaskResult": {"required": ["taskId"]},
            "GetTaskResult": {"required": ["taskId"]},
            "UpdateTaskResult": {"required": ["resultType"]},
            "CancelTaskResult": {"required": ["resultType"]},
        }});
        let (mut checker, mut without_tasks) = (checker(Some(tasks), None), checker(None, None));
        let created = response(json!({"resultType": "task", "taskId": "a"}));
        let got = |result: Value| {
            response(json!({"resultType": "complete", "taskId": "a", "result": result}))
        };
        let ack = response(json!({"resultType": "complete"}));
        let notification =
            |result: Value| json!({"method": "notifications/tasks", "params": {"result": result}});
        for (method, message) in [
            ("tools/call", created.clone()),
            ("tasks/get", got(json!({"content": []}))),
            ("tasks/update", ack.clone()),
            ("tasks/cancel", ack.clone()),
            ("subscriptions/listen", notification(json!({"content": []}))),
        ] {
            let kind = check(&mut checker, method, &message).expect("a valid message");
            let unchecked = check(&mut without_tasks, method, &message);
            assert_eq!(unchecked, Ok(format!("{kind}{UNCHECKED}")));
        }
        let two_types = json!({"resultType": "complete", "content": []});
        let invalid = [
            // Only a tool call may become a task.
            ("prompts/get", created.clone()),
            ("tasks/get", created),
            ("tools/call", response(json!({"resultType": "task"}))),
            ("tasks/get", ack.clone()),
            ("tasks/get", got(json!({}))),
            ("tasks/get", got(two_types)),
            ("tasks/list", ack),
            ("subscriptions/listen", notification(json!({}))),
            (
                "subscriptions/listen",
                json!({"method": "notifications/tasks"}),
            ),
        ];
        assert_invalid(&mut checker, invalid);
    }

    #[test]
    fn legacy_messages_are_checked_against_their_revision() {
        let legacy = json!({"$defs": {
            "ServerRequest": {"anyOf": [{"$ref": "#/$defs/Ping"}]},
            "Ping": {"properties": {"method": {"const": "ping"}}, "required": ["jsonrpc"]},
            "JSONRPCResultResponse": {"required": ["id", "jsonrpc", "result"]},
            "CallToolResult": {"required": ["content"]},
        }});
        let mut checker = checker(None, Some(legacy));
        let good = response(json!({"content": []}));
        let kind = check(&mut checker, "2025-11-25 tools/call", &good);
        assert_eq!(kind.as_deref(), Ok("2025-11-25 tools/call: CallToolResult"));
        let unchecked = check(&mut checker, "2025-03-26 tools/call", &good);
        assert!(unchecked.is_ok_and(|kind| kind.ends_with(UNCHECKED)));
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        assert!(check(&mut checker, "2025-11-25 tools/call", &ping).is_ok());
        let new_member = response(json!({"content": [], "ttlMs": 1}));
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get"});
        let invalid = [
            ("2025-11-25 tools/call", response(json!({}))),
            ("2025-11-25 tools/call", new_member),
            ("2025-11-25 tasks/get", good),
            ("2025-11-25 ", request),
        ];
        assert_invalid(&mut checker, invalid);
    }
}
