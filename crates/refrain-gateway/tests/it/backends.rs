//! Rules for the tools of several backends, and backends that are down or change.

use crate::support::{Ledger, Running, asked, backend, backend_with, command, text, token};
use refrain::auth::BearerTokens;
use refrain::client::wire::{Filter, ToolAnnotations};
use refrain::client::{CallSpec, Client, IncomingAsk, ServerChange};
use refrain_gateway::{
    BackendTable, ConfigError, Gateway, GatewayConfig, GatewayError, SETTINGS, ToolTable,
    Unavailable,
};
use refrain_testkit::net::instance::start;
use refrain_testkit::net::until;
use refrain_testkit::net::wait::{success, within};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

async fn names(client: &Client) -> Vec<String> {
    let tools = success("the list", client.tools()).await;
    tools.iter().map(|tool| tool.name.clone()).collect()
}

fn two(ledger: &Ledger) -> GatewayConfig {
    let mut config = GatewayConfig::single("first", backend(ledger));
    config.backends.insert("second".to_owned(), backend(ledger));
    config
}

#[tokio::test]
async fn unknown_fields_pass_through() {
    let ledger = Ledger::new();
    let running = Running::start(&GatewayConfig::single("tested", backend(&ledger))).await;
    let client = running.client().await;
    let tools = success("the list", client.tools()).await;
    assert_eq!(tools[0].get("x-unknown"), Some(json!({"kept": true})));
    let call = CallSpec::tool("echo").argument("text", "hi");
    let result = success("the call", client.call(call)).await;
    assert_eq!(result["x-unknown"], true);
    assert!(result["_meta"]["example/pid"].is_u64(), "{result}");
    running.stop().await;
}

