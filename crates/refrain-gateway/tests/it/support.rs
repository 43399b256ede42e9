//! A gateway in front of `tests/backend.py`, and clients of it.

use refrain::auth::BearerTokens;
use refrain::client::wire::AskKind;
use refrain::client::{AskAnswer, Bearer, CallSpec, Client, PendingCall, RoundOutcome};
use refrain::content::ToolResult;
use refrain::runtime::SystemSource;
use refrain::server::{KeyRing, ServerBuilder};
use refrain_gateway::{BackendTable, Gateway, GatewayConfig};
use refrain_testkit::net::instance::{Instance, start, start_advertised};
use refrain_testkit::net::wait::success;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// The file to which backends append a line for each run of a tool.
pub(crate) struct Ledger(TempDir);

impl Ledger {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("ledger")
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// How often the backends ran a tool that leaves this line.
    pub(crate) fn count(&self, line: &str) -> usize {
        let lines = self.lines();
        lines.iter().filter(|written| *written == line).count()
    }
}

/// The command of the backend with these flags.
pub(crate) fn command(ledger: &Ledger, flags: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/backend.py");
    let mut command = vec!["python3".to_owned(), script.display().to_string()];
    command.push(ledger.path().display().to_string());
    command.extend(flags.iter().map(ToString::to_string));
    command
}

pub(crate) fn backend(ledger: &Ledger) -> BackendTable {
    backend_with(ledger, &[])
}

/// The backend with these flags.
pub(crate) fn backend_with(ledger: &Ledger, flags: &[&str]) -> BackendTable {
    BackendTable {
        command: command(ledger, flags),
        ..BackendTable::default()
    }
}

/// A running gateway.
pub(crate) struct Running {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) instance: Instance,
}

impl Running {
    pub(crate) async fn start(config: &GatewayConfig) -> Self {
        Self::start_with(config, |builder| builder).await
    }

    /// Starts a gateway whose server is configured by `configure`.
    pub(crate) async fn start_with(
        config: &GatewayConfig,
        configure: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let gateway = Gateway::new(config.check().expect("a valid configuration"));
        let builder = success("connecting", gateway.connect(true)).await;
        let instance = start(configure(builder)).await;
        gateway.start(&instance.server);
        Self { gateway, instance }
    }

    /// Starts a gateway that shares keys with others and advertises its URL.
    pub(crate) async fn start_advertised(config: &GatewayConfig, keys: &KeyRing) -> Self {
        let gateway = Gateway::new(config.check().expect("a valid configuration"));
        let builder = success("connecting", gateway.connect(true)).await;
        let instance = start_advertised(builder.keys(keys.clone())).await;
        gateway.start(&instance.server);
        Self { gateway, instance }
    }

    pub(crate) async fn client(&self) -> Client {
        let builder = Client::builder().answer_manually(ALL);
        success("connecting a client", builder.connect(&self.instance.url())).await
    }

    /// A client that is authenticated as this principal.
    pub(crate) async fn client_of(&self, principal: &str) -> Client {
        let bearer = Bearer::new(&token(principal)).expect("a valid token");
        let builder = Client::builder().answer_manually(ALL).authorize(bearer);
        success("connecting a client", builder.connect(&self.instance.url())).await
    }

    /// The sum of all samples whose line starts with this text: the name of a metric, or a name with its first label.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.instance.server.metrics_text();
        let values = text.lines().filter(|line| line.starts_with(name));
        let values = values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        values.sum()
    }

    pub(crate) async fn stop(self) {
        self.gateway.stop().await;
    }
}

const ALL: [AskKind; 4] = [
    AskKind::Form,
    AskKind::Url,
    AskKind::Sampling,
    AskKind::Roots,
];

/// Authentication of these principals by bearer tokens.
pub(crate) fn authenticator(principals: &[&str]) -> BearerTokens {
    let none = BearerTokens::new();
    let all = principals.iter();
    all.fold(none, |tokens, name| tokens.with(name, &token(name)))
}

pub(crate) fn token(principal: &str) -> String {
    format!("{principal}-{}", "0123456789abcdef".repeat(2))
}

pub(crate) fn keys() -> KeyRing {
    KeyRing::generate(&SystemSource::new())
}

/// The text of a tool's result.
pub(crate) async fn text(client: &Client, tool: &str, arguments: Value) -> String {
    let result = success("the call", client.call_tool(tool, arguments)).await;
    text_of(&result)
}

pub(crate) fn text_of(result: &ToolResult) -> String {
    let result = serde_json::to_value(result).expect("JSON");
    let text = result["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {result}"))
        .to_owned()
}

/// The first round of a call that asks.
pub(crate) async fn asked(client: &Client, tool: &str, arguments: Value) -> PendingCall {
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    let call = CallSpec::tool(tool).with_arguments(arguments);
    match success("the first round", client.start(call)).await {
        RoundOutcome::Pending(pending) => pending,
        RoundOutcome::Complete(result) => panic!("the tool did not ask: {result}"),
    }
}

/// Answers the only ask with a name, and makes the next round.
pub(crate) async fn answer(client: &Client, mut pending: PendingCall, name: &str) -> RoundOutcome {
    let asks = pending.unanswered();
    let [ask] = &asks[..] else {
        panic!("expected one ask: {asks:?}");
    };
    let answer = AskAnswer::accept(json!({"name": name})).expect("an object");
    pending.answer(ask.key(), answer).expect("a fitting answer");
    success("the next round", client.resume(pending)).await
}

/// The text of a completed round.
pub(crate) fn completed(outcome: RoundOutcome) -> String {
    match outcome {
        RoundOutcome::Complete(result) => result["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text in {result}"))
            .to_owned(),
        RoundOutcome::Pending(pending) => panic!("the call still waits: {pending:?}"),
    }
}
