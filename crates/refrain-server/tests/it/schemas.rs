//! Argument schemas: dialects and remote references.

use crate::support::{Request, result, start, within};
use refrain_core::{Cx, Result};
use refrain_server::{BuildError, Server, Tool};
use serde_json::{Value, json};
use tokio::net::TcpListener;

async fn accept(_: Cx) -> Result<&'static str> {
    Ok("accepted")
}

fn tool(schema: &Value) -> Tool {
    Tool::new("t", accept).input_schema(schema.clone())
}

/// Whether a tool with this schema accepts these arguments.
async fn accepts(schema: &Value, arguments: &Value) -> bool {
    let instance = start(Server::builder("schemas", "1").tool(tool(schema))).await;
    let reply = instance.send(&Request::tool("t", arguments.clone())).await;
    result(&reply.reply())["isError"] == false
}

fn rejection(schema: &Value) -> String {
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
async fn schema_without_dialect_is_2020_12() {
    let schema = json!({
        "type": "object",
        "properties": {"pair": {"type": "array", "prefixItems": [{"type": "string"}, {"$ref": "#/$defs/age"}]}},
        "dependentRequired": {"card": ["address"]},
        "allOf": [{"properties": {"card": true, "address": true}}],
        "unevaluatedProperties": false,
        "$defs": {"age": {"type": "integer", "minimum": 0}}
    });
    for (arguments, is_valid) in [
        (json!({}), true),
        (json!({"pair": ["a", 1]}), true),
        (json!({"pair": ["a", -1]}), false),
        (json!({"pair": [1, 1]}), false),
        (json!({"card": "x", "address": "y"}), true),
        (json!({"card": "x"}), false),
        (json!({"other": 1}), false),
    ] {
        assert_eq!(accepts(&schema, &arguments).await, is_valid, "{arguments}");
    }
}

#[tokio::test]
async fn schema_is_read_in_its_dialect() {
    let draft_07 = "http://json-schema.org/draft-07/schema#";
    let draft_2020 = "https://json-schema.org/draft/2020-12/schema";
    // Siblings of $ref count since 2019-09. A list of items was a tuple before 2020-12.
    let short = json!({"$ref": "#/definitions/text", "maxLength": 1});
    let tuple = json!({"type": "array", "items": [{"type": "string"}]});
    let in_dialect = |dialect: &str, member: &Value| {
        json!({"$schema": dialect, "type": "object", "properties": {"a": member},
            "definitions": {"text": {"type": "string"}}})
    };
    assert!(accepts(&in_dialect(draft_07, &short), &json!({"a": "long"})).await);
    assert!(!accepts(&in_dialect(draft_07, &short), &json!({"a": 7})).await);
    assert!(!accepts(&in_dialect(draft_2020, &short), &json!({"a": "long"})).await);
    assert!(accepts(&in_dialect(draft_07, &tuple), &json!({"a": ["x", 7]})).await);
    assert!(!accepts(&in_dialect(draft_07, &tuple), &json!({"a": [7]})).await);
    rejection(&in_dialect(draft_2020, &tuple));
    for dialect in [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "https://json-schema.org/draft/2019-09/schema",
    ] {
        assert!(accepts(&in_dialect(dialect, &short), &json!({"a": "x"})).await);
        assert!(!accepts(&in_dialect(dialect, &short), &json!({"a": 7})).await);
    }
}

#[test]
fn unknown_dialect_is_rejected_by_name() {
    let unknown = "https://example.com/my-schema";
    let reason = rejection(&json!({"$schema": unknown, "type": "object"}));
    assert!(reason.contains(unknown), "{reason}");
}

#[tokio::test]
async fn remote_reference_is_rejected_without_a_request() {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port exists");
    let address = listener.local_addr().expect("the listener is bound");
    for uri in [
        format!("http://{address}/schema.json"),
        format!("https://{address}/schema.json"),
        "file:///etc/hostname".to_owned(),
    ] {
        let reason = rejection(&json!({"type": "object", "properties": {"a": {"$ref": uri}}}));
        assert!(reason.contains(&uri), "{reason}");
    }
    // The first connection is from this test.
    let (ours, accepted) = tokio::join!(
        tokio::net::TcpStream::connect(address),
        within("the connection", listener.accept())
    );
    let ours = ours
        .expect("the connection is open")
        .local_addr()
        .expect("the listener is bound");
    assert_eq!(accepted.expect("the connection is open").1, ours);
}
