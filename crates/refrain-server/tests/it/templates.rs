//! Resource templates: precedence, variables and conversion.

use crate::support::{Request, assert_contains, result, start};
use refrain_core::{Cx, Result};
use refrain_server::{
    BuildError, Prompt, Resource, ResourceTemplate, Server, ServerBuilder, TemplateFlaw,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Serialize, Deserialize, JsonSchema)]
struct Year(u16);

#[derive(Serialize, Deserialize, JsonSchema)]
enum Order {
    #[serde(rename = "new")]
    NewestFirst,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Search {
    year: Year,
    path: Vec<String>,
    q: Option<String>,
    limit: Option<u8>,
    score: Option<f64>,
    drafts: Option<bool>,
    order: Option<Order>,
    before: Option<Year>,
    ids: Vec<i64>,
}

async fn search(cx: Cx, search: Search) -> Result<String> {
    Ok(json!({"uri": cx.uri(), "search": search}).to_string())
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Repeat {
    word: String,
    times: usize,
    loud: Option<bool>,
}

async fn repeat(cx: Cx, repeat: Repeat) -> Result<String> {
    assert_eq!(cx.uri(), None);
    let text = repeat.word.repeat(repeat.times);
    Ok(match repeat.loud {
        Some(true) => text.to_uppercase(),
        _ => text,
    })
}

async fn uri(cx: Cx) -> Result<String> {
    Ok(cx.uri().unwrap_or("none").to_owned())
}

fn builder() -> ServerBuilder {
    Server::builder("templates", "1")
}

/// A template whose resources contain its name.
fn template(uri_template: &str, name: &'static str) -> ResourceTemplate {
    ResourceTemplate::new(uri_template, name, move |_: Cx| async move { Ok(name) })
}

fn content(reply: &Value) -> &str {
    let text = result(reply)["contents"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {reply}"))
}

#[tokio::test]
async fn variables_convert_to_the_types_of_the_struct() {
    let template = "s://{year}{/path*}{?q,limit,score,drafts,order,before,ids*}";
    let instance =
        start(builder().resource_template(ResourceTemplate::new(template, "search", search))).await;
    let full =
        "s://2026/a/b%20c?before=2025&ids=7&q=7&ids=-8&score=1e2&drafts=true&order=new&limit=3";
    let reply = instance.send(&Request::read(full)).await.reply();
    let search = json!({"year": 2026, "path": ["a", "b c"], "q": "7", "limit": 3, "score": 100.0,
        "drafts": true, "order": "new", "before": 2025, "ids": [7, -8]});
    let expected = json!({"uri": full, "search": search});
    assert_eq!(content(&reply), expected.to_string());
    let reply = instance.send(&Request::read("s://1")).await.reply();
    let search = json!({"year": 1, "path": [], "q": null, "limit": null, "score": null,
        "drafts": null, "order": null, "before": null, "ids": []});
    let expected = json!({"uri": "s://1", "search": search});
    assert_eq!(content(&reply), expected.to_string());

    for (wrong, words) in [
        ("s://2026?limit=many", ["many", "u8"]),
        ("s://2026?limit=300", ["300", "u8"]),
        ("s://2026?drafts=yes", ["yes", "boolean"]),
        ("s://2026?score=NaN", ["NaN", "f64"]),
        ("s://MMXXVI", ["MMXXVI", "u16"]),
    ] {
        let message = instance
            .send(&Request::read(wrong))
            .await
            .error(200, -32602);
        assert_contains(&message, &words);
    }
    for unknown in ["s://2026?other=1", "s://2026?q=1&q=2", "s://2026?q=%FF"] {
        let response = instance.send(&Request::read(unknown)).await;
        assert!(response.error(200, -32602).contains("unknown resource"));
        assert_eq!(response.json()["error"]["data"]["uri"], unknown);
    }
}

#[tokio::test]
async fn variables_are_decoded_without_sanitizing() {
    #[derive(Deserialize, JsonSchema)]
    struct File {
        name: String,
    }
    let file = ResourceTemplate::new(
        "f://{name}",
        "file",
        async |_: Cx, file: File| Ok(file.name),
    );
    let instance = start(builder().resource_template(file)).await;
    for (uri, name) in [
        ("f://..%2F..%2Fetc%2Fpasswd", "../../etc/passwd"),
        ("f://%2E%2E", ".."),
        ("f://a%00b", "a\0b"),
    ] {
        let reply = instance.send(&Request::read(uri)).await.reply();
        assert_eq!(content(&reply), name);
    }
    // An unencoded slash ends the variable.
    instance
        .send(&Request::read("f://../etc"))
        .await
        .error(200, -32602);
}

#[tokio::test]
async fn prompt_arguments_convert_to_the_types_of_the_struct() {
    let instance = start(builder().prompt(Prompt::new("repeat", repeat))).await;
    let get = async |arguments| {
        let reply = instance.send(&Request::prompt("repeat", arguments)).await;
        result(&reply.reply())["messages"][0]["content"]["text"].clone()
    };
    assert_eq!(get(json!({"word": "1", "times": "3"})).await, "111");
    let loud = json!({"word": "ha", "times": "2", "loud": "true"});
    assert_eq!(get(loud).await, "HAHA");
    let wrong = Request::prompt("repeat", json!({"word": "ha", "times": "often"}));
    assert_contains(
        &instance.send(&wrong).await.error(200, -32602),
        &["often", "usize"],
    );
    // On the wire, prompt arguments must be strings.
    let wrong = Request::prompt("repeat", json!({"word": "ha", "times": 2}));
    assert_contains(
        &instance.send(&wrong).await.error(200, -32602),
        &["times", "string"],
    );
}

#[tokio::test]
async fn resource_and_most_literal_template_take_precedence() {
    let instance = start(
        builder()
            .resource_template(template("n://{+all}", "all"))
            .resource_template(template("n://{a}/{b}", "pair"))
            .resource_template(template("n://{a}/index", "index"))
            .resource_template(template("n://{b}/{c}{?q}", "question"))
            .resource(Resource::new("n://home/index", "home", uri)),
    )
    .await;
    for (uri, name) in [
        ("n://home/index", "n://home/index"),
        ("n://work/index", "index"),
        ("n://work/other", "pair"),
        ("n://work/other?q=1", "question"),
        ("n://work/index?q=1", "question"),
        ("n://work", "all"),
        ("n://a/b/c", "all"),
    ] {
        let reply = instance.send(&Request::read(uri)).await.reply();
        assert_eq!(content(&reply), name, "{uri}");
    }
}

/// Builds a server with the template `n://{year}/{name}` and with `uri_template`.
fn build_with(uri_template: &'static str) -> Result<Server, BuildError> {
    builder()
        .resource_template(template("n://{year}/{name}", "one"))
        .resource_template(template(uri_template, "other"))
        .build()
}

#[test]
fn templates_matching_the_same_uris_are_duplicates() {
    for same in ["n://{a}/{b}", "n://{year}/{name}"] {
        let error = build_with(same).expect_err("both match the same URIs");
        assert!(matches!(error, BuildError::Duplicate { name, .. } if name == same));
    }
    for other in ["n://{a}/{b}/{c}", "n://{a}/{+b}", "m://{a}/{b}"] {
        assert!(build_with(other).is_ok(), "{other}");
    }
}

#[test]
fn ambiguous_template_is_rejected_with_position() {
    let error = build_with("n://{a}{b}").expect_err("the end of {a} is ambiguous");
    let BuildError::Template(error) = error else {
        panic!("{error}");
    };
    assert_eq!((error.at, error.flaw), (7, TemplateFlaw::Adjacent));
}

#[tokio::test]
async fn contents_have_a_valid_encoded_uri() {
    let template = ResourceTemplate::new("notes://{day}", "notes", async |_: Cx| Ok("text"));
    let instance = start(Server::builder("t", "1").resource_template(template)).await;
    for (requested, encoded) in [
        ("notes://%22monday%22", "notes://%22monday%22"),
        ("notes://\"monday\"", "notes://%22monday%22"),
        ("notes://mon%64ay", "notes://mon%64ay"),
    ] {
        let reply = instance.send(&Request::read(requested)).await.reply();
        assert_eq!(result(&reply)["contents"][0]["uri"], encoded);
    }
}
