//! Checks every message that servers sent during a test run against the protocol's own schema.

use jsonschema::Validator;
use refrain::serde_json::{self, Value, json};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Faults that are shown; the others are counted.
const SHOWN: usize = 20;

/// Where the messages and the schema are.
#[derive(Debug, clap::Args)]
pub(crate) struct Messages {
    /// The directory that `REFRAIN_RECORD` named while the tests ran.
    directory: PathBuf,
    /// The protocol's JSON schema.
    schema: PathBuf,
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
    let schema = read(&options.schema)?;
    let schema: Value =
        serde_json::from_str(&schema).map_err(|error| unusable(&options.schema, &error))?;
    let mut checker = Checker::new(schema);
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
    let _ = write!(report, "{total:>7}  messages, all of which fit the schema");
    Ok(report)
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Fault {
    Fault::Unusable(format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, Fault> {
    std::fs::read_to_string(path).map_err(|error| unusable(path, &error))
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

/// The definitions of the schema, each made ready when it is first needed.
struct Checker {
    schema: Value,
    ready: BTreeMap<String, Validator>,
}

impl Checker {
    fn new(schema: Value) -> Self {
        Self {
            schema,
            ready: BTreeMap::new(),
        }
    }

    /// Is a message what the schema says it must be? Gives its kind.
    fn check(&mut self, sent: &Sent) -> Result<String, String> {
        let message = &sent.message;
        if let Some(method) = message["method"].as_str() {
            if message.get("id").is_some() {
                return Err("a request; servers send none".into());
            }
            let definition = self
                .notification(method)
                .ok_or_else(|| format!("{method} is no notification of a server's"))?;
            self.fits(&definition, message)?;
            return Ok(method.to_owned());
        }
        if let Some(code) = message["error"]["code"].as_i64() {
            self.fits("JSONRPCErrorResponse", message)?;
            let special = match code {
                -32020 => Some("HeaderMismatchError"),
                -32021 => Some("MissingRequiredClientCapabilityError"),
                -32022 => Some("UnsupportedProtocolVersionError"),
                _ => None,
            };
            if let Some(definition) = special {
                self.fits(definition, message)?;
            }
            return Ok(format!("error {code}"));
        }
        self.fits("JSONRPCResultResponse", message)?;
        let result = &message["result"];
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
        self.fits(definition, result)?;
        Ok(format!("{}: {definition}", sent.method))
    }

    /// The definition of the notification with this method.
    fn notification(&self, method: &str) -> Option<String> {
        let all = self.schema["$defs"]["ServerNotification"]["anyOf"].as_array()?;
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
        Checker::new(json!({"$defs": {
            "ServerNotification": {"anyOf": [{"$ref": "#/$defs/Ping"}]},
            "Ping": {"properties": {"method": {"const": "notifications/ping"}}, "required": ["params"]},
            "JSONRPCErrorResponse": {"required": ["error", "jsonrpc"]},
            "JSONRPCResultResponse": {"required": ["id", "jsonrpc", "result"]},
            "CallToolResult": {"required": ["content"]},
            "InputRequiredResult": {"required": ["resultType"]},
        }}))
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
}
