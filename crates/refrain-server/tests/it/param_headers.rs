//! Arguments that clients repeat in `Mcp-Param-*` headers.

use crate::support::{Request, assert_contains, handle, result, start, text};
use refrain_core::{Cx, Result};
use refrain_server::{BuildError, Server, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
struct Query {
    #[schemars(extend("x-mcp-header" = "Region"))]
    region: String,
    #[serde(default)]
    #[schemars(with = "i64", extend("x-mcp-header" = "Limit"))]
    limit: Option<i64>,
    #[serde(default)]
    #[schemars(extend("x-mcp-header" = "Dry-Run"))]
    dry: bool,
    #[serde(default)]
    site: Site,
}

#[derive(Default, Deserialize, JsonSchema)]
#[schemars(inline)]
struct Site {
    #[serde(default)]
    #[schemars(extend("x-mcp-header" = "Town"))]
    town: String,
}

async fn query(_: Cx, query: Query) -> Result<String> {
    let Query {
        region,
        limit,
        dry,
        site,
    } = query;
    Ok(format!("{region} {limit:?} {dry} {}", site.town))
}

fn call(arguments: Value) -> Request {
    Request::tool("query", arguments)
}

#[tokio::test]
async fn headers_equal_to_arguments_are_accepted() {
    let instance = start(Server::builder("h", "1").tool(Tool::new("query", query))).await;
    for request in [
        call(json!({"region": "us-west1"})).header("Mcp-Param-Region", "us-west1"),
        call(json!({"region": "us-west1"})).header("mcp-param-REGION", "us-west1"),
        call(json!({"region": "Hello, 世界"}))
            .header("Mcp-Param-Region", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        call(json!({"region": " padded "})).header("Mcp-Param-Region", "=?base64?IHBhZGRlZCA=?="),
        call(json!({"region": "a\nb"})).header("Mcp-Param-Region", "=?base64?YQpi?="),
        call(json!({"region": "=?base64?literal?="}))
            .header("Mcp-Param-Region", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        call(json!({"region": "", "limit": 42}))
            .header("Mcp-Param-Region", "")
            .header("Mcp-Param-Limit", "42.0"),
        call(json!({"region": "r", "limit": -7, "dry": true, "site": {"town": "Ulm"}}))
            .header("Mcp-Param-Region", "r")
            .header("Mcp-Param-Limit", "-7")
            .header("Mcp-Param-Dry-Run", "true")
            .header("Mcp-Param-Town", "Ulm"),
        // Headers of undeclared names are ignored.
        call(json!({"region": "r"}))
            .header("Mcp-Param-Region", "r")
            .header("Mcp-Param-Else", "=?base64?!?="),
    ] {
        let reply = instance.send(&request).await.reply();
        assert_eq!(result(&reply)["isError"], false, "{reply}");
    }
    let reply = instance
        .send(
            &call(json!({"region": "r", "limit": 7}))
                .header("Mcp-Param-Region", "r")
                .header("Mcp-Param-Limit", "7"),
        )
        .await
        .reply();
    assert_eq!(text(&reply), "r Some(7) false ");
}

#[tokio::test]
async fn headers_that_differ_from_arguments_are_rejected() {
    let instance = start(Server::builder("h", "1").tool(Tool::new("query", query))).await;
    let good = || {
        call(json!({"region": "r", "limit": 1}))
            .header("Mcp-Param-Region", "r")
            .header("Mcp-Param-Limit", "1")
    };
    for (request, expected) in [
        (good().without_header("Mcp-Param-Region"), "missing"),
        (good().header("Mcp-Param-Region", "s"), "\"s\""),
        (good().header("Mcp-Param-Region", "R"), "\"R\""),
        (
            good().second_header("Mcp-Param-Region", "r"),
            "more than once",
        ),
        (good().header("Mcp-Param-Region", "=?base64?cg?="), "base64"),
        (
            good().header("Mcp-Param-Region", "=?base64?c!==?="),
            "base64",
        ),
        (
            good().header("Mcp-Param-Region", "=?BASE64?cg==?="),
            "BASE64",
        ),
        (good().header("Mcp-Param-Region", "ré"), "ASCII"),
        (good().header("Mcp-Param-Limit", "2"), "\"2\""),
        (good().header("Mcp-Param-Limit", "one"), "one"),
        (
            good().header("Mcp-Param-Dry-Run", "false"),
            "the argument is missing",
        ),
        (
            call(json!({"region": "r", "dry": true}))
                .header("Mcp-Param-Region", "r")
                .header("Mcp-Param-Dry-Run", "True"),
            "True",
        ),
        (
            call(json!({"region": "r", "limit": 9_007_199_254_740_993_i64}))
                .header("Mcp-Param-Region", "r")
                .header("Mcp-Param-Limit", "9007199254740993"),
            "2^53",
        ),
        (
            call(json!({"region": "r", "limit": i64::MIN}))
                .header("Mcp-Param-Region", "r")
                .header("Mcp-Param-Limit", "-9223372036854775808"),
            "2^53",
        ),
        (
            call(json!({"region": "r", "limit": u64::MAX}))
                .header("Mcp-Param-Region", "r")
                .header("Mcp-Param-Limit", "18446744073709551615"),
            "2^53",
        ),
        // Headers are checked before arguments.
        (call(json!({"region": 5})), "missing"),
    ] {
        let response = instance.send(&request).await;
        let message = response.error(400, -32020);
        assert_contains(&message, &[expected, "mcp-param-"]);
        assert_eq!(response.json()["id"], 1);
    }
    // Without a value no header is required, and the schema rejects the arguments.
    for arguments in [json!({}), json!({"region": null})] {
        let reply = instance.send(&call(arguments)).await.reply();
        assert_eq!(result(&reply)["isError"], true);
    }
}

#[tokio::test]
async fn headers_are_not_checked_without_http() {
    let server = Server::builder("h", "1").tool(Tool::new("query", query));
    let server = server.build().expect("the server builds");
    let request = call(json!({"region": "r"}));
    let reply = handle(&server, &request, refrain_core::Principal::anonymous()).await;
    assert_eq!(text(&reply), "r None false ");
}

#[test]
fn invalid_header_annotations_are_rejected_at_registration() {
    let with = |properties: Value| json!({"type": "object", "properties": properties});
    let annotated = |kind: &str, mark: &str| json!({"type": kind, "x-mcp-header": mark});
    for (schema, expected) in [
        (with(json!({"a": annotated("string", "")})), "a: "),
        (
            with(json!({"a": {"type": "string", "x-mcp-header": 5}})),
            "a: ",
        ),
        (
            with(json!({"a": annotated("string", "two words")})),
            "two words",
        ),
        (with(json!({"a": annotated("string", "a:b")})), "a:b"),
        (with(json!({"a": annotated("string", "a\r\nb")})), "a: "),
        (with(json!({"a": annotated("number", "A")})), "integer"),
        (with(json!({"a": annotated("object", "A")})), "a: "),
        (
            with(json!({"a": {"type": ["string", "null"], "x-mcp-header": "A"}})),
            "Option",
        ),
        (with(json!({"a": {"x-mcp-header": "A"}})), "a: "),
        (
            with(json!({"a": annotated("string", "X"), "b": annotated("string", "x")})),
            "another argument already has",
        ),
        (
            with(json!({"a": {"type": "array", "items": annotated("string", "A")}})),
            "a.items",
        ),
        (
            json!({"type": "object", "anyOf": [with(json!({"a": annotated("string", "A")}))]}),
            "anyOf",
        ),
        (
            json!({"type": "object", "$defs": {"a": annotated("string", "A")}}),
            "$defs",
        ),
        (
            json!({"type": "object", "x-mcp-header": "A"}),
            "at the top level of the schema",
        ),
    ] {
        async fn any(_: Cx) -> Result<&'static str> {
            Ok("any")
        }
        let tool = Tool::new("t", any).input_schema(schema.clone());
        let Err(error) = Server::builder("h", "1").tool(tool).build() else {
            panic!("{schema} was accepted")
        };
        assert!(matches!(error, BuildError::ParamHeader { .. }), "{error}");
        assert_contains(&error.to_string(), &["\"t\"", expected]);
    }
}