#[tokio::test]
async fn same_name_of_two_backends_is_an_error_at_start() {
    let ledger = Ledger::new();
    let gateway = Gateway::new(two(&ledger).check().expect("a valid configuration"));
    let error = gateway.connect(true).await.expect_err("a collision");
    assert!(
        matches!(error, GatewayError::Collision { kind: "tool", .. }),
        "{error}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn rules_decide_what_is_offered() {
    let ledger = Ledger::new();
    let mut config = two(&ledger);
    let rule = ToolTable {
        name: Some("say".to_owned()),
        title: Some("Say".to_owned()),
        description: Some("Says it.".to_owned()),
        annotations: Some(ToolAnnotations {
            read_only_hint: Some(true),
            ..ToolAnnotations::default()
        }),
        ..ToolTable::default()
    };
    let first = config.backends.get_mut("first").expect("the backend");
    first.allow = vec!["e*".to_owned()];
    first.deny = vec!["env*".to_owned(), "effect".to_owned()];
    first.tools.insert("echo".to_owned(), rule);
    let second = config.backends.get_mut("second").expect("the backend");
    second.prefix = "second_".to_owned();
    second.allow = vec!["ask".to_owned()];
    let running = Running::start(&config).await;
    let client = running.client().await;
    assert_eq!(names(&client).await, ["say", "second_ask"]);
    let tools = success("the list", client.tools()).await;
    assert_eq!(tools[0].title.as_deref(), Some("Say"));
    assert_eq!(tools[0].description.as_deref(), Some("Says it."));
    let annotations = tools[0].annotations.as_ref();
    assert_eq!(
        annotations.and_then(|hints| hints.read_only_hint),
        Some(true)
    );
    assert_eq!(text(&client, "say", json!({"text": "hi"})).await, "hi");
    let pending = asked(&client, "second_ask", json!({"subject": "tea"})).await;
    let asks = pending.unanswered();
    let IncomingAsk::Form(ask) = &asks[0] else {
        panic!("expected a form: {asks:?}");
    };
    assert_eq!(ask.message, "second: Who wants tea?");
    running.stop().await;
}

#[tokio::test]
async fn tool_with_scopes_is_only_for_callers_that_have_them() {
    let ledger = Ledger::new();
    let mut backend = backend(&ledger);
    let rule = ToolTable {
        scopes: vec!["talk".to_owned()],
        ..ToolTable::default()
    };
    backend.tools.insert("effect".to_owned(), rule);
    let config = GatewayConfig::single("tested", backend);
    let callers = BearerTokens::new()
        .with("alice", &token("alice"))
        .with_scopes("bob", &token("bob"), ["talk"]);
    let running = Running::start_with(&config, |builder| builder.authenticator(callers)).await;
    let (alice, bob) = (
        running.client_of("alice").await,
        running.client_of("bob").await,
    );
    let rejected = alice.call_tool("effect", json!({})).await;
    let why = rejected.expect_err("the scope is missing").to_string();
    assert!(why.contains("lacks a required scope"), "{why}");
    assert_eq!(ledger.count("effect"), 0);
    assert_eq!(text(&bob, "effect", json!({})).await, "done");
    running.stop().await;
}

#[tokio::test]
async fn backend_that_is_down_does_not_affect_others() {
    let ledger = Ledger::new();
    for unavailable in [Unavailable::List, Unavailable::Hide] {
        let mut config = GatewayConfig::single("up", backend(&ledger));
        config.gateway.unavailable = unavailable;
        let broken = BackendTable {
            command: command(&ledger, &["--broken"]),
            ..BackendTable::default()
        };
        config.backends.insert("broken".to_owned(), broken);
        let gateway = Gateway::new(config.check().expect("a valid configuration"));
        let error = gateway.connect(true).await.expect_err("a backend is down");
        assert!(
            error.to_string().contains("the backend is broken"),
            "{error}"
        );
        gateway.stop().await;
        let gateway = Gateway::new(config.check().expect("a valid configuration"));
        let builder = success("connecting", gateway.connect(false)).await;
        let instance = start(builder).await;
        gateway.start(&instance.server);
        let client = Client::builder().connect(&instance.url()).await;
        let client = client.expect("a client");
        assert_eq!(text(&client, "echo", json!({"text": "hi"})).await, "hi");
        gateway.stop().await;
    }
}

pub(crate) async fn repeat_until<T: PartialEq>(read: impl AsyncFn() -> T, expected: &T) {
    while read().await != *expected {
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn tools_of_a_lost_backend_are_marked_or_hidden() {
    for unavailable in [Unavailable::List, Unavailable::Hide] {
        let ledger = Ledger::new();
        let mut config = GatewayConfig::single("tested", backend(&ledger));
        config.gateway.unavailable = unavailable;
        let running = Running::start(&config).await;
        let client = Client::builder().connect(&running.instance.url()).await;
        let client = client.expect("a client");
        let description = async || {
            let tools = success("the list", client.tools()).await;
            let echo = tools.iter().find(|tool| tool.name == "echo");
            echo.map(|echo| echo.description.clone().unwrap_or_default())
        };
        let up = Some("The tool echo.".to_owned());
        assert_eq!(description().await, up);
        let broken = ledger.path().with_extension("broken");
        std::fs::write(&broken, "").expect("the file");
        let down = match unavailable {
            Unavailable::List => Some("(unavailable) The tool echo.".to_owned()),
            Unavailable::Hide => None,
        };
        within("the backend to be down", repeat_until(&description, &down)).await;
        std::fs::remove_file(&broken).expect("the file");
        within("the backend to be up", repeat_until(&description, &up)).await;
        assert_eq!(text(&client, "echo", json!({"text": "hi"})).await, "hi");
        running.stop().await;
    }
}

#[tokio::test]
async fn failing_list_and_invalid_entry_do_not_affect_others() {
    let ledger = Ledger::new();
    let backend = backend_with(&ledger, &["--odd-lists"]);
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    assert!(names(&client).await.contains(&"echo".to_owned()));
    let resources = success("the resources", client.resources()).await;
    let uris: Vec<&str> = resources.iter().map(|it| it.uri.as_str()).collect();
    assert_eq!(uris, ["test://note"]);
    running.stop().await;
}

#[tokio::test]
async fn denied_resource_of_a_template_is_not_found() {
    let ledger = Ledger::new();
    let backend = BackendTable {
        deny: vec!["test://files/secret*".to_owned()],
        ..backend(&ledger)
    };
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    let client = running.client().await;
    let read = success(
        "the resource",
        client.call(CallSpec::resource("test://files/a")),
    )
    .await;
    assert_eq!(read["contents"][0]["text"], "contents of test://files/a");
    let denied = client
        .call(CallSpec::resource("test://files/secret/a"))
        .await;
    let denied = denied.expect_err("a denied resource");
    assert!(
        denied.to_string().contains("resource not found"),
        "{denied}"
    );
    running.stop().await;
}

#[tokio::test]
async fn new_tool_of_a_backend_is_offered() {
    let ledger = Ledger::new();
    let running = Running::start(&GatewayConfig::single("tested", backend(&ledger))).await;
    let client = running.client().await;
    assert!(!names(&client).await.contains(&"extra".to_owned()));
    let filter = Filter {
        tools: true,
        ..Filter::default()
    };
    let mut changes = success("the subscription", client.listen(&filter)).await;
    std::fs::write(ledger.path().with_extension("extra"), "").expect("the file");
    let change = success("the change", changes.next()).await;
    assert_eq!(change, Some(ServerChange::Tools));
    assert!(names(&client).await.contains(&"extra".to_owned()));
    running.stop().await;
}

#[tokio::test]
async fn update_of_a_resource_reaches_its_subscribers() {
    let ledger = Ledger::new();
    let running = Running::start(&GatewayConfig::single("tested", backend(&ledger))).await;
    let client = running.client().await;
    let filter = Filter {
        uris: vec!["test://note".to_owned()],
        ..Filter::default()
    };
    let mut changes = success("the subscription", client.listen(&filter)).await;
    let change = success("the update", changes.next()).await;
    assert_eq!(
        change,
        Some(ServerChange::Resource("test://note".to_owned()))
    );
    running.stop().await;
}

#[test]
fn invalid_settings_are_reported_together() {
    let mut config = GatewayConfig::single("bad name", BackendTable::default());
    let both = BackendTable {
        command: vec!["program".to_owned()],
        url: Some("http://127.0.0.1/mcp".parse().expect("a URL")),
        connections: 0,
        ..BackendTable::default()
    };
    config.backends.insert("both".to_owned(), both);
    let Err(errors) = config.check() else {
        panic!("the configuration is invalid");
    };
    let has = |wanted: fn(&ConfigError) -> bool| errors.iter().any(wanted);
    assert!(has(|error| matches!(error, ConfigError::BackendName(_))));
    assert!(has(
        |error| matches!(error, ConfigError::TwoTransports(name) if name == "both")
    ));
    assert!(has(
        |error| matches!(error, ConfigError::Value { setting, .. } if setting == "connections")
    ));
    assert_eq!(errors.len(), 4, "{errors:?}");
}

#[test]
fn printed_settings_are_the_defaults() {
    let printed: GatewayConfig = toml::from_str(SETTINGS).expect("valid TOML");
    assert_eq!(printed, GatewayConfig::default());
}

#[tokio::test]
async fn frequent_changes_of_lists_are_read_together() {
    let ledger = Ledger::new();
    let backend = backend_with(&ledger, &["--restless"]);
    let running = Running::start(&GatewayConfig::single("tested", backend)).await;
    until("the changes", || ledger.count("announced") >= 400).await;
    let (announced, listed) = (ledger.count("announced"), ledger.count("listed"));
    assert!(listed * 10 < announced, "{listed} of {announced}");
    running.stop().await;
}
