//! Schemas of arguments: their dialects, and references that would lead out of the process.

use crate::support::{Request, result, start, within};
use refrain_core::{Cx, Result};
use refrain_server::{BuildError, Server, Tool};
use serde_json::{Value, json};
use tokio::net::TcpListener;

async fn fits(_: Cx) -> Result<&'static str> {
    Ok("it fits")
}

fn tool(schema: &Value) -> Tool {
    Tool::new("t", fits).input_schema(schema.clone())
}

/// Whether a tool with this schema takes these arguments.
async fn takes(schema: &Value, arguments: &Value) -> bool {
    let instance = start(Server::builder("schemas", "1").tool(tool(schema))).await;
    let reply = instance.send(&Request::tool("t", arguments.clone())).await;
    result(&reply.reply())["isError"] == false
}

fn refusal(schema: &Value) -> String {
    let built = Server::builder("schemas", "1").tool(tool(schema)).build();
    match built {
        Err(BuildError::Schema {
            tool,
            which: "input",
            reason,
        }) if tool == "t" => reason,
        other => panic!("{schema}: {other:?}"),
    }
}

#[tokio::test]
async fn a_schema_that_does_not_say_is_one_of_2020_12() {
    let schema = json!({
        "type": "object",
        "properties": {"pair": {"type": "array", "prefixItems": [{"type": "string"}, {"$ref": "#/$defs/age"}]}},
        "dependentRequired": {"card": ["address"]},
        "allOf": [{"properties": {"card": true, "address": true}}],
        "unevaluatedProperties": false,
        "$defs": {"age": {"type": "integer", "minimum": 0}}
    });
    for (arguments, fits) in [
        (json!({}), true),
        (json!({"pair": ["a", 1]}), true),
        (json!({"pair": ["a", -1]}), false),
        (json!({"pair": [1, 1]}), false),
        (json!({"card": "x", "address": "y"}), true),
        (json!({"card": "x"}), false),
        (json!({"other": 1}), false),
    ] {
        assert_eq!(takes(&schema, &arguments).await, fits, "{arguments}");
    }
}

#[tokio::test]
async fn a_schema_is_read_in_the_dialect_it_names() {
    let older = "http://json-schema.org/draft-07/schema#";
    let newer = "https://json-schema.org/draft/2020-12/schema";
    // What stands beside a reference counts since 2019; a list of items was a tuple before 2020.
    let short = json!({"$ref": "#/definitions/text", "maxLength": 1});
    let tuple = json!({"type": "array", "items": [{"type": "string"}]});
    let in_dialect = |dialect: &str, member: &Value| {
        json!({"$schema": dialect, "type": "object", "properties": {"a": member},
            "definitions": {"text": {"type": "string"}}})
    };
    assert!(takes(&in_dialect(older, &short), &json!({"a": "long"})).await);
    assert!(!takes(&in_dialect(older, &short), &json!({"a": 7})).await);
    assert!(!takes(&in_dialect(newer, &short), &json!({"a": "long"})).await);
    assert!(takes(&in_dialect(older, &tuple), &json!({"a": ["x", 7]})).await);
    assert!(!takes(&in_dialect(older, &tuple), &json!({"a": [7]})).await);
    refusal(&in_dialect(newer, &tuple));
    for dialect in [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "https://json-schema.org/draft/2019-09/schema",
    ] {
        assert!(takes(&in_dialect(dialect, &short), &json!({"a": "x"})).await);
        assert!(!takes(&in_dialect(dialect, &short), &json!({"a": 7})).await);
    }
}

#[test]
fn a_dialect_that_is_not_known_is_refused_by_name() {
    let unknown = "https://example.com/my-schema";
    let reason = refusal(&json!({"$schema": unknown, "type": "object"}));
    assert!(reason.contains(unknown), "{reason}");
}

#[tokio::test]
async fn a_reference_into_the_network_is_refused_and_not_followed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    for uri in [
        format!("http://{address}/schema.json"),
        format!("https://{address}/schema.json"),
        "file:///etc/hostname".to_owned(),
    ] {
        let reason = refusal(&json!({"type": "object", "properties": {"a": {"$ref": uri}}}));
        assert!(reason.contains(&uri), "{reason}");
    }
    // The first to connect is this test.
    let (ours, accepted) = tokio::join!(
        tokio::net::TcpStream::connect(address),
        within("a connection", listener.accept())
    );
    let ours = ours
        .expect("a connection")
        .local_addr()
        .expect("an address");
    assert_eq!(accepted.expect("a connection").1, ours);
}
